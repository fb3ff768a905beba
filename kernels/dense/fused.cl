// fused: a chain of layers in one launch of one work-group, values in global memory.
//
// The first study's optimisation 3: launching a small layer costs more than computing
// it, and within a group a barrier separates two layers. One group uses one compute
// unit, so this pays only for small networks. Teams of work-items (team.h) compute
// neurons; samples follow one another.
//
//   x -> | values 0 | -> layer 0 -> | values 1 | -> layer 1 -> | values 0 | -> … -> y
//                           barrier                    barrier
//
// WIDEST  values in each buffer of `values`: the widest layer input, padded to whole
//         vectors
// ITEMS, GROUP, UNROLL  as in team.h; TILE is 1
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// REAL    as in activations.h
#define WIDTH 1
#include "include/activations.h"
#define X_SPACE __global
#define X_PADDED 1
#include "include/vectors.h"
#include "include/team.h"
#include "dense/chain.h"
#if !defined(WIDEST)
#error "fused.cl needs WIDEST"
#endif

// y[b, :] = the last layer's output for x[b, :]
//
// parameters [..]               the flat buffer
// x          [batch, ldx]       n_in values a row
// y          [batch, ldy]
// values     [2, WIDEST]        scratch, double-buffered: each layer reads one buffer and
//                               writes the other
// index map: one work-group; neurons are distributed cyclically over its teams
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fused(__global const REAL *parameters, __global const REAL *x, const int ldx,
           const int n_in, __global REAL *y, const int ldy, const int batch,
           __global REAL *values)
{
    __local REAL partial[PARTIALS];
    const int id = get_local_id(0), item = id % ITEMS, team = id / ITEMS;
    for (int sample = 0; sample < batch; ++sample) {
        __global REAL *source = values, *target = values + WIDEST;
        for (int i = id; i < stride_of[0]; i += GROUP)
            source[i] = i < n_in ? x[(size_t)sample * ldx + i] : (REAL)0;
        barrier(CLK_GLOBAL_MEM_FENCE);
        for (int layer = 0; layer < LAYERS; ++layer) {
            const int n_out = n_out_of[layer], stride = stride_of[layer];
            __global const REAL *weights = parameters + weights_of[layer];
            __global REAL *out =
                layer == LAYERS - 1 ? y + (size_t)sample * ldy : target;
            for (int first = 0; first < written_by(layer); first += TEAMS) {
                const int j = first + team;
                const bool live = j < n_out;
                REAL sum[TILE];
                team_multiply(sum, (__global const VEC *)(weights + (size_t)j * stride),
                              live ? stride / 4 : 0, source, 0, 1, stride, item);
                team_add(sum, partial);
                if (item == 0 && live) {
                    if (bias_of[layer] >= 0) sum[0] += parameters[bias_of[layer] + j];
                    out[j] = chain_activate(layer, sum[0]);
                } else if (item == 0 && j < written_by(layer)) {
                    out[j] = 0;
                }
            }
            barrier(CLK_GLOBAL_MEM_FENCE);
            target = source;
            source = out;
        }
    }
}

// fused_local: a chain of layers in one launch, hidden values only in local memory.
//
// The first study's optimisation 4, with one work-group for each tile of TILE samples,
// so that a batch fills the device. A tile passes through all layers on one compute
// unit; a weight is loaded once for its TILE samples. Teams of work-items (team.h)
// compute neurons.
//
// Layers alternately read at one end of the local array and write at the other, so that
// its size is that of the widest two neighbouring layers:
//
//   layer 0   [ x ------->        <-- y0 ]
//   layer 1   [ y1 --->           <-- y0 ]
//   layer 2   [ y1 --->     <------- y2  ]      the last layer writes to global memory
//
// VALUES  values in the local array, for TILE samples
// OFFSETS {n, …} offset of each layer's input [TILE, stride] in it
// ITEMS, GROUP, TILE, UNROLL  as in team.h
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// REAL    as in activations.h
#define WIDTH 1
#include "include/activations.h"
#define X_SPACE __local
#define X_PADDED 1
#include "include/vectors.h"
#include "include/team.h"
#include "dense/chain.h"
#if !defined(VALUES) || !defined(OFFSETS)
#error "fused_local.cl needs VALUES and OFFSETS"
#endif

__constant int offset_of[] = OFFSETS;

// y[b, :] = the last layer's output for x[b, :]
//
// parameters [..]           the flat buffer
// x          [batch, ldx]   n_in values a row
// y          [batch, ldy]
// index map: work-group = tile of TILE samples; neurons are distributed cyclically over
// its teams
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fused_local(__global const REAL *parameters, __global const REAL *x, const int ldx,
                 const int n_in, __global REAL *y, const int ldy, const int batch)
{
    __local REAL values[VALUES] VEC_ALIGNED;
    __local REAL partial[PARTIALS];
    const int id = get_local_id(0), item = id % ITEMS, team = id / ITEMS;
    const size_t sample = get_group_id(0) * TILE;
    const int samples = min(TILE, batch - (int)sample);
    x += sample * ldx;
    y += sample * ldy;
    // Samples beyond the batch are zeros.
    for (int i = id; i < TILE * stride_of[0]; i += GROUP) {
        const int t = i / stride_of[0], k = i % stride_of[0];
        values[i] = t < samples && k < n_in ? x[(size_t)t * ldx + k] : (REAL)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int layer = 0; layer < LAYERS; ++layer) {
        const bool last = layer == LAYERS - 1;
        const int n_out = n_out_of[layer], stride = stride_of[layer];
        const int ldt = written_by(layer);
        __global const REAL *weights = parameters + weights_of[layer];
        __local const REAL *source = values + offset_of[layer];
        __local REAL *target = values + (last ? 0 : offset_of[layer + 1]);
        for (int first = 0; first < ldt; first += TEAMS) {
            const int j = first + team;
            const bool live = j < n_out;
            REAL sums[TILE];
            team_multiply(sums, (__global const VEC *)(weights + (size_t)j * stride),
                          live ? stride / 4 : 0, source, stride, TILE, stride, item);
            team_add(sums, partial);
            if (item == 0 && j < ldt) {
                const REAL bias = live && bias_of[layer] >= 0
                                      ? parameters[bias_of[layer] + j] : (REAL)0;
#pragma unroll
                for (int t = 0; t < TILE; ++t) {
                    const REAL v =
                        live ? chain_activate(layer, sums[t] + bias) : (REAL)0;
                    if (!last) target[t * ldt + j] = v;
                    else if (t < samples) y[(size_t)t * ldy + j] = v;
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

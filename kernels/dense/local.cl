// local: one work-item per neuron; the group stages its input in local memory.
//
// The first study's optimisation 1. All neurons of a group read the same input, so the
// group loads it from global memory once, STAGE values at a time. Every work-item then
// reads it from local memory, where equal addresses are a broadcast.
//
//   x     | STAGE values | STAGE values | rest 0 |      one stage after the other
//               |  copied by all GROUP work-items
//               v
//   local | STAGE values |  <- work-item j multiplies it by its row of A
//
// GROUP     work-items, and neurons, of a group; usually 64 to 256
// STAGE     values staged at once: a multiple of 4, within local memory; usually 256
//           to 4096
// HAS_BIAS  1 or 0
// REAL, ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  as in activations.h
#define WIDTH 1
#include "include/activations.h"
#define X_SPACE __local
#define X_PADDED 1
#include "include/vectors.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS) || !defined(GROUP) || !defined(STAGE)
#error "local.cl needs ACTIVATION, HAS_BIAS, GROUP and STAGE"
#endif

// y[b, j] = f(sum over i of A[j, i] x[b, i] + bias[j])
//
// parameters [..]           A [n_out, stride] at `weights`, bias [n_out] at `bias`
// x          [batch, ldx]   y [batch, ldy]
// index map: work-group (b, neurons j of one block of GROUP), work-item j
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void staged(__global const REAL *parameters, const int weights, const int stride,
            const int bias, __global const REAL *x, const int ldx, __global REAL *y,
            const int ldy, const int n_in, const int n_out)
{
    __local REAL stage[STAGE] VEC_ALIGNED;
    const size_t sample = get_group_id(0);
    const int item = get_local_id(0);
    const int j = get_group_id(1) * GROUP + item;
    const bool live = j < n_out;
    __global const VEC *row =
        (__global const VEC *)(parameters + weights + (live ? (size_t)j * stride : 0));
    x += sample * ldx;
    REAL sum = HAS_BIAS && live ? parameters[bias + j] : (REAL)0;
    for (int start = 0; start < n_in; start += STAGE) {
        barrier(CLK_LOCAL_MEM_FENCE);  // the previous stage has been read
        for (int i = item; i < STAGE; i += GROUP)
            stage[i] = start + i < n_in ? x[start + i] : (REAL)0;
        barrier(CLK_LOCAL_MEM_FENCE);
        const int vectors = min(STAGE, stride - start) / 4;
        for (int v = 0; v < vectors; ++v) {
            const VEC a = row[start / 4 + v];
            const VEC b = four_of(stage, v, STAGE);
            ADD_PRODUCTS(sum, a, b)
        }
    }
    if (live) y[sample * ldy + j] = activate(sum);
}

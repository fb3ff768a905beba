// naive: one work-item per neuron, all operands from global memory.
//
// The first study's starting point. Neighbouring work-items read neighbouring rows of
// A, so that their loads are `stride` values apart and not coalesced.
//
// REAL                          float or double
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  the layer's function (activations.h)
// HAS_BIAS                      1 or 0
#define WIDTH 1
#include "include/activations.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS)
#error "naive.cl needs ACTIVATION and HAS_BIAS"
#endif

// y[b, j] = f(sum over i of A[j, i] x[b, i] + bias[j])
//
// parameters [..]           A [n_out, stride] at `weights`, bias [n_out] at `bias`
// x          [batch, ldx]   y [batch, ldy]
// index map: work-item b * across + j, in one dimension: others may be limited to 65535
__kernel void naive(__global const REAL *parameters, const int weights,
                    const int stride, const int bias, __global const REAL *x,
                    const int ldx, __global REAL *y, const int ldy, const int n_in,
                    const int n_out, const int across)
{
    const int j = get_global_id(0) % across;
    const size_t sample = get_global_id(0) / across;
    if (j >= n_out) return;
    __global const REAL *row = parameters + weights + (size_t)j * stride;
    x += sample * ldx;
    REAL sum = HAS_BIAS ? parameters[bias + j] : (REAL)0;
    for (int i = 0; i < n_in; ++i) sum += row[i] * x[i];
    y[sample * ldy + j] = activate(sum);
}

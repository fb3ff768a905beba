// four_sums: as naive, one work-item per neuron, but four sums instead of one.
//
// An addition waits for the one before it. Four sums are four chains of additions, whose
// latencies overlap.
//
// REAL                          float or double
// ACTIVATION, STEEPNESS, LIMIT  the layer's function (activations.h)
// HAS_BIAS                      1 or 0
#define WIDTH 1
#include "include/activations.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS)
#error "four_sums.cl needs ACTIVATION and HAS_BIAS"
#endif

// y[b, j] = f(sum over i of A[j, i] x[b, i] + bias[j])
//
// parameters [..]           A [n_out, stride] at `weights`, bias [n_out] at `bias`
// x          [batch, ldx]   y [batch, ldy]
// index map: work-item b * across + j
__kernel void four_sums(__global const REAL *parameters, const int weights,
                        const int stride, const int bias, __global const REAL *x,
                        const int ldx, __global REAL *y, const int ldy, const int n_in,
                        const int n_out, const int across)
{
    const int j = get_global_id(0) % across;
    const size_t sample = get_global_id(0) / across;
    if (j >= n_out) return;
    __global const REAL *row = parameters + weights + (size_t)j * stride;
    x += sample * ldx;
    REAL a = HAS_BIAS ? parameters[bias + j] : (REAL)0, b = 0, c = 0, d = 0;
    int i = 0;
    for (; i + 3 < n_in; i += 4) {
        a += row[i] * x[i];
        b += row[i + 1] * x[i + 1];
        c += row[i + 2] * x[i + 2];
        d += row[i + 3] * x[i + 3];
    }
    for (; i < n_in; ++i) a += row[i] * x[i];
    y[sample * ldy + j] = activate((a + b) + (c + d));
}

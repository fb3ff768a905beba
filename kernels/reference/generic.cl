// generic: every op, for every storage and every activation; right everywhere, fast
// nowhere. One work-item an element of the result.
//
// REAL      float or double
// MIXED(X)  the activations that occur, as X(0, act_tanh) X(1, …); bias_act only
#define WIDTH 1
#include "include/activations.h"

// sums[b, r] (+)= sum over the live entries of row r of A:  value * x[b, column]
//
// parameters [..]           the flat buffer; this layer's values start at `weights`
// starts     [n_out + 1]    row r owns entries starts[r] … starts[r + 1] - 1
// slots      [entries]      where an entry's value is, counted from `weights`
// columns    [entries]      which input it multiplies
// x          [batch, ldx]   sums [batch, lds]
// index map: work-item b * across + r, in one dimension: others may end at 65535
__kernel void apply(__global const REAL *parameters, const int weights,
                    __global const int *starts, __global const int *slots,
                    __global const int *columns, __global const REAL *x, const int ldx,
                    __global REAL *sums, const int lds, const int n_out,
                    const int accumulate, const int across)
{
    const int row = get_global_id(0) % across;
    const size_t sample = get_global_id(0) / across;
    if (row >= n_out) return;
    REAL sum = accumulate ? sums[sample * lds + row] : (REAL)0;
    for (int e = starts[row]; e < starts[row + 1]; ++e)
        sum += parameters[weights + slots[e]] * x[sample * ldx + columns[e]];
    sums[sample * lds + row] = sum;
}

#ifdef MIXED
// y[b, j] = f_j(clip(steepness[j] * (sums[b, j] + bias[j])))
//
// codes, steepness, limits [width]   the function of each neuron
// bias: where the layer's biases start in `parameters`, or -1 without; bias_step from
// one neuron's to the next, 0 where all share one
// index map: work-item b * across + j
__kernel void bias_act(__global const REAL *parameters, const int bias,
                       const int bias_step, __global const int *codes,
                       __global const REAL *steepness, __global const REAL *limits,
                       __global const REAL *sums, const int lds, __global REAL *y,
                       const int ldy, const int width, const int across)
{
    const int j = get_global_id(0) % across;
    const size_t sample = get_global_id(0) / across;
    if (j >= width) return;
    REAL v = sums[sample * lds + j];
    if (bias >= 0) v += parameters[bias + bias_step * j];
    v *= steepness[j];
    v = v < -limits[j] ? -limits[j] : v;
    v = v > limits[j] ? limits[j] : v;
    switch (codes[j]) {
#define CASE(code, function) case code: v = function(v); break;
        MIXED(CASE)
    }
    y[sample * ldy + j] = v;
}
#endif

// y[b, :] = softmax(x[b, :]); the maximum is taken off first, so that nothing
// overflows.
// index map: work-item b
__kernel void softmax(__global const REAL *x, const int ldx, __global REAL *y,
                      const int ldy, const int width, const int batch)
{
    const size_t sample = get_global_id(0);
    if (sample >= batch) return;
    x += sample * ldx;
    y += sample * ldy;
    REAL top = x[0];
    for (int j = 1; j < width; ++j) top = x[j] > top ? x[j] : top;
    REAL total = 0;
    for (int j = 0; j < width; ++j) {
        y[j] = exp(x[j] - top);
        total += y[j];
    }
    for (int j = 0; j < width; ++j) y[j] /= total;
}

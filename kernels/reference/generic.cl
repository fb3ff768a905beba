// generic: the forward ops for every storage and activation, on every device. Slow: one
// work-item an element of the result.
//
// REAL      float or double
// ACTIVATIONS(X)  bias_act only: the layer's activations, X(0, act_tanh) X(1, …)
#define WIDTH 1
#include "include/activations.h"

// The pre-activations A x: sums[b, r] (+)= sum over the live entries of row r of A, or
// all of a masked layer's: value * x[b, column]
//
// parameters [..]           the flat buffer; this layer's values start at `weights`
// starts     [n_out + 1]    row r has entries starts[r] … starts[r + 1] - 1; 0 first,
//                           sorted, the number of entries last
// slots      [entries]      offset of an entry's value from `weights`, below the
//                           storage's size, each once
// columns    [entries]      index of its input, below n_in
// x          [batch, ldx]   sums [batch, lds]
// index map: work-item b * row_items + r, in one dimension: others may end at 65535
__kernel void apply(__global const REAL *parameters, const int weights,
                    __global const int *starts, __global const int *slots,
                    __global const int *columns, __global const REAL *x, const int ldx,
                    __global REAL *sums, const int lds, const int n_out,
                    const int accumulate, const int row_items)
{
    const int row = get_global_id(0) % row_items;
    const size_t sample = get_global_id(0) / row_items;
    if (row >= n_out) return;
    REAL sum = accumulate ? sums[sample * lds + row] : (REAL)0;
    for (int e = starts[row]; e < starts[row + 1]; ++e)
        sum += parameters[weights + slots[e]] * x[sample * ldx + columns[e]];
    sums[sample * lds + row] = sum;
}

#ifdef ACTIVATIONS
// y[b, j] = f_j(clip(steepness[j] * (sums[b, j] + bias[j])))
//
// sums [batch, lds]                  pre-activations
// codes, steepness, limits [width]   the activation of each neuron; codes are those of
//                                    ACTIVATIONS
// bias: offset of the layer's biases in `parameters`, or -1 without; bias_step: 1, or 0
// where all neurons share one bias
// index map: work-item b * row_items + j
__kernel void bias_act(__global const REAL *parameters, const int bias,
                       const int bias_step, __global const int *codes,
                       __global const REAL *steepness, __global const REAL *limits,
                       __global const REAL *sums, const int lds, __global REAL *y,
                       const int ldy, const int width, const int row_items)
{
    const int j = get_global_id(0) % row_items;
    const size_t sample = get_global_id(0) / row_items;
    if (j >= width) return;
    REAL v = sums[sample * lds + j];
    if (bias >= 0) v += parameters[bias + bias_step * j];
    v *= steepness[j];
    v = v < -limits[j] ? -limits[j] : v;
    v = v > limits[j] ? limits[j] : v;
    switch (codes[j]) {
#define CASE(code, function) case code: v = function(v); break;
        ACTIVATIONS(CASE)
    }
    y[sample * ldy + j] = v;
}
#endif

// y[b, :] = softmax(x[b, :]), with the maximum subtracted first: nothing overflows
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

// y[b, :] = ln(softmax(x[b, :])), where the latter may be zero too
// index map: work-item b
__kernel void log_softmax(__global const REAL *x, const int ldx, __global REAL *y,
                          const int ldy, const int width, const int batch)
{
    const size_t sample = get_global_id(0);
    if (sample >= batch) return;
    x += sample * ldx;
    y += sample * ldy;
    REAL top = x[0];
    for (int j = 1; j < width; ++j) top = x[j] > top ? x[j] : top;
    REAL total = 0;
    for (int j = 0; j < width; ++j) total += exp(x[j] - top);
    const REAL log_total = log(total);
    for (int j = 0; j < width; ++j) y[j] = x[j] - top - log_total;
}

// generic_backward: the ops of a training step beyond the forward ones, for every
// storage and activation, on every device. Slow.
//
// A sum over the mini-batch is computed by one work-item or one work-group. Its order
// depends on the sizes alone: a device repeats its results bit for bit. Blocks of BLOCK
// samples are summed first, then added: rounding errors grow with the number of blocks.
//
// REAL   float or double
// BLOCK  samples of a partial sum; usually 64
// DERIVATIVES(X)  act_grad only: the layer's derivatives, X(0, grad_tanh, y) X(1, …, v)
// READS_Z, READS_Y  act_grad only: 1 where some derivative reads the pre-activation,
//        or the output
// LOSS, LOSS_GRADIENT, SIGMOID, SOFTMAX  loss only: as in losses.h
// MEAN   loss only: 1 where a sample's loss is the mean over its outputs
// WEIGHTED  loss only: 1 where samples have weights
// PARTIALS, TEAM  shared_bias_… only: partial sums; work-items that reduce them, a
//        power of two
// GROUP  tally… only: work-items of a group, a power of two
// SHUFFLED, ROWS  gather only: 1 where the order is random; rows of a group
#define WIDTH 1
#include "include/activations.h"
#ifndef BLOCK
#error "generic_backward.cl needs BLOCK"
#endif

#ifdef DERIVATIVES
#if !defined(READS_Z) || !defined(READS_Y)
#error "act_grad needs READS_Z and READS_Y"
#endif
#include "include/gradients.h"
// ds[b, j] = dy[b, j] * f_j'(v) * steepness[j]
//
// codes, steepness, limits [width]   the activation of each neuron
// bias: offset of the layer's biases in `parameters`, or -1 without; bias_step: 1, or 0
// where all neurons share one bias
// sums, outputs: pre-activations and outputs; any buffer where they are not read
// index map: work-item b * row_items + j, in one dimension: others may end at 65535
__kernel void act_grad(__global const REAL *parameters, const int bias,
                       const int bias_step, __global const int *codes,
                       __global const REAL *steepness, __global const REAL *limits,
                       __global const REAL *dy, const int lddy,
                       __global const REAL *sums, const int lds,
                       __global const REAL *outputs, const int ldy, __global REAL *ds,
                       const int ldds, const int width, const int row_items)
{
    const int j = get_global_id(0) % row_items;
    const size_t sample = get_global_id(0) / row_items;
    if (j >= width) return;
    const REAL s = steepness[j];
    REAL v = 0, y = 0, derivative = 0;
#if READS_Z
    v = sums[sample * lds + j];
    if (bias >= 0) v += parameters[bias + bias_step * j];
    v = clipped(v * s, -limits[j], limits[j]);
#endif
#if READS_Y
    y = outputs[sample * ldy + j];
#endif
    switch (codes[j]) {
#define CASE(code, function, at) case code: derivative = function(at, s); break;
        DERIVATIVES(CASE)
    }
    ds[sample * ldds + j] = dy[sample * lddy + j] * (derivative * s);
}
#endif

// dx[b, c] (+)= sum over the live entries of column c of A:  value * ds[b, row]
//
// starts [n_in + 1]           column c has entries starts[c] … starts[c + 1] - 1; 0
//                             first, sorted, the number of entries last
// slots, rows [entries]       offset of an entry's value from `weights`, below the
//                             storage's size; its row, below that of dz's width
// index map: work-item b * row_items + c
__kernel void apply_t(__global const REAL *parameters, const int weights,
                      __global const int *starts, __global const int *slots,
                      __global const int *rows, __global const REAL *ds, const int ldds,
                      __global REAL *dx, const int lddx, const int n_in,
                      const int accumulate, const int row_items)
{
    const int column = get_global_id(0) % row_items;
    const size_t sample = get_global_id(0) / row_items;
    if (column >= n_in) return;
    REAL sum = accumulate ? dx[sample * lddx + column] : (REAL)0;
    for (int e = starts[column]; e < starts[column + 1]; ++e)
        sum += parameters[weights + slots[e]] * ds[sample * ldds + rows[e]];
    dx[sample * lddx + column] = sum;
}

// Layers that share weights add their gradients: `accumulate` is 1 but for the first.
#define ADD_GRADIENT(to, sum) to = accumulate ? to + (sum) : (sum);

// gradients[weights + slot] (+)= sum over b: ds[b, row] * x[b, column], at each live
// entry
//
// slots, rows, columns [entries]   slots each once, for they are written; rows and
//                                  columns below the widths of dz and x
// index map: work-item = entry; neighbours are in one row and adjacent columns
__kernel void outer(__global REAL *gradients, const int weights,
                    __global const int *slots, __global const int *rows,
                    __global const int *columns, __global const REAL *ds,
                    const int ldds, __global const REAL *x, const int ldx,
                    const int entries, const int batch, const int accumulate)
{
    const int e = get_global_id(0);
    if (e >= entries) return;
    ds += rows[e];
    x += columns[e];
    REAL sum = 0;
    for (int start = 0; start < batch; start += BLOCK) {
        const int stop = min(start + BLOCK, batch);
        REAL part = 0;
        for (size_t b = start; b < stop; ++b) part += ds[b * ldds] * x[b * ldx];
        sum += part;
    }
    ADD_GRADIENT(gradients[weights + slots[e]], sum)
}

// gradients[bias + j] (+)= sum over b:  ds[b, j]
// index map: work-item j
__kernel void bias_grad(__global REAL *gradients, const int bias,
                        __global const REAL *ds, const int ldds, const int width,
                        const int batch, const int accumulate)
{
    const int j = get_global_id(0);
    if (j >= width) return;
    REAL sum = 0;
    for (int start = 0; start < batch; start += BLOCK) {
        const int stop = min(start + BLOCK, batch);
        REAL part = 0;
        for (size_t b = start; b < stop; ++b) part += ds[b * ldds + j];
        sum += part;
    }
    ADD_GRADIENT(gradients[bias + j], sum)
}

#ifdef PARTIALS
#if !defined(TEAM)
#error "shared_bias_grad needs TEAM"
#endif
// partial[h * columns + c] = sum of ds[b, j] over rows h, h + PARTIALS / columns, … and
// columns c, c + columns, …
// index map: work-item h * columns + c of PARTIALS
__kernel void shared_bias_parts(__global const REAL *ds, const int ldds,
                                __global REAL *partial, const int width,
                                const int batch, const int columns)
{
    const int i = get_global_id(0), column = i % columns;
    REAL sum = 0;
    for (size_t b = i / columns; b < batch; b += PARTIALS / columns)
        for (int j = column; j < width; j += columns) sum += ds[b * ldds + j];
    partial[i] = sum;
}

// gradients[bias] (+)= sum of partial [PARTIALS]
// index map: one group of TEAM work-items: thread-private sums, then a tree
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void shared_bias_grad(__global REAL *gradients, const int bias,
                      __global const REAL *partial, const int accumulate)
{
    __local REAL sums[TEAM];
    const int i = get_local_id(0);
    REAL sum = 0;
    for (int p = i; p < PARTIALS; p += TEAM) sum += partial[p];
    sums[i] = sum;
    for (int step = TEAM / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < step) sums[i] += sums[i + step];
    }
    if (i == 0) ADD_GRADIENT(gradients[bias], sums[0])
}
#endif

#ifdef MEAN
#if !defined(WEIGHTED)
#error "loss needs WEIGHTED"
#endif
#include "include/losses.h"
// A compensated sum and its rounding error (Kahan, as in `tally`): wide outputs have
// millions of terms.
#define ADD(sum, lost, term)                 \
    {                                        \
        const REAL added = (term) + lost;    \
        const REAL after = sum + added;      \
        lost = added - (after - sum);        \
        sum = after;                         \
    }

// The loss gradient dy[b, j] = d loss / d y; record[b] = loss, squared error, bit fails
//
// y [batch, ldy], t [batch, ldt], weight [batch] (not read without WEIGHTED)
// error_scales [width]: 0.5 where FANN halves the error, else 1
// samples: the valid ones; the others have zero gradients and records
// index map: work-item b
__kernel void loss(__global const REAL *y, const int ldy, __global const REAL *t,
                   const int ldt, __global const REAL *weight,
                   __global const REAL *error_scales, __global REAL *dy, const int lddy,
                   __global REAL *record, const int width, const int batch,
                   const REAL bit_fail_limit, const int samples)
{
    const size_t b = get_global_id(0);
    if (b >= batch) return;
    y += b * ldy;
    t += b * ldt;
    dy += b * lddy;
    record += b * 3;
    if (b >= samples) {
        for (int j = 0; j < width; ++j) dy[j] = 0;
        for (int i = 0; i < 3; ++i) record[i] = 0;
        return;
    }
    const REAL factor = WEIGHTED ? weight[b] : (REAL)1;
    const bool weighs = factor != 0;  // 0 times an overflow would be NaN
#if SOFTMAX
    REAL top = y[0], total = 0, targets = 0;
    for (int j = 1; j < width; ++j) top = y[j] > top ? y[j] : top;
    for (int j = 0; j < width; ++j) {
        total += exponential(y[j] - top);
        targets += t[j];
    }
    const REAL log_total = logarithm(total);
#endif
    REAL sum = 0, squares = 0, fails = 0, sum_lost = 0, squares_lost = 0;
    for (int j = 0; j < width; ++j) {
        const REAL output = LOSS_OUTPUT(y[j]);
        ADD(sum, sum_lost, LOSS_TERM(y[j], t[j], error_scales[j]))
        const REAL gradient = LOSS_SLOPE(y[j], output, t[j], error_scales[j]);
        const REAL error = (t[j] - output) * error_scales[j];
        ADD(squares, squares_lost, error * error)
        fails += fabs(error) >= bit_fail_limit ? 1 : 0;
        dy[j] = weighs ? factor * (MEAN ? gradient / width : gradient) : (REAL)0;
    }
    record[0] = weighs ? factor * (MEAN ? sum / width : sum) : (REAL)0;
    record[1] = weighs ? factor * squares : (REAL)0;
    record[2] = fails;
}
#endif

#ifdef GROUP
// sums[k][0] = sum of record[b, k] over the samples b of a group. Work-item i of the
// launch adds samples i, i + items, …; then a tree reduces the group.
static inline void add_records(__local REAL sums[3][GROUP], __global const REAL *record,
                               const int batch, const int items)
{
    const int i = get_local_id(0);
    for (int k = 0; k < 3; ++k) {
        REAL sum = 0;
        for (size_t b = get_global_id(0); b < batch; b += items) sum += record[b * 3 + k];
        sums[k][i] = sum;
    }
    for (int step = GROUP / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < step)
            for (int k = 0; k < 3; ++k) sums[k][i] += sums[k][i + step];
    }
}

// partial[g, k] = sum over group g's samples of record[b, k]
// index map: any number of groups
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void tally_parts(__global const REAL *record, __global REAL *partial, const int batch)
{
    __local REAL sums[3][GROUP];
    add_records(sums, record, batch, get_global_size(0));
    if (get_local_id(0) == 0)
        for (int k = 0; k < 3; ++k) partial[get_group_id(0) * 3 + k] = sums[k][0];
}

// totals (+)= sum over b of record[b]; the last three totals are the rounding errors of
// the first three (Kahan, "Further remarks on reducing truncation errors", 1965)
//
// fresh: 1 to reset the totals first
// index map: one group
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void tally(__global const REAL *record, __global REAL *totals, const int batch,
           const int fresh)
{
    __local REAL sums[3][GROUP];
    add_records(sums, record, batch, GROUP);
    if (get_local_id(0) == 0)
        for (int k = 0; k < 3; ++k) {
            const REAL before = fresh ? (REAL)0 : totals[k];
            const REAL added = sums[k][0] + (fresh ? (REAL)0 : totals[3 + k]);
            const REAL after = before + added;
            totals[k] = after;
            totals[3 + k] = added - (after - before);
        }
}
#endif

#ifdef ROWS
#include "include/order.h"
// to[i, :] = data[rows[i], :] for `count` rows, by all work-items of a group
static inline void copy_rows(__global const REAL *data, const int ldd,
                             __global REAL *to, const int ldt, const int width,
                             __local const uint *rows, const int count)
{
    for (int i = get_local_id(0); i < count * width; i += get_local_size(0)) {
        const int row = i / width, j = i % width;
        to[(size_t)row * ldt + j] = data[(size_t)rows[row] * ldd + j];
    }
}

// Gather a mini-batch of inputs, targets and weights: batch[b, :] = data[row, :], with
// row the sample first + b of the epoch's order.
//
// index map: work-group = ROWS rows
__kernel void gather(GATHER_PARAMETERS)
{
    __local uint rows[ROWS];
    const size_t start = (size_t)get_group_id(0) * ROWS;
    const int count = min(ROWS, batch - (int)start);
    for (int i = get_local_id(0); i < count; i += get_local_size(0))
        rows[i] = ORDERED_ROW(start + i);
    barrier(CLK_LOCAL_MEM_FENCE);
    copy_rows(xs, ldxs, x + start * ldx, ldx, x_width, rows, count);
    copy_rows(ts, ldts, t + start * ldt, ldt, t_width, rows, count);
    copy_rows(ws, ldws, w + start * ldw, ldw, w_width, rows, count);
}
#endif

// output_loss: the last layer with the loss, forward and backward, on GPUs.
//
// A last layer of few outputs is little work in many steps: its products, the loss, the
// sums of both, two gradients. Each as a launch would wait for the one before. Here a
// sample stays with its team, from the layer's inputs to their derivatives, and a second
// launch sums over samples:
//
//   output_loss       x --A--> y --loss--> dy --Aᵀ--> dx · f'     a team a sample
//   output_gradients  dyᵀ x    | sum of dy | sum of records       a group some columns
//
// The layer is linear: the loss includes its activation, or it has none.
//
// REAL      float or double
// N_OUT     outputs
// TEAM      work-items of a sample: as many as outputs, or more
// SAMPLES   samples of a group
// LANES     work-items that read neighbouring vectors of x, of a group of GROUP
// HALF      0.5 where FANN halves errors, else 1
// HAS_BIAS  1: the layer has biases
// LOSS, LOSS_GRADIENT, SIGMOID, SOFTMAX  as in losses.h
// MEAN      1: a sample's loss is the mean over its outputs
// WEIGHTED  1: samples have weights
// GRADIENT, READS_Z, STEEPNESS, HAS_LIMIT, LIMIT  as in activation_gradient.h: of the layer below
// BELOW_HAS_BIAS  1: biases are added to what that derivative reads
#define WIDTH 1
#include "include/activations.h"
#include "include/losses.h"
#include "include/activation_gradient.h"
#if !defined(N_OUT) || !defined(TEAM) || !defined(SAMPLES) || !defined(LANES)            \
    || !defined(GROUP) || !defined(HALF) || !defined(HAS_BIAS) || !defined(MEAN)         \
    || !defined(WEIGHTED) || !defined(BELOW_HAS_BIAS)
#error "output_loss.cl needs N_OUT, the shapes of its groups, and the macros of the loss"
#endif
#if N_OUT > TEAM
#error "output_loss.cl needs a TEAM of at least N_OUT"
#endif
#define VEC JOIN(REAL, 4)
#define PITCH (TEAM + 1)             // of partial sums: no bank conflicts
#define OUTPUTS ((N_OUT + 3) / 4 * 4)  // of a padded row of dy
#define SLICES (GROUP / LANES)       // of the batch: samples of a group at a time

// dx and dy of each sample, and its record: loss, squared error, bit fails
//
// parameters  A [N_OUT, lda] at `weights`, rows padded with zeros to vectors; its biases
//             at `bias`; those of the layer below at `bias_below`
// x [batch, ldx], saved [batch, ldsaved], dx [batch, lddx], dy [batch, OUTPUTS]: rows of
//             whole vectors, `vectors` of x. saved: see GRADIENT
// t [batch, ldt], weight [batch]
// samples     from this number on samples are padding and count for nothing
// index map: work-group (SAMPLES samples), team a sample
__kernel __attribute__((reqd_work_group_size(SAMPLES * TEAM, 1, 1)))
void output_loss(__global const REAL *parameters, const int weights, const int lda,
                 const int bias, const int bias_below, __global const REAL *x,
                 const int ldx, __global const REAL *t, const int ldt,
                 __global const REAL *weight, __global const REAL *saved,
                 const int ldsaved, __global REAL *dx, const int lddx,
                 __global REAL *dy, __global REAL *record, const int vectors,
                 const int batch, const int samples, const REAL bit_fail_limit)
{
    __local REAL partial[SAMPLES][N_OUT][PITCH], logits[SAMPLES][N_OUT];
    __local REAL goals[SAMPLES][N_OUT], slopes[SAMPLES][N_OUT];
    __local REAL terms[SAMPLES][N_OUT][3];
    // Unsigned: PoCL 5.0 takes signed quotients of an item's number for the group's.
    const uint team = get_local_id(0) / TEAM, item = get_local_id(0) % TEAM;
    const int number = get_group_id(0) * SAMPLES + team;
    const size_t b = min(number, batch - 1);
    __global const VEC *inputs = (__global const VEC *)(x + b * ldx);
    __global const VEC *rows = (__global const VEC *)(parameters + weights);
    const bool has_output = item < N_OUT;  // and its loss
    const REAL target = has_output ? t[b * ldt + item] : (REAL)0;
    const REAL factor = WEIGHTED ? weight[b] : (REAL)1;
    REAL sums[N_OUT];
#pragma unroll
    for (int o = 0; o < N_OUT; ++o) sums[o] = 0;
#pragma unroll 2
    for (int v = item; v < vectors; v += TEAM) {
        const VEC input = inputs[v];
#pragma unroll
        for (int o = 0; o < N_OUT; ++o) {
            const VEC a = rows[o * (lda / 4) + v];
            sums[o] += a.s0 * input.s0;
            sums[o] += a.s1 * input.s1;
            sums[o] += a.s2 * input.s2;
            sums[o] += a.s3 * input.s3;
        }
    }
#pragma unroll
    for (int o = 0; o < N_OUT; ++o) partial[team][o][item] = sums[o];
    barrier(CLK_LOCAL_MEM_FENCE);
    REAL logit = 0;
    if (has_output) {
#pragma unroll
        for (int i = 0; i < TEAM; ++i) logit += partial[team][item][i];
        if (HAS_BIAS) logit += parameters[bias + item];
        logits[team][item] = logit;
        goals[team][item] = target;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool counts = number < samples;
    const bool weighs = counts && factor != 0;  // 0 times an overflow would be NaN
    if (has_output) {
#if SOFTMAX
        REAL top = logits[team][0], total = 0, targets = 0;
#pragma unroll
        for (int o = 1; o < N_OUT; ++o)
            top = logits[team][o] > top ? logits[team][o] : top;
#pragma unroll
        for (int o = 0; o < N_OUT; ++o) {
            total += exponential(logits[team][o] - top);
            targets += goals[team][o];
        }
        const REAL log_total = logarithm(total);
#endif
        const REAL output = LOSS_OUTPUT(logit), error = (target - output) * (REAL)HALF;
        REAL slope = factor * LOSS_SLOPE(logit, output, target, (REAL)HALF);
        slope = weighs ? MEAN ? slope / N_OUT : slope : (REAL)0;
        slopes[team][item] = slope;
        if (number < batch) dy[b * OUTPUTS + item] = slope;
        terms[team][item][0] = LOSS_TERM(logit, target, (REAL)HALF);
        terms[team][item][1] = error * error;
        terms[team][item][2] = fabs(error) >= bit_fail_limit ? 1 : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0 && number < batch) {
        REAL sum[3] = {0, 0, 0};
        for (int o = 0; o < N_OUT; ++o)
            for (int k = 0; k < 3; ++k) sum[k] += terms[team][o][k];
        record += b * 3;
        record[0] = weighs ? factor * (MEAN ? sum[0] / N_OUT : sum[0]) : (REAL)0;
        record[1] = weighs ? factor * sum[1] : (REAL)0;
        record[2] = counts ? sum[2] : (REAL)0;
    }
    if (number >= batch) return;
#pragma unroll 2
    for (int v = item; v < vectors; v += TEAM) {
        VEC at = ((__global const VEC *)(saved + b * ldsaved))[v];
        if (BELOW_HAS_BIAS) at += ((__global const VEC *)(parameters + bias_below))[v];
        VEC sum = (VEC)(0);
#pragma unroll
        for (int o = 0; o < N_OUT; ++o) sum += slopes[team][o] * rows[o * (lda / 4) + v];
        sum *= (VEC)(activation_gradient(at.s0), activation_gradient(at.s1),
                     activation_gradient(at.s2), activation_gradient(at.s3));
        ((__global VEC *)(dx + b * lddx))[v] = sum;
    }
}

// Sums over slices, in slice 0
static inline void add_slices(__local VEC sums[4][GROUP])
{
    const uint id = get_local_id(0);
    for (uint step = SLICES / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id / LANES < step)
            for (int i = 0; i < 4; ++i) sums[i][id] += sums[i][id + step * LANES];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// The gradients: of A, dyᵀ x; of its biases, the sum of dy; and the totals of the records
//
// dy, x, record  as above, dy [batch, OUTPUTS] a VEC at a time
// totals [6]     (+)= the sums of the records, and their rounding errors so far (Kahan,
//                "Further remarks on reducing truncation errors", 1965)
// fresh          1 to reset the totals first
// index map: work-group: LANES vectors of x's columns; the last one: biases and totals
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void output_gradients(__global const REAL *dy, __global const REAL *x, const int ldx,
                      __global const REAL *record, __global REAL *gradients,
                      const int weights, const int lda, const int bias,
                      __global REAL *totals, const int vectors, const int batch,
                      const int fresh)
{
    __local VEC sums[4][GROUP];
    const uint id = get_local_id(0), lane = id % LANES, slice = id / LANES;
    const bool last = get_group_id(0) == get_num_groups(0) - 1;
    const int column = get_group_id(0) * LANES + lane;
    VEC all[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) all[o] = (VEC)(0);
    if (!last && column < vectors) {
#pragma unroll 4
        for (int b = slice; b < batch; b += SLICES) {
            const VEC input = ((__global const VEC *)(x + (size_t)b * ldx))[column];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o += 4) {
                const VEC slope = *(__global const VEC *)(dy + (size_t)b * OUTPUTS + o);
                all[o] += slope.s0 * input;
                all[o + 1] += slope.s1 * input;
                all[o + 2] += slope.s2 * input;
                all[o + 3] += slope.s3 * input;
            }
        }
    } else if (last) {  // a work-item a sample: all[0]: its record; then its dy
        for (int b = id; b < batch; b += GROUP) {
            __global const REAL *terms = record + (size_t)b * 3;
            all[0] += (VEC)(terms[0], terms[1], terms[2], 0);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o += 4)
                all[1 + o / 4] += *(__global const VEC *)(dy + (size_t)b * OUTPUTS + o);
        }
    }
#pragma unroll
    for (int first = 0; first < OUTPUTS; first += 4) {
        barrier(CLK_LOCAL_MEM_FENCE);  // the sums before have been read
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i][id] = all[first + i];
        add_slices(sums);
        const int number = first + id;
        if (!last) {
            for (int i = slice; i < 4; i += SLICES)
                if (first + i < N_OUT && column < vectors)
                    *(__global VEC *)(gradients + weights + (first + i) * lda + 4 * column)
                        = sums[i][lane];
        } else if (id < 4) {
            VEC sum = sums[id][0];
            for (int i = 1; i < LANES; ++i) sum += sums[id][i];
            const REAL four[4] = {sum.s0, sum.s1, sum.s2, sum.s3};
            for (int k = 0; k < 4; ++k) {
                const int o = 4 * (number - 1) + k;
                if (number == 0 && k < 3) {
                    const REAL before = fresh ? (REAL)0 : totals[k];
                    const REAL added = four[k] + (fresh ? (REAL)0 : totals[3 + k]);
                    const REAL after = before + added;
                    totals[k] = after;
                    totals[3 + k] = added - (after - before);
                }
                if (HAS_BIAS && number > 0 && o < N_OUT) gradients[bias + o] = four[k];
            }
        }
    }
}

// wide: elementwise ops and reductions of a training step, for samples of many outputs.
//
// A team of TEAM work-items takes a part of a sample, `share` columns, each work-item a
// vector at a time. Reductions have two stages: a team stores one partial sum, and
// `reduce_parts` adds those, in an order that depends on the sizes alone. Short samples
// have one part, and a group has several teams.
//
//   sample b  |      part 0       |      part 1       | part 2 |     parts of `share`
//   team      | 0 1 2 … 0 1 2 …   | 0 1 2 … 0 1 2 …   | 0 1 2 …      a vector each
//
// REAL     float or double
// WIDTH    elements of a vector: 4 or 8
// TEAM     work-items of a team, a power of two; 1 on CPU cores
// TEAMS    teams of a work-group; 1 in all kernels but the loss
// ALIGNED  1: every sample of every array is aligned to vectors
// of act_grad only:
// GRADIENT, READS_Z, STEEPNESS, HAS_LIMIT, LIMIT  as in activation_gradient.h
// HAS_BIAS, BIAS_STEP  1: v has a bias; each neuron has its own
// of the loss only:
// LOSS, LOSS_GRADIENT, SIGMOID, SOFTMAX  as in losses.h
// MEAN     1: the loss is a mean over outputs
// WEIGHTED  1: samples have weights
// HALF     0.5 where FANN halves errors, else 1
// WHOLE    1: a sample is one part
#include "include/activations.h"
#ifndef ALIGNED
#error "wide.cl needs ALIGNED"
#endif
#include "training/wide.h"

// target[offset + r] = sum over p of partial[r, p]
//
// partial [rows, parts]
// index map: group = row r
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void reduce_parts(__global const REAL *partial, const int parts,
                  __global REAL *target, const int offset)
{
    __local REAL scratch[TEAM];
    partial += (size_t)get_group_id(0) * parts;
    REAL sum = 0;
    for (int p = get_local_id(0); p < parts; p += TEAM) sum += partial[p];
    REDUCE_TEAM(plus, sum, scratch)
    if (get_local_id(0) == 0) target[offset + get_group_id(0)] = sum;
}

// target[offset + b * parts + p] = sum of ds[b, j] over part p
//
// index map: group b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void sum_parts(__global const REAL *ds, const int ldds, __global REAL *target,
               const int offset, const int width, const int share, const int parts)
{
    __local REAL scratch[TEAM];
    ds += (size_t)(get_group_id(0) / parts) * ldds;
    VAL sum = CONST(0);  // of so few terms that compensation gains nothing
    EACH_VECTOR((int)get_group_id(0) % parts, share, width)
        sum += load(ds + j, n, ALIGNED);
    REAL part = REDUCE_LANES(plus, sum);
    REDUCE_TEAM(plus, part, scratch)
    if (get_local_id(0) == 0) target[offset + get_group_id(0)] = part;
}

#ifdef GRADIENT
#if !defined(HAS_BIAS) || !defined(BIAS_STEP)
#error "act_grad needs HAS_BIAS and BIAS_STEP"
#endif
#include "include/activation_gradient.h"
// ds[b, j] = dy[b, j] * f'(v) * STEEPNESS
//
// saved [batch, ldsaved]: pre-activations with READS_Z, else outputs; dy if the
// derivative reads neither
// index map: group b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void act_grad(__global const REAL *parameters, const int bias, __global const REAL *dy,
              const int lddy, __global const REAL *saved, const int ldsaved,
              __global REAL *ds, const int ldds, const int width, const int share,
              const int parts)
{
    const size_t b = get_group_id(0) / parts;
    dy += b * lddy;
    saved += b * ldsaved;
    ds += b * ldds;
    EACH_VECTOR((int)get_group_id(0) % parts, share, width)
    {
        VAL at = load(saved + j, n, ALIGNED);
#if READS_Z && HAS_BIAS
        at += BIAS_STEP ? load(parameters + bias + j, n, ALIGNED)
                        : CONST(parameters[bias]);
#endif
        const VAL derivative = activation_gradient(at);
        store(ds + j, load(dy + j, n, ALIGNED) * derivative, n, ALIGNED);
    }
}
#endif

#ifdef MEAN
#if !defined(WEIGHTED) || !defined(HALF) || !defined(WHOLE)
#error "the loss needs WEIGHTED, HALF and WHOLE"
#endif
#include "include/losses.h"
#if SOFTMAX
// result = a part's largest output, its sum of e^(y - largest), and its sum of targets
static inline void softmax_part(REAL *result, __global const REAL *y,
                                __global const REAL *t, const int part, const int share,
                                const int width, __local Four *scratch)
{
    VAL tops = CONST(-INFINITY), total = CONST(0), targets = CONST(0);
    VAL total_lost = CONST(0), targets_lost = CONST(0);
    {
        EACH_VECTOR(part, share, width)
        {
            const VAL v = masked(load(y + j, n, ALIGNED), CONST(-INFINITY), n);
            tops = v > tops ? v : tops;
        }
    }
    Four largest = (Four)(REDUCE_LANES(larger, tops));
    REDUCE_TEAM(larger_4, largest, scratch)
    const REAL top = largest.s0;
    EACH_VECTOR(part, share, width)
    {
        const VAL term = exponential(load(y + j, n, ALIGNED) - CONST(top));
        KAHAN_ADD(total, total_lost, masked(term, CONST(0), n))
        KAHAN_ADD(targets, targets_lost, load(t + j, n, ALIGNED))
    }
    Four sums = (Four)(REDUCE_LANES(plus, total), REDUCE_LANES(plus, targets), 0, 0);
    REDUCE_TEAM(plus_4, sums, scratch)
    result[0] = top;
    result[1] = sums.s0;
    result[2] = sums.s1;
}

// partial[b, :, p] = the result of softmax_part for part p
//
// index map: group b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void softmax_parts(__global const REAL *y, const int ldy, __global const REAL *t,
                   const int ldt, __global REAL *partial, const int width,
                   const int share, const int parts)
{
    __local Four scratch[TEAM];
    const size_t b = get_group_id(0) / parts;
    const int part = get_group_id(0) % parts;
    REAL result[3];
    softmax_part(result, y + b * ldy, t + b * ldt, part, share, width, scratch);
    partial += b * 3 * parts + part;
    if (get_local_id(0) == 0)
        for (int i = 0; i < 3; ++i) partial[i * parts] = result[i];
}

// whole[b, :] = the same for all parts together
//
// index map: group b
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void softmax_reduce(__global const REAL *partial, const int parts,
                    __global REAL *whole)
{
    __local REAL scratch[TEAM];
    partial += (size_t)get_group_id(0) * 3 * parts;
    REAL top = -INFINITY, total = 0, targets = 0;
    for (int p = get_local_id(0); p < parts; p += TEAM) top = larger(top, partial[p]);
    REDUCE_TEAM(larger, top, scratch)
    for (int p = get_local_id(0); p < parts; p += TEAM) {
        const VAL factor = exponential(CONST(partial[p] - top));
        total += partial[parts + p] * factor.s0;
        targets += partial[2 * parts + p];
    }
    REDUCE_TEAM(plus, total, scratch)
    REDUCE_TEAM(plus, targets, scratch)
    if (get_local_id(0) == 0) {
        whole += get_group_id(0) * 3;
        whole[0] = top;
        whole[1] = total;
        whole[2] = targets;
    }
}
#endif

// dy[b, j] = d loss / d y; partial[b, :, p] = the loss, squared error and bit fails of
// part p
//
// y [batch, ldy], t [batch, ldt], weight [batch] (anything without WEIGHTED)
// whole [batch, 3]: of softmax_reduce (anything without SOFTMAX, or with WHOLE)
// samples: from this number on samples are padding and count for nothing
// index map: team b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM * TEAMS, 1, 1)))
void loss_parts(__global const REAL *y, const int ldy, __global const REAL *t,
                const int ldt, __global const REAL *weight, __global const REAL *whole,
                __global REAL *dy, const int lddy, __global REAL *partial,
                const int width, const REAL bit_fail_limit, const int batch,
                const int samples, const int share, const int parts)
{
    __local Four scratch[TEAM * TEAMS];
    const bool idle = TEAM_ID / parts >= batch;
    const size_t b = idle ? 0 : TEAM_ID / parts;
    const int part = idle ? parts : TEAM_ID % parts;  // parts: an empty part
    const bool counts = b < samples;
    const REAL factor = WEIGHTED ? weight[b] : (REAL)1;
    const bool weighs = counts && factor != 0;  // 0 times an overflow would be NaN
    y += b * ldy;
    t += b * ldt;
    dy += b * lddy;
#if SOFTMAX
    REAL softmax[3];
#if WHOLE
    softmax_part(softmax, y, t, part, share, width, scratch);
#else
    for (int i = 0; i < 3; ++i) softmax[i] = whole[3 * b + i];
#endif
    const VAL top = CONST(softmax[0]), targets = CONST(softmax[2]);
    const VAL total = CONST(softmax[1]), log_total = logarithm(total);
#endif
    VAL sum = CONST(0), squares = CONST(0), fails = CONST(0);
    VAL sum_lost = CONST(0), squares_lost = CONST(0);
    EACH_VECTOR(part, share, width)
    {
        const VAL v = load(y + j, n, ALIGNED), target = load(t + j, n, ALIGNED);
        const VAL output = LOSS_OUTPUT(v);
        const VAL term = LOSS_TERM(v, target, CONST(HALF));
        VAL gradient = LOSS_SLOPE(v, output, target, CONST(HALF));
        const VAL error = masked((target - output) * CONST(HALF), CONST(0), n);
        KAHAN_ADD(sum, sum_lost, masked(term, CONST(0), n))
        KAHAN_ADD(squares, squares_lost, error * error)
        const VAL fail =
            absolute(error) >= CONST(bit_fail_limit) ? CONST(1) : CONST(0);
        fails += masked(fail, CONST(0), n);
#if MEAN
        gradient /= CONST(width);
#endif
        store(dy + j, weighs ? CONST(factor) * gradient : CONST(0), n, ALIGNED);
    }
    Four sums = (Four)(REDUCE_LANES(plus, sum), REDUCE_LANES(plus, squares),
                       REDUCE_LANES(plus, fails), 0);
    REDUCE_TEAM(plus_4, sums, scratch)
    if (ITEM == 0 && !idle) {
        partial += b * 3 * parts + part;
        partial[0] = weighs ? factor * (MEAN ? sums.s0 / width : sums.s0) : (REAL)0;
        partial[parts] = weighs ? factor * sums.s1 : (REAL)0;
        partial[2 * parts] = counts ? sums.s2 : (REAL)0;
    }
}
#endif

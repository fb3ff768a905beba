// wide: ops of a training step over samples of many outputs, element by element or
// summed over them.
//
// A team of TEAM work-items takes `share` columns of a sample, each work-item a vector
// at a time; the teams of a sample are its parts. Sums are made in two stages: a team
// leaves one number, and `join` adds those, in an order that depends on the sizes
// alone. Of short samples one part is all, and a group has several teams.
//
//   sample b  |      part 0       |      part 1       | part 2 |     parts of `share`
//   team      | 0 1 2 … 0 1 2 …   | 0 1 2 … 0 1 2 …   | 0 1 2 …      a vector each
//
// REAL     float or double
// WIDTH    values of a vector: 4 or 8
// TEAM     work-items of a team, a power of two: 1 where each is a core's task
// TEAMS    teams of a work-group; 1 in all kernels but that of a loss
// ALIGNED  1: every sample of every array starts on a whole vector
// GRADIENT  act_grad only: the derivative (gradients.h)
// READS_SUMS, BY_SUM  act_grad only: 1 where the derivative is by v, else by y
// STEEPNESS, LIMIT, HAS_BIAS, BIAS_STEP  act_grad only: what v is made of
//          (activations.h; LIMIT is left out where there is none)
// LOSS, LOSS_GRADIENT  loss only: the functions, as in losses.h; left out with SOFTMAX
// SIGMOID, SOFTMAX, MEAN  loss only: 1 where the loss is fused with that activation;
//          where it is the mean over outputs
// WEIGHTED, HALF  loss only: 1 where samples have weights; 0.5 where FANN halves
//          errors, else 1
// WHOLE    loss only: 1 where a sample is one part
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
void join(__global const REAL *partial, const int parts, __global REAL *target,
          const int offset)
{
    __local REAL held[TEAM];
    partial += (size_t)get_group_id(0) * parts;
    REAL sum = 0;
    for (int p = get_local_id(0); p < parts; p += TEAM) sum += partial[p];
    IN_TEAM(plus, sum, held)
    if (get_local_id(0) == 0) target[offset + get_group_id(0)] = sum;
}

// target[offset + b * parts + p] = sum of ds[b, j] over part p
//
// index map: group b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void sums(__global const REAL *ds, const int ldds, __global REAL *target,
          const int offset, const int width, const int share, const int parts)
{
    __local REAL held[TEAM];
    ds += (size_t)(get_group_id(0) / parts) * ldds;
    VAL sum = CONST(0);  // of so few that to keep what rounding takes gains nothing
    EACH_VECTOR((int)get_group_id(0) % parts, share, width)
        sum += load(ds + j, n, ALIGNED);
    REAL one = FOLD(plus, sum);
    IN_TEAM(plus, one, held)
    if (get_local_id(0) == 0) target[offset + get_group_id(0)] = one;
}

#ifdef GRADIENT
#include "include/gradients.h"
// ds[b, j] = dy[b, j] * f'(v) * STEEPNESS
//
// at: [batch, ldat], the layer's sums with READS_SUMS, else its outputs; dy stands for
// it where the derivative reads neither
// index map: group b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void act_grad(__global const REAL *parameters, const int bias, __global const REAL *dy,
              const int lddy, __global const REAL *at, const int ldat,
              __global REAL *ds, const int ldds, const int width, const int share,
              const int parts)
{
    const size_t b = get_group_id(0) / parts;
    dy += b * lddy;
    at += b * ldat;
    ds += b * ldds;
    EACH_VECTOR((int)get_group_id(0) % parts, share, width)
    {
        VAL v = load(at + j, n, ALIGNED);
#if READS_SUMS
#if HAS_BIAS
        v += BIAS_STEP ? load(parameters + bias + j, n, ALIGNED)
                       : CONST(parameters[bias]);
#endif
        v *= CONST(STEEPNESS);
#ifdef LIMIT
        v = clipped(v, CONST(-LIMIT), CONST(LIMIT));
#endif
#endif
        const VAL slope = GRADIENT(v, CONST(STEEPNESS)) * CONST(STEEPNESS);
        store(ds + j, load(dy + j, n, ALIGNED) * slope, n, ALIGNED);
    }
}
#endif

#ifdef MEAN
#include "include/losses.h"
#if SOFTMAX
// found = of a part the largest output, the sum of e^(y - that), and the sum of targets
inline void softmax_of(REAL *found, __global const REAL *y, __global const REAL *t,
                       const int part, const int share, const int width,
                       __local Four *held)
{
    VAL tops = CONST(-INFINITY), total = CONST(0), targets = CONST(0);
    VAL total_lost = CONST(0), targets_lost = CONST(0);
    {
        EACH_VECTOR(part, share, width)
        {
            const VAL v = among(load(y + j, n, ALIGNED), CONST(-INFINITY), n);
            tops = v > tops ? v : tops;
        }
    }
    Four largest = (Four)(FOLD(larger, tops));
    IN_TEAM(larger_each, largest, held)
    const REAL top = largest.s0;
    EACH_VECTOR(part, share, width)
    {
        const VAL term = exponential(load(y + j, n, ALIGNED) - CONST(top));
        ADD(total, total_lost, among(term, CONST(0), n))
        ADD(targets, targets_lost, load(t + j, n, ALIGNED))
    }
    Four sums = (Four)(FOLD(plus, total), FOLD(plus, targets), 0, 0);
    IN_TEAM(plus_each, sums, held)
    found[0] = top;
    found[1] = sums.s0;
    found[2] = sums.s1;
}

// partial[b, :, p] = what `softmax_of` finds of part p
//
// index map: group b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void softmax_parts(__global const REAL *y, const int ldy, __global const REAL *t,
                   const int ldt, __global REAL *partial, const int width,
                   const int share, const int parts)
{
    __local Four held[TEAM];
    const size_t b = get_group_id(0) / parts;
    const int part = get_group_id(0) % parts;
    REAL found[3];
    softmax_of(found, y + b * ldy, t + b * ldt, part, share, width, held);
    partial += b * 3 * parts + part;
    if (get_local_id(0) == 0)
        for (int i = 0; i < 3; ++i) partial[i * parts] = found[i];
}

// whole[b, :] = the same of all parts
//
// index map: group b
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void softmax_join(__global const REAL *partial, const int parts, __global REAL *whole)
{
    __local REAL held[TEAM];
    partial += (size_t)get_group_id(0) * 3 * parts;
    REAL top = -INFINITY, total = 0, targets = 0;
    for (int p = get_local_id(0); p < parts; p += TEAM) top = larger(top, partial[p]);
    IN_TEAM(larger, top, held)
    for (int p = get_local_id(0); p < parts; p += TEAM) {
        const VAL factor = exponential(CONST(partial[p] - top));
        total += partial[parts + p] * factor.s0;
        targets += partial[2 * parts + p];
    }
    IN_TEAM(plus, total, held)
    IN_TEAM(plus, targets, held)
    if (get_local_id(0) == 0) {
        whole += get_group_id(0) * 3;
        whole[0] = top;
        whole[1] = total;
        whole[2] = targets;
    }
}
#endif

// dy[b, j] = d loss / d y, and partial[b, :, p] = of part p the loss, the squared
// error, the bit fails
//
// y [batch, ldy], t [batch, ldt], weight [batch] (anything without WEIGHTED)
// whole [batch, 3]: see softmax_join (anything without SOFTMAX, or with WHOLE)
// samples: those from this number on count for nothing
// index map: team b * parts + p
__kernel __attribute__((reqd_work_group_size(TEAM * TEAMS, 1, 1)))
void loss_parts(__global const REAL *y, const int ldy, __global const REAL *t,
                const int ldt, __global const REAL *weight, __global const REAL *whole,
                __global REAL *dy, const int lddy, __global REAL *partial,
                const int width, const REAL bit_fail_limit, const int batch,
                const int samples, const int share, const int parts)
{
    __local Four held[TEAM * TEAMS];
    const bool idle = TEAM_NUMBER / parts >= batch;
    const size_t b = idle ? 0 : TEAM_NUMBER / parts;
    const int part = idle ? parts : TEAM_NUMBER % parts;  // one beyond the last
    const bool counts = b < samples;
    const REAL factor = WEIGHTED ? weight[b] : (REAL)1;
    y += b * ldy;
    t += b * ldt;
    dy += b * lddy;
#if SOFTMAX
    REAL found[3];
#if WHOLE
    softmax_of(found, y, t, part, share, width, held);
#else
    for (int i = 0; i < 3; ++i) found[i] = whole[3 * b + i];
#endif
    const VAL top = CONST(found[0]), targets = CONST(found[2]);
    const VAL total = CONST(found[1]), log_total = logarithm(total);
#endif
    VAL sum = CONST(0), squares = CONST(0), fails = CONST(0);
    VAL sum_lost = CONST(0), squares_lost = CONST(0);
    EACH_VECTOR(part, share, width)
    {
        const VAL v = load(y + j, n, ALIGNED), target = load(t + j, n, ALIGNED);
        VAL output = v, term, slope;
#if SOFTMAX
        output = exponential(v - top) / total;
        term = target * (log_total - (v - top));
        slope = output * targets - target;
#else
        term = LOSS(v, target, CONST(HALF));
        slope = LOSS_GRADIENT(v, target, CONST(HALF));
#endif
#if SIGMOID
        output = act_sigmoid(v);
#endif
        const VAL error = among((target - output) * CONST(HALF), CONST(0), n);
        ADD(sum, sum_lost, among(term, CONST(0), n))
        ADD(squares, squares_lost, error * error)
        const VAL fail =
            absolute(error) >= CONST(bit_fail_limit) ? CONST(1) : CONST(0);
        fails += among(fail, CONST(0), n);
#if MEAN
        slope /= CONST(width);
#endif
        store(dy + j, counts ? CONST(factor) * slope : CONST(0), n, ALIGNED);
    }
    Four sums = (Four)(FOLD(plus, sum), FOLD(plus, squares), FOLD(plus, fails), 0);
    IN_TEAM(plus_each, sums, held)
    if (ITEM == 0 && !idle) {
        partial += b * 3 * parts + part;
        partial[0] = counts ? factor * (MEAN ? sums.s0 / width : sums.s0) : (REAL)0;
        partial[parts] = counts ? sums.s1 : (REAL)0;
        partial[2 * parts] = counts ? sums.s2 : (REAL)0;
    }
}
#endif

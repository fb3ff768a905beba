// optimisers: one step over the flat parameter buffer; a kernel for every row of
// clnet/optimisers.py, which names the sources of the rules.
//
// parameters [size]         changed in place
// gradients  [size]         of the sum over the step's samples
// live       [size]         0 for padding, which stays zero
// state      [slots, size]  the optimiser's, changed in place
// totals     [6]            of the epoch so far; [1] and [4] add up to the squared error
// rate: of this step; samples: of this step; seen: of the epoch; outputs: of a sample;
// count: steps taken before; seed: of random numbers
// index map: work-item = element
//
// REAL  float or double. The constants of a rule are macros of its fields' names; LEAST
// is the least step of RPROP and SARPROP, the least that counts for quickprop; CLAMP is
// FANN's largest weight.
#ifndef REAL
#error "optimisers.cl needs REAL"
#endif
#include "shuffling.h"

#define STEP(name)                                                                       \
    __kernel void name(__global REAL *parameters, __global const REAL *gradients,        \
                       __global const uchar *live, __global REAL *state,                 \
                       __global const REAL *totals, const int size, const int outputs,   \
                       const REAL rate, const int samples, const int seen,               \
                       const int count, const uint seed)
#define FIND_ELEMENT                                                                     \
    const int i = get_global_id(0);                                                      \
    if (i >= size || !live[i]) return;                                                   \
    REAL w = parameters[i];                                                              \
    const REAL g = gradients[i];
#define STATE(slot) state[(size_t)(slot) * size + i]

#ifdef INCREMENTAL
STEP(incremental)
{
    FIND_ELEMENT
    const REAL dw = (REAL)MOMENTUM * STATE(0) - rate * g;
    STATE(0) = dw;
    parameters[i] = w + dw;
}
#endif

#ifdef BATCH
STEP(batch)
{
    FIND_ELEMENT
    parameters[i] = w - rate / samples * g;
}
#endif

#ifdef RPROP
STEP(rprop)
{
    FIND_ELEMENT
    REAL slope = -g;
    REAL step = fmax(STATE(0), (REAL)LEAST);
    if (STATE(1) * slope >= 0) {
        step = fmin(step * (REAL)INCREASE_FACTOR, (REAL)DELTA_MAX);
    } else {
        step = fmax(step * (REAL)DECREASE_FACTOR, (REAL)DELTA_MIN);
        slope = 0;
    }
    if (slope < 0)
        w -= step;
    else if (MOVES_AT_ZERO || slope > 0)
        w += step;
    parameters[i] = clamp(w, -(REAL)CLAMP, (REAL)CLAMP);
    STATE(0) = step;
    STATE(1) = slope;
}
#endif

#ifdef QUICKPROP
STEP(quickprop)
{
    FIND_ELEMENT
    const REAL slope = (REAL)DECAY * w - g;
    const REAL descent = rate / samples * slope;
    const REAL step = STATE(0), before = STATE(1);
    REAL moved = descent;
    if (fabs(step) > (REAL)LEAST) {
        const REAL side = sign(step);
        moved = side * slope > 0 ? descent : 0;
        if (side * slope > side * ((REAL)SHRINK * before))
            moved += (REAL)MU * step;
        else if (before != slope)
            moved += step * slope / (before - slope);
    }
    parameters[i] = clamp(w + moved, -(REAL)CLAMP, (REAL)CLAMP);
    STATE(0) = moved;
    STATE(1) = slope;
}
#endif

#ifdef SARPROP
STEP(sarprop)
{
    FIND_ELEMENT
    const REAL error = (totals[1] + totals[4]) / ((REAL)seen * outputs);
    const REAL heat = -(REAL)TEMPERATURE * count;
    REAL slope = g - w * exp2(heat + (REAL)WEIGHT_DECAY_SHIFT);
    REAL step = fmax(STATE(0), (REAL)LEAST);
    const REAL sign_kept = STATE(1) * slope;
    if (sign_kept > 0) {
        step = fmin(step * (REAL)INCREASE_FACTOR, (REAL)DELTA_MAX);
        w += slope < 0 ? step : -step;
    } else if (sign_kept < 0) {
        const REAL shrunk = step * (REAL)DECREASE_FACTOR;
        if (step < (REAL)STEP_ERROR_THRESHOLD_FACTOR * error)
            step = shrunk + uniform_number(seed, count, i) * sqrt(error)
                                * exp2(heat + (REAL)STEP_ERROR_SHIFT);
        else
            step = fmax(shrunk, (REAL)LEAST);
        slope = 0;
    } else {
        w += slope < 0 ? step : -step;
        step = 0;
    }
    parameters[i] = w;
    STATE(0) = step;
    STATE(1) = slope;
}
#endif

#ifdef SGD
STEP(sgd)
{
    FIND_ELEMENT
    const REAL mean = g / samples + (REAL)WEIGHT_DECAY * w;
    const REAL velocity = (REAL)MOMENTUM * STATE(0) + mean;
    STATE(0) = velocity;
    parameters[i] = w - rate * (NESTEROV ? mean + (REAL)MOMENTUM * velocity : velocity);
}
#endif

// 1 - beta^(count + 1), exact also where beta is near 1.
#define CORRECTION(log_beta) (-expm1((count + (REAL)1) * (REAL)(log_beta)))

#if defined(ADAM) || defined(ADAMW)
#ifdef ADAM
STEP(adam)
#else
STEP(adamw)
#endif
{
    FIND_ELEMENT
    REAL mean = g / samples;
    if (DECOUPLED)
        w -= rate * (REAL)WEIGHT_DECAY * w;
    else
        mean += (REAL)WEIGHT_DECAY * w;
    const REAL first = (REAL)BETA1 * STATE(0) + (1 - (REAL)BETA1) * mean;
    const REAL second = (REAL)BETA2 * STATE(1) + (1 - (REAL)BETA2) * mean * mean;
    STATE(0) = first;
    STATE(1) = second;
    const REAL deviation = sqrt(second) / sqrt(CORRECTION(LOG_BETA2)) + (REAL)EPS;
    parameters[i] = w - rate / CORRECTION(LOG_BETA1) * (first / deviation);
}
#endif

#ifdef RMSPROP
STEP(rmsprop)
{
    FIND_ELEMENT
    const REAL mean = g / samples + (REAL)WEIGHT_DECAY * w;
    REAL square = (REAL)ALPHA * STATE(0) + (1 - (REAL)ALPHA) * mean * mean;
    STATE(0) = square;
    if (CENTERED) {
        const REAL average = (REAL)ALPHA * STATE(1) + (1 - (REAL)ALPHA) * mean;
        STATE(1) = average;
        square = fmax(square - average * average, (REAL)0);
    }
    const REAL velocity = (REAL)MOMENTUM * STATE(2) + mean / (sqrt(square) + (REAL)EPS);
    STATE(2) = velocity;
    parameters[i] = w - rate * velocity;
}
#endif

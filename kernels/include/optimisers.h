// One step of an optimiser: a function for every row of clnet/nn/optimisers.py, which
// names the sources of the rules. Written over VAL, as activations.h, which must be
// included before.
//
// One of INCREMENTAL, BATCH, RPROP … is defined: the rule. Its constants are macros of
// its fields' names, and
// SLOTS  values of state for each parameter
// LEAST  the least step of RPROP and SARPROP, the least that counts for quickprop
// CLAMP  FANN's largest weight
// and, where gradients are penalised or clipped, those of regularisation.h
#ifndef SLOTS
#error "optimisers.h needs a rule, and its SLOTS"
#endif
#include "include/regularisation.h"
#include "include/random.h"

// What a step knows beside gradients and state, and what follows from it.
typedef struct {
    REAL rate;           // of this step
    REAL samples;        // whose gradients were summed
    REAL mse;            // of the epoch so far
    REAL first, second;  // corrections of Adam's moments
    int count;           // steps taken before
    uint seed;           // of random numbers
    REAL norm;           // of the mean gradient, where that is clipped
} Moment;

// error: squared errors of the epoch so far, of `seen` samples with `outputs` each
inline Moment moment_of(const REAL rate, const int samples, const REAL error,
                        const int seen, const int outputs, const int count,
                        const uint seed)
{
    Moment now;
    now.rate = rate;
    now.samples = samples;
    now.mse = error / ((REAL)seen * outputs);
    now.count = count;
    now.seed = seed;
    now.norm = 0;
#if defined(ADAM) || defined(ADAMW)
    // 1 - beta^(count + 1), exact also where beta is near 1.
    now.first = -expm1((count + (REAL)1) * (REAL)LOG_BETA1);
    now.second = sqrt(-expm1((count + (REAL)1) * (REAL)LOG_BETA2));
#else
    now.first = now.second = 1;
#endif
    return now;
}

#define LESS(a, b) ((a) < (b) ? (a) : (b))
#define MORE(a, b) ((a) < (b) ? (b) : (a))
#define CLAMPED(w) MORE(CONST(-(CLAMP)), LESS(w, CONST(CLAMP)))

// A rule's new value of parameters w with gradients g; `s` is their state, `element`
// the number of the first in the flat buffer.
#define RULE                                                                         \
    inline VAL ruled(VAL w, const VAL g, VAL *s, const Moment now, const uint element)

#ifdef INCREMENTAL
RULE
{
    s[0] = CONST(MOMENTUM) * s[0] - CONST(now.rate) * g;
    return w + s[0];
}
#endif

#ifdef BATCH
RULE { return w - CONST(now.rate / now.samples) * g; }
#endif

#ifdef RPROP
RULE
{
    const VAL before = MORE(s[0], CONST(LEAST));
    const INTS same = s[1] * -g >= CONST(0);
    const VAL grown = LESS(before * CONST(INCREASE_FACTOR), CONST(DELTA_MAX));
    const VAL shrunk = MORE(before * CONST(DECREASE_FACTOR), CONST(DELTA_MIN));
    const VAL slope = same ? -g : CONST(0);
    const VAL step = same ? grown : shrunk;
    const VAL up = MOVES_AT_ZERO ? step : (slope > CONST(0) ? step : CONST(0));
    s[0] = step;
    s[1] = slope;
    w += slope < CONST(0) ? -step : up;
    return CLAMPED(w);
}
#endif

#ifdef QUICKPROP
RULE
{
    const VAL slope = CONST(DECAY) * w - g;
    const VAL descent = CONST(now.rate / now.samples) * slope;
    const VAL step = s[0], before = s[1];
    const VAL side = step < CONST(0) ? CONST(-1) : CONST(1);
    const VAL jump = CONST(MU) * step;
    // Where both slopes are equal there is no parabola.
    const VAL bend = before == slope ? CONST(1) : before - slope;
    const VAL vertex = before == slope ? CONST(0) : step * slope / bend;
    VAL moved = side * slope > CONST(0) ? descent : CONST(0);
    moved += side * slope > side * (CONST(SHRINK) * before) ? jump : vertex;
    moved = absolute(step) > CONST(LEAST) ? moved : descent;
    s[0] = moved;
    s[1] = slope;
    w += moved;
    return CLAMPED(w);
}
#endif

#ifdef SARPROP
#if WIDTH == 1
#define NUMBERS (uint)(0)
#else
#define NUMBERS (uint8)(0, 1, 2, 3, 4, 5, 6, 7)
#endif
DEFINE_MIXED(mixed_numbers, UINTS)

// Numbers `element` … of those of a step, in [0, 1).
inline VAL uniform_numbers(const Moment now, const uint element)
{
    const uint start = mixed(mixed(now.seed) ^ now.count);
    const UINTS words = mixed_numbers(((UINTS)(element) + NUMBERS) ^ (UINTS)(start));
    return CONVERT_VAL(words >> (UINTS)(8)) * CONST(1.0f / 16777216);
}

RULE
{
    const REAL heat = -(REAL)TEMPERATURE * now.count;
    const REAL noise = sqrt(now.mse) * exp2(heat + (REAL)STEP_ERROR_SHIFT);
    const VAL slope = g - w * CONST(exp2(heat + (REAL)WEIGHT_DECAY_SHIFT));
    const VAL before = MORE(s[0], CONST(LEAST));
    const VAL kept = s[1] * slope;
    const VAL grown = LESS(before * CONST(INCREASE_FACTOR), CONST(DELTA_MAX));
    VAL shrunk = before * CONST(DECREASE_FACTOR);
    shrunk = before < CONST((REAL)STEP_ERROR_THRESHOLD_FACTOR * now.mse)
                 ? shrunk + uniform_numbers(now, element) * CONST(noise)
                 : MORE(shrunk, CONST(LEAST));
    const VAL step = kept > CONST(0) ? grown : before;
    const VAL move = slope < CONST(0) ? step : -step;
    w += kept < CONST(0) ? CONST(0) : move;
    s[0] = kept > CONST(0) ? grown : kept < CONST(0) ? shrunk : CONST(0);
    s[1] = kept < CONST(0) ? CONST(0) : slope;
    return w;
}
#endif

#ifdef SGD
RULE
{
    const VAL mean = g / CONST(now.samples) + CONST(WEIGHT_DECAY) * w;
    s[0] = CONST(MOMENTUM) * s[0] + mean;
    return w - CONST(now.rate) * (NESTEROV ? mean + CONST(MOMENTUM) * s[0] : s[0]);
}
#endif

#if defined(ADAM) || defined(ADAMW)
RULE
{
    VAL mean = g / CONST(now.samples);
    if (DECOUPLED)
        w -= CONST(now.rate * (REAL)WEIGHT_DECAY) * w;
    else
        mean += CONST(WEIGHT_DECAY) * w;
    s[0] = CONST(BETA1) * s[0] + CONST(1 - (REAL)BETA1) * mean;
    s[1] = CONST(BETA2) * s[1] + CONST(1 - (REAL)BETA2) * mean * mean;
    const VAL deviation = sqrt(s[1]) * CONST(1 / now.second) + CONST(EPS);
    return w - CONST(now.rate / now.first) * (s[0] / deviation);
}
#endif

#ifdef RMSPROP
RULE
{
    const VAL mean = g / CONST(now.samples) + CONST(WEIGHT_DECAY) * w;
    s[0] = CONST(ALPHA) * s[0] + CONST(1 - (REAL)ALPHA) * mean * mean;
    VAL square = s[0];
    if (CENTERED) {
        s[1] = CONST(ALPHA) * s[1] + CONST(1 - (REAL)ALPHA) * mean;
        square = MORE(square - s[1] * s[1], CONST(0));
    }
    s[2] = CONST(MOMENTUM) * s[2] + mean / (sqrt(square) + CONST(EPS));
    return w - CONST(now.rate) * s[2];
}
#endif

// The new value, with gradients penalised and clipped before.
inline VAL stepped(const VAL w, const VAL g, VAL *s, const Moment now,
                   const uint element)
{
    const VAL whole = penalised(w, g, now.samples, element);
    return ruled(w, shortened(whole, now.samples, now.norm), s, now, element);
}

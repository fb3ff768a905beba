// One step of an optimiser: a function for every row of clnet/nn/optimisers.py, which
// names the sources of the rules. Include activations.h first, for VAL.
//
// One of INCREMENTAL, BATCH, RPROP … is defined: the rule; or RULE_HEADER, the file with
// the rule of a row outside the package. Macros with the names of its fields are its
// constants; those of moving averages have 1 - X as X_COMPLEMENT. And
// SLOTS  values of state for each parameter
// LEAST  smallest step of RPROP and SARPROP; quickprop takes smaller steps for zero
// CLAMP  FANN's largest weight
// and those of regularisation.h
#if !defined(SLOTS) || !defined(CLAMP)
#error "optimisers.h needs SLOTS and CLAMP"
#endif
#if !defined(INCREMENTAL) && !defined(BATCH) && !defined(RPROP) && !defined(QUICKPROP)   \
    && !defined(SARPROP) && !defined(SGD) && !defined(ADAM) && !defined(ADAMW)           \
    && !defined(RMSPROP) && !defined(RULE_HEADER)
#error "optimisers.h needs a rule"
#endif
#include "include/regularisation.h"
#include "include/random.h"

// The scalars of a step, and constants derived from them.
typedef struct {
    PER_NETWORK rate;    // of this step
    REAL samples;        // of the gradients' sum
    REAL mse;            // of the epoch so far
    REAL first, second;  // bias corrections of Adam's moments
    int count;           // steps taken before
    uint seed;           // of random numbers
    PER_NETWORK norm;    // of the mean gradient, with HAS_CLIP_NORM
    Penalties penalties;
} StepInfo;

// error: squared errors of the epoch so far, of `seen` samples with `outputs` each
static inline StepInfo step_info(const PER_NETWORK rate, const int samples,
                                 const REAL error, const int seen, const int outputs,
                                 const int count, const uint seed)
{
    StepInfo now;
    now.rate = rate;
    now.samples = samples;
    now.mse = error / ((REAL)seen * outputs);
    now.count = count;
    now.seed = seed;
    now.norm = 0;
    now.penalties = PENALTIES;
#if defined(ADAM) || defined(ADAMW)
    // 1 - beta^(count + 1), accurate also for beta near 1.
    now.first = -expm1((count + (REAL)1) * (REAL)LOG_BETA1);
    now.second = sqrt(-expm1((count + (REAL)1) * (REAL)LOG_BETA2));
#else
    now.first = now.second = 1;
#endif
    return now;
}

#define MINIMUM(a, b) ((a) < (b) ? (a) : (b))
#define MAXIMUM(a, b) ((a) < (b) ? (b) : (a))
#define CLAMP_WEIGHT(w) MAXIMUM(CONST(-(CLAMP)), MINIMUM(w, CONST(CLAMP)))

// The new value of parameters w with gradients g. s: their state; element: index of the
// first in the flat buffer.
#define RULE                                                                         \
    static inline VAL apply_rule(VAL w, const VAL g, VAL *s, const StepInfo now,       \
                                 const uint element)

#ifdef INCREMENTAL
#if !defined(MOMENTUM)
#error "INCREMENTAL needs MOMENTUM"
#endif
RULE
{
    s[0] = CONST(MOMENTUM) * s[0] - (VAL)(now.rate) * g;
    return w + s[0];
}
#endif

#ifdef BATCH
RULE { return w - (VAL)(now.rate / now.samples) * g; }
#endif

// A number with the sign of a * b, which may underflow.
static inline VAL agreement_of(const VAL a, const VAL b)
{
    return b > CONST(0) ? a : b < CONST(0) ? -a : a * b;
}

#ifdef RPROP
#if !defined(LEAST) || !defined(INCREASE_FACTOR) || !defined(DECREASE_FACTOR) \
    || !defined(DELTA_MIN) || !defined(DELTA_MAX) || !defined(MOVES_AT_ZERO)
#error "RPROP needs LEAST, INCREASE_FACTOR, DECREASE_FACTOR, DELTA_MIN, \
DELTA_MAX and MOVES_AT_ZERO"
#endif
RULE
{
    const VAL previous = MAXIMUM(s[0], CONST(LEAST));
    const INTS turned = agreement_of(s[1], -g) < CONST(0);  // NaN stays, and is told
    const VAL grown = MINIMUM(previous * CONST(INCREASE_FACTOR), CONST(DELTA_MAX));
    const VAL shrunk = MAXIMUM(previous * CONST(DECREASE_FACTOR), CONST(DELTA_MIN));
    const VAL slope = turned ? CONST(0) : -g;
    const VAL step = turned ? shrunk : grown;
    const VAL up = MOVES_AT_ZERO ? step : (slope > CONST(0) ? step : CONST(0));
    s[0] = step;
    s[1] = slope;
    w += slope < CONST(0) ? -step : up;
    return CLAMP_WEIGHT(w);
}
#endif

#ifdef QUICKPROP
#if !defined(LEAST) || !defined(DECAY) || !defined(MU) || !defined(SHRINK)
#error "QUICKPROP needs LEAST, DECAY, MU and SHRINK"
#endif
RULE
{
    const VAL slope = CONST(DECAY) * w - g;
    const VAL descent = (VAL)(now.rate / now.samples) * slope;
    const VAL step = s[0], previous = s[1];
    const VAL side = step < CONST(0) ? CONST(-1) : CONST(1);
    const VAL jump = CONST(MU) * step;
    // Equal slopes have no parabola.
    const VAL difference = previous == slope ? CONST(1) : previous - slope;
    const VAL parabola = previous == slope ? CONST(0) : step * slope / difference;
    VAL moved = side * slope > CONST(0) ? descent : CONST(0);
    moved += side * slope > side * (CONST(SHRINK) * previous) ? jump : parabola;
    moved = absolute(step) > CONST(LEAST) ? moved : descent;
    s[0] = moved;
    s[1] = slope;
    w += moved;
    return CLAMP_WEIGHT(w);
}
#endif

#ifdef SARPROP
#if !defined(LEAST) || !defined(TEMPERATURE) || !defined(STEP_ERROR_SHIFT) \
    || !defined(STEP_ERROR_THRESHOLD_FACTOR) || !defined(WEIGHT_DECAY_SHIFT) \
    || !defined(INCREASE_FACTOR) || !defined(DECREASE_FACTOR) || !defined(DELTA_MAX)
#error "SARPROP needs LEAST, TEMPERATURE, STEP_ERROR_SHIFT, \
STEP_ERROR_THRESHOLD_FACTOR, WEIGHT_DECAY_SHIFT, INCREASE_FACTOR, DECREASE_FACTOR and \
DELTA_MAX"
#endif
#if WIDTH == 1
#define LANE_INDICES (uint)(0)
#else
#define LANE_INDICES (uint8)(0, 1, 2, 3, 4, 5, 6, 7)
#endif
DEFINE_HASH(hash_words, UINTS)

// Random numbers `element` … of a step, in [0, 1).
static inline VAL random_uniform(const StepInfo now, const uint element)
{
    const uint start = hash_word(hash_word(now.seed) ^ now.count);
    const UINTS words = hash_words(((UINTS)(element) + LANE_INDICES) ^ (UINTS)(start));
    return CONVERT_VAL(words >> (UINTS)(8)) * CONST(1.0f / 16777216);
}

RULE
{
    const REAL exponent = -(REAL)TEMPERATURE * now.count;
    const REAL noise = sqrt(now.mse) * exp2(exponent + (REAL)STEP_ERROR_SHIFT);
    const VAL slope = g - w * CONST(exp2(exponent + (REAL)WEIGHT_DECAY_SHIFT));
    const VAL previous = MAXIMUM(s[0], CONST(LEAST));
    const VAL agreement = agreement_of(s[1], slope);
    const VAL grown = MINIMUM(previous * CONST(INCREASE_FACTOR), CONST(DELTA_MAX));
    VAL shrunk = previous * CONST(DECREASE_FACTOR);
    shrunk = previous < CONST((REAL)STEP_ERROR_THRESHOLD_FACTOR * now.mse)
                 ? shrunk + random_uniform(now, element) * CONST(noise)
                 : MAXIMUM(shrunk, CONST(LEAST));
    const VAL step = agreement > CONST(0) ? grown : previous;
    const VAL move = slope < CONST(0) ? step : -step;
    w += agreement < CONST(0) ? CONST(0) : move;
    s[0] = agreement > CONST(0) ? grown : agreement < CONST(0) ? shrunk : CONST(0);
    s[1] = agreement < CONST(0) ? CONST(0) : slope;
    return w;
}
#endif

#ifdef SGD
#if !defined(MOMENTUM) || !defined(NESTEROV) || !defined(WEIGHT_DECAY)
#error "SGD needs MOMENTUM, NESTEROV and WEIGHT_DECAY"
#endif
RULE
{
    const VAL mean = g / CONST(now.samples) + CONST(WEIGHT_DECAY) * w;
    s[0] = CONST(MOMENTUM) * s[0] + mean;
    return w - (VAL)(now.rate) * (NESTEROV ? mean + CONST(MOMENTUM) * s[0] : s[0]);
}
#endif

// decay * average + (1 - decay) * value. complement: 1 - decay, of the decay before it is
// rounded. Only the smaller factor is used: the other one, rounded, would be off by more
// than a rounding relative to the smaller.
static inline VAL moving_average(const VAL average, const VAL value, const REAL decay,
                                 const REAL complement)
{
    return decay < complement ? value + CONST(decay) * (average - value)
                              : average + CONST(complement) * (value - average);
}

#if defined(ADAM) || defined(ADAMW)
#if !defined(BETA1) || !defined(BETA1_COMPLEMENT) || !defined(LOG_BETA1) \
    || !defined(BETA2) || !defined(BETA2_COMPLEMENT) || !defined(LOG_BETA2) \
    || !defined(EPS) || !defined(WEIGHT_DECAY) || !defined(DECOUPLED)
#error "ADAM and ADAMW need BETA1, BETA1_COMPLEMENT, LOG_BETA1, BETA2, \
BETA2_COMPLEMENT, LOG_BETA2, EPS, WEIGHT_DECAY and DECOUPLED"
#endif
RULE
{
    VAL mean = g / CONST(now.samples);
    if (DECOUPLED)
        w -= (VAL)(now.rate * (REAL)WEIGHT_DECAY) * w;
    else
        mean += CONST(WEIGHT_DECAY) * w;
    s[0] = moving_average(s[0], mean, BETA1, BETA1_COMPLEMENT);
    s[1] = moving_average(s[1], mean * mean, BETA2, BETA2_COMPLEMENT);
    const VAL deviation = square_root(s[1]) * CONST(1 / now.second) + CONST(EPS);
    return w - (VAL)(now.rate / now.first) * (s[0] / deviation);
}
#endif

#ifdef RMSPROP
#if !defined(ALPHA) || !defined(ALPHA_COMPLEMENT) || !defined(EPS) \
    || !defined(MOMENTUM) || !defined(CENTERED) || !defined(WEIGHT_DECAY)
#error "RMSPROP needs ALPHA, ALPHA_COMPLEMENT, EPS, MOMENTUM, CENTERED and \
WEIGHT_DECAY"
#endif
RULE
{
    const VAL mean = g / CONST(now.samples) + CONST(WEIGHT_DECAY) * w;
    if (CENTERED) {
        const VAL off = mean - s[1];
        const VAL grown = s[0] + CONST(ALPHA_COMPLEMENT) * off * off;
        s[0] = moving_average(grown, CONST(0), ALPHA, ALPHA_COMPLEMENT);
        s[1] = moving_average(s[1], mean, ALPHA, ALPHA_COMPLEMENT);
    } else {
        s[0] = moving_average(s[0], mean * mean, ALPHA, ALPHA_COMPLEMENT);
    }
    s[2] = CONST(MOMENTUM) * s[2] + mean / (square_root(s[0]) + CONST(EPS));
    return w - (VAL)(now.rate) * s[2];
}
#endif

#ifdef RULE_HEADER
#include RULE_HEADER
#endif

// The new value by the rule, after penalties and clipping.
static inline VAL stepped(const VAL w, const VAL g, VAL *s, const StepInfo now,
                          const uint element)
{
    const VAL total = add_penalties(w, g, now.samples, now.penalties, element);
    return apply_rule(w, clip_gradient(total, now.samples, now.norm), s, now, element);
}

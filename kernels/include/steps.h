// Shared by the kernels that compute whole training steps in a launch.
//
// FUNCTIONS(X)  the activations of the network: X(code, act_NAME, grad_NAME, READS);
//               READS, the argument of the derivative: AT_PRE_ACTIVATION or AT_Y
// LOSS, LOSS_GRADIENT, SIGMOID, SOFTMAX  as in losses.h
// MEAN          1: a sample's loss is the mean over its outputs; 0: their sum
// BACKWARD      1: gradients; 0: losses alone
// UPDATE        1: with a step of the optimiser, whose macros are those of optimisers.h
// GATHERED      0: the data set is the mini-batch; 1: mini-batches are rows of the data
//               set in its own order; 2: in the epoch's random order
// WEIGHTED      1: samples have weights
// RECORD        values of a step's record: loss, squared error, bit fails
// RESIDENT      1: an epoch's totals are in local memory until its end,
//               the array `records`; 0: in `totals`
// APART         values reserved for a record behind partial gradients: a whole vector
// and those of regularisation.h
#if !defined(FUNCTIONS) || !defined(BACKWARD) || !defined(UPDATE) || !defined(GATHERED)  \
    || !defined(WEIGHTED) || !defined(MEAN) || !defined(RECORD) || !defined(APART)       \
    || !defined(RESIDENT)
#error "steps.h needs FUNCTIONS, BACKWARD, UPDATE, GATHERED, WEIGHTED, MEAN, RECORD, \
APART and RESIDENT"
#endif
#include "include/activations.h"
#include "include/gradients.h"
#include "include/losses.h"
#if UPDATE
#include "include/optimisers.h"
#else
#include "include/random.h"
#include "include/regularisation.h"
#endif
#if RESIDENT
#define TOTALS __local
#define RUN_TOTALS records
#else
#define TOTALS __global
#define RUN_TOTALS totals + record_offset
#endif

#define AT_Y(y, v) (y)
#define AT_PRE_ACTIVATION(y, v) (v)

// A row of the table of layers (LAYER of clnet/variants/training/whole_step.py).
typedef struct {
    int n_in, n_out;
    int stride;           // of the rows of A
    int weights;          // offset of A in the parameters
    int bias;             // offset of the biases; -1: none
    int values;           // offset of the outputs in a worker's memory
    int pre_activations;  // offset of the scaled pre-activations where the derivative
                          // reads them; -1: it reads the outputs
    int neuron;           // index of the first neuron in the table of neurons
} Layer;

// A row of the table of neurons.
typedef struct {
    int function;
    float steepness, limit;
    float error_scale;  // of an output's error: 0.5 where FANN halves it
} Neuron;

// totals [2 * RECORD]: compensated sums of the epoch so far, and their rounding errors
// (Kahan, "Further remarks on reducing truncation errors", 1965)
static inline void add_to_total(TOTALS float *totals, const int k, const float value,
                                const int fresh)
{
    const float before = fresh ? 0 : totals[k];
    const float added = value + (fresh ? 0 : totals[RECORD + k]);
    const float after = before + added;
    totals[k] = after;
    totals[RECORD + k] = added - (after - before);
}

// A row of the table of epochs (EPOCH of clnet/opencl/launch.py).
typedef struct {
    uint key[8];  // of the order of samples
    float rate;
} Epoch;

// A launch's way through its steps: some of one epoch, or whole epochs in a row.
typedef struct {
    int batch;     // samples of a step, but for an epoch's last
    int samples;   // of all steps, or of one epoch of several
    int seen;      // samples of the epoch before the launch's first
    int fresh;     // whether the launch's first step is the epoch's
    int stride;    // elements from an epoch's totals to the next one's; 0: all share them
    int scheduled;                  // whether each epoch has its own order and rate:
    __global const Epoch *schedule;  // of the second epoch from [1] on
    // The launch ends after an epoch whose squared errors or bit fails are below these.
    float squares_limit, fails_limit;
    __global float *first_totals;
    // Of the step:
    int epoch;           // of this launch
    int begin, size;     // its samples, counted from the epoch's or launch's first
    uint8 key;
    float rate;
    TOTALS float *totals;
} Run;

#define RUN_ARGUMENTS                                                                \
    const int record_offset, const int record_stride,                                \
        __global const Epoch *schedule, const int scheduled,                         \
        const float squares_limit, const float fails_limit
#define SET_RUN                                                                      \
    Run run = {batch, samples, seen - min(batch, samples), fresh, record_stride,      \
               scheduled, schedule, squares_limit, fails_limit,                      \
               totals + record_offset, 0, 0, min(batch, samples),                    \
               (uint8)(k0, k1, k2, k3, k4, k5, k6, k7), rate, RUN_TOTALS};

// Whether a step is the first of its epoch, whose totals start at zero.
static inline int starts_epoch(const Run *run)
{
    return run->begin == 0 && (run->fresh || run->epoch);
}

// Samples of the epoch so far, those of the step included.
static inline int seen_samples(const Run *run)
{
    return (run->epoch ? 0 : run->seen) + run->begin + run->size;
}

// Go to the next step; 0: the host looks at the totals first, as they are not finite or
// below a limit.
static inline int next_step(Run *run)
{
    run->begin += run->size;
    if (run->begin < run->samples) {
        run->size = min(run->batch, run->samples - run->begin);
        return 1;
    }
    TOTALS const float *totals = run->totals;
    ++run->epoch;
    const float zero = (totals[0] - totals[0]) + (totals[1] - totals[1]);
    if (zero != 0 || totals[1] < run->squares_limit || totals[2] < run->fails_limit)
        return 0;
    run->begin = 0;
    run->size = min(run->batch, run->samples);
    if (!RESIDENT) run->totals += run->stride;
    if (run->scheduled) {
        run->key = vload8(0, run->schedule[run->epoch].key);
        run->rate = run->schedule[run->epoch].rate;
    }
    return 1;
}

// Store the number of epochs of the launch behind the first one's totals.
static inline void store_epochs(const Run *run)
{
    if (run->stride) run->first_totals[2 * RECORD] = run->epoch;
}

#if WIDTH == 8
// Vectors without alignment.
typedef float4 __attribute__((aligned(4))) float4_unaligned;
typedef float8 __attribute__((aligned(4))) float8_unaligned;

static inline float lane_sum(const float8 v)
{
    const float4 a = v.lo + v.hi;
    const float2 b = a.lo + a.hi;
    return b.lo + b.hi;
}

// The lane sums of four half vectors, and of four vectors.
static inline float4 half_lane_sums(const float4 p, const float4 q, const float4 r,
                                    const float4 s)
{
    const float4 first = (float4)(p.even, q.even) + (float4)(p.odd, q.odd);
    const float4 second = (float4)(r.even, s.even) + (float4)(r.odd, s.odd);
    return (float4)(first.even, second.even) + (float4)(first.odd, second.odd);
}

static inline float4 lane_sums(const float8 a, const float8 b, const float8 c,
                               const float8 d)
{
    return half_lane_sums(a.lo + a.hi, b.lo + b.hi, c.lo + c.hi, d.lo + d.hi);
}
#endif

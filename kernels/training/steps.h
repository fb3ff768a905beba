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
// APART         values reserved for a record behind partial gradients: a whole vector
#include "include/activations.h"
#include "include/gradients.h"
#include "include/losses.h"
#if UPDATE
#include "include/optimisers.h"
#else
#include "include/random.h"
#endif
#if !defined(FUNCTIONS) || !defined(BACKWARD) || !defined(GATHERED)                  \
    || !defined(WEIGHTED) || !defined(MEAN) || !defined(RECORD) || !defined(APART)
#error "steps.h needs the macros of its head comment"
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
static inline void add_to_total(__global float *totals, const int k, const float value,
                                const int fresh)
{
    const float before = fresh ? 0 : totals[k];
    const float added = value + (fresh ? 0 : totals[RECORD + k]);
    const float after = before + added;
    totals[k] = after;
    totals[RECORD + k] = added - (after - before);
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

// The lane pre_activations of four vectors.
static inline float4 lane_sums(const float8 a, const float8 b, const float8 c,
                               const float8 d)
{
    const float4 p = a.lo + a.hi, q = b.lo + b.hi, r = c.lo + c.hi, s = d.lo + d.hi;
    const float4 first = (float4)(p.even, q.even) + (float4)(p.odd, q.odd);
    const float4 second = (float4)(r.even, s.even) + (float4)(r.odd, s.odd);
    return (float4)(first.even, second.even) + (float4)(first.odd, second.odd);
}
#endif

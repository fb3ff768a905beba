// What the kernels share that do whole steps of training in a launch.
//
// FUNCTIONS(X)  the activations that occur: X(code, act_NAME, grad_NAME, READS), READS
//               being AT_SUM or AT_OUTPUT: what the derivative is taken at
// LOSS, SLOPE   the loss, as in losses.h; left out with SOFTMAX
// SIGMOID, SOFTMAX, MEAN  1 where the loss is fused with that activation; where it is
//               the mean over outputs
// BACKWARD      1: gradients; 0: losses alone
// UPDATE        1: with a step of the optimiser, whose macros are those of optimisers.h
// GATHERED      0: the data set is the batch; 1: a step's samples are rows of the data
//               set in its own order; 2: in the epoch's random order
// WEIGHTED      1: samples have weights
// RECORD        values that are counted of a step: loss, squared error, bit fails
// APART         from the gradients of one share of a step to the next's, beyond their
//               own number: room for the record, a whole vector
#include "include/activations.h"
#include "include/gradients.h"
#include "include/losses.h"
#if UPDATE
#include "include/optimisers.h"
#else
#include "include/random.h"
#endif
#if !defined(FUNCTIONS) || !defined(BACKWARD) || !defined(GATHERED)                  \
    || !defined(WEIGHTED) || !defined(MEAN) || !defined(SIGMOID) || !defined(SOFTMAX) \
    || !defined(RECORD) || !defined(APART)
#error "steps.h needs the macros that its head names"
#endif

#define AT_OUTPUT(y, v) (y)
#define AT_SUM(y, v) (v)

// A row of the table of layers (LAYER of clnet/variants/training/whole_step.py).
typedef struct {
    int n_in, n_out;
    int stride;   // of the rows of A
    int weights;  // where A starts in the parameters
    int bias;     // where the biases start; -1: none
    int values;   // where the layer's outputs start in a worker's memory
    int sums;     // where what the derivative is taken at starts; -1: at the outputs
    int neuron;   // number of its first neuron in the table of neurons
} Layer;

// A row of the table of neurons.
typedef struct {
    int function;
    float steepness, limit;
    float share;  // of its error, for outputs: 0.5 where FANN halves it
} Neuron;

// totals [2 * RECORD]: of the epoch so far, and what rounding took from them
// (Kahan, "Further remarks on reducing truncation errors", 1965)
inline void add_to_total(__global float *totals, const int k, const float value,
                         const int fresh)
{
    const float before = fresh ? 0 : totals[k];
    const float added = value + (fresh ? 0 : totals[RECORD + k]);
    const float after = before + added;
    totals[k] = after;
    totals[RECORD + k] = added - (after - before);
}

#if WIDTH == 8
// Vectors that may start anywhere.
typedef float4 __attribute__((aligned(4))) float4_unaligned;
typedef float8 __attribute__((aligned(4))) float8_unaligned;

inline float lane_sum(const float8 v)
{
    const float4 a = v.lo + v.hi;
    const float2 b = a.lo + a.hi;
    return b.lo + b.hi;
}

// The sums of the lanes of four vectors.
inline float4 lane_sums(const float8 a, const float8 b, const float8 c, const float8 d)
{
    const float4 p = a.lo + a.hi, q = b.lo + b.hi, r = c.lo + c.hi, s = d.lo + d.hi;
    const float4 first = (float4)(p.even, q.even) + (float4)(p.odd, q.odd);
    const float4 second = (float4)(r.even, s.even) + (float4)(r.odd, s.odd);
    return (float4)(first.even, second.even) + (float4)(first.odd, second.odd);
}
#endif

// optimisers: one step over the flat parameter buffer (optimisers.h), a work-item an
// element.
//
// The macros are those of optimisers.h and activations.h.
#define WIDTH 1
#include "activations.h"
#include "optimisers.h"

// parameters [size]         changed in place
// gradients  [size]         of the sum over the step's samples
// live       [size]         0 for padding, which stays zero
// state      [SLOTS, size]  the optimiser's, changed in place
// totals     [6]            of the epoch so far; [1] and [4] add up to the squared error
// norm       [1]            of the mean gradient; anything without CLIP_NORM
// rate: of this step; samples: of this step; seen: of the epoch; outputs: of a sample;
// count: steps taken before; seed: of random numbers
// index map: work-item = element
__kernel void update(__global REAL *parameters, __global const REAL *gradients,
                     __global const uchar *live, __global REAL *state,
                     __global const REAL *totals, __global const REAL *norm,
                     const int size, const int outputs, const REAL rate, const int samples, const int seen,
                     const int count, const uint seed)
{
    const int i = get_global_id(0);
    if (i >= size || !live[i]) return;
    Moment now = moment_of(rate, samples, totals[1] + totals[4], seen, outputs, count,
                           seed);
    now.norm = norm[0];
    REAL kept[SLOTS + 1];  // at least one: there are no empty arrays
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) kept[slot] = state[(size_t)slot * size + i];
    parameters[i] = stepped(parameters[i], gradients[i], kept, now, i);
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) state[(size_t)slot * size + i] = kept[slot];
}

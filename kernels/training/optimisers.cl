// optimisers: one step over the flat parameter buffer (optimisers.h). A work-item
// updates PER_ITEM vectors of WIDTH elements.
//
//   group   | 0 1 2 … GROUP-1 | 0 1 2 … GROUP-1 | …   PER_ITEM times: neighbours read
//                                                     neighbouring vectors
//
// A work-item computes the powers and roots that depend on the step alone once.
//
// WIDTH     elements of a vector: 8 on CPUs, else 1
// GROUP     work-items of a group
// PER_ITEM  vectors of a work-item
// and those of optimisers.h and activations.h
#define PER_NETWORK REAL
#include "include/activations.h"
#include "include/optimisers.h"
#if !defined(GROUP) || !defined(PER_ITEM)
#error "optimisers.cl needs GROUP and PER_ITEM"
#endif

#if WIDTH == 1
#define LIVE(i) live[i]
#else
#define LIVE(i) \
    (JOIN(convert_, INTS)(JOIN(vload, WIDTH)(i, live)) != (INTS)(0))
#endif

// parameters [size]         changed in place
// gradients  [size]         sums over the step's samples
// live       [size]         0 for padding, which stays zero
// state      [SLOTS, size]  of the optimiser, changed in place
// totals     [6]            of the epoch so far; [1] + [4] is the squared error
// norm       [1]            of the mean gradient; not used without HAS_CLIP_NORM
// size: a multiple of WIDTH; rate, samples: of this step; seen: samples of the epoch so
// far; outputs: of a sample; count: steps taken before; seed: of random numbers
// index map: see above
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
update(__global VAL *parameters, __global const VAL *gradients,
       __global const uchar *live, __global VAL *state, __global const REAL *totals,
       __global const REAL *norm, const int size, const int outputs, const REAL rate,
       const int samples, const int seen, const int count, const uint seed)
{
    StepInfo now = step_info(rate, samples, totals[1] + totals[4], seen, outputs, count,
                           seed);
    now.norm = norm[0];
    const int vectors = size / WIDTH;
#if PER_ITEM <= 4
#pragma unroll
#endif
    for (int n = 0; n < PER_ITEM; ++n) {
        const int i = ((int)get_group_id(0) * PER_ITEM + n) * GROUP + get_local_id(0);
        if (i >= vectors) return;
        const VAL w = parameters[i];
        VAL slots[SLOTS + 1];  // C has no empty arrays
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) slots[k] = state[(size_t)k * vectors + i];
        const VAL next = stepped(w, gradients[i], slots, now, i * WIDTH);
        parameters[i] = LIVE(i) ? next : w;
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) {
            __global VAL *at = state + (size_t)k * vectors + i;
            *at = LIVE(i) ? slots[k] : *at;
        }
    }
}

// What the kernels of sparse products share: how a sum ends.
//
// ACCUMULATE  1: the product is added to the sums that are there
// KEEPS_SUMS  1: the sums are written
// HAS_ACT     1: the layer's output is written, y = f(sum + bias)
// HAS_BIAS    1 or 0; read where HAS_ACT is 1
// ACTIVATION, STEEPNESS, LIMIT  as in activations.h, which comes first
#if !defined(ACCUMULATE) || !defined(KEEPS_SUMS) || !defined(HAS_ACT)                \
    || !defined(HAS_BIAS)
#error "sparse.h needs ACCUMULATE, KEEPS_SUMS, HAS_ACT and HAS_BIAS"
#endif

// Ends one sum: sums and y point at its row's places for the first sample, lds and ldy
// are the steps to the next.
inline void finish(REAL sum, __global REAL *sums, const int lds, __global REAL *y,
                   const int ldy, const REAL bias, const size_t sample)
{
#if ACCUMULATE
    sum += sums[sample * lds];
#endif
#if KEEPS_SUMS
    sums[sample * lds] = sum;
#endif
#if HAS_ACT
    y[sample * ldy] = activate(sum + bias);
#endif
}

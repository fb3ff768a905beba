// Epilogue of the sparse products on GPUs.
//
// ACCUMULATE  1: the product is added to the pre-activations in `sums`
// STORES_Z  1: the pre-activations are stored in `sums`
// HAS_ACT     1: the layer's output is stored, y = f(sum + bias)
// HAS_BIAS    1 or 0; read where HAS_ACT is 1
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  as in activations.h, which comes first
#if !defined(ACCUMULATE) || !defined(STORES_Z) || !defined(HAS_ACT)                \
    || !defined(HAS_BIAS)
#error "sparse.h needs ACCUMULATE, STORES_Z, HAS_ACT and HAS_BIAS"
#endif

// Bias, activation and stores of one accumulator. sums and y point at its row in the
// first sample; lds and ldy are the strides between samples.
static inline void epilogue(REAL sum, __global REAL *sums, const int lds,
                            __global REAL *y, const int ldy, const REAL bias,
                            const size_t sample)
{
#if ACCUMULATE
    sum += sums[sample * lds];
#endif
#if STORES_Z
    sums[sample * lds] = sum;
#endif
#if HAS_ACT
    y[sample * ldy] = activate(sum + bias);
#endif
}

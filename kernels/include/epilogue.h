// Epilogue of CPU kernels: VECTORS vectors of accumulators at once.
//
// LANES, VECTORS  as in lanes.h, which comes first
// ACCUMULATE, STORES_Z, HAS_ACT, HAS_BIAS  as in sparse.h
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT               as in activations.h, which comes first
#if !defined(ACCUMULATE) || !defined(STORES_Z) || !defined(HAS_ACT)                \
    || !defined(HAS_BIAS)
#error "epilogue.h needs ACCUMULATE, STORES_Z, HAS_ACT and HAS_BIAS"
#endif

#define COUNT (VECTORS * LANES)  // accumulators: of rows, or of samples

// Bias, activation and stores of the first `live` of COUNT accumulators. Neighbours are
// `lds` apart in sums (pre-activations), and `ldy` in y.
#define ACTIVATE(k)                                                                  \
    ((VEC *)acc)[k] = activate(((VEC *)acc)[k] + ((const VEC *)biases)[k]);
static inline void epilogue(REAL *acc, const int live, __global REAL *sums,
                            const int lds, __global REAL *y, const int ldy,
                            const REAL *biases)
{
#if ACCUMULATE
    for (int i = 0; i < live; ++i) acc[i] += sums[(size_t)i * lds];
#endif
#if STORES_Z
    for (int i = 0; i < live; ++i) sums[(size_t)i * lds] = acc[i];
#endif
#if HAS_ACT
#if WIDTH == 8
    EACH(ACTIVATE)
#else
    for (int i = 0; i < live; ++i) acc[i] = activate(acc[i] + biases[i]);
#endif
    for (int i = 0; i < live; ++i) y[(size_t)i * ldy] = acc[i];
#endif
}

// How sums end on CPU cores: VECTORS whole vectors of them at once.
//
// LANES, VECTORS  as in lanes.h, which comes first
// ACCUMULATE, KEEPS_SUMS, HAS_ACT, HAS_BIAS  as in sparse.h
// ACTIVATION, STEEPNESS, LIMIT               as in activations.h, which comes first
#if !defined(ACCUMULATE) || !defined(KEEPS_SUMS) || !defined(HAS_ACT)                \
    || !defined(HAS_BIAS)
#error "epilogue.h needs ACCUMULATE, KEEPS_SUMS, HAS_ACT and HAS_BIAS"
#endif

#define COUNT (VECTORS * LANES)  // sums that end together: of rows, or of samples

// Ends COUNT sums, of which `live` exist. Their places in sums and y are `lds` and
// `ldy` apart.
#define ACTIVATE(k)                                                                  \
    ((VEC *)found)[k] = activate(((VEC *)found)[k] + ((const VEC *)biases)[k]);
inline void epilogue(REAL *found, const int live, __global REAL *sums, const int lds,
                       __global REAL *y, const int ldy, const REAL *biases)
{
#if ACCUMULATE
    for (int i = 0; i < live; ++i) found[i] += sums[(size_t)i * lds];
#endif
#if KEEPS_SUMS
    for (int i = 0; i < live; ++i) sums[(size_t)i * lds] = found[i];
#endif
#if HAS_ACT
#if WIDTH == 8
    EACH(ACTIVATE)
#else
    for (int i = 0; i < live; ++i) found[i] = activate(found[i] + biases[i]);
#endif
    for (int i = 0; i < live; ++i) y[(size_t)i * ldy] = found[i];
#endif
}

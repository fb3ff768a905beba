// Vectors of four values. Rows of dense weights are aligned to vectors and padded with
// zeros to whole vectors, so that a row is read as vectors to its end.
//
// REAL      float or double (activations.h is included before)
// X_SPACE   __global or __local: the address space of x
// X_PADDED  1: rows of x are aligned and padded likewise
//           0: they are not (a caller's contiguous rows of odd width); scalar loads
#if !defined(X_SPACE) || !defined(X_PADDED)
#error "vectors.h needs X_SPACE and X_PADDED"
#endif

#define VEC JOIN(REAL, 4)
#define VEC_ALIGNED __attribute__((aligned(32)))  // local arrays read as VEC need it

// x[4 v] … x[4 v + 3] of a row of n values, zero from n on.
static inline VEC four_of(X_SPACE const REAL *x, const int v, const int n)
{
#if X_PADDED
    return ((X_SPACE const VEC *)x)[v];
#else
    const int i = 4 * v;
    return (VEC)(x[i], i + 1 < n ? x[i + 1] : (REAL)0, i + 2 < n ? x[i + 2] : (REAL)0,
                 i + 3 < n ? x[i + 3] : (REAL)0);
#endif
}

// sum += a . b
#define ADD_PRODUCTS(sum, a, b) \
    sum += a.s0 * b.s0;         \
    sum += a.s1 * b.s1;         \
    sum += a.s2 * b.s2;         \
    sum += a.s3 * b.s3;

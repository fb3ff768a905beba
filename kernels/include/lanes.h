// SIMD vectors of CPU cores.
//
// LANES    numbers of a vector: 8 of float or 4 of double
// VECTORS  vectors processed together: 1, 2 or 4
// REAL     float or double; activations.h is included before
#if !defined(LANES) || !defined(VECTORS)
#error "lanes.h needs LANES and VECTORS"
#endif
#define VEC JOIN(REAL, LANES)
typedef VEC __attribute__((aligned(sizeof(REAL)))) VecUnaligned;

// X(index) for each vector.
#if VECTORS == 1
#define EACH(X) X(0)
#elif VECTORS == 2
#define EACH(X) X(0) X(1)
#else
#define EACH(X) X(0) X(1) X(2) X(3)
#endif

static inline REAL lane_sum(const VEC sums)
{
#if LANES == 8
    const JOIN(REAL, 4) four = sums.lo + sums.hi;
#else
    const VEC four = sums;
#endif
    return (four.s0 + four.s1) + (four.s2 + four.s3);
}

// Rows of entries for CPU cores: vectors, and the product of a row and one sample.
//
// LANES   numbers of a vector: 8 of float or 4 of double
// VECTORS vectors that a row of samples, or sums that end together, have: 1, 2 or 4
// SLOTS   1: an entry's value is where a table says; 0: values lie as entries do
// COLUMN  type of the column indices: ushort where they fit, or int
// REAL    float or double; activations.h comes first
#if !defined(LANES) || !defined(VECTORS) || !defined(SLOTS) || !defined(COLUMN)
#error "csr.h needs LANES, VECTORS, SLOTS and COLUMN"
#endif
#define VEC JOIN(REAL, LANES)

#if SLOTS
#define VALUE(e) values[slots[e]]
#else
#define VALUE(e) values[e]
#endif

#if VECTORS == 1
#define EACH(X) X(0)
#elif VECTORS == 2
#define EACH(X) X(0) X(1)
#else
#define EACH(X) X(0) X(1) X(2) X(3)
#endif

typedef VEC __attribute__((aligned(sizeof(REAL)))) VecUnaligned;

#define FOUR(A, e) A(e), A(e + 1), A(e + 2), A(e + 3)
#if LANES == 8
#define MANY(A, e) (VEC)(FOUR(A, e), FOUR(A, e + 4))
#else
#define MANY(A, e) (VEC)(FOUR(A, e))
#endif
#define FACTOR(e) x[columns[e]]

inline REAL lane_sum(const VEC sums)
{
#if LANES == 8
    const JOIN(REAL, 4) four = sums.lo + sums.hi;
#else
    const VEC four = sums;
#endif
    return (four.s0 + four.s1) + (four.s2 + four.s3);
}

// The entries e … end - 1 times x.
inline REAL dot(__global const REAL *values, __global const int *slots,
                __global const COLUMN *columns, int e, const int end,
                __global const REAL *x)
{
    VEC sums = 0;
    REAL sum = 0;
    for (; e + LANES <= end; e += LANES)
#if SLOTS
        sums += MANY(VALUE, e) * MANY(FACTOR, e);
#else
        sums += *(__global const VecUnaligned *)(values + e) * MANY(FACTOR, e);
#endif
    for (; e < end; ++e) sum += VALUE(e) * FACTOR(e);
    return sum + lane_sum(sums);
}

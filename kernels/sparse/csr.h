// Rows of entries for CPU cores: the product of a row and one sample.
//
// SLOTS   1: an entry's value is where a table says; 0: values lie as entries do
// COLUMN  type of the column indices: ushort where they fit, or int
// LANES, VECTORS  as in lanes.h
// REAL    float or double; activations.h comes first
#if !defined(SLOTS) || !defined(COLUMN)
#error "csr.h needs SLOTS and COLUMN"
#endif
#include "include/lanes.h"

#if SLOTS
#define VALUE(e) values[slots[e]]
#else
#define VALUE(e) values[e]
#endif

#define FOUR(A, e) A(e), A(e + 1), A(e + 2), A(e + 3)
#if LANES == 8
#define MANY(A, e) (VEC)(FOUR(A, e), FOUR(A, e + 4))
#else
#define MANY(A, e) (VEC)(FOUR(A, e))
#endif
#define FACTOR(e) x[columns[e]]

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

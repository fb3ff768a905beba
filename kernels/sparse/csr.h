// CSR rows on CPU cores: the dot product of a row and one sample.
//
// SLOTS   1: values are gathered through the table `slots`; 0: they lie in CSR order
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

#define GATHER_4(A, e) A(e), A(e + 1), A(e + 2), A(e + 3)
#if LANES == 8
#define GATHER(A, e) (VEC)(GATHER_4(A, e), GATHER_4(A, e + 4))
#else
#define GATHER(A, e) (VEC)(GATHER_4(A, e))
#endif
#define OPERAND(e) x[columns[e]]

// The dot product of entries e … end - 1 and x.
static inline REAL dot(__global const REAL *values, __global const int *slots,
                       __global const COLUMN *columns, int e, const int end,
                       __global const REAL *x)
{
    VEC sums = 0;
    REAL sum = 0;
    for (; e + LANES <= end; e += LANES)
#if SLOTS
        sums += GATHER(VALUE, e) * GATHER(OPERAND, e);
#else
        sums += *(__global const VecUnaligned *)(values + e) * GATHER(OPERAND, e);
#endif
    for (; e < end; ++e) sum += VALUE(e) * OPERAND(e);
    return sum + lane_sum(sums);
}

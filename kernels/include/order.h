// Rows of a data set in the order of an epoch (clnet/ir/batch.py: Gather).
//
// SHUFFLED  1: the order is random; 0: it is the data set's own
// REAL      float or double
#include "include/random.h"
#ifndef SHUFFLED
#error "order.h needs SHUFFLED"
#endif

// The parameters of a kernel that gathers a batch's inputs, targets and weights.
// A width of 0: no such array.
#define GATHER_PARAMETERS                                                              \
    __global const REAL *xs, const int ldxs, __global REAL *x, const int ldx,          \
    const int x_width, __global const REAL *ts, const int ldts, __global REAL *t,      \
    const int ldt, const int t_width, __global const REAL *ws, const int ldws,         \
    __global REAL *w, const int ldw, const int w_width, const int batch,               \
    const int first, const int samples, const int bits, const uint k0, const uint k1,  \
    const uint k2, const uint k3, const uint k4, const uint k5, const uint k6,         \
    const uint k7

// The data set's row of row i of the batch.
#define ORDERED_ROW(i) \
    ordered_row(first + (i), samples, bits, (uint8)(k0, k1, k2, k3, k4, k5, k6, k7))
static inline uint ordered_row(const uint number, const uint samples, const uint bits,
                               const uint8 key)
{
    const uint i = number % samples;
    return SHUFFLED ? permuted(i, samples, bits, key) : i;
}

// csr: a sparse product, row of entries by row of entries, for CPU cores.
//
// A work-item takes a run of rows with about as many entries as the other runs have.
//
//   run 0   run 1     run 2          bounds: where each run starts, in rows
//   |--|----|--------|-|-|--|-- …    rows, as long as they have entries
//
// One sample (TILE 1): LANES entries at a time, their values of x put together in a
// vector; what is left of a row is added singly. A tile of samples: x is turned before
// (turn.cl), and an entry's value is multiplied with a row of it, whole vectors of
// samples, whose sums stay in registers.
//
// REAL    float or double
// LANES   numbers of a vector: 8 of float or 4 of double
// TILE    samples of a tile: 1, or VECTORS * LANES
// VECTORS vectors of a tile: 1, 2 or 4
// WIDTH_X values of x
// SLOTS   1: an entry's value is where a table says; 0: values lie as entries do
// COLUMN  type of the column indices: ushort where they fit, or int
// and those of sparse.h
#if !defined(LANES) || !defined(TILE) || !defined(VECTORS) || !defined(WIDTH_X)      \
    || !defined(SLOTS) || !defined(COLUMN)
#error "csr.cl needs the macros that its head names"
#endif
#if TILE == 1 || LANES == 4
#define WIDTH 1  // activations take numbers: of one sample; and of double, whose
                 // builtins are for numbers
#else
#define WIDTH 8
#endif
#include "activations.h"
#define VEC JOIN(REAL, LANES)

#if SLOTS
#define VALUE(e) values[slots[e]]
#else
#define VALUE(e) values[e]
#endif

#if TILE == 1
#include "sparse.h"

typedef VEC __attribute__((aligned(sizeof(REAL)))) VecUnaligned;

#define FOUR(A, e) A(e), A(e + 1), A(e + 2), A(e + 3)
#if LANES == 8
#define MANY(A, e) (VEC)(FOUR(A, e), FOUR(A, e + 4))
#else
#define MANY(A, e) (VEC)(FOUR(A, e))
#endif
#define FACTOR(e) x[columns[e]]

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
#if LANES == 8
    const JOIN(REAL, 4) four = sums.lo + sums.hi;
#else
    const VEC four = sums;
#endif
    return sum + ((four.s0 + four.s1) + (four.s2 + four.s3));
}
#else
#if VECTORS == 1
#define EACH(X) X(0)
#elif VECTORS == 2
#define EACH(X) X(0) X(1)
#else
#define EACH(X) X(0) X(1) X(2) X(3)
#endif
#define START(k) VEC sum##k = 0;
#define ADD(k) sum##k += value * row_of_x[k];
#define STORE(k) ((VEC *)found)[k] = sum##k;
#define ACTIVATE(k) ((VEC *)found)[k] = activate(((VEC *)found)[k] + start);
#endif

// sums[b, r] (+)= sum over the entries of row r:  value * x[b, column]
//
// parameters [..]       values start at `weights`, and biases at `bias`
// starts     [n_out+1]  row r owns entries starts[r] … starts[r + 1] - 1
// slots, columns [entries]   slots: any int where SLOTS is 0
// bounds     [runs + 1]
// source     [batch, ldx]    x; or turned [tiles][WIDTH_X + 1][TILE]
// sums [batch, lds]   y [batch, ldy]   as in sparse.h
// index map: work-item = run
__kernel void csr(__global const REAL *parameters, const int weights, const int bias,
                  __global const int *starts, __global const int *slots,
                  __global const COLUMN *columns, __global const REAL *source,
                  const int ldx, __global REAL *sums, const int lds, __global REAL *y,
                  const int ldy, const int batch, __global const int *bounds)
{
    const int from = bounds[get_global_id(0)], to = bounds[get_global_id(0) + 1];
    __global const REAL *values = parameters + weights;
#if TILE == 1
    // A row's entries stay in cache from sample to sample.
    for (int row = from; row < to; ++row) {
        const REAL start = HAS_BIAS ? parameters[bias + row] : (REAL)0;
        for (size_t b = 0; b < batch; ++b)
            finish(dot(values, slots, columns, starts[row], starts[row + 1],
                       source + b * ldx),
                   sums + row, lds, y + row, ldy, start, b);
    }
#else
    REAL found[TILE] __attribute__((aligned(32)));
    for (size_t sample = 0; sample < batch; sample += TILE) {
        __global const REAL *x = source + sample * (WIDTH_X + 1);
        const int samples = min(TILE, batch - (int)sample);
        for (int row = from; row < to; ++row) {
            EACH(START)
            for (int e = starts[row]; e < starts[row + 1]; ++e) {
                const VEC value = VALUE(e);
                __global const VEC *row_of_x =
                    (__global const VEC *)(x + (size_t)columns[e] * TILE);
                EACH(ADD)
            }
            EACH(STORE)
#if ACCUMULATE || KEEPS_SUMS
            __global REAL *kept = sums + sample * lds + row;
#if ACCUMULATE
            for (int s = 0; s < samples; ++s) found[s] += kept[(size_t)s * lds];
#endif
#if KEEPS_SUMS
            for (int s = 0; s < samples; ++s) kept[(size_t)s * lds] = found[s];
#endif
#endif
#if HAS_ACT
            const REAL start = HAS_BIAS ? parameters[bias + row] : (REAL)0;
#if WIDTH == 8
            EACH(ACTIVATE)
#else
            for (int s = 0; s < samples; ++s) found[s] = activate(found[s] + start);
#endif
            __global REAL *out = y + sample * ldy + row;
            for (int s = 0; s < samples; ++s) out[(size_t)s * ldy] = found[s];
#endif
        }
    }
#endif
}

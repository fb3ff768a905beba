// csr: a sparse product, row of entries by row of entries, for CPU cores.
//
// A work-item takes a run of rows with about as many entries as the other runs have.
//
//   run 0   run 1     run 2          bounds: where each run starts, in rows
//   |--|----|--------|-|-|--|-- …    rows, as long as they have entries
//
// One sample (TILE 1): LANES entries at a time, their values of x put together in a
// vector; what is left of a row is added singly. A tile of samples: x is transposed before
// (transpose.cl), and an entry's value is multiplied with a row of it, whole vectors of
// samples, whose sums stay in registers. Activations take whole vectors, too: of rows,
// or of samples.
//
// REAL    float or double
// LANES   numbers of a vector: 8 of float or 4 of double
// TILE    samples of a tile: 1, or VECTORS * LANES
// VECTORS vectors of sums that end together: 1, 2 or 4
// WIDTH_X values of x
// SLOTS   1: an entry's value is where a table says; 0: values lie as entries do
// COLUMN  type of the column indices: ushort where they fit, or int
// and those of epilogue.h
#if !defined(TILE) || !defined(WIDTH_X)
#error "csr.cl needs the macros that its head names"
#endif
#if LANES == 4
#define WIDTH 1  // vectors of double would call builtins that PoCL does not survive
#else
#define WIDTH 8
#endif
#include "include/activations.h"
#include "sparse/csr.h"
#include "include/epilogue.h"

#if TILE > 1
#define START(k) VEC sum##k = 0;
#define ADD(k) sum##k += value * row_of_x[k];
#define SPREAD(k) ((VEC *)biases)[k] = start;
#define STORE(k) ((VEC *)found)[k] = sum##k;
#endif

// sums[b, r] (+)= sum over the entries of row r:  value * x[b, column]
//
// parameters [..]       values start at `weights`, and biases at `bias`
// starts     [n_out+1]  row r owns entries starts[r] … starts[r + 1] - 1
// slots, columns [entries]   slots: any int where SLOTS is 0
// bounds     [runs + 1]
// source     [batch, ldx]    x; or transposed [tiles][WIDTH_X + 1][TILE]
// sums [batch, lds]   y [batch, ldy]
// index map: work-item = run
__kernel void csr(__global const REAL *parameters, const int weights, const int bias,
                  __global const int *starts, __global const int *slots,
                  __global const COLUMN *columns, __global const REAL *source,
                  const int ldx, __global REAL *sums, const int lds, __global REAL *y,
                  const int ldy, const int batch, __global const int *bounds)
{
    const int from = bounds[get_global_id(0)], to = bounds[get_global_id(0) + 1];
    __global const REAL *values = parameters + weights;
    REAL found[COUNT] __attribute__((aligned(32)));
    REAL biases[COUNT] __attribute__((aligned(32)));
#if TILE == 1
    // Rows' entries stay in cache from sample to sample.
    for (int row = from; row < to; row += COUNT) {
        const int rows = min(COUNT, to - row);
        for (int i = 0; i < COUNT; ++i) {
            biases[i] = HAS_BIAS && i < rows ? parameters[bias + row + i] : (REAL)0;
            found[i] = 0;
        }
        for (size_t b = 0; b < batch; ++b) {
            for (int i = 0; i < rows; ++i)
                found[i] = dot(values, slots, columns, starts[row + i],
                               starts[row + i + 1], source + b * ldx);
            __global REAL *s = sums + b * lds + row, *out = y + b * ldy + row;
            if (rows == COUNT)  // a number that the compiler knows
                epilogue(found, COUNT, s, 1, out, 1, biases);
            else
                epilogue(found, rows, s, 1, out, 1, biases);
        }
    }
#else
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
            const VEC start = HAS_BIAS ? parameters[bias + row] : (REAL)0;
            EACH(SPREAD)
            epilogue(found, samples, sums + sample * lds + row, lds,
                       y + sample * ldy + row, ldy, biases);
        }
    }
#endif
}

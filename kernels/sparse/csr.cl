// csr: CSR times vector (SpMV) or times a tile of samples (SpMM), on CPU cores.
//
// A work-item takes a run of rows. All runs have about the same number of entries.
//
//   run 0   run 1     run 2          bounds: the first row of each run
//   |--|----|--------|-|-|--|-- …    rows, as long as they have entries
//
// One sample (TILE 1): LANES entries at a time, with gathered values of x; the rest of
// a row is scalar. A tile of samples: x is transposed before (transpose.cl), and a
// value multiplies a row of it, whole vectors of samples, with accumulators in
// registers. Activations are vectorised over rows, or over samples.
//
// REAL    float or double
// LANES   elements of a vector: 8 of float or 4 of double
// TILE    samples of a tile: 1, or VECTORS * LANES
// VECTORS vectors of accumulators: 1, 2 or 4
// WIDTH_X values of x
// SLOTS   1: values are gathered through the table `slots`; 0: they lie in CSR order
// COLUMN  type of the column indices: ushort where they fit, or int
// WIDTH   numbers of an activation's vector: 8 of float or 1 of double
// and the macros of epilogue.h
#if !defined(TILE) || !defined(WIDTH) || !defined(WIDTH_X)
#error "csr.cl needs TILE, WIDTH and WIDTH_X"
#endif
#include "include/activations.h"
#include "sparse/csr.h"
#include "include/epilogue.h"

#if TILE > 1
#define CLEAR(k) VEC sum##k = 0;
#define ADD(k) sum##k += value * row_of_x[k];
#define BROADCAST(k) ((VEC *)biases)[k] = row_bias;
#define STORE(k) ((VEC *)acc)[k] = sum##k;
#endif

// sums[b, r] (+)= sum over the entries of row r:  value * x[b, column]
//
// parameters [..]       values at `weights`, biases at `bias`
// starts     [n_out+1]  row r owns entries starts[r] … starts[r + 1] - 1; 0 first,
//                       sorted, the number of entries last
// slots, columns [entries, padded with zeros to vectors]   columns are below WIDTH_X,
//                       slots below the storage's size, each once; any int if SLOTS is 0
// bounds     [runs + 1] 0 first, sorted, n_out last
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
    REAL acc[COUNT] __attribute__((aligned(32)));
    REAL biases[COUNT] __attribute__((aligned(32)));
#if TILE == 1
    // The rows' entries stay in cache from sample to sample.
    for (int row = from; row < to; row += COUNT) {
        const int rows = min(COUNT, to - row);
        for (int i = 0; i < COUNT; ++i) {
            biases[i] = HAS_BIAS && i < rows ? parameters[bias + row + i] : (REAL)0;
            acc[i] = 0;
        }
        for (size_t b = 0; b < batch; ++b) {
            for (int i = 0; i < rows; ++i)
                acc[i] = dot(values, slots, columns, starts[row + i],
                               starts[row + i + 1], source + b * ldx);
            __global REAL *s = sums + b * lds + row, *out = y + b * ldy + row;
            if (rows == COUNT)  // a constant, which the compiler can unroll
                epilogue(acc, COUNT, s, 1, out, 1, biases);
            else
                epilogue(acc, rows, s, 1, out, 1, biases);
        }
    }
#else
    for (size_t sample = 0; sample < batch; sample += TILE) {
        __global const REAL *x = source + sample * (WIDTH_X + 1);
        const int samples = min(TILE, batch - (int)sample);
        for (int row = from; row < to; ++row) {
            EACH(CLEAR)
            for (int e = starts[row]; e < starts[row + 1]; ++e) {
                const VEC value = VALUE(e);
                __global const VEC *row_of_x =
                    (__global const VEC *)(x + (size_t)columns[e] * TILE);
                EACH(ADD)
            }
            EACH(STORE)
            const VEC row_bias = HAS_BIAS ? parameters[bias + row] : (REAL)0;
            EACH(BROADCAST)
            epilogue(acc, samples, sums + sample * lds + row, lds,
                     y + sample * ldy + row, ldy, biases);
        }
    }
#endif
}

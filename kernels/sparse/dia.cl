// dia: a matrix in DIA format (clnet/nn/storage/sparse.py), or its transpose, times x.
//
// Diagonal d has an entry in row r at column r + offsets[d]; its value is at d * pitch
// + r. There are no column indices. Neighbouring rows read neighbouring values and x.
//
//   offsets -1 0 2     a0 b0 .  .       values   -  c1 c2 c3     d = 0
//                      c1 .. b1 .                a0 a1 a2 a3         1
//                      .  c2 a2 ..               b0 b1 -  -          2
//
// On GPUs (GROUP above 1) a work-item takes a row for SAMPLES samples, which share its
// values. A CPU core (GROUP 1) takes runs of blocks of VECTORS * LANES rows, as whole
// vectors; a block's values stay in cache from sample to sample.
//
// REAL        float or double
// GROUP       work-items of a group; 1: the CPU kernel
// TRANSPOSED  1: the transpose is multiplied
// HOLES       1: diagonals have padding slots, which are zero; x there, even NaN, must
//             not reach the sum. So x beside a weight of zero does not reach it either
// SAMPLES     samples of a work-item  (GROUP above 1)
// LANES, VECTORS  as in lanes.h       (GROUP 1)
// WIDTH       numbers of an activation's vector: 8 of float of a GROUP of 1, else 1
// ACCUMULATE, STORES_Z, HAS_ACT, HAS_BIAS  as in sparse.h
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT               as in activations.h
#if !defined(GROUP) || !defined(TRANSPOSED) || !defined(HOLES) || !defined(WIDTH)      \
    || (GROUP > 1 && !defined(SAMPLES))                                                \
    || (GROUP == 1 && (!defined(LANES) || !defined(VECTORS)))
#error "dia.cl needs GROUP, TRANSPOSED, HOLES, WIDTH, and SAMPLES or, of a GROUP of 1, \
LANES and VECTORS"
#endif
#include "include/activations.h"

// The slot of a row's value on diagonal d; the value multiplies x[column].
#define SLOT(d, row, column) ((size_t)(d) * pitch + (TRANSPOSED ? column : row))
#define SHIFT(d) (TRANSPOSED ? -offsets[d] : offsets[d])

// sums[b, r] (+)= sum over the diagonals d:  values[d, r] * x[b, r + offsets[d]]
// transposed                              values[d, r'] * x[b, r'], r' = r - offsets[d]
//
// parameters [..]        values [diagonals, pitch] at `weights`, biases at `bias`
// offsets    [diagonals]  ascending, from 1 - rows to columns - 1 of the stored matrix
// x [batch, ldx]   columns values a row
// sums [batch, lds]   y [batch, ldy]   as in sparse.h
#if GROUP > 1
#include "sparse/sparse.h"

// index map: work-group: SAMPLES samples, then GROUP rows, which vary faster; in one
//            dimension: others may be limited to 65535 groups
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void dia(__global const REAL *parameters, const int weights, const int bias,
         __global const int *offsets, const int diagonals, const int pitch,
         __global const REAL *x, const int ldx, const int columns, __global REAL *sums,
         const int lds, __global REAL *y, const int ldy, const int rows,
         const int batch)
{
    const uint group = get_group_id(0), blocks = ((uint)rows + GROUP - 1) / GROUP;
    const int row = group % blocks * GROUP + get_local_id(0);
    const size_t first = (size_t)(group / blocks) * SAMPLES;
    if (row >= rows) return;
    __global const REAL *values = parameters + weights;
    REAL sum[SAMPLES];
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) sum[s] = 0;
#pragma unroll 4
    for (int d = 0; d < diagonals; ++d) {
        const int column = row + SHIFT(d);
        const int clamped = min(max(column, 0), columns - 1);
        const REAL value = values[SLOT(d, row, clamped)];
        const bool live = column == clamped && (!HOLES || value != 0);
#pragma unroll
        for (int s = 0; s < SAMPLES; ++s) {
            const REAL v = x[min(first + s, (size_t)batch - 1) * ldx + clamped];
            sum[s] += live ? value * v : (REAL)0;
        }
    }
    const REAL row_bias = HAS_BIAS ? parameters[bias + row] : (REAL)0;
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s)
        if (first + s < batch)
            epilogue(sum[s], sums + row, lds, y + row, ldy, row_bias, first + s);
}
#else
#include "include/lanes.h"
#include "include/epilogue.h"

#define CLEAR(k) VEC sum##k = 0;
#define ADD(k)                                                                       \
    {                                                                                \
        const VEC value = *(__global const VecUnaligned *)(w + k * LANES);           \
        const VEC v = *(__global const VecUnaligned *)(in + k * LANES);              \
        sum##k += value * (HOLES ? (value != (VEC)0 ? v : (VEC)0) : v);              \
    }
#define STORE(k) ((VEC *)acc)[k] = sum##k;

#define DIAGONAL(k) (TRANSPOSED ? diagonals - 1 - (k) : (k))  // columns ascend

// The part of a row's sum over the diagonals from … to - 1, in scalars.
static inline REAL partial_row(__global const REAL *values, __global const int *offsets,
                               const int diagonals, const int pitch,
                               __global const REAL *x, const int columns, const int row,
                               const int from, const int to)
{
    REAL sum = 0;
    for (int k = from; k < to; ++k) {
        const int d = DIAGONAL(k), column = row + SHIFT(d);
        if (column < 0 || column >= columns) continue;
        const REAL value = values[SLOT(d, row, column)];
        if (!HOLES || value != 0) sum += value * x[column];
    }
    return sum;
}

// index map: work-item = run of `run` blocks of rows
__kernel void dia_blocks(__global const REAL *parameters, const int weights,
                         const int bias, __global const int *offsets,
                         const int diagonals, const int pitch, __global const REAL *x,
                         const int ldx, const int columns, __global REAL *sums,
                         const int lds, __global REAL *y, const int ldy, const int rows,
                         const int batch, const int run)
{
    __global const REAL *values = parameters + weights;
    const int from = get_global_id(0) * run * COUNT;
    const int to = min(from + run * COUNT, rows);
    REAL acc[COUNT] __attribute__((aligned(32)));
    REAL biases[COUNT] __attribute__((aligned(32)));
    for (int row = from; row < to; row += COUNT) {
        const int live = min(COUNT, to - row);
        // Diagonals begin … end - 1 cross these rows, low … high - 1 all of them.
#define COLUMN_OF(k) (row + SHIFT(DIAGONAL(k)))
        int begin = 0;
        while (begin < diagonals && COLUMN_OF(begin) + COUNT <= 0) ++begin;
        int low = begin;
        while (low < diagonals && COLUMN_OF(low) < 0) ++low;
        int high = low;
        while (high < diagonals && COLUMN_OF(high) + COUNT <= columns) ++high;
        int end = high;
        while (end < diagonals && COLUMN_OF(end) < columns) ++end;
        if (live < COUNT) low = high = begin;
        for (int i = 0; i < COUNT; ++i)
            biases[i] = HAS_BIAS && i < live ? parameters[bias + row + i] : (REAL)0;
        for (size_t b = 0; b < batch; ++b) {
            __global const REAL *xb = x + b * ldx;
            EACH(CLEAR)
            for (int k = low; k < high; ++k) {
                const int d = DIAGONAL(k), column = row + SHIFT(d);
                __global const REAL *w = values + SLOT(d, row, column);
                __global const REAL *in = xb + column;
                EACH(ADD)
            }
            EACH(STORE)
            if (low > begin || end > high)
                for (int i = 0; i < live; ++i) {
                    acc[i] += partial_row(values, offsets, diagonals, pitch, xb,
                                          columns, row + i, begin, low);
                    acc[i] += partial_row(values, offsets, diagonals, pitch, xb,
                                          columns, row + i, high, end);
                }
            epilogue(acc, live, sums + b * lds + row, 1, y + b * ldy + row, 1, biases);
        }
    }
}
#endif

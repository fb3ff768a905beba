// sell: a product of slices of rows whose k-th entries lie side by side, on GPUs.
//
// Sliced ELL (SELL-C-sigma, clnet/nn/storage/sell.py) and ELL, of which HEIGHT
// neighbouring rows are a slice. A work-group takes a slice; parts of it take every
// PARTS-th entry of the rows, so that also few rows fill a device.
//
//   slice:  row     a0 b0 c0 d0 …     k = 0   part 0    slot = start + k * stride + row
//                   a1 b1 c1 d1 …         1   part 1
//                   a2 b2 c2 d2 …         2   part 0
//
// One sample (TILE 1): a work-item holds the sums of VECTOR rows, read as one vector; x
// is in local memory where that is STAGED. A tile of samples: a work-item holds one
// row's sums for 4 samples, and x is transposed before (transpose.cl).
//
// REAL    float or double
// HEIGHT  rows of a slice
// TILE    samples of a tile: 1, or 4 and more
// VECTOR  rows of a work-item: 4, or 1 where slices are not aligned (TILE 1 only)
// PARTS   parts of a slice
// UNROLL  vectors of entries asked for before the first is used
// STAGED  1: x is copied to local memory (TILE 1 only)
// WIDTH_X values of x
// COLUMN  type of the column indices: ushort where they fit, or int
// and those of sparse.h
#define WIDTH 1
#include "include/activations.h"
#include "sparse/sparse.h"
#if !defined(HEIGHT) || !defined(TILE) || !defined(VECTOR) || !defined(PARTS)        \
    || !defined(UNROLL) || !defined(STAGED) || !defined(WIDTH_X) || !defined(COLUMN)
#error "sell.cl needs the macros that its head names"
#endif

#define VEC JOIN(REAL, 4)
#if TILE == 1
#define ITEMS (HEIGHT / VECTOR)  // work-items of a part
#define PITCH HEIGHT
#else
#define ITEMS (HEIGHT * (TILE / 4))
#define PITCH (HEIGHT * (TILE + 4))
#endif
#define GROUP (PARTS * ITEMS)

#if TILE > 1
#define HELD VEC
#define READ REAL
#define INDICES int
#define VALUES_AT(i) values[i]
#define COLUMNS_AT(i) columns[i]
#elif VECTOR == 4
#define HELD VEC
#define READ VEC
#define INDICES int4
#define VALUES_AT(i) (*(__global const VEC *)(values + (i)))
#define COLUMNS_AT(i) convert_int4(*(__global const JOIN(COLUMN, 4) *)(columns + (i)))
#else
#define HELD REAL
#define READ REAL
#define INDICES int
#define VALUES_AT(i) values[i]
#define COLUMNS_AT(i) columns[i]
#endif
#define ADD(k, s) sum.s += k < length.s ? v[u].s * x[c[u].s] : (REAL)0;

// sums[b, r] (+)= sum over the entries of row r:  value * x[b, column]
//
// parameters [..]   values start at `weights`, and biases at `bias`
// starts   [slices]           the first slot of each slice; the next k is `stride` on
// lengths  [slices * HEIGHT]  entries of each row of each slice, 0 for none
// order    [slices * HEIGHT]  which row of the matrix it is
// columns  [slots]
// source   [batch, ldx]       x; or transposed [tiles][WIDTH_X + 1][TILE]
// sums [batch, lds]   y [batch, ldy]   as in sparse.h
// index map: work-group (slice, tile of samples)
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void sell(__global const REAL *parameters, const int weights, const int bias,
          __global const int *starts, const int stride, __global const int *lengths,
          __global const int *order, __global const COLUMN *columns,
          __global const REAL *source, const int ldx, __global REAL *sums,
          const int lds, __global REAL *y, const int ldy, const int n_out,
          const int batch)
{
    __local REAL partial[PARTS * PITCH] __attribute__((aligned(32)));
    const int id = get_local_id(0), slice = get_group_id(0);
    const int part = id / ITEMS, item = id % ITEMS;
    const size_t sample = get_group_id(1) * TILE;
    lengths += slice * HEIGHT;
    order += slice * HEIGHT;
#if STAGED
    __local REAL x[WIDTH_X];
    for (int i = id; i < WIDTH_X; i += GROUP) x[i] = source[sample * ldx + i];
    barrier(CLK_LOCAL_MEM_FENCE);
#elif TILE == 1
    __global const REAL *x = source + sample * ldx;
#else
    __global const REAL *x = source + sample * (WIDTH_X + 1);
    const int lane = item % (TILE / 4);
#endif
    HELD sum = 0;
#if TILE > 1
    const int row = item / (TILE / 4);
    const int length = lengths[row], most = length;
#elif VECTOR == 4
    const int row = 4 * item;
    const int4 length = *(__global const int4 *)(lengths + row);
    const int most = max(max(length.s0, length.s1), max(length.s2, length.s3));
#else
    const int row = item;
    const int length = lengths[row], most = length;
#endif
    __global const REAL *values = parameters + weights + starts[slice] + row;
    columns += starts[slice] + row;
    for (int begin = part; begin < most; begin += UNROLL * PARTS) {
        READ v[UNROLL];
        INDICES c[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const size_t at = (size_t)min(begin + u * PARTS, most - 1) * stride;
            v[u] = VALUES_AT(at);
            c[u] = COLUMNS_AT(at);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int k = begin + u * PARTS;
#if TILE > 1
            const int column = k < length ? c[u] : WIDTH_X;
            sum += (k < length ? v[u] : (REAL)0)
                   * ((__global const VEC *)x)[column * (TILE / 4) + lane];
#elif VECTOR == 4
            ADD(k, s0) ADD(k, s1) ADD(k, s2) ADD(k, s3)
#else
            sum += k < length ? v[u] * x[c[u]] : (REAL)0;
#endif
        }
    }
#if TILE > 1
    ((__local VEC *)partial)[(part * PITCH + row * (TILE + 4)) / 4 + lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < HEIGHT * TILE; i += GROUP) {
        const int r = i % HEIGHT, s = i / HEIGHT, out = order[r];
        if (slice * HEIGHT + r < n_out && sample + s < batch) {
            REAL total = 0;
            for (int p = 0; p < PARTS; ++p)
                total += partial[p * PITCH + r * (TILE + 4) + s];
            finish(total, sums + out, lds, y + out, ldy,
                   HAS_BIAS ? parameters[bias + out] : (REAL)0, sample + s);
        }
    }
#else
    *(__local HELD *)(partial + part * PITCH + row) = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    // Some parts' sums by each work-item, and then those.
    __local REAL added[GROUP];
    const int r = id % HEIGHT, first = id / HEIGHT;
    REAL total = 0;
    for (int p = first; p < PARTS; p += GROUP / HEIGHT) total += partial[p * PITCH + r];
    added[id] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < HEIGHT && slice * HEIGHT + id < n_out) {
        for (int i = id + HEIGHT; i < GROUP; i += HEIGHT) total += added[i];
        const int out = order[id];
        finish(total, sums + out, lds, y + out, ldy,
               HAS_BIAS ? parameters[bias + out] : (REAL)0, sample);
    }
#endif
}

// sell: sliced ELL (SELL-C-sigma, clnet/nn/storage/sparse.py) or ELL times x, on GPUs.
//
// A slice is HEIGHT rows whose k-th entries lie side by side; of ELL, any HEIGHT
// neighbouring rows. A work-group takes a slice. Its PARTS parts divide the rows'
// entries (slice-k): part p takes the entries p, p + PARTS, …, so that few rows, too,
// fill a device.
//
//   slice:  row     a0 b0 c0 d0 …     k = 0   part 0    slot = start + k * stride + row
//                   a1 b1 c1 d1 …         1   part 1
//                   a2 b2 c2 d2 …         2   part 0
//
// One sample (TILE 1): a work-item accumulates VECTOR rows, read as one vector; x is in
// local memory with STAGED. A tile of samples: a work-item accumulates one row for 4
// samples, and x is transposed before (transpose.cl).
//
// REAL    float or double
// HEIGHT  rows of a slice
// TILE    samples of a tile: 1, or 4 and more
// VECTOR  rows of a work-item: 4, or 1 where slices are not aligned (TILE 1 only)
// PARTS   parts of a slice (slice-k)
// UNROLL  vectors of entries in flight
// STAGED  1: x is copied to local memory (TILE 1 only)
// WIDTH_X values of x
// COLUMN  type of the column indices: ushort where they fit, or int
// and the macros of sparse.h
#define WIDTH 1
#include "include/activations.h"
#include "sparse/sparse.h"
#if !defined(HEIGHT) || !defined(TILE) || !defined(VECTOR) || !defined(PARTS)        \
    || !defined(UNROLL) || !defined(STAGED) || !defined(WIDTH_X) || !defined(COLUMN)
#error "sell.cl needs the shape of its tiles, UNROLL, STAGED, WIDTH_X and COLUMN"
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
#define ACC VEC
#define VALUES REAL
#define COLUMNS int
#define LOAD_VALUES(i) values[i]
#define LOAD_COLUMNS(i) columns[i]
#elif VECTOR == 4
#define ACC VEC
#define VALUES VEC
#define COLUMNS int4
#define LOAD_VALUES(i) (*(__global const VEC *)(values + (i)))
#define LOAD_COLUMNS(i) convert_int4(*(__global const JOIN(COLUMN, 4) *)(columns + (i)))
#else
#define ACC REAL
#define VALUES REAL
#define COLUMNS int
#define LOAD_VALUES(i) values[i]
#define LOAD_COLUMNS(i) columns[i]
#endif
#define ADD(k, s) sum.s += k < length.s ? v[u].s * x[c[u].s] : (REAL)0;

// sums[b, r] (+)= sum over the entries of row r:  value * x[b, column]
//
// parameters [..]   values at `weights`, biases at `bias`
// starts   [slices]           the first slot of each slice; entry k is k * stride on;
//                             sorted, at most the number of slots
// lengths  [slices * HEIGHT]  entries of each row of each slice, 0 for none: its slots
//                             are below the number of slots
// order    [slices * HEIGHT]  the row of the matrix of each row of the slices, each
//                             once; 0 past the last
// columns  [slots]            below WIDTH_X, 0 in padding
// source   [batch, ldx]       x; or transposed [tiles][WIDTH_X + 1][TILE]
// sums [batch, lds]   y [batch, ldy]   as in sparse.h
// index map: work-group: a tile of samples, then a slice, which varies faster; in one
//            dimension: others may be limited to 65535 groups
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void sell(__global const REAL *parameters, const int weights, const int bias,
          __global const int *starts, const int stride, __global const int *lengths,
          __global const int *order, __global const COLUMN *columns,
          __global const REAL *source, const int ldx, __global REAL *sums,
          const int lds, __global REAL *y, const int ldy, const int n_out,
          const int batch)
{
    __local REAL partial[PARTS * PITCH] __attribute__((aligned(32)));
    const uint group = get_group_id(0), slices = ((uint)n_out + HEIGHT - 1) / HEIGHT;
    const int id = get_local_id(0), slice = group % slices;
    const int part = id / ITEMS, item = id % ITEMS;
    const size_t sample = (size_t)(group / slices) * TILE;
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
    ACC sum = 0;
#if TILE > 1
    const int row = item / (TILE / 4);
    const int length = lengths[row], longest = length;
#elif VECTOR == 4
    const int row = 4 * item;
    const int4 length = *(__global const int4 *)(lengths + row);
    const int longest = max(max(length.s0, length.s1), max(length.s2, length.s3));
#else
    const int row = item;
    const int length = lengths[row], longest = length;
#endif
    __global const REAL *values = parameters + weights + starts[slice] + row;
    columns += starts[slice] + row;
    for (int begin = part; begin < longest; begin += UNROLL * PARTS) {
        VALUES v[UNROLL];
        COLUMNS c[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const size_t slot = (size_t)min(begin + u * PARTS, longest - 1) * stride;
            v[u] = LOAD_VALUES(slot);
            c[u] = LOAD_COLUMNS(slot);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int k = begin + u * PARTS;
#if TILE > 1
            const int column = k < length ? c[u] : WIDTH_X;
            sum += (k < length ? v[u] : (REAL)0)
                   * ((__global const VEC *)x)[(size_t)column * (TILE / 4) + lane];
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
            epilogue(total, sums + out, lds, y + out, ldy,
                     HAS_BIAS ? parameters[bias + out] : (REAL)0, sample + s);
        }
    }
#else
    *(__local ACC *)(partial + part * PITCH + row) = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    // Reduction in two steps: GROUP / HEIGHT work-items for each row, then one.
    __local REAL reduced[GROUP];
    const int r = id % HEIGHT, first = id / HEIGHT;
    REAL total = 0;
    for (int p = first; p < PARTS; p += GROUP / HEIGHT) total += partial[p * PITCH + r];
    reduced[id] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < HEIGHT && slice * HEIGHT + id < n_out) {
        for (int i = id + HEIGHT; i < GROUP; i += HEIGHT) total += reduced[i];
        const int out = order[id];
        epilogue(total, sums + out, lds, y + out, ldy,
                 HAS_BIAS ? parameters[bias + out] : (REAL)0, sample);
    }
#endif
}

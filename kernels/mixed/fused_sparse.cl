// fused_sparse: whole networks with sparse layers in one launch.
//
// A tile of samples passes through all layers. Values between layers are in local memory
// (GPUs), or in a buffer that stays in the core's cache (CPUs). One array holds all
// values, TILE samples side by side; values that are no longer read are overwritten:
//
//   offset  0          n0         n0 + n1
//           | x        | y1       | y2 …            y3 may overwrite x
//
// An entry is a weight and the offset of the value that it multiplies, of any earlier
// layer: so a layer with several inputs (shortcuts), or a matrix that is a sum of
// storages (HYB), is one list of rows. Dense products read rows without a list; a layer
// with both is several products, which accumulate.
//
// On GPUs (GROUP above 1) a row is divided into SLICES (slice-k), each of LANES
// work-items with 4 samples of the tile, or of one work-item with one sample. A CPU core
// (GROUP 1) computes row by row: vectors of entries for one sample, else vectors of
// samples.
//
// REAL    float or double
// GROUP   work-items of a group; 1: the shape for CPUs
// TILE    samples of a tile: 1; or 4 and more, on CPUs VECTORS * LANES
// SLOTS   1: a table gives the slots of weights; 0: weights have the order of entries
// COLUMN  type of the offsets of entries: ushort where they fit, or int
// VALUES  values of a sample in the array
// SLICES  slices of a row: a power of two             (GROUP above 1)
// ROWS    rows whose partial sums are added together  (GROUP above 1)
// LANES, VECTORS  as in csr.h                    (GROUP 1)
// WIDTH   numbers of an activation's vector: 8 of float of a GROUP of 1, else 1
// FUNCTIONS       as in functions.h
#if !defined(GROUP) || !defined(TILE) || !defined(SLOTS) || !defined(COLUMN)         \
    || !defined(VALUES) || !defined(WIDTH)                                           \
    || (GROUP > 1 && (!defined(SLICES) || !defined(ROWS)))                           \
    || (GROUP == 1 && (!defined(LANES) || !defined(VECTORS)))
#error "fused_sparse.cl needs GROUP, TILE, SLOTS, COLUMN, VALUES, WIDTH, and SLICES and \
ROWS or, of a GROUP of 1, LANES and VECTORS"
#endif
#include "include/activations.h"
#include "include/functions.h"

// A product of a layer, one dense or all sparse ones; filled by
// variants/mixed/fused_sparse.py.
typedef struct {
    int n_in, n_out;
    int stride;     // dense: row stride of A; 0: rows of entries
    int weights;    // offset of A in the parameters; sparse: of the weight of entry 0
    int starts;     // offset of its rows in `starts`
    int source;     // offset of its inputs (dense)
    int target;     // offset of its outputs, unless they are the network's
    int accumulates;       // 1: adds to the sums at `target`
    int function;   // code; -1: other products of the layer follow
    int bias, bias_step;  // offset, -1: none; 0: shared by all neurons
} Product;

#if SLOTS
#define WEIGHT(e) parameters[slots[e]]
#else
#define WEIGHT(e) weights[e]
#endif

// y[b, :] = the last layer's output for x[b, :]
//
// parameters [..]       the flat buffer
// products   [count]    rows end within the parameters or `starts`, inputs and outputs
//                       within VALUES or y, biases within the parameters
// starts     [..]       of each sparse product: its rows' first entries, and the end;
//                       0 first, sorted, the number of entries last
// slots, columns [entries]   columns are below VALUES, slots are in the flat buffer, each
//                       once; slots: unused if SLOTS is 0
// x          [batch, ldx]   n_in values a row; their offsets start at 0
// y          [batch, ldy]
#if GROUP > 1
#if TILE == 1
#define LANES 1
#define LANE REAL
#define PITCH (SLICES + 1)  // odd: no bank conflicts
#else
#define LANES (TILE / 4)
#define LANE JOIN(REAL, 4)
#define PITCH (SLICES * TILE + 4)
#endif
#define ITEMS (SLICES * LANES)
#define VALUE_AT(offset) ((__local const LANE *)values)[(offset) * LANES + lane]

// index map: work-group = tile; rows are distributed cyclically over its teams of ITEMS
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fused_sparse(__global const REAL *parameters, __global const Product *products,
                  const int count, __global const int *starts,
                  __global const int *slots, __global const COLUMN *columns,
                  __global const REAL *x, const int ldx, const int n_in,
                  __global REAL *y, const int ldy, const int batch)
{
    __local REAL values[VALUES * TILE] __attribute__((aligned(32)));
    __local REAL partial[ROWS * PITCH] __attribute__((aligned(32)));
    const int id = get_local_id(0), slice = id % ITEMS / LANES, lane = id % LANES;
    const size_t sample = get_group_id(0) * TILE;
    const int samples = min(TILE, batch - (int)sample);
    x += sample * ldx;
    y += sample * ldy;
    // Samples beyond the batch are zeros.
    for (int i = id; i < TILE * n_in; i += GROUP) {
        const int s = i / n_in, k = i % n_in;
        values[k * TILE + s] = s < samples ? x[(size_t)s * ldx + k] : (REAL)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int p = 0; p < count; ++p) {
        const Product op = products[p];
        for (int block = 0; block < op.n_out; block += ROWS) {
            const int rows = min(ROWS, op.n_out - block);
            for (int r = id / ITEMS; r < rows; r += GROUP / ITEMS) {
                const int row = block + r;
                __global const REAL *weights = parameters + op.weights;
                LANE sum = 0;
                if (op.stride) {
                    weights += (size_t)row * op.stride;
#pragma unroll 4
                    for (int k = slice; k < op.n_in; k += SLICES)
                        sum += weights[k] * VALUE_AT(op.source + k);
                } else {
                    const int end = starts[op.starts + row + 1];
#pragma unroll 4
                    for (int e = starts[op.starts + row] + slice; e < end; e += SLICES)
                        sum += WEIGHT(e) * VALUE_AT(columns[e]);
                }
#if TILE == 1
                partial[r * PITCH + slice] = sum;
#else
                ((__local LANE *)partial)[(r * PITCH + slice * TILE) / 4 + lane] = sum;
#endif
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int i = id; i < rows * TILE; i += GROUP) {
                const int r = i / TILE, s = i % TILE, row = block + r;
                REAL sum = 0;
                for (int k = 0; k < SLICES; ++k)
                    sum += partial[r * PITCH + k * TILE + s];
                if (op.accumulates) sum += values[(op.target + row) * TILE + s];
                if (op.function >= 0) {
                    if (op.bias >= 0) sum += parameters[op.bias + row * op.bias_step];
                    sum = activate_as(op.function, sum);
                }
                if (p + 1 < count) values[(op.target + row) * TILE + s] = sum;
                else if (s < samples) y[(size_t)s * ldy + row] = sum;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
}
#else
#include "sparse/csr.h"

#define COUNT (VECTORS * LANES)  // results of an epilogue: rows, or samples
#define START(k) VEC sum##k = 0;
#define ADD(k) sum##k += weight * row_of_x[k];
#define STORE(k) ((VEC *)results)[k] = sum##k;
#define ROW_OF(offset) (__global const VEC *)(values + (size_t)(offset) * TILE)

// A dense row times x.
static inline REAL dense_dot(__global const REAL *row, __global const REAL *x,
                             const int n)
{
    VEC sums = 0;
    REAL sum = 0;
    int k = 0;
    for (; k + LANES <= n; k += LANES)
        sums += *(__global const VecUnaligned *)(row + k)
                * *(__global const VecUnaligned *)(x + k);
    for (; k < n; ++k) sum += row[k] * x[k];
    return sum + lane_sum(sums);
}

// Bias and activation of `live` results, of rows from `row` on, or of one row if TILE is
// above 1.
#define ACTIVATE(k)                                                                  \
    ((VEC *)results)[k] =                                                              \
        activate_as(op.function, ((VEC *)results)[k] + ((const VEC *)biases)[k]);
static inline void epilogue(REAL *results, const int live, const Product op,
                            const int row, __global const REAL *parameters,
                            __global const REAL *sums, __global REAL *out,
                            const int ldo)
{
    REAL biases[COUNT] __attribute__((aligned(32)));
    if (op.accumulates)
        for (int i = 0; i < live; ++i) results[i] += sums[i];
    if (op.function >= 0) {
        for (int i = 0; i < COUNT; ++i) {
            const int r = row + (TILE == 1 ? min(i, live - 1) : 0);
            biases[i] = op.bias >= 0 ? parameters[op.bias + r * op.bias_step] : (REAL)0;
        }
#if WIDTH == 8
        EACH(ACTIVATE)
#else
        for (int i = 0; i < live; ++i)
            results[i] = activate_as(op.function, results[i] + biases[i]);
#endif
    }
    for (int i = 0; i < live; ++i) out[(size_t)i * ldo] = results[i];
}

// arrays [workers, VALUES, TILE]   one array per worker, which stays in its cache
// index map: work-item = worker; tiles are distributed cyclically
__kernel void fused_rows(__global const REAL *parameters,
                         __global const Product *products, const int count,
                         __global const int *starts, __global const int *slots,
                         __global const COLUMN *columns, __global const REAL *x,
                         const int ldx, const int n_in, __global REAL *y,
                         const int ldy, const int batch, __global REAL *arrays)
{
    __global REAL *values = arrays + get_global_id(0) * (size_t)VALUES * TILE;
    REAL results[COUNT] __attribute__((aligned(32)));
    for (size_t sample = get_global_id(0) * TILE; sample < batch;
         sample += get_global_size(0) * TILE) {
        const int samples = min(TILE, batch - (int)sample);
        for (int k = 0; k < n_in; ++k)
            for (int s = 0; s < TILE; ++s)
                values[(size_t)k * TILE + s] =
                    s < samples ? x[(sample + s) * ldx + k] : (REAL)0;
        for (int p = 0; p < count; ++p) {
            const Product op = products[p];
            const bool last = p + 1 == count;
            __global const REAL *weights = parameters + op.weights;
            __global const int *rows = starts + op.starts;
#if TILE == 1
            for (int row = 0; row < op.n_out; row += COUNT) {
                const int live = min(COUNT, op.n_out - row);
                for (int i = 0; i < COUNT; ++i) results[i] = 0;
                if (op.stride)
                    for (int i = 0; i < live; ++i)
                        results[i] = dense_dot(weights + (size_t)(row + i) * op.stride,
                                             values + op.source, op.n_in);
                else
                    for (int i = 0; i < live; ++i)
                        results[i] = dot(SLOTS ? parameters : weights, slots, columns,
                                       rows[row + i], rows[row + i + 1], values);
                __global REAL *inner = values + op.target + row;
                epilogue(results, live, op, row, parameters, inner,
                         last ? y + sample * ldy + row : inner, 1);
            }
#else
            for (int row = 0; row < op.n_out; ++row) {
                EACH(START)
                if (op.stride) {
                    for (int k = 0; k < op.n_in; ++k) {
                        const VEC weight = weights[(size_t)row * op.stride + k];
                        __global const VEC *row_of_x = ROW_OF(op.source + k);
                        EACH(ADD)
                    }
                } else {
                    for (int e = rows[row]; e < rows[row + 1]; ++e) {
                        const VEC weight = WEIGHT(e);
                        __global const VEC *row_of_x = ROW_OF(columns[e]);
                        EACH(ADD)
                    }
                }
                EACH(STORE)
                __global REAL *inner = values + (size_t)(op.target + row) * TILE;
                if (last)
                    epilogue(results, samples, op, row, parameters, inner,
                             y + sample * ldy + row, ldy);
                else
                    epilogue(results, TILE, op, row, parameters, inner, inner, 1);
            }
#endif
        }
    }
}
#endif

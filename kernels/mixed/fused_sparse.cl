// fused_sparse: whole networks with sparse layers in one launch.
//
// A tile of samples goes through all layers; what a layer leaves to the next is in
// local memory (GPUs), or in the stretch of memory that a core keeps in its cache
// (CPUs). All values have places in one array, TILE samples side by side, and those no
// longer needed
// give theirs away:
//
//   place   0          n0         n0 + n1
//           | x        | y1       | y2 …            y3 may take x's
//
// So an entry is a value and the place of what it is multiplied with, whatever earlier
// layer that is of: a layer that reads several (shortcuts), or whose matrix is a sum of
// storages (HYB), is one list of rows. Dense layers are read as rows without a list; a
// layer that has both is computed in parts, which add to its sums.
//
// On GPUs (GROUP above 1) a row is cut into PARTS, each LANES work-items with 4 samples
// of the tile, or one with the only sample. A CPU core (GROUP 1) takes row by row:
// whole vectors of entries for one sample, else whole vectors of samples.
//
// REAL    float or double
// GROUP   work-items of a group; 1: the shape for CPUs
// TILE    samples of a tile: 1; or 4 and more, on CPUs VECTORS * LANES
// SLOTS   1: an entry's value is where a table says; 0: values lie as entries do
// COLUMN  type of the places of entries: ushort where they fit, or int
// PLACES  places in the array
// PARTS   of a row: a power of two               (GROUP above 1)
// ROWS    rows whose sums are added up together  (GROUP above 1)
// LANES, VECTORS  as in csr.h                    (GROUP 1)
// FUNCTIONS       as in functions.h
#if !defined(GROUP) || !defined(TILE) || !defined(SLOTS) || !defined(COLUMN)         \
    || !defined(PLACES)
#error "fused_sparse.cl needs the macros that its head names"
#endif
#if GROUP > 1 || LANES == 4
#define WIDTH 1  // vectors of double would call builtins that PoCL does not survive
#else
#define WIDTH 8
#endif
#include "include/activations.h"
#include "include/functions.h"

// A layer, or a part of one; variants/fused_sparse.py fills the table.
typedef struct {
    int n_in, n_out;
    int stride;     // dense: from one row of A to the next; 0: rows of entries
    int weights;    // where A starts in the parameters; or what takes an entry there
    int starts;     // where its rows' starts are
    int source;     // place of its inputs (dense)
    int target;     // place of its output, unless that is the network's
    int adds;       // 1: to the sums at the target's place
    int function;   // code; -1: other parts of the layer follow
    int bias, bias_step;  // where it starts, -1: none; 0 where all neurons share one
} Part;

#if SLOTS
#define WEIGHT(e) parameters[slots[e]]
#else
#define WEIGHT(e) weights[e]
#endif

// y[b, :] = the last layer's output for x[b, :]
//
// parameters [..]       the flat buffer
// parts      [count]
// starts     [..]       of each part with entries: where its rows' start, and the end
// slots, columns [entries]   slots: any int where SLOTS is 0
// x          [batch, ldx]   n_in values a row; they get the places from 0 on
// y          [batch, ldy]
#if GROUP > 1
#if TILE == 1
#define LANES 1
#define LANE REAL
#define PITCH (PARTS + 1)  // odd: no bank is met twice
#else
#define LANES (TILE / 4)
#define LANE JOIN(REAL, 4)
#define PITCH (PARTS * TILE + 4)
#endif
#define ITEMS (PARTS * LANES)
#define AT(place) ((__local const LANE *)values)[(place) * LANES + lane]

// index map: work-group = tile; its teams of ITEMS take rows in turn
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fused_sparse(__global const REAL *parameters, __global const Part *parts,
                  const int count, __global const int *starts,
                  __global const int *slots, __global const COLUMN *columns,
                  __global const REAL *x, const int ldx, const int n_in,
                  __global REAL *y, const int ldy, const int batch)
{
    __local REAL values[PLACES * TILE] __attribute__((aligned(32)));
    __local REAL partial[ROWS * PITCH] __attribute__((aligned(32)));
    const int id = get_local_id(0), part = id % ITEMS / LANES, lane = id % LANES;
    const size_t sample = get_group_id(0) * TILE;
    const int samples = min(TILE, batch - (int)sample);
    x += sample * ldx;
    y += sample * ldy;
    // Samples that a last tile lacks are zeros.
    for (int i = id; i < TILE * n_in; i += GROUP) {
        const int s = i / n_in, k = i % n_in;
        values[k * TILE + s] = s < samples ? x[(size_t)s * ldx + k] : (REAL)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int p = 0; p < count; ++p) {
        const Part at = parts[p];
        for (int block = 0; block < at.n_out; block += ROWS) {
            const int rows = min(ROWS, at.n_out - block);
            for (int r = id / ITEMS; r < rows; r += GROUP / ITEMS) {
                const int row = block + r;
                __global const REAL *weights = parameters + at.weights;
                LANE sum = 0;
                if (at.stride) {
                    weights += (size_t)row * at.stride;
#pragma unroll 4
                    for (int k = part; k < at.n_in; k += PARTS)
                        sum += weights[k] * AT(at.source + k);
                } else {
                    const int end = starts[at.starts + row + 1];
#pragma unroll 4
                    for (int e = starts[at.starts + row] + part; e < end; e += PARTS)
                        sum += WEIGHT(e) * AT(columns[e]);
                }
#if TILE == 1
                partial[r * PITCH + part] = sum;
#else
                ((__local LANE *)partial)[(r * PITCH + part * TILE) / 4 + lane] = sum;
#endif
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int i = id; i < rows * TILE; i += GROUP) {
                const int r = i / TILE, s = i % TILE, row = block + r;
                REAL sum = 0;
                for (int k = 0; k < PARTS; ++k)
                    sum += partial[r * PITCH + k * TILE + s];
                if (at.adds) sum += values[(at.target + row) * TILE + s];
                if (at.function >= 0) {
                    if (at.bias >= 0) sum += parameters[at.bias + row * at.bias_step];
                    sum = activate_as(at.function, sum);
                }
                if (p + 1 < count) values[(at.target + row) * TILE + s] = sum;
                else if (s < samples) y[(size_t)s * ldy + row] = sum;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
}
#else
#include "sparse/csr.h"

#define COUNT (VECTORS * LANES)  // sums that end together: of rows, or of samples
#define START(k) VEC sum##k = 0;
#define ADD(k) sum##k += weight * row_of_x[k];
#define STORE(k) ((VEC *)found)[k] = sum##k;
#define ROW_OF(place) (__global const VEC *)(values + (size_t)(place) * TILE)

// A dense row times x.
inline REAL dense_dot(__global const REAL *row, __global const REAL *x, const int n)
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

// Ends `live` sums, from row `row` on: with one row's bias where TILE is above 1.
#define ACTIVATE(k)                                                                  \
    ((VEC *)found)[k] =                                                              \
        activate_as(at.function, ((VEC *)found)[k] + ((const VEC *)biases)[k]);
inline void epilogue(REAL *found, const int live, const Part at, const int row,
                       __global const REAL *parameters, __global const REAL *sums,
                       __global REAL *out, const int ldo)
{
    REAL biases[COUNT] __attribute__((aligned(32)));
    if (at.adds)
        for (int i = 0; i < live; ++i) found[i] += sums[i];
    if (at.function >= 0) {
        for (int i = 0; i < COUNT; ++i) {
            const int r = row + (TILE == 1 ? min(i, live - 1) : 0);
            biases[i] = at.bias >= 0 ? parameters[at.bias + r * at.bias_step] : (REAL)0;
        }
#if WIDTH == 8
        EACH(ACTIVATE)
#else
        for (int i = 0; i < live; ++i)
            found[i] = activate_as(at.function, found[i] + biases[i]);
#endif
    }
    for (int i = 0; i < live; ++i) out[(size_t)i * ldo] = found[i];
}

// arrays [workers, PLACES, TILE]   of what a worker keeps in its cache
// index map: work-item = worker, which takes every so many-th tile
__kernel void fused_rows(__global const REAL *parameters, __global const Part *parts,
                         const int count, __global const int *starts,
                         __global const int *slots, __global const COLUMN *columns,
                         __global const REAL *x, const int ldx, const int n_in,
                         __global REAL *y, const int ldy, const int batch,
                         __global REAL *arrays)
{
    __global REAL *values = arrays + get_global_id(0) * (size_t)PLACES * TILE;
    REAL found[COUNT] __attribute__((aligned(32)));
    for (size_t sample = get_global_id(0) * TILE; sample < batch;
         sample += get_global_size(0) * TILE) {
        const int samples = min(TILE, batch - (int)sample);
        for (int k = 0; k < n_in; ++k)
            for (int s = 0; s < TILE; ++s)
                values[(size_t)k * TILE + s] =
                    s < samples ? x[(sample + s) * ldx + k] : (REAL)0;
        for (int p = 0; p < count; ++p) {
            const Part at = parts[p];
            const bool last = p + 1 == count;
            __global const REAL *weights = parameters + at.weights;
            __global const int *rows = starts + at.starts;
#if TILE == 1
            for (int row = 0; row < at.n_out; row += COUNT) {
                const int live = min(COUNT, at.n_out - row);
                for (int i = 0; i < COUNT; ++i) found[i] = 0;
                if (at.stride)
                    for (int i = 0; i < live; ++i)
                        found[i] = dense_dot(weights + (size_t)(row + i) * at.stride,
                                             values + at.source, at.n_in);
                else
                    for (int i = 0; i < live; ++i)
                        found[i] = dot(SLOTS ? parameters : weights, slots, columns,
                                       rows[row + i], rows[row + i + 1], values);
                __global REAL *inner = values + at.target + row;
                epilogue(found, live, at, row, parameters, inner,
                           last ? y + sample * ldy + row : inner, 1);
            }
#else
            for (int row = 0; row < at.n_out; ++row) {
                EACH(START)
                if (at.stride) {
                    for (int k = 0; k < at.n_in; ++k) {
                        const VEC weight = weights[(size_t)row * at.stride + k];
                        __global const VEC *row_of_x = ROW_OF(at.source + k);
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
                __global REAL *inner = values + (size_t)(at.target + row) * TILE;
                if (last)
                    epilogue(found, samples, at, row, parameters, inner,
                               y + sample * ldy + row, ldy);
                else
                    epilogue(found, TILE, at, row, parameters, inner, inner, 1);
            }
#endif
        }
    }
}
#endif

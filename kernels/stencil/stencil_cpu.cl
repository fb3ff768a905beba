// stencil_cpu: one or several locally connected layers in one launch, on CPU cores.
//
// A task is a tile of the last layer's rows for some samples. Through several layers
// the tile is a trapezoid: the halo grows by WINDOW - 1 rows per layer. Neighbouring
// tiles compute the halo redundantly, so that no task waits for another (overlapped
// tiling: Krishnamoorthy et al., "Effective automatic parallelization of stencil
// computations", 2007). Inner values stay in a worker's buffer, which fits its cache,
// and each layer overwrites the one before.
//
//   x        |-----------------------|      the tile and its halo
//   layer 0    |-------------------|        LAYERS - 1 layers into the buffer
//   layer 1      |---------------|          the last one into y
//
// WINDOW      inputs of a row, at least 1
// LAYERS      at least 1
// BIAS_STEP   stride of the biases: 1, or 0 where all rows share one
// HAS_BIAS    1 or 0
// LINE        values that bands are padded to (storage/local.py)
// STREAM      1: y bypasses the caches (non-temporal stores)
// LANES       rows of a vector: 8 or 16
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  the layers' activation (activations.h)
#define WIDTH LANES
#include "include/activations.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS) || !defined(BIAS_STEP) \
    || !defined(WINDOW) || !defined(LAYERS) || !defined(LINE) || !defined(STREAM)   \
    || !defined(LANES)
#error "stencil_cpu.cl needs activation, bias, WINDOW, LAYERS, LINE, STREAM and LANES"
#endif

typedef VAL __attribute__((aligned(4))) VAL_UNALIGNED;
#define LOAD(p) (*(__global const VAL_UNALIGNED *)(p))
#define STORE(p, v) *(__global VAL_UNALIGNED *)(p) = v

#if STREAM && defined(__clang__)
#define STORE_STREAMING(p, v) __builtin_nontemporal_store(v, (__global VAL *)(p))
#else
#define STORE_STREAMING(p, v) STORE(p, v)
#endif

// The outputs of rows i … i + LANES - 1.
static inline VAL vector_of_rows(__global const REAL *w, const size_t pitch,
                                 __global const REAL *bias, __global const REAL *in,
                                 const int i)
{
    VAL sum = HAS_BIAS ? (BIAS_STEP ? LOAD(bias + i) : CONST(*bias)) : CONST(0);
#pragma unroll
    for (int r = 0; r < WINDOW; ++r) sum += LOAD(w + r * pitch + i) * LOAD(in + i + r);
    return activate(sum);
}

// Stores the first `count` values of a vector.
static inline void store_partial(__global REAL *out, const VAL v, const int count)
{
    REAL values[LANES] __attribute__((aligned(4 * LANES)));
    *(VAL *)values = v;
    for (int j = 0; j < count; ++j) out[j] = values[j];
}

// Rows [0, rows) of the first layer, from x: no read past the sample's end.
static inline void first_layer(__global const REAL *w, const size_t pitch,
                               __global const REAL *bias, __global const REAL *x,
                               __global REAL *out, const int rows)
{
    int i = 0;
#if STREAM
    if (((size_t)out & (4 * LANES - 1)) == 0)
        for (; i + LANES <= rows; i += LANES)
            STORE_STREAMING(out + i, vector_of_rows(w, pitch, bias, x, i));
#endif
    for (; i + LANES <= rows; i += LANES) STORE(out + i, vector_of_rows(w, pitch, bias, x, i));
    if (i == rows) return;
    REAL sums[LANES] __attribute__((aligned(4 * LANES)));
    *(VAL *)sums = CONST(0);
    for (int j = 0; i + j < rows; ++j) {
        REAL sum = HAS_BIAS ? bias[BIAS_STEP * (i + j)] : (REAL)0;
        for (int r = 0; r < WINDOW; ++r) sum += w[r * pitch + i + j] * x[i + j + r];
        sums[j] = sum;
    }
    store_partial(out + i, activate(*(VAL *)sums), rows - i);
}

#if LAYERS > 1
// Rows [0, rows) of an inner layer, in place: the buffer is padded to whole vectors.
static inline void inner_layer(__global const REAL *w, const size_t pitch,
                               __global const REAL *bias, __global REAL *values,
                               const int rows)
{
    for (int i = 0; i < rows; i += LANES) {
        const VAL v = vector_of_rows(w, pitch, bias, values, i);
        STORE(values + i, v);
    }
}

// Rows [0, rows) of the last layer.
static inline void last_layer(__global const REAL *w, const size_t pitch,
                              __global const REAL *bias, __global const REAL *values,
                              __global REAL *y, const int rows)
{
    int i = 0;
    for (; i + LANES <= rows; i += LANES) STORE(y + i, vector_of_rows(w, pitch, bias, values, i));
    if (i < rows) store_partial(y + i, vector_of_rows(w, pitch, bias, values, i), rows - i);
}
#endif

// y[b, :] = the last layer's output for x[b, :]; row i of a layer reads the inputs i …
// i + WINDOW - 1
//
// parameters [..]         value r of a layer's row i at weights + r * pitch + i; pitch:
//                         the layer's rows, rounded up to LINE (storage/local.py)
// offsets    [LAYERS, 2]  of each layer's weights and biases
// x          [batch, ldx]   y [batch, ldy]
// buffers    [workers, room]   room: tile + LAYERS * (WINDOW - 1) + LANES, in whole lines
// index map: work-item = worker, with a contiguous share of the tasks; task = tile *
// blocks + block: `tile` rows of the last layer, `block` samples
__kernel void stencil_cpu(__global const REAL *parameters, __global const int *offsets,
                          __global const REAL *x, const int ldx, __global REAL *y,
                          const int ldy, __global REAL *buffers, const int room,
                          const int n_in, const int batch, const int tile,
                          const int block, const int tasks)
{
    const int worker = get_global_id(0), workers = get_global_size(0);
    const int n_out = n_in - LAYERS * (WINDOW - 1);
    const int blocks = (batch + block - 1) / block;
    const int stop = (long)tasks * (worker + 1) / workers;
    __global REAL *buffer = buffers + (size_t)worker * room;
    for (int task = (long)tasks * worker / workers; task < stop; ++task) {
        const int start = task / blocks * tile, first = task % blocks * block;
        const int rows = min(tile, n_out - start);
        for (size_t b = first; b < min(first + block, batch); ++b) {
            __global const REAL *in = x + b * ldx + start;
            __global REAL *out = y + b * ldy + start;
            for (int k = 0; k < LAYERS; ++k) {
                const int halo = (LAYERS - 1 - k) * (WINDOW - 1);
                const size_t pitch = (n_out + halo + LINE - 1) / LINE * LINE;
                __global const REAL *w = parameters + offsets[2 * k] + start;
                __global const REAL *bias =
                    parameters + offsets[2 * k + 1] + BIAS_STEP * start;
#if LAYERS > 1
                if (k == 0)
                    first_layer(w, pitch, bias, in, buffer, rows + halo);
                else if (k < LAYERS - 1)
                    inner_layer(w, pitch, bias, buffer, rows + halo);
                else
                    last_layer(w, pitch, bias, buffer, out, rows);
#else
                first_layer(w, pitch, bias, in, out, rows);
#endif
            }
        }
    }
}

// The work of a group on one tile of samples by matrix units, to float32's accuracy
// (split_factors.h).
//
// A warp takes SLICE samples of the tile through the forward pass, the loss and the
// derivatives alone. It waits for other warps only where gradients are sums over all
// samples of the tile:
//
//   warp 0  load, forward ..., loss, back ... | outer ... |
//   warp 1  load, forward ..., loss, back ... | outer ... |
//           samples of its own                  blocks of neurons and inputs
//
// STEPS  steps of the inner dimension at once, in the forward pass: 2, or 4 of few neurons
// BLOCK_TABLE  of each layer: a row of Blocks
// MOST_PARTS   parts of a layer, at most
// EXACT  1: the data set's inputs are bfloat16 numbers (exact_inputs.h)
// KEPT   gradients that a lane keeps in registers for a whole step, of all its blocks; 0:
//        tiles add theirs up in local memory
// and the macros of exact_inputs.h and few_outputs.h
#if !defined(STEPS) || !defined(BLOCK_TABLE) || !defined(MOST_PARTS) || !defined(KEPT)
#error "matrix.h needs STEPS, BLOCK_TABLE, MOST_PARTS and KEPT"
#endif
#include "members/split_factors.h"
#define SIDES (SLICE / 8)
#define BLOCK_ROWS 4                 // of a warp's products, by 16
#define OUTER_ROWS 2                 // of a block of gradients at most, by 16
#define OUTER_SIDES 4                // its columns at most, by 8
#define LOADED_ROWS 2                // rows that a warp reads at once
#define LOADED_COLUMNS (WARP / LOADED_ROWS)

// get_local_id(0). It is volatile: addresses by it are computed where they are used, and
// take no registers elsewhere. As it is not below 0, its quotients are shifts.
static inline int own_id(void)
{
    int id;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
    return id & (GROUP - 1);
}

// sums[n] += first second[n], small products first; neighbours in time do not depend on
// each other.
#define MULTIPLY(sums, first, second, most, sides)                                   \
    _Pragma("unroll") for (int n = 0; n < most; ++n)                                 \
        if (n < sides) mma(sums[n], (first).small, second[n].big);                   \
    _Pragma("unroll") for (int n = 0; n < most; ++n)                                 \
        if (n < sides) mma(sums[n], (first).big, second[n].small);                   \
    _Pragma("unroll") for (int n = 0; n < most; ++n)                                 \
        if (n < sides) mma(sums[n], (first).big, second[n].big);

#define ZERO_SUMS(sums, rows, sides)                                                 \
    _Pragma("unroll") for (int m = 0; m < rows; ++m)                                 \
        _Pragma("unroll") for (int n = 0; n < sides; ++n)                            \
            _Pragma("unroll") for (int j = 0; j < 4; ++j) sums[m][n][j] = 0;

// Start the copy of a value to local memory, or of zero; `copies_end` completes them.
static inline void copy_value(__local float *to, __global const float *from,
                              const int valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"((uint)(size_t)to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

static inline void copies_end(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A layer's gradients (gradient_blocks.h; BLOCKS of
// clnet/variants/members/group_members.py).
typedef struct {
    int rows, columns;  // of a warp's block, by 16 and by 8
    int parts;          // of the tile's samples: warps share a block's; 1 unless KEPT
    int kept;           // index of the first block's kept gradients
} Blocks;

__constant Blocks blocks[LAYERS] = BLOCK_TABLE;

// The samples that a lane loads are LOADED_ROWS apart: rows of the data set, of which
// those of `left` samples are valid.
#define LISTED (GATHERED == 2 || SUBSETS)
typedef struct {
    int rows[LISTED ? SLICE / LOADED_ROWS : 1], left;
} Loaded;

static inline int is_valid(const Loaded *loaded, const int k)
{
    return k * LOADED_ROWS < loaded->left;
}

// The offset of a row in the data set. Rows in their own order are apart by constants.
static inline size_t row_offset(const Loaded *loaded, const int k, const int width)
{
    return LISTED ? (size_t)loaded->rows[k] * width
                  : (size_t)loaded->rows[0] * width + k * LOADED_ROWS * width;
}

// to[i][s] = value i of sample s's row, of a warp's samples; zeros from width to `padded`
static inline void load_rows(__global const float *from, const int width,
                             const int padded, const Loaded *loaded, __local float *to)
{
    const int lane = own_id() % WARP;
    const int column = lane % LOADED_COLUMNS, row = lane / LOADED_COLUMNS;
#pragma unroll
    for (int begin = 0; begin < padded; begin += LOADED_COLUMNS) {
        const int i = begin + column;
#pragma unroll
        for (int k = 0; k < SLICE / LOADED_ROWS; ++k)
            if (i < padded)
                copy_value(to + i * PITCH + row + k * LOADED_ROWS,
                           from + row_offset(loaded, k, width) + min(i, width - 1),
                           is_valid(loaded, k) && i < width);
    }
}

#if EXACT
#include "members/exact_inputs.h"
#endif

// Start to load a warp's samples of a tile.
static inline void load_slice(const Net *net, __local float *memory, const int slice,
                              const int first, const int valid_samples, const uint8 key)
{
    const int lane = own_id() % WARP, own = slice + lane / LOADED_COLUMNS;
    const int n_out = layers[LAYERS - 1].n_out;
    __local float *to = memory + slice;
    Loaded loaded;
    loaded.left = valid_samples - own;
#pragma unroll
    for (int j = 0; j < (LISTED ? SLICE / LOADED_ROWS : 1); ++j)
        loaded.rows[j] =
            row_of(net, first + min(own + j * LOADED_ROWS, valid_samples - 1), key);
#if EXACT
    load_inputs((__global const ushort *)net->x, &loaded,
                INPUTS(memory) + slice * INPUT_PITCH);
#else
    const int n_in = layers[0].n_in;
    load_rows(net->x, n_in, (n_in + 7) / 8 * 8, &loaded, to + X_OFFSET);
#endif
    load_rows(net->t, n_out, n_out, &loaded, to + T_OFFSET);
#if WEIGHTED
    if (lane % LOADED_COLUMNS == 0)
#pragma unroll
        for (int j = 0; j < SLICE / LOADED_ROWS; ++j)
            to[WEIGHT_OFFSET + lane / LOADED_COLUMNS + j * LOADED_ROWS] =
                is_valid(&loaded, j)
                    ? net->weight[row_offset(&loaded, j, 1)] * net->weight_scale : 0;
#endif
}

// Store the derivatives of neuron o for two samples.
static inline void store_deltas(const int l, const int o, const float2 v,
                                const int sample, __local float *memory)
{
#if EXACT
    if (l == 0) {
        store_delta_pieces(o, v, sample, memory);
        return;
    }
#endif
    *(__local float2 *)(memory + deltas_of(l) + o * PITCH + sample) = v;
}

#include "members/few_outputs.h"

// sums += the products of 16 BLOCK_ROWS neurons from o on with a warp's samples
static inline void forward_products(const Net *net, const int l, const int o,
                                    const int slice, __local const float *memory,
                                    float (*sums)[SIDES][4])
{
    const Layer layer = layers[l];
    const int id = own_id(), lane = id % WARP, a = lane % 4, b = lane / 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *x =
        memory + (l ? layers[l - 1].values : X_OFFSET) + slice;
#pragma unroll STEPS
    for (int k = 0; k < layer.n_in; k += 8) {
        SecondFactor second[SIDES];
#pragma unroll
        for (int n = 0; n < SIDES; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                split(x[(k + 2 * a + h) * PITCH + 8 * n + b], &second[n].big[h],
                      &second[n].small[h]);
#pragma unroll
        for (int m = 0; m < BLOCK_ROWS; ++m) {
            if (o + 16 * m >= layer.n_out) continue;
            FirstFactor first;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = min(o + 16 * m + 8 * h + b, layer.n_out - 1);
                const float2 v =
                    *(SPACE const float2 *)(w + row * layer.stride + k + 2 * a);
                split(v.s0, &first.big[h], &first.small[h]);
                split(v.s1, &first.big[2 + h], &first.small[2 + h]);
            }
            MULTIPLY(sums[m], first, second, SIDES, SIDES)
        }
    }
}

// The outputs of a layer for a warp's samples: rows are neurons, columns samples.
static inline void forward_mma(const Net *net, const int l, const int slice,
                               __local float *memory)
{
    const Layer layer = layers[l];
    const int id = own_id(), lane = id % WARP, a = lane % 4, b = lane / 4;
#pragma unroll
    for (int o = 0; o < layer.n_out; o += 16 * BLOCK_ROWS) {
        float sums[BLOCK_ROWS][SIDES][4];
        ZERO_SUMS(sums, BLOCK_ROWS, SIDES)
#if EXACT
        if (l == 0) exact_forward(net, o, slice, memory, sums);
        else
#endif
            forward_products(net, l, o, slice, memory, sums);
#pragma unroll
        for (int m = 0; m < BLOCK_ROWS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = o + 16 * m + 8 * h + b;
                if (row >= layer.n_out) continue;
#pragma unroll
                for (int n = 0; n < SIDES; ++n) {
                    float2 v = (float2)(sums[m][n][2 * h], sums[m][n][2 * h + 1]);
                    if (layer.bias >= 0) v += net->parameters[layer.bias + row];
                    store_two_outputs(net, l, row, v, slice + 8 * n + 2 * a, memory);
                }
            }
    }
}

// The derivatives of the layer below for a warp's samples: rows are its neurons, columns
// samples.
static inline void back_mma(const Net *net, const int l, const int slice,
                            __local float *memory)
{
    const Layer layer = layers[l];
    const int id = own_id(), lane = id % WARP, a = lane % 4, b = lane / 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *ds = memory + deltas_of(l) + slice;
#pragma unroll
    for (int i = 0; i < layer.n_in; i += 16 * BLOCK_ROWS) {
        float sums[BLOCK_ROWS][SIDES][4];
        ZERO_SUMS(sums, BLOCK_ROWS, SIDES)
#pragma unroll 2
        for (int o = 0; o < layer.n_out; o += 8) {
            SecondFactor second[SIDES];
#pragma unroll
            for (int n = 0; n < SIDES; ++n)
#pragma unroll
                for (int q = 0; q < 2; ++q)  // rows past the last are zeros
                    split(ds[(o + 4 * q + a) * PITCH + 8 * n + b], &second[n].big[q],
                          &second[n].small[q]);
#pragma unroll
            for (int m = 0; m < BLOCK_ROWS; ++m) {
                if (i + 16 * m >= layer.n_in) continue;
                FirstFactor first;
#pragma unroll
                for (int q = 0; q < 2; ++q)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int row = min(o + 4 * q + a, layer.n_out - 1);
                        const int column = min(i + 16 * m + 8 * h + b, layer.n_in - 1);
                        split(w[row * layer.stride + column], &first.big[2 * q + h],
                              &first.small[2 * q + h]);
                    }
                MULTIPLY(sums[m], first, second, SIDES, SIDES)
            }
        }
#pragma unroll
        for (int m = 0; m < BLOCK_ROWS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = i + 16 * m + 8 * h + b;
                if (row >= layer.n_in) continue;
#pragma unroll
                for (int n = 0; n < SIDES; ++n)
                    store_deltas(l - 1, row,
                                 two_derivatives(net, l - 1, row,
                                                 (float2)(sums[m][n][2 * h],
                                                          sums[m][n][2 * h + 1]),
                                                 slice + 8 * n + 2 * a, memory),
                                 slice + 8 * n + 2 * a, memory);
            }
    }
}

#include "members/gradient_blocks.h"

// As in group_step_tile.h. records [RECORD * PARTS], kept [KEPT]
static inline void tile(const Net *net, __local float *memory, const int first,
                        const int valid_samples, const uint8 key,
                        HOME float *gradient, HOME float *records, const int add,
                        int *loaded, float *kept)
{
    const int id = own_id(), slice = id / WARP * SLICE, lane = id % WARP;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (*loaded != first) load_slice(net, memory, slice, first, valid_samples, key);
    *loaded = first;
    copies_end();
#pragma unroll
    for (int l = 0; l < LAYERS; ++l) {
        warp_barrier();
        if (FEW(l)) few_forward(net, l, slice, memory);
        else forward_mma(net, l, slice, memory);
    }
    warp_barrier();
    sample_loss(net, memory, slice + lane % SLICE, valid_samples, lane / SLICE,
                WARP / SLICE);
#if BACKWARD
#pragma unroll
    for (int l = LAYERS - 1; l > 0; --l) {
        warp_barrier();
        if (FEW(l)) few_back(net, l, slice, memory);
        else back_mma(net, l, slice, memory);
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    sum_records(memory, records, add);
#if BACKWARD
#pragma unroll
    for (int l = LAYERS - 1; l >= 0; --l) outer_mma(l, memory, gradient, add, kept);
#endif
}

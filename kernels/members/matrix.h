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
// EXACT  1: the data set's inputs have TF32's bits, and no small parts: as one-hot codes
//        and small integers. A product of the first layer is two, not three
// KEPT   gradients that a lane keeps in registers for a whole step, of all its blocks; 0:
//        tiles add theirs up in local memory
#include "members/split_factors.h"
#define SIDES (SLICE / 8)
#define BLOCK_ROWS 4                 // of a warp's products, by 16
#define OUTER_ROWS 2                 // of a block of gradients at most, by 16
#define OUTER_SIDES 4                // its columns at most, by 8
#define LOADED_ROWS 2                // rows that a warp reads at once
#define LOADED_COLUMNS (WARP / LOADED_ROWS)

// get_local_id(0). It is volatile: addresses by it are computed where they are used, and
// take no registers elsewhere.
static inline int own_id(void)
{
    int id;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
    return id;
}

// The factor of an input or, behind the first layer, of any value.
static inline void split_input(const float v, const int l, uint *big, uint *small)
{
    if (EXACT && l == 0) *big = as_uint(v);
    else split(v, big, small);
}

// sums[n] += first second[n] of layer l, small products first; neighbours in time do not
// depend on each other.
#define MULTIPLY(l, sums, first, second, most, sides)                                \
    _Pragma("unroll") for (int n = 0; n < most; ++n)                                 \
        if (n < sides) mma(sums[n], (first).small, second[n].big);                   \
    _Pragma("unroll") for (int n = 0; n < most; ++n)                                 \
        if (n < sides && !(EXACT && (l) == 0))                                       \
            mma(sums[n], (first).big, second[n].small);                              \
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

// to[i][s] = value i of sample s's row, of a warp's samples; zeros from width to `padded`
static inline void load_rows(__global const float *from, const int width,
                             const int padded, const int *rows, __local float *to)
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
                           from + max(rows[k], 0) * width + min(i, width - 1),
                           rows[k] >= 0 && i < width);
    }
}

// Start to load a warp's samples of a tile.
static inline void load_slice(const Net *net, __local float *memory, const int slice,
                              const int first, const int valid_samples, const uint8 key)
{
    const int lane = own_id() % WARP;
    const int n_in = layers[0].n_in, n_out = layers[LAYERS - 1].n_out;
    __local float *to = memory + slice;
    int rows[SLICE / LOADED_ROWS];
#pragma unroll
    for (int j = 0; j < SLICE / LOADED_ROWS; ++j) {
        const int s = slice + lane / LOADED_COLUMNS + j * LOADED_ROWS;
        rows[j] = s < valid_samples ? row_of(net, first + s, key) : -1;
    }
    load_rows(net->x, n_in, (n_in + 7) / 8 * 8, rows, to + X_OFFSET);
    load_rows(net->t, n_out, n_out, rows, to + T_OFFSET);
#if WEIGHTED
    if (lane % LOADED_COLUMNS == 0)
#pragma unroll
        for (int j = 0; j < SLICE / LOADED_ROWS; ++j)
            to[WEIGHT_OFFSET + lane / LOADED_COLUMNS + j * LOADED_ROWS] =
                rows[j] < 0 ? 0 : net->weight[rows[j]] * net->weight_scale;
#endif
}

// The outputs of a layer for a warp's samples: rows are neurons, columns samples.
static inline void forward_mma(const Net *net, const int l, const int slice,
                               __local float *memory)
{
    const Layer layer = layers[l];
    const int id = own_id(), lane = id % WARP, a = lane % 4, b = lane / 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *x =
        memory + (l ? layers[l - 1].values : X_OFFSET) + slice;
#pragma unroll
    for (int o = 0; o < layer.n_out; o += 16 * BLOCK_ROWS) {
        float sums[BLOCK_ROWS][SIDES][4];
        ZERO_SUMS(sums, BLOCK_ROWS, SIDES)
#pragma unroll STEPS
        for (int k = 0; k < layer.n_in; k += 8) {
            SecondFactor second[SIDES];
#pragma unroll
            for (int n = 0; n < SIDES; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    split_input(x[(k + 2 * a + h) * PITCH + 8 * n + b], l,
                                &second[n].big[h], &second[n].small[h]);
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
                MULTIPLY(l, sums[m], first, second, SIDES, SIDES)
            }
        }
#pragma unroll
        for (int m = 0; m < BLOCK_ROWS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = o + 16 * m + 8 * h + b;
                if (row >= layer.n_out) continue;
                const float bias = layer.bias < 0 ? 0 : net->parameters[layer.bias + row];
#pragma unroll
                for (int n = 0; n < SIDES; ++n)
                    store_two_outputs(net, l, row,
                                      (float2)(sums[m][n][2 * h], sums[m][n][2 * h + 1])
                                          + bias,
                                      slice + 8 * n + 2 * a, memory);
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
                MULTIPLY(l, sums[m], first, second, SIDES, SIDES)
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
                    store_two_derivatives(
                        net, l - 1, row,
                        (float2)(sums[m][n][2 * h], sums[m][n][2 * h + 1]),
                        slice + 8 * n + 2 * a, memory);
            }
    }
}

// A layer's gradients (BLOCKS of clnet/variants/members/group_members.py).
typedef struct {
    int rows, columns;  // of a warp's block, by 16 and by 8
    int parts;          // of the tile's samples: warps share a block's; 1 unless KEPT
    int kept;           // index of the first block's kept gradients
} Blocks;

__constant Blocks blocks[LAYERS] = BLOCK_TABLE;

static inline int blocks_across(const int l)
{
    return (layers[l].n_in + 8 * blocks[l].columns - 1) / (8 * blocks[l].columns);
}

static inline int blocks_of(const int l)
{
    const int down = (layers[l].n_out + 16 * blocks[l].rows - 1) / (16 * blocks[l].rows);
    return down * blocks_across(l);
}

// The blocks of a warp; the index among the kept gradients of element j of row by 16 m
// and column by 8 n of its block r; and of its biases' sums, of rows 8 h and on.
#define ROUNDS(l) ((blocks_of(l) * blocks[l].parts + WARPS - 1) / WARPS)
#define KEPT_BLOCK(l, r)                                                             \
    (blocks[l].kept + (r) * blocks[l].rows * (4 * blocks[l].columns + 2))
#define KEPT_SUM(l, r, m, n, j)                                                      \
    (KEPT_BLOCK(l, r) + 4 * ((m) * blocks[l].columns + (n)) + (j))
#define KEPT_BIAS(l, r, m, h)                                                        \
    (KEPT_BLOCK(l, r) + 4 * blocks[l].rows * blocks[l].columns + 2 * (m) + (h))

// Store a block's gradients of weights and biases, or add them.
static inline void store_block(const int l, const int block,
                               float (*sums)[OUTER_SIDES][4], float (*biases)[2],
                               HOME float *gradient, const int add)
{
    const Layer layer = layers[l];
    const int id = own_id(), lane = id % WARP, a = lane % 4, b = lane / 4;
    const int o = block / blocks_across(l) * 16 * blocks[l].rows;
    const int i = block % blocks_across(l) * 8 * blocks[l].columns;
#pragma unroll
    for (int m = 0; m < OUTER_ROWS; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (m >= blocks[l].rows) continue;
            float bias = biases[m][h];
            bias += shuffle_xor(bias, 1);
            bias += shuffle_xor(bias, 2);
            const int row = o + 16 * m + 8 * h + b;
            if (row >= layer.n_out) continue;
            HOME float *to = gradient + layer.weights + row * layer.stride;
#pragma unroll
            for (int n = 0; n < OUTER_SIDES; ++n)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int column = i + 8 * n + 2 * a + j;
                    const float sum = sums[m][n][2 * h + j];
                    if (n < blocks[l].columns && column < layer.n_in)
                        to[column] = add ? to[column] + sum : sum;
                }
            if (i || a || layer.bias < 0) continue;
            to = gradient + layer.bias + row;
            *to = add ? *to + bias : bias;
        }
}

// The gradients of a layer's weights and biases, a block a warp: rows are neurons, columns
// inputs.
static inline void outer_mma(const int l, __local const float *memory,
                             HOME float *gradient, const int add, float *kept)
{
    const Layer layer = layers[l];
    const int id = own_id(), lane = id % WARP, a = lane % 4, b = lane / 4;
    const int rows = blocks[l].rows, sides = blocks[l].columns;
#if KEPT
#pragma unroll
#endif
    for (int r = 0; r < ROUNDS(l); ++r) {
        const int number = id / WARP + r * WARPS, block = number % blocks_of(l);
        const int part = number / blocks_of(l), samples = TILE / blocks[l].parts;
        if (part >= blocks[l].parts) continue;
        const int o = block / blocks_across(l) * 16 * rows;
        const int i = block % blocks_across(l) * 8 * sides;
        float sums[OUTER_ROWS][OUTER_SIDES][4], biases[OUTER_ROWS][2];
        __local const float *ds[OUTER_ROWS][2], *x[OUTER_SIDES];
        ZERO_SUMS(sums, OUTER_ROWS, OUTER_SIDES)
#pragma unroll
        for (int m = 0; m < OUTER_ROWS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = min(o + 16 * m + 8 * h + b, layer.n_out - 1);
                ds[m][h] = memory + deltas_of(l) + row * PITCH + part * samples + a;
                biases[m][h] = 0;
            }
#pragma unroll
        for (int n = 0; n < OUTER_SIDES; ++n)
            x[n] = memory + (l ? layers[l - 1].values : X_OFFSET)
                   + min(i + 8 * n + b, layer.n_in - 1) * PITCH + part * samples + a;
#pragma unroll 2
        for (int s = 0; s < samples; s += 8) {
            SecondFactor second[OUTER_SIDES];
#pragma unroll
            for (int n = 0; n < OUTER_SIDES; ++n)
#pragma unroll
                for (int q = 0; q < 2; ++q)
                    if (n < sides)
                        split_input(x[n][s + 4 * q], l, &second[n].big[q],
                                    &second[n].small[q]);
#pragma unroll
            for (int m = 0; m < OUTER_ROWS; ++m) {
                if (m >= rows) continue;
                FirstFactor first;
#pragma unroll
                for (int q = 0; q < 2; ++q)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const float d = ds[m][h][s + 4 * q];
                        biases[m][h] += d;
                        split(d, &first.big[2 * q + h], &first.small[2 * q + h]);
                    }
                MULTIPLY(l, sums[m], first, second, OUTER_SIDES, sides)
            }
        }
#if KEPT
#pragma unroll
        for (int m = 0; m < OUTER_ROWS; ++m) {
            if (m >= rows) continue;
#pragma unroll
            for (int n = 0; n < OUTER_SIDES; ++n)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (n < sides) kept[KEPT_SUM(l, r, m, n, j)] += sums[m][n][j];
#pragma unroll
            for (int h = 0; h < 2; ++h) kept[KEPT_BIAS(l, r, m, h)] += biases[m][h];
        }
#else
        store_block(l, block, sums, biases, gradient, add);
#endif
    }
}

#if KEPT
// Store the kept gradients, part after part.
static inline void store_kept(const float *kept, HOME float *gradient)
{
    const int id = own_id();
#pragma unroll
    for (int part = 0; part < MOST_PARTS; ++part) {
        if (part > 0) barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int l = 0; l < LAYERS; ++l)
#pragma unroll
            for (int r = 0; r < ROUNDS(l); ++r) {
                const int number = id / WARP + r * WARPS;
                if (number / blocks_of(l) != part || part >= blocks[l].parts) continue;
                float sums[OUTER_ROWS][OUTER_SIDES][4], biases[OUTER_ROWS][2];
#pragma unroll
                for (int m = 0; m < OUTER_ROWS; ++m) {
                    if (m >= blocks[l].rows) continue;
#pragma unroll
                    for (int n = 0; n < OUTER_SIDES; ++n)
#pragma unroll
                        for (int j = 0; j < 4; ++j)
                            if (n < blocks[l].columns)
                                sums[m][n][j] = kept[KEPT_SUM(l, r, m, n, j)];
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        biases[m][h] = kept[KEPT_BIAS(l, r, m, h)];
                }
                store_block(l, number % blocks_of(l), sums, biases, gradient, part > 0);
            }
    }
}
#endif

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
        forward_mma(net, l, slice, memory);
    }
    warp_barrier();
    sample_loss(net, memory, slice + lane % SLICE, valid_samples, lane / SLICE,
                WARP / SLICE);
#if BACKWARD
#pragma unroll
    for (int l = LAYERS - 1; l > 0; --l) {
        warp_barrier();
        back_mma(net, l, slice, memory);
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    sum_records(memory, records, add);
#if BACKWARD
#pragma unroll
    for (int l = LAYERS - 1; l >= 0; --l) outer_mma(l, memory, gradient, add, kept);
#endif
}

// The work of a group on one tile of samples by matrix units, to float32's accuracy: each
// factor is split into two of TF32's 11 bits, and three of their four products are added
// up (Markidis et al., "NVIDIA Tensor Core programmability, performance & precision", 2018;
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
//
// A warp takes SLICE samples of the tile through the forward pass and the loss alone, and
// the derivatives of a layer. It waits for other warps only where gradients are sums over
// all samples of the tile:
//
//   warp 0  load, forward ..., loss |      | back |
//   warp 1  load, forward ..., loss | outer| back | outer
//           samples of its own        blocks of neurons and inputs
//
// mma.m16n8k8 multiplies 16 x 8 by 8 x 8 elements. With lane = 4 b + a, a lane holds
//
//   of the first factor    rows b and b + 8, columns of the inner dimension p(a), q(a)
//   of the second factor   rows p(a) and q(a) of the inner dimension, column b
//   of the product         rows b and b + 8, columns 2 a and 2 a + 1
//
// where p and q are any permutation of 8: those that avoid bank conflicts.
//
// STEPS  steps of the inner dimension at once, in the forward pass: 2, or 4 of few neurons
#define WARPS (GROUP / WARP)
#define SLICE (TILE / WARPS)         // samples of a warp: a multiple of 8
#define SIDES (SLICE / 8)
#define BLOCK_ROWS 4                 // of a warp's products, by 16
#define OUTER_ROWS 2                 // of a block of gradients at most, by 16
#define OUTER_SIDES 4                // its columns at most, by 8
#define LOADED_ROWS 2                // rows that a warp reads at once
#define LOADED_COLUMNS (WARP / LOADED_ROWS)

// Factors, each value split.
typedef struct {
    uint big[4], small[4];
} FirstFactor;
typedef struct {
    uint big[2], small[2];
} SecondFactor;

// mma drops the last 13 bits of the small part: one bit of the value at most.
static inline void split(const float v, uint *big, uint *small)
{
    const uint rounded = (as_uint(v) + 0x1000u) & 0xFFFFE000u;
    *big = rounded;
    *small = as_uint(v - as_float(rounded));
}

static inline void mma(float *c, const uint *a, const uint *b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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

// to[i][s] = value i of sample s's row, of a warp's samples; zeros from width to `padded`
static inline void load_rows(__global const float *from, const int width,
                             const int padded, const int *rows, __local float *to)
{
    const int lane = get_local_id(0) % WARP;
    const int column = lane % LOADED_COLUMNS, row = lane / LOADED_COLUMNS;
    const int each = SLICE / LOADED_ROWS, wide = LOADS / each * LOADED_COLUMNS;
    for (int begin = 0; begin < padded; begin += wide) {
        float values[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; ++k) {
            const int i = begin + k / each * LOADED_COLUMNS + column;
            const float v = from[max(rows[k % each], 0) * width + min(i, width - 1)];
            values[k] = rows[k % each] >= 0 && i < width ? v : 0;
        }
#pragma unroll
        for (int k = 0; k < LOADS; ++k) {
            const int i = begin + k / each * LOADED_COLUMNS + column;
            if (i < padded) to[i * PITCH + row + k % each * LOADED_ROWS] = values[k];
        }
    }
}

static inline void load_slice(const Net *net, __local float *memory, const int slice,
                              const int first, const int valid_samples, const uint8 key)
{
    const int lane = get_local_id(0) % WARP;
    const int n_in = layers[0].n_in, n_out = layers[LAYERS - 1].n_out;
    int rows[SLICE / LOADED_ROWS];
#pragma unroll
    for (int j = 0; j < SLICE / LOADED_ROWS; ++j) {
        const int s = slice + lane / LOADED_COLUMNS + j * LOADED_ROWS;
        rows[j] = s < valid_samples ? row_of(net, first + s, key) : -1;
    }
    load_rows(net->x, n_in, (n_in + 7) / 8 * 8, rows, memory + X_OFFSET + slice);
    load_rows(net->t, n_out, n_out, rows, memory + T_OFFSET + slice);
#if WEIGHTED
    if (lane % LOADED_COLUMNS == 0)
#pragma unroll
        for (int j = 0; j < SLICE / LOADED_ROWS; ++j)
            memory[WEIGHT_OFFSET + slice + lane / LOADED_COLUMNS + j * LOADED_ROWS] =
                rows[j] < 0 ? 0 : net->weight[rows[j]] * net->weight_scale;
#endif
}

// The outputs of a layer for a warp's samples: rows are neurons, columns samples.
static inline void forward_mma(const Net *net, const int l, const int slice,
                               __local float *memory)
{
    const Layer layer = layers[l];
    const int lane = get_local_id(0) % WARP, a = lane % 4, b = lane / 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *x = memory + (l ? layers[l - 1].values : X_OFFSET) + slice;
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
    const int lane = get_local_id(0) % WARP, a = lane % 4, b = lane / 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *ds = memory + layer.values + slice;
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
                    store_two_derivatives(
                        net, l - 1, row,
                        (float2)(sums[m][n][2 * h], sums[m][n][2 * h + 1]),
                        slice + 8 * n + 2 * a, memory);
            }
    }
}

// About the instructions of gradients by blocks of so many rows by 16 and columns by 8.
static inline int outer_cost(const Layer layer, const int rows, const int sides)
{
    const int down = (layer.n_out + 16 * rows - 1) / (16 * rows);
    const int across = (layer.n_in + 8 * sides - 1) / (8 * sides);
    const int rounds = (down * across + WARPS - 1) / WARPS;
    return rounds * (4 * (4 * rows + 2 * sides) + 3 * rows * sides);
}

// The gradients of a layer's weights and biases, a block a warp: rows are neurons, columns
// inputs.
static inline void outer_mma(const int l, __local const float *memory,
                             HOME float *gradient, const int add)
{
    const Layer layer = layers[l];
    const int lane = get_local_id(0) % WARP, a = lane % 4, b = lane / 4;
    int rows = 1, sides = 1;  // all are constants
#pragma unroll
    for (int r = 1; r <= OUTER_ROWS; ++r)
#pragma unroll
        for (int c = 1; c <= OUTER_SIDES; ++c)
            if (outer_cost(layer, r, c) < outer_cost(layer, rows, sides))
                rows = r, sides = c;
    const int down = 16 * rows, wide = 8 * sides;
    const int across = (layer.n_in + wide - 1) / wide;
    const int blocks = (layer.n_out + down - 1) / down * across;
    for (int block = get_local_id(0) / WARP; block < blocks; block += WARPS) {
        const int o = block / across * down, i = block % across * wide;
        float sums[OUTER_ROWS][OUTER_SIDES][4], biases[OUTER_ROWS][2];
        __local const float *ds[OUTER_ROWS][2], *x[OUTER_SIDES];
        ZERO_SUMS(sums, OUTER_ROWS, OUTER_SIDES)
#pragma unroll
        for (int m = 0; m < OUTER_ROWS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = min(o + 16 * m + 8 * h + b, layer.n_out - 1);
                ds[m][h] = memory + layer.values + row * PITCH + a;
                biases[m][h] = 0;
            }
#pragma unroll
        for (int n = 0; n < OUTER_SIDES; ++n)
            x[n] = memory + (l ? layers[l - 1].values : X_OFFSET)
                   + min(i + 8 * n + b, layer.n_in - 1) * PITCH + a;
#pragma unroll 2
        for (int s = 0; s < TILE; s += 8) {
            SecondFactor second[OUTER_SIDES];
#pragma unroll
            for (int n = 0; n < OUTER_SIDES; ++n)
#pragma unroll
                for (int q = 0; q < 2; ++q)
                    if (n < sides)
                        split(x[n][s + 4 * q], &second[n].big[q], &second[n].small[q]);
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
                MULTIPLY(sums[m], first, second, OUTER_SIDES, sides)
            }
        }
#pragma unroll
        for (int m = 0; m < OUTER_ROWS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (m >= rows) continue;
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
                        if (n < sides && column < layer.n_in)
                            to[column] = add ? to[column] + sum : sum;
                    }
                if (i || a || layer.bias < 0) continue;
                to = gradient + layer.bias + row;
                *to = add ? *to + bias : bias;
            }
    }
}

// As in group_step_tile.h.
static inline void tile(const Net *net, __local float *memory, const int first,
                        const int valid_samples, const uint8 key,
                        HOME float *gradient, const int add, int *loaded)
{
    const int slice = get_local_id(0) / WARP * SLICE, lane = get_local_id(0) % WARP;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (*loaded != first) load_slice(net, memory, slice, first, valid_samples, key);
    *loaded = first;
#pragma unroll
    for (int l = 0; l < LAYERS; ++l) {
        warp_barrier();
        forward_mma(net, l, slice, memory);
    }
    warp_barrier();
    if (lane < SLICE) sample_loss(net, memory, slice + lane, valid_samples);
    barrier(CLK_LOCAL_MEM_FENCE);
    sum_records(memory, gradient, add);
#if BACKWARD
#pragma unroll
    for (int l = LAYERS - 1; l >= 0; --l) {
        outer_mma(l, memory, gradient, add);
        if (l == 0) break;
        barrier(CLK_LOCAL_MEM_FENCE);
        back_mma(net, l, slice, memory);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
}

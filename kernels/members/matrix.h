// The products of a tile of samples on matrix units, to float32's accuracy: each factor is
// split into two of TF32's 11 bits, and three of their four products are added up
// (Markidis et al., "NVIDIA Tensor Core programmability, performance & precision", 2018;
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022).
//
// A warp computes blocks of 32 x 16 elements by mma.m16n8k8. With lane = 4 b + a, it
// holds
//
//   of the first factor    rows b and b + 8, columns of the inner dimension p(a), q(a)
//   of the second factor   rows p(a) and q(a) of the inner dimension, column b
//   of the product         rows b and b + 8, columns 2 a and 2 a + 1
//
// where p and q are any permutation of 8: those that avoid bank conflicts.
#define BLOCK_ROWS 32
#define BLOCK_COLUMNS 16
#define WARPS (GROUP / WARP)

// Factors of 2 x 2 tiles, each value split.
typedef struct {
    uint big[2][4], small[2][4];
} FirstFactor;
typedef struct {
    uint big[2][2], small[2][2];
} SecondFactor;

static inline void split(const float v, uint *big, uint *small)
{
    const uint rounded = (as_uint(v) + 0x1000u) & 0xFFFFE000u;
    *big = rounded;
    *small = as_uint(v - as_float(rounded)) + 0x1000u;  // the last 13 bits are dropped
}

static inline void mma(float *c, const uint *a, const uint *b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// sums[m][n] += first[m] second[n], small products first
static inline void multiply(float (*sums)[2][4], const FirstFactor *first,
                            const SecondFactor *second)
{
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            mma(sums[m][n], first->small[m], second->big[n]);
            mma(sums[m][n], first->big[m], second->small[n]);
            mma(sums[m][n], first->big[m], second->big[n]);
        }
}

#define ZERO_SUMS(sums)                                                              \
    _Pragma("unroll") for (int m = 0; m < 2; ++m)                                    \
        _Pragma("unroll") for (int n = 0; n < 2; ++n)                                \
            _Pragma("unroll") for (int j = 0; j < 4; ++j) sums[m][n][j] = 0;

// The outputs of a layer: rows are neurons, columns samples.
static inline void forward_mma(const Net *net, const int l, __local const float *x,
                               __local float *memory)
{
    const Layer layer = layers[l];
    const int lane = get_local_id(0) % WARP, a = lane % 4, b = lane / 4;
    const int across = TILE / BLOCK_COLUMNS;
    const int blocks = (layer.n_out + BLOCK_ROWS - 1) / BLOCK_ROWS * across;
    SPACE const float *w = net->parameters + layer.weights;
    for (int block = get_local_id(0) / WARP; block < blocks; block += WARPS) {
        const int o = block / across * BLOCK_ROWS, s = block % across * BLOCK_COLUMNS;
        float sums[2][2][4];
        ZERO_SUMS(sums)
#pragma unroll 4
        for (int k = 0; k < layer.n_in; k += 8) {
            FirstFactor first;
            SecondFactor second;
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = min(o + 16 * m + 8 * h + b, layer.n_out - 1);
                    const float2 v =
                        *(SPACE const float2 *)(w + row * layer.stride + k + 2 * a);
                    split(v.s0, &first.big[m][h], &first.small[m][h]);
                    split(v.s1, &first.big[m][2 + h], &first.small[m][2 + h]);
                }
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    split(x[(k + 2 * a + h) * PITCH + s + 8 * n + b],
                          &second.big[n][h], &second.small[n][h]);
            multiply(sums, &first, &second);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = o + 16 * m + 8 * h + b;
                if (row >= layer.n_out) continue;
                const float bias = layer.bias < 0 ? 0 : net->parameters[layer.bias + row];
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    store_two_outputs(net, l, row,
                                      (float2)(sums[m][n][2 * h], sums[m][n][2 * h + 1])
                                          + bias,
                                      s + 8 * n + 2 * a, memory);
            }
    }
}

// The derivatives of the layer below: rows are its neurons, columns samples.
static inline void back_mma(const Net *net, const int l, __local float *memory)
{
    const Layer layer = layers[l];
    const int lane = get_local_id(0) % WARP, a = lane % 4, b = lane / 4;
    const int across = TILE / BLOCK_COLUMNS;
    const int blocks = (layer.n_in + BLOCK_ROWS - 1) / BLOCK_ROWS * across;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *ds = memory + layer.values;
    for (int block = get_local_id(0) / WARP; block < blocks; block += WARPS) {
        const int i = block / across * BLOCK_ROWS, s = block % across * BLOCK_COLUMNS;
        float sums[2][2][4];
        ZERO_SUMS(sums)
#pragma unroll 4
        for (int o = 0; o < layer.n_out; o += 8) {
            FirstFactor first;
            SecondFactor second;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const int row = min(o + 4 * q + a, layer.n_out - 1);
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int column = min(i + 16 * m + 8 * h + b, layer.n_in - 1);
                        split(w[row * layer.stride + column],
                              &first.big[m][2 * q + h], &first.small[m][2 * q + h]);
                    }
#pragma unroll
                for (int n = 0; n < 2; ++n)  // rows past the last are zeros
                    split(ds[(o + 4 * q + a) * PITCH + s + 8 * n + b],
                          &second.big[n][q], &second.small[n][q]);
            }
            multiply(sums, &first, &second);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = i + 16 * m + 8 * h + b;
                if (row >= layer.n_in) continue;
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    store_two_derivatives(
                        net, l - 1, row,
                        (float2)(sums[m][n][2 * h], sums[m][n][2 * h + 1]),
                        s + 8 * n + 2 * a, memory);
            }
    }
}

// The gradients of a layer's weights and biases: rows are neurons, columns inputs. Those
// of the biases are the product with ones.
static inline void outer_mma(const Layer layer, __local const float *ds,
                             __local const float *x, HOME float *gradient, const int add)
{
    const int lane = get_local_id(0) % WARP, a = lane % 4, b = lane / 4;
    const int across = (layer.n_in + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    const int blocks = (layer.n_out + BLOCK_ROWS - 1) / BLOCK_ROWS * across;
    const uint ones[2] = {as_uint(1.0f), as_uint(1.0f)};
    for (int block = get_local_id(0) / WARP; block < blocks; block += WARPS) {
        const int o = block / across * BLOCK_ROWS, i = block % across * BLOCK_COLUMNS;
        float sums[2][2][4], biases[2][4];
        ZERO_SUMS(sums)
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int j = 0; j < 4; ++j) biases[m][j] = 0;
#pragma unroll 4
        for (int s = 0; s < TILE; s += 8) {
            FirstFactor first;
            SecondFactor second;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int row = min(o + 16 * m + 8 * h + b, layer.n_out - 1);
                        split(ds[row * PITCH + s + 4 * q + a],
                              &first.big[m][2 * q + h], &first.small[m][2 * q + h]);
                    }
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const int row = min(i + 8 * n + b, layer.n_in - 1);
                    split(x[row * PITCH + s + 4 * q + a], &second.big[n][q],
                          &second.small[n][q]);
                }
            }
            multiply(sums, &first, &second);
            if (i == 0 && layer.bias >= 0)
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    mma(biases[m], first.small[m], ones);
                    mma(biases[m], first.big[m], ones);
                }
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = o + 16 * m + 8 * h + b;
                if (row >= layer.n_out) continue;
                HOME float *to = gradient + layer.weights + row * layer.stride;
#pragma unroll
                for (int n = 0; n < 2; ++n)
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int column = i + 8 * n + 2 * a + j;
                        const float sum = sums[m][n][2 * h + j];
                        if (column < layer.n_in)
                            to[column] = add ? to[column] + sum : sum;
                    }
                if (i || a || layer.bias < 0) continue;
                to = gradient + layer.bias + row;
                *to = add ? *to + biases[m][2 * h] : biases[m][2 * h];
            }
    }
}

// Whether blocks of a product occupy the group's warps.
static inline int fills_warps(const int rows, const int columns, const int inner)
{
    const int blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS
                       * ((columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS);
    return TILE % BLOCK_COLUMNS == 0 && rows >= 16 && columns >= 8 && inner >= 8
           && 2 * blocks >= WARPS;
}

// The gradients of the parameters: sums over all samples of a tile, by blocks of neurons
// and inputs. A block is a warp's; where warps are more than blocks, several share one's
// samples. Of a layer of few neurons (few_outputs.h) a block is a neuron and WARP inputs.
//
// The macros and tables are those of matrix.h.

// The size of a layer's blocks.
static inline int rows_of(const int l) { return FEW(l) ? 1 : 16 * blocks[l].rows; }

static inline int columns_of(const int l)
{
    return FEW(l) ? WARP : 8 * blocks[l].columns;
}

// Its blocks along inputs, and in all.
static inline int blocks_across(const int l)
{
    return (layers[l].n_in + columns_of(l) - 1) / columns_of(l);
}

static inline int blocks_of(const int l)
{
    return (layers[l].n_out + rows_of(l) - 1) / rows_of(l) * blocks_across(l);
}

// The blocks of a warp; the index among the kept gradients of element j of row by 16 m
// and column by 8 n of its block r; and of its biases' sums, of rows 8 h and on.
#define ROUNDS(l) ((blocks_of(l) * blocks[l].parts + WARPS - 1) / WARPS)
#define KEPT_BLOCK(l, r)                                                             \
    (blocks[l].kept                                                                  \
     + (r) * (FEW(l) ? 2 : blocks[l].rows * (4 * blocks[l].columns + 2)))
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
    const int o = block / blocks_across(l) * rows_of(l);
    const int i = block % blocks_across(l) * columns_of(l);
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

// sums += the gradients of a block of weights, from neuron o and input i on, of `samples`
// samples from `first_sample` on; biases += those of the rows' biases
static inline void outer_products(const int l, const int o, const int i,
                                  const int first_sample, const int samples,
                                  __local const float *memory,
                                  float (*sums)[OUTER_SIDES][4], float (*biases)[2])
{
    const Layer layer = layers[l];
    const int id = own_id(), lane = id % WARP, a = lane % 4, b = lane / 4;
    const int rows = blocks[l].rows, sides = blocks[l].columns;
    __local const float *ds[OUTER_ROWS][2], *x[OUTER_SIDES];
#pragma unroll
    for (int m = 0; m < OUTER_ROWS; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = min(o + 16 * m + 8 * h + b, layer.n_out - 1);
            ds[m][h] = memory + deltas_of(l) + row * PITCH + first_sample + a;
        }
#pragma unroll
    for (int n = 0; n < OUTER_SIDES; ++n)
        x[n] = memory + (l ? layers[l - 1].values : X_OFFSET)
               + min(i + 8 * n + b, layer.n_in - 1) * PITCH + first_sample + a;
#pragma unroll 2
    for (int s = 0; s < samples; s += 8) {
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
}

// The gradients of a layer's weights and biases, a block a warp: rows are neurons, columns
// inputs.
static inline void outer_mma(const int l, __local float *memory, HOME float *gradient,
                             const int add, float *kept)
{
    const int id = own_id(), rows = blocks[l].rows, sides = blocks[l].columns;
#if KEPT
#pragma unroll
#endif
    for (int r = 0; r < ROUNDS(l); ++r) {
        const int number = id / WARP + r * WARPS, block = number % blocks_of(l);
        const int part = number / blocks_of(l), samples = TILE / blocks[l].parts;
        if (part >= blocks[l].parts) continue;
        const int o = block / blocks_across(l) * rows_of(l);
        const int i = block % blocks_across(l) * columns_of(l);
        if (FEW(l)) {
            const float2 own = few_outer(l, o, i, part * samples, samples, memory);
#if KEPT
            kept[KEPT_BLOCK(l, r)] += own.s0;
            kept[KEPT_BLOCK(l, r) + 1] += own.s1;
#else
            store_few(l, o, i, own, gradient, add);
#endif
            continue;
        }
        float sums[OUTER_ROWS][OUTER_SIDES][4], biases[OUTER_ROWS][2];
        ZERO_SUMS(sums, OUTER_ROWS, OUTER_SIDES)
#pragma unroll
        for (int m = 0; m < OUTER_ROWS; ++m) biases[m][0] = biases[m][1] = 0;
#if EXACT
        if (l == 0) exact_outer(o, i, part * samples, samples, memory, sums);
        else
#endif
            outer_products(l, o, i, part * samples, samples, memory, sums, biases);
#if KEPT
#pragma unroll
        for (int m = 0; m < OUTER_ROWS; ++m) {
            if (m >= rows) continue;
#pragma unroll
            for (int n = 0; n < OUTER_SIDES; ++n)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (n < sides) kept[KEPT_SUM(l, r, m, n, j)] += sums[m][n][j];
            if (layers[l].bias < 0) continue;
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
                const int block = number % blocks_of(l);
                if (FEW(l)) {
                    const float2 own = (float2)(kept[KEPT_BLOCK(l, r)],
                                                kept[KEPT_BLOCK(l, r) + 1]);
                    store_few(l, block / blocks_across(l),
                              block % blocks_across(l) * columns_of(l), own, gradient,
                              part > 0);
                    continue;
                }
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
                store_block(l, block, sums, biases, gradient, part > 0);
            }
    }
}
#endif

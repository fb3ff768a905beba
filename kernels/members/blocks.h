// The products of a tile of samples by register blocks, for groups with more work than
// work-items: what local memory gives is read by fewer loads than in group_step_tile.h,
// which comes first.
//
//   forward   4 samples x BLOCK neurons   8 vectors of local memory for 64 products
//   backward  4 samples x 4 inputs        2 vectors for 16 products
//   outer     4 neurons x 4 inputs        8 vectors for 64 products; several lanes take
//                                         samples in turns where blocks are few, and
//                                         fold their sums
#define BLOCK 4

// Whether blocks of four neurons occupy the group.
static inline int is_wide(const int neurons)
{
    return neurons >= BLOCK && (neurons + BLOCK - 1) / BLOCK * QUADS * 2 >= GROUP;
}

static inline void forward_blocks(const Net *net, const int l, __local const float *x,
                                  __local float *memory)
{
    const Layer layer = layers[l];
    const int blocks = (layer.n_out + BLOCK - 1) / BLOCK;
    SPACE const float *parameters = net->parameters;
    for (int item = get_local_id(0); item < blocks * QUADS; item += GROUP) {
        const int quad = item % QUADS * 4, first = item / QUADS * BLOCK;
        SPACE const float *w[BLOCK];
        float4 v[BLOCK];
#pragma unroll
        for (int r = 0; r < BLOCK; ++r) {
            const int o = min(first + r, layer.n_out - 1);
            w[r] = parameters + layer.weights + o * layer.stride;
            v[r] = (float4)(layer.bias < 0 ? 0 : parameters[layer.bias + o]);
        }
#pragma unroll 2
        for (int k = 0; k < layer.n_in; k += 4) {
            __local const float *from = x + k * PITCH + quad;
            float4 values[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                values[j] = *(__local const float4 *)(from + j * PITCH);
#pragma unroll
            for (int r = 0; r < BLOCK; ++r) {
                const float4 a = *(SPACE const float4 *)(w[r] + k);
                v[r] += a.s0 * values[0];
                v[r] += a.s1 * values[1];
                v[r] += a.s2 * values[2];
                v[r] += a.s3 * values[3];
            }
        }
#pragma unroll
        for (int r = 0; r < BLOCK; ++r)
            if (first + r < layer.n_out)
                store_outputs(net, l, first + r, v[r], quad, memory);
    }
}

// As `back`; the inputs past the last are not stored.
static inline void back_blocks(const Net *net, const int l, __local float *memory)
{
    const Layer layer = layers[l];
    const int blocks = (layer.n_in + 3) / 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *ds = memory + layer.values;
    for (int item = get_local_id(0); item < blocks * QUADS; item += GROUP) {
        const int quad = item % QUADS * 4, first = item / QUADS * 4;
        float4 sums[4] = {(float4)(0), (float4)(0), (float4)(0), (float4)(0)};
#pragma unroll 4
        for (int o = 0; o < layer.n_out; ++o) {
            const float4 a = *(SPACE const float4 *)(w + o * layer.stride + first);
            const float4 d = *(__local const float4 *)(ds + o * PITCH + quad);
            sums[0] += a.s0 * d;
            sums[1] += a.s1 * d;
            sums[2] += a.s2 * d;
            sums[3] += a.s3 * d;
        }
#pragma unroll
        for (int c = 0; c < 4; ++c)
            if (first + c < layer.n_in)
                store_derivatives(net, l - 1, first + c, sums[c], quad, memory);
    }
}

// The lanes that share a block of `outer_folded`: a power of two up to a warp.
static inline int lanes_of(const int blocks)
{
    int lanes = 1;
    // Fewer than 8 would read the same banks.
    if (QUADS >= 8 && 2 * blocks <= GROUP) lanes = 8;
    while (lanes >= 8 && 2 * lanes <= WARP && 2 * lanes <= QUADS
           && 2 * lanes * blocks <= GROUP)
        lanes *= 2;
    return lanes;
}

// Add up 16 values over `lanes` lanes: value j of the sums ends in lane j % lanes, at
// values[j / lanes]; of 32 lanes, in two each.
static inline void fold(float *values, const int lanes)
{
#pragma unroll
    for (int left = 8, mask = 1; left > 0; left /= 2, mask *= 2) {
        if (mask >= lanes) continue;
        const int upper = get_local_id(0) & mask;
#pragma unroll
        for (int j = 0; j < left; ++j) {
            const float low = values[2 * j], high = values[2 * j + 1];
            const float other = shuffle_xor(upper ? low : high, mask);
            values[j] = (upper ? high : low) + other;
        }
    }
    if (lanes == 32) values[0] += shuffle_xor(values[0], 16);
}

// gradient[o, i] (+)= sum over s of ds[o, s] * x[i, s], and that of the biases
static inline void outer_folded(const Layer layer, __local const float *ds,
                                __local const float *x, HOME float *gradient,
                                const int add)
{
    const int across = (layer.n_in + 3) / 4, blocks = (layer.n_out + 3) / 4 * across;
    const int lanes = lanes_of(blocks), lane = get_local_id(0) % lanes;
    // All lanes of a warp take part in a fold.
    const int rounds = (blocks * lanes + GROUP - 1) / GROUP * GROUP;
    for (int item = get_local_id(0); item < rounds; item += GROUP) {
        const int block = min(item / lanes, blocks - 1);
        // Neighbouring lanes or blocks read neighbouring rows, in different banks.
        const int o = block / across * 4, i = block % across;
        float sums[16], biases[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 16; ++j) sums[j] = 0;
#pragma unroll 2
        for (int q = lane; q < QUADS; q += lanes) {
            float4 d[4];
#pragma unroll
            for (int r = 0; r < 4; ++r)
                d[r] = *(__local const float4 *)(ds + (o + r) * PITCH + 4 * q);
            if (i == 0)
#pragma unroll
                for (int r = 0; r < 4; ++r) biases[r] += vector_sum(d[r]);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float4 v =
                    *(__local const float4 *)(x + (i + c * across) * PITCH + 4 * q);
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    float sum = sums[4 * r + c];
                    sum += d[r].s0 * v.s0;
                    sum += d[r].s1 * v.s1;
                    sum += d[r].s2 * v.s2;
                    sum += d[r].s3 * v.s3;
                    sums[4 * r + c] = sum;
                }
            }
        }
        fold(sums, lanes);
#pragma unroll
        for (int r = 0; r < 4; ++r)
            for (int mask = 1; mask < lanes; mask *= 2)
                biases[r] += shuffle_xor(biases[r], mask);
        if (item >= blocks * lanes) continue;
        const int each = lanes < 16 ? 16 / lanes : 1;
#pragma unroll
        for (int j = 0; j < each; ++j) {
            const int number = j * lanes + lane;  // of the block's elements
            if (number >= 16) break;
            const int r = number / 4, c = number % 4;
            HOME float *to =
                gradient + layer.weights + (o + r) * layer.stride + i + c * across;
            if (o + r < layer.n_out && i + c * across < layer.n_in)
                *to = add ? *to + sums[j] : sums[j];
        }
        if (layer.bias < 0 || i || lane) continue;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            HOME float *to = gradient + layer.bias + o + r;
            if (o + r < layer.n_out) *to = add ? *to + biases[r] : biases[r];
        }
    }
}

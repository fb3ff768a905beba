// A layer's forward and backward pass of a warp's samples (fused_step.cl).
//
// FUSE_GRADIENTS, HIDDEN_CODE, …  as in fused_step.cl
// others    as in fused_step.h, pipeline.h and steps.h
#define POWER_STEP 8  // powers are multiples of it: most blocks of samples have the same
#if FUSE_GRADIENTS
#define SPACE __local
#else
#define SPACE __global
#endif

// products = this lane's sums of a block of 16 neurons; first as in `add_products`
static inline void multiply(float4 (*products)[2], Fragments *rows, const int terms,
                            const int first, Pipeline *pipeline,
                            __local uint4 *exchange)
{
    float sums[ROWS_M][2][4], low[ROWS_M][2][4];
UNROLLED
    for (int i = 0; i < ROWS_M * 8; ++i)
        sums[i / 8][i / 4 % 2][i % 4] = low[i / 8][i / 4 % 2][i % 4] = 0;
    add_products(sums, low, rows, terms, first, pipeline, exchange);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i)
        products[i / 2][i % 2] = sum_of(sums[i / 2], low[i / 2], i % 2);
}

// f, and f' * steepness, of a pre-activation times steepness
static inline float2 activate(const int last, const float sum)
{
    const float limit = last ? LAST_LIMIT : HIDDEN_LIMIT;
    const float steepness = steepness_of[last ? LAYERS - 1 : 0];
    const float v = clipped(sum, -limit, limit);
    switch (last ? LAST_CODE : HIDDEN_CODE) {
#define CASE(code, function, gradient, reads)                                        \
    case code: {                                                                     \
        const float y = function(v);                                                 \
        return (float2)(y, gradient(reads(y, v), steepness) * steepness);            \
    }
        FUNCTIONS(CASE)
#undef CASE
    }
    return (float2)(v, steepness);
}

// most [m][i] = the exponent of a sample's largest half; ZERO_EXPONENT if all are zero
static inline void max_exponents(int (*most)[2], Fragments *rows, const int blocks,
                                 __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        uint halves = 0;
UNROLLED
        for (int k = 0; k < blocks; ++k) {
            const uint *words = rows[i / 2][k][0] + i % 2;
            halves = max_half2(max_half2(halves, words[0]), words[2]);
        }
        const uint largest =
            quad_max(max(halves & 0xffff, halves >> 16), SHUFFLE_SPACE(exchange));
        most[i / 2][i % 2] =
            largest == 0 ? ZERO_EXPONENT : max((int)(largest >> 10), 1) - 15;
    }
    END_EXCHANGES();
}

// Pack values of samples so that the largest half of each is about 2^MAX_EXPONENT.
static inline void pack_rows(Fragments *rows, int (*scales)[2], float4 (*v)[2][HELD],
                             const int blocks, __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2;
        float largest = 0;
UNROLLED
        for (int k = 0; k < blocks; ++k) {
            const float4 four = fabs(v[m][i % 2][k]);
            largest = fmax(fmax(largest, fmax(four.s0, four.s1)), fmax(four.s2, four.s3));
        }
        const uint bits = quad_max(as_uint(largest), SHUFFLE_SPACE(exchange));
        const int scale = clamp(MAX_EXPONENT - exponent_of(bits), MIN_SCALE, MAX_SCALE);
        scales[m][i % 2] = scale;
UNROLLED
        for (int k = 0; k < blocks; ++k)
            pack_words(rows[m][k], i % 2, v[m][i % 2][k] * power_of_two(scale));
    }
    END_EXCHANGES();
}

// to [block of 16 samples, blocks, SPLITS, WARP] = the fragments transposed
//
// second: as operand b of a product over samples, else as operand a
static inline void store_transposed(SPACE uint4 *to, Fragments *rows, const int blocks,
                                    const int second, const int row,
                                    __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
    to += (size_t)row * blocks * BLOCK_VECTORS + lane;
UNROLLED
    for (int m = 0; m < ROWS_M; ++m)
UNROLLED
        for (int k = 0; k < blocks; ++k)
UNROLLED
            for (int p = 0; p < SPLITS; ++p) {
                const uint *words = rows[m][k][p];
                uint columns[4];
UNROLLED
                for (int w = 0; w < 4; ++w)
                    columns[w] = transpose_half2(words[w], SHUFFLE_SPACE(exchange));
                to[((m * blocks + k) * SPLITS + p) * WARP] = second
                    ? (uint4)(columns[0], columns[1], columns[2], columns[3])
                    : (uint4)(columns[0], columns[2], columns[1], columns[3]);
            }
}

// A barrier of the warp, which orders its accesses to local memory.
#if PTX >= 80
#define WARP_BARRIER() warp_barrier()
#else
#define WARP_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#endif

// to = a side of a block's halves, from, times 2^power. Bits that leave the high halves,
// where these become subnormal, go to the low ones.
static inline void scale_words(uint (*to)[4], uint (*from)[4], const int side,
                               const int power)
{
    const uint factor = power_half2(power);
#if SPLITS == 2
    // The inverse is of two factors, and what is lost enters the low halves times 2^11.
    const uint first = power_half2(-power), second = power_half2(min(-power - 15, 15));
    const uint to_low = power_half2(power + 11);
#endif
UNROLLED
    for (int w = side; w < 4; w += 2) {
        to[0][w] = mul_half2(from[0][w], factor);
#if SPLITS == 2
        uint back = mul_half2(to[0][w], first);
        if (power < -15) back = mul_half2(back, second);
        const uint lost = sub_half2(from[0][w], back);
        to[1][w] = add_half2(mul_half2(from[1][w], factor), mul_half2(lost, to_low));
#endif
    }
}

// Store a layer's deltas for its weights' gradients, and the power of two by which their
// products with the layer's values are scaled.
//
// most: the exponents of rows, by max_exponents
static inline void store_deltas(SPACE uint4 *to, SPACE int *powers, Fragments *rows,
                                int (*most)[2], int (*scales)[2],
                                __local const int *value_scales, const int blocks,
                                const int row, __local uint4 *exchange)
{
    const int g = get_local_id(0) % WARP / 4;
    Fragments aligned[ROWS_M];  // to one power
UNROLLED
    for (int m = 0; m < ROWS_M; ++m) {
        int power = 2 * MAX_SCALE + 15, both[2];
UNROLLED
        for (int i = 0; i < 2; ++i) {
            both[i] = scales[m][i] + value_scales[16 * m + 8 * i + g];
            if (most[m][i] != ZERO_EXPONENT)
                power = min(power, min(MAX_EXPONENT - most[m][i], 15) + both[i]);
        }
UNROLLED
        for (int mask = 4; mask < WARP; mask *= 2)
            power = min(power,
                        (int)shuffle_xor_word(power, mask, SHUFFLE_SPACE(exchange)));
        power &= -POWER_STEP;
        if (get_local_id(0) % WARP == 0) powers[row + m] = power;
UNROLLED
        for (int i = 0; i < 2; ++i)
UNROLLED
            for (int k = 0; k < blocks; ++k)
                scale_words(aligned[m][k], rows[m][k], i, power - both[i]);
    }
    store_transposed(to, aligned, blocks, 0, row, exchange);
}

// Add deltas of two blocks of neurons to the sums of a warp's biases: a butterfly
// reduction, in which lanes exchange half of their neurons until each has one neuron of
// all samples.
static inline void add_biases(__local float *sums, float4 (*first)[2],
                              float4 (*second)[2], __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
    float v[8];
    float4 a = (float4)(0), b = (float4)(0);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        a += first[i / 2][i % 2];
        b += second[i / 2][i % 2];
    }
    vstore4(a, 0, v);
    vstore4(b, 1, v);
UNROLLED
    for (int count = 4; count > 0; count /= 2) {
        const int mask = 4 * count, upper = lane & mask;
UNROLLED
        for (int i = 0; i < count; ++i) {
            const float kept = upper ? v[i + count] : v[i];
            const float sent = upper ? v[i] : v[i + count];
            v[i] = kept + as_float(shuffle_xor_word(as_uint(sent), mask,
                                                    SHUFFLE_SPACE(exchange)));
        }
    }
    sums[lane / 16 * BLOCK + lane % 4 * 4 + lane / 4 % 4] += v[0];
}

// The activation derivatives of a layer, stored for the backward pass; of ReLU a bit
// each, a word for 16 words of outputs.
#if INNER_RELU
#define SIGN_WORDS (HIDDEN > 0 ? (HIDDEN * ROWS_M + 3) / 4 : 1)
#define LAYER_DERIVATIVES (SIGN_WORDS * WARP)
typedef uint Derivatives;
#elif SPLITS == 2
#define LAYER_DERIVATIVES (HIDDEN * ROWS_M * 2 * WARP)
typedef float4 Derivatives;
#define PACK_DERIVATIVES(s) (s)
#define UNPACK_DERIVATIVES(s) (s)
#else
#define LAYER_DERIVATIVES (HIDDEN * ROWS_M * 2 * WARP)
typedef uint2 Derivatives;
#define PACK_DERIVATIVES(s) \
    (uint2)(pack_half2((s).s0, (s).s1), pack_half2((s).s2, (s).s3))
#define UNPACK_DERIVATIVES(s) (float4)(unpack_half2((s).s0), unpack_half2((s).s1))
#endif

// The exponent by which sums of 16 * terms products may exceed the largest product.
static inline int growth(const int terms)
{
    return 4 + (terms > 8 ? 4 : terms > 4 ? 3 : terms > 2 ? 2 : 1);
}

// rows = a layer's outputs for its inputs `rows`; of the last layer, v = its
// pre-activations
//
// terms, neurons  its blocks
// value_scales    [LAYERS, SAMPLES] scales of the layers' inputs, from this warp's on
static inline void forward(const int layer, const int terms, const int neurons,
                           const int last, Fragments *rows, float4 (*v)[2][HELD],
                           __local int *value_scales, SPACE uint4 *values,
                           const int row, __global Derivatives *derivatives,
                           Pipeline *pipeline, __local const float4 *biases,
                           const int4 exponents, __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, at = lane % 4;
    const float steepness = steepness_of[layer];
    int most[ROWS_M][2];
    float up[ROWS_M][2], down[ROWS_M][2];
    Fragments next[ROWS_M];
    store_transposed(values, rows, terms, 1, row, exchange);
    if (!last) max_exponents(most, rows, terms, exchange);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, h = i % 2, scale = value_scales[layer * SAMPLES + 8 * i + g];
        down[m][h] = power_of_two(-scale) * power_of_two(-exponents.s0) * steepness;
        if (last) continue;
        const int of_sums = most[m][h] + 1 - scale + exponents.s1 + growth(terms)
                            + exponent_of(as_uint(fabs(steepness))) + 1;
        const int bound = max(max(of_sums, exponents.s2), 0) + 2;  // |f(v)| <= |v| + 1
        const int next_scale = clamp(HIDDEN_BOUNDED ? MAX_EXPONENT : MAX_EXPONENT - bound,
                                     MIN_SCALE, MAX_SCALE);
        up[m][h] = power_of_two(next_scale);
        if (at == 0) value_scales[(layer + 1) * SAMPLES + 8 * i + g] = next_scale;
    }
#if INNER_RELU
    uint bits[SIGN_WORDS];
UNROLLED
    for (int i = 0; i < SIGN_WORDS; ++i) bits[i] = 0;
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i)
        if (!last) down[i / 2][i % 2] *= up[i / 2][i % 2];
#endif
    PIPELINE_SEEK(pipeline, FORWARD_START(layer));
    STAGE_WORDS(rows, terms, exchange);
UNROLLED
    for (int j = 0; j < neurons; ++j) {
        const float4 bias = biases[(layer * MAX_NEURONS + BLOCK * j) / 4 + at];
        float4 products[ROWS_M][2];
        multiply(products, rows, terms, j * terms, pipeline, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, h = i % 2;
#if INNER_RELU
            if (!last) {
                pack_words_relu(next[m][j], h,
                                products[m][h] * down[m][h] + bias * up[m][h]);
UNROLLED
                for (int w = h; w < 4; w += 2) {
                    const int number = (j * ROWS_M + m) * 4 + w;
                    bits[number / 16] |= positive(next[m][j][0][w]) << number % 16;
                }
                continue;
            }
#endif
            const float4 sum = products[m][h] * down[m][h] + bias;
            if (last) {
                v[m][h][j] = sum;
                continue;
            }
            const float2 a = activate(0, sum.s0), b = activate(0, sum.s1);
            const float2 c = activate(0, sum.s2), d = activate(0, sum.s3);
            pack_words(next[m][j], h, (float4)(a.s0, b.s0, c.s0, d.s0) * up[m][h]);
#if !INNER_RELU
            derivatives[layer * LAYER_DERIVATIVES + ((j * ROWS_M + m) * 2 + h) * WARP] =
                PACK_DERIVATIVES((float4)(a.s1, b.s1, c.s1, d.s1));
#endif
        }
    }
#if INNER_RELU
UNROLLED
    for (int i = 0; i < SIGN_WORDS; ++i)
        if (!last) derivatives[layer * LAYER_DERIVATIVES + i * WARP] = bits[i];
#endif
    if (!last) copy_fragments(rows, next);
}

// rows = the deltas of the layer below, from those of `layer`
//
// terms  blocks of the layer's neurons
// most, scale  of rows
static inline void backward(const int layer, const int terms, Fragments *rows,
                            int (*most)[2], int (*scale)[2],
                            __global const Derivatives *derivatives, Pipeline *pipeline,
                            const int4 exponents, __local float *sums,
                            __local uint4 *exchange)
{
    float up[ROWS_M][2], down[ROWS_M][2];
    Fragments next[ROWS_M];
    float4 previous[ROWS_M][2], zeros[ROWS_M][2];
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) zeros[i / 2][i % 2] = (float4)(0);
    derivatives += (layer - 1) * LAYER_DERIVATIVES;
#if INNER_RELU
    uint bits[SIGN_WORDS];
UNROLLED
    for (int i = 0; i < SIGN_WORDS; ++i) bits[i] = derivatives[i * WARP];
#endif
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, h = i % 2;
        const int bound = most[m][h] + 1 - scale[m][h] + exponents.s1 + DERIVATIVE_EXPONENT
                          + growth(terms);
        down[m][h] = power_of_two(-scale[m][h]) * power_of_two(-exponents.s0)
                     * (INNER_RELU ? steepness_of[0] : 1);
        scale[m][h] = clamp(MAX_EXPONENT - bound, MIN_SCALE, MAX_SCALE);
        up[m][h] = power_of_two(scale[m][h]);
    }
    PIPELINE_SEEK(pipeline, TRANSPOSED_START(layer));
    STAGE_WORDS(rows, terms, exchange);
UNROLLED
    for (int j = 0; j < HIDDEN; ++j) {
        float4 products[ROWS_M][2];
        multiply(products, rows, terms, j * terms, pipeline, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, h = i % 2;
#if INNER_RELU
            const int number = (j * ROWS_M + m) * 4 + h;
            const uint first = bits[number / 16] >> number % 16;
            const uint second = bits[(number + 2) / 16] >> (number + 2) % 16;
            const float4 v = products[m][h] * down[m][h];
            products[m][h] =
                (float4)(first & 1 ? v.s0 : 0, first & 1 << 16 ? v.s1 : 0,
                         second & 1 ? v.s2 : 0, second & 1 << 16 ? v.s3 : 0);
#else
            const Derivatives packed = derivatives[((j * ROWS_M + m) * 2 + h) * WARP];
            products[m][h] *= down[m][h] * UNPACK_DERIVATIVES(packed);
#endif
            pack_words(next[m][j], h, products[m][h] * up[m][h]);
        }
        // Barriers under a condition: PoCL 6 fails, and 7.1 shares `previous` among lanes.
        if (PTX < 80) {
            add_biases(sums + BLOCK * j, products, zeros, exchange);
        } else if (j % 2) {
            add_biases(sums + BLOCK * (j - 1), previous, products, exchange);
        } else {
UNROLLED
            for (int i = 0; i < 2 * ROWS_M; ++i)
                previous[i / 2][i % 2] = products[i / 2][i % 2];
        }
    }
    if (PTX >= 80 && HIDDEN % 2)
        add_biases(sums + BLOCK * (HIDDEN - 1), previous, zeros, exchange);
    copy_fragments(rows, next);
}

// What fused_step.cl does with a warp's samples in a layer, forward and back.
//
// INSIDE, HIDDEN_CODE, …  as in fused_step.cl
// others    as in fused_step.h, pipeline.h and steps.h
#define STEP_OF_POWERS 8  // so that most blocks of samples have the same
#if INSIDE
#define SPACE __local
#else
#define SPACE __global
#endif

// found = this lane's sums of a block of 16 neurons; first as in `add_products`
inline void multiply(float4 (*found)[2], Words *rows, const int terms, const int first,
                     Pipeline *pipeline, __local uint4 *exchange)
{
    float sums[ROWS_M][2][4], rest[ROWS_M][2][4];
UNROLLED
    for (int i = 0; i < ROWS_M * 8; ++i)
        sums[i / 8][i / 4 % 2][i % 4] = rest[i / 8][i / 4 % 2][i % 4] = 0;
    add_products(sums, rest, rows, terms, first, pipeline, exchange);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i)
        found[i / 2][i % 2] = sum_of(sums[i / 2], rest[i / 2], i % 2);
}

// f, and f' * steepness, of a layer's four sums, with steepness
inline float2 activate(const int last, const float sum)
{
    const float limit = last ? LAST_LIMIT : HIDDEN_LIMIT;
    const float steepness = steepness_of[last ? LAYERS - 1 : 0];
    const float v = isinf(limit) ? sum : clamp(sum, -limit, limit);
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

// most [m][i] = the exponent of a sample's largest half; NOTHING where all are zero
inline void look_up(int (*most)[2], Words *rows, const int blocks,
                    __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        uint two = 0;
UNROLLED
        for (int k = 0; k < blocks; ++k) {
            const uint *words = rows[i / 2][k][0] + i % 2;
            two = larger(larger(two, words[0]), words[2]);
        }
        const uint one = largest_of_four(max(two & 0xffff, two >> 16), FEW(exchange));
        most[i / 2][i % 2] = one == 0 ? NOTHING : max((int)(one >> 10), 1) - 15;
    }
}

// Pack values of samples so that the largest half of each is about 2^TOP.
inline void pack_rows(Words *rows, int (*scales)[2], float4 (*v)[2][HELD],
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
        const uint one = largest_of_four(as_uint(largest), FEW(exchange));
        const int scale = clamp(TOP - exponent_of(one), LEAST_SCALE, MOST_SCALE);
        scales[m][i % 2] = scale;
UNROLLED
        for (int k = 0; k < blocks; ++k)
            put_words(rows[m][k], i % 2, v[m][i % 2][k] * power_of_two(scale));
    }
}

// to [block of 16 samples, blocks, SPLITS, WARP] = the words transposed
//
// second: as the second operand of a product over samples, else as the first
inline void write_turned(SPACE uint4 *to, Words *rows, const int blocks, const int second,
                         const int row, __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
UNROLLED
    for (int m = 0; m < ROWS_M; ++m)
UNROLLED
        for (int k = 0; k < blocks; ++k)
UNROLLED
            for (int p = 0; p < SPLITS; ++p) {
                const uint *words = rows[m][k][p];
                uint found[4];
UNROLLED
                for (int w = 0; w < 4; ++w) found[w] = transposed(words[w], FEW(exchange));
                to[(((row + m) * blocks + k) * SPLITS + p) * WARP + lane] = second
                    ? (uint4)(found[0], found[1], found[2], found[3])
                    : (uint4)(found[0], found[2], found[1], found[3]);
            }
}

// What lanes of a warp have written to local memory is seen by the others.
#if PTX >= 80
#define MEET_WARP() warp_barrier()
#else
#define MEET_WARP() barrier(CLK_LOCAL_MEM_FENCE)
#endif

// Derivatives of a layer: written for its slopes, with the power of two that they and the
// values below have together.
//
// most: as looked up in rows
inline void write_derivatives(SPACE uint4 *to, SPACE int *powers, Words *rows,
                              int (*most)[2], int (*scales)[2], __local const int *kept,
                              const int blocks, const int row,
                              __local uint4 *exchange)
{
    const int g = get_local_id(0) % WARP / 4;
    Words even[ROWS_M];
UNROLLED
    for (int m = 0; m < ROWS_M; ++m) {
        int power = 2 * MOST_SCALE + 15, both[2];
UNROLLED
        for (int i = 0; i < 2; ++i) {
            both[i] = scales[m][i] + kept[16 * m + 8 * i + g];
            if (most[m][i] != NOTHING)
                power = min(power, min(TOP - most[m][i], 15) + both[i]);
        }
UNROLLED
        for (int mask = 4; mask < WARP; mask *= 2)
            power = min(power, (int)swapped(power, mask, FEW(exchange)));
        power &= -STEP_OF_POWERS;  // so that most blocks have the same
        if (get_local_id(0) % WARP == 0) powers[row + m] = power;
        const uint times[2] = {as_halves(power - both[0]), as_halves(power - both[1])};
UNROLLED
        for (int i = 0; i < blocks * SPLITS * 4; ++i)
            even[m][i / 4 / SPLITS][i / 4 % SPLITS][i % 4] = times_halves(
                rows[m][i / 4 / SPLITS][i / 4 % SPLITS][i % 4], times[i % 2]);
    }
    write_turned(to, even, blocks, 0, row, exchange);
}

// Add derivatives of two blocks of neurons to the sums of a warp's biases. Each time half
// of the lanes take half of the neurons, until each lane has all samples of one.
inline void add_biases(__local float *sums, float4 (*first)[2], float4 (*second)[2],
                       __local uint4 *exchange)
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
    for (int kept = 4; kept > 0; kept /= 2) {
        const int mask = 4 * kept, high = lane & mask;
UNROLLED
        for (int i = 0; i < kept; ++i) {
            const float keep = high ? v[i + kept] : v[i];
            const float give = high ? v[i] : v[i + kept];
            v[i] = keep + as_float(swapped(as_uint(give), mask, FEW(exchange)));
        }
    }
    sums[lane / 16 * BLOCK + lane % 4 * 4 + lane / 4 % 4] += v[0];
}

// What is kept of a layer's slopes until the way back; of ReLU a bit each, a word of 16
// words of outputs.
#if INNER_RELU
#define SPARE (HIDDEN > 0 ? (HIDDEN * ROWS_M + 3) / 4 : 1)
#define SLOPES_OF_LAYER (SPARE * WARP)
typedef uint Slopes;
#elif SPLITS == 2
#define SLOPES_OF_LAYER (HIDDEN * ROWS_M * 2 * WARP)
typedef float4 Slopes;
#define KEEP(s) (s)
#define KEPT(s) (s)
#else
#define SLOPES_OF_LAYER (HIDDEN * ROWS_M * 2 * WARP)
typedef uint2 Slopes;
#define KEEP(s) (uint2)(pack_half2((s).s0, (s).s1), pack_half2((s).s2, (s).s3))
#define KEPT(s) (float4)(unpack_half2((s).s0), unpack_half2((s).s1))
#endif

// The exponent of what sums of 16 * terms products may be larger by.
inline int growth(const int terms)
{
    return 4 + (terms > 8 ? 4 : terms > 4 ? 3 : terms > 2 ? 2 : 1);
}

// rows = a layer's outputs of its inputs `rows`; of the last one v = its sums
//
// terms, neurons  its blocks
// kept [LAYERS, SAMPLES]  scales of what layers read; of this warp's samples
inline void forward(const int layer, const int terms, const int neurons, const int last,
                    Words *rows, float4 (*v)[2][HELD], __local int *kept,
                    SPACE uint4 *values, const int row, __global Slopes *slopes,
                    Pipeline *pipeline, __local const float4 *biases, const int4 about,
                    __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, at = lane % 4;
    const float steepness = steepness_of[layer];
    int most[ROWS_M][2];
    float up[ROWS_M][2], down[ROWS_M][2];
    Words next[ROWS_M];
    write_turned(values, rows, terms, 1, row, exchange);
    if (!last) look_up(most, rows, terms, exchange);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, h = i % 2, scale = kept[layer * SAMPLES + 8 * i + g];
        down[m][h] = power_of_two(-scale) * power_of_two(-about.s0) * steepness;
        if (last) continue;
        const int of_sums = most[m][h] + 1 - scale + about.s1 + growth(terms)
                            + exponent_of(as_uint(fabs(steepness))) + 1;
        const int bound = max(max(of_sums, about.s2), 0) + 2;  // |f(v)| <= |v| + 1
        const int next_scale =
            clamp(HIDDEN_BOUNDED ? TOP : TOP - bound, LEAST_SCALE, MOST_SCALE);
        up[m][h] = power_of_two(next_scale);
        if (at == 0) kept[(layer + 1) * SAMPLES + 8 * i + g] = next_scale;
    }
#if INNER_RELU
    uint bits[SPARE];
UNROLLED
    for (int i = 0; i < SPARE; ++i) bits[i] = 0;
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i)
        if (!last) down[i / 2][i % 2] *= up[i / 2][i % 2];
#endif
    BEGIN_WITH(pipeline, START(layer));
    STAGE_WORDS(rows, exchange);
UNROLLED
    for (int j = 0; j < neurons; ++j) {
        const float4 bias = biases[(layer * WIDE + BLOCK * j) / 4 + at];
        float4 found[ROWS_M][2];
        multiply(found, rows, terms, j * terms, pipeline, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, h = i % 2;
#if INNER_RELU
            if (!last) {
                put_words_relu(next[m][j], h, found[m][h] * down[m][h] + bias * up[m][h]);
UNROLLED
                for (int w = h; w < 4; w += 2) {
                    const int number = (j * ROWS_M + m) * 4 + w;
                    bits[number / 16] |= positive(next[m][j][0][w]) << number % 16;
                }
                continue;
            }
#endif
            const float4 sum = found[m][h] * down[m][h] + bias;
            if (last) {
                v[m][h][j] = sum;
                continue;
            }
            const float2 a = activate(0, sum.s0), b = activate(0, sum.s1);
            const float2 c = activate(0, sum.s2), d = activate(0, sum.s3);
            put_words(next[m][j], h, (float4)(a.s0, b.s0, c.s0, d.s0) * up[m][h]);
#if !INNER_RELU
            slopes[layer * SLOPES_OF_LAYER + ((j * ROWS_M + m) * 2 + h) * WARP] =
                KEEP((float4)(a.s1, b.s1, c.s1, d.s1));
#endif
        }
    }
#if INNER_RELU
UNROLLED
    for (int i = 0; i < SPARE; ++i)
        if (!last) slopes[layer * SLOPES_OF_LAYER + i * WARP] = bits[i];
#endif
    if (!last) copy_rows(rows, next);
}

// rows = the derivatives by the sums of the layer below, of those of `layer`
//
// terms  blocks of the layer's neurons
// most, scale  of rows
inline void backward(const int layer, const int terms, Words *rows, int (*most)[2],
                     int (*scale)[2], __global const Slopes *slopes, Pipeline *pipeline,
                     const int4 about, __local float *sums, __local uint4 *exchange)
{
    float up[ROWS_M][2], down[ROWS_M][2];
    Words next[ROWS_M];
    float4 even[ROWS_M][2], nothing[ROWS_M][2];  // the block before; zeros
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) nothing[i / 2][i % 2] = (float4)(0);
    slopes += (layer - 1) * SLOPES_OF_LAYER;
#if INNER_RELU
    uint bits[SPARE];
UNROLLED
    for (int i = 0; i < SPARE; ++i) bits[i] = slopes[i * WARP];
#endif
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, h = i % 2;
        const int bound = most[m][h] + 1 - scale[m][h] + about.s1 + SLOPE_EXPONENT
                          + growth(terms);
        down[m][h] = power_of_two(-scale[m][h]) * power_of_two(-about.s0)
                     * (INNER_RELU ? steepness_of[0] : 1);
        scale[m][h] = clamp(TOP - bound, LEAST_SCALE, MOST_SCALE);
        up[m][h] = power_of_two(scale[m][h]);
    }
    BEGIN_WITH(pipeline, START_TRANSPOSED(layer));
    STAGE_WORDS(rows, exchange);
UNROLLED
    for (int j = 0; j < HIDDEN; ++j) {
        float4 found[ROWS_M][2];
        multiply(found, rows, terms, j * terms, pipeline, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, h = i % 2;
#if INNER_RELU
            const int number = (j * ROWS_M + m) * 4 + h;
            const uint first = bits[number / 16] >> number % 16;
            const uint second = bits[(number + 2) / 16] >> (number + 2) % 16;
            const float4 v = found[m][h] * down[m][h];
            found[m][h] = (float4)(first & 1 ? v.s0 : 0, first & 1 << 16 ? v.s1 : 0,
                                   second & 1 ? v.s2 : 0, second & 1 << 16 ? v.s3 : 0);
#else
            const Slopes both = slopes[((j * ROWS_M + m) * 2 + h) * WARP];
            found[m][h] *= down[m][h] * KEPT(both);
#endif
            put_words(next[m][j], h, found[m][h] * up[m][h]);
        }
        if (j % 2) {
            add_biases(sums + BLOCK * (j - 1), even, found, exchange);
        } else {
UNROLLED
            for (int i = 0; i < 2 * ROWS_M; ++i) even[i / 2][i % 2] = found[i / 2][i % 2];
        }
    }
    if (HIDDEN % 2) add_biases(sums + BLOCK * (HIDDEN - 1), even, nothing, exchange);
    copy_rows(rows, next);
}

// fused_mma: a chain of narrow dense layers in one launch, on Tensor Cores.
//
// A warp computes all layers of ROWS_M * 16 samples: a layer's outputs are, in registers,
// the fragments that the next one multiplies (narrow_layers.h). Only weights pass through
// local memory, and only x and y through global memory. The next samples are prefetched
// during the last layers.
// The idea is that of tiny-cuda-nn's fused networks: Mueller et al., "Real-time neural
// radiance caching for path tracing", 2021.
//
// WARPS     of a group; with 16 and more a lane has 128 registers
// PREFETCH_LAYERS  layers before the end at which the next samples are prefetched: 0 to
//           2; more take more registers
// X_PADDED  1: rows of x start on a vector of 4 and end in zeros; 0: not
// Y_PADDED  1: rows of y start on a vector of 4
// INNER     code of the hidden layers' activation: an expression of `layer`
// OUTER     code of the last layer's
// RELU, IDENTITY  codes of these activations; -1 if they do not occur
// BOUNDED   {b, …} 1: the layer's activation is bounded by 1
// N_LAST    neurons of the last layer
// ROWS_M, STAGES  as in pipeline.h; FIRST, HIDDEN, LAST, LAYERS, …  as in fused_mma.h
#include "dense/fused_mma.h"
#define HELD ((FIRST > HIDDEN ? FIRST : HIDDEN) + POCL_PAD)
#include "tensor_core/pipeline.h"
#include "tensor_core/fast_math.h"
#if !defined(PREFETCH_LAYERS) || !defined(X_PADDED) || !defined(Y_PADDED) \
    || !defined(INNER) || !defined(OUTER) || !defined(RELU) || !defined(IDENTITY) \
    || !defined(BOUNDED) || !defined(N_LAST)
#error "fused_mma.cl needs PREFETCH_LAYERS, X_PADDED, Y_PADDED, INNER, OUTER, RELU, \
IDENTITY, BOUNDED and N_LAST"
#endif
#define UNSCALED_RANGE 5  // exponents below LEVEL within which samples stay unscaled
__constant int bounded[LAYERS] = BOUNDED;

typedef float4 Values[HELD];  // a lane's 4 values of a sample, of each block of terms

// Issue the loads before it first: the compiler would sink them to their uses.
#if PTX >= 80
#define LOAD_FENCE() warp_barrier()
#else
#define LOAD_FENCE()
#endif

// NaN stays NaN, which `clamp` does not promise.
static inline float4 activate_four(const int code, const float4 v)
{
    switch (code) {
#define FOUR(number, function, steepness, limit)                                       \
    case number: {                                                                     \
        const float4 low = -(limit), high = limit;                                     \
        float4 w = v < low ? low : v;                                                  \
        w = w > high ? high : w;                                                       \
        return (float4)(function(w.s0), function(w.s1),                                \
                        function(w.s2), function(w.s3));                               \
    }
        FUNCTIONS(FOUR)
    }
    return v;
}

// v = the lanes' values of x, from sample `first` on
static inline void load_samples(Values (*v)[2], __global const float *x, const int ldx,
                                const int first, const int batch)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, t = lane % 4;
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        __global const float *row = x + (size_t)min(first + 8 * i + g, batch - 1) * ldx;
UNROLLED
        for (int k = 0; k < FIRST; ++k) {
            const int whole = BLOCK * (k + 1) <= N_IN, left = N_IN - BLOCK * k - 4 * t;
            __global const float *from = row + BLOCK * k + 4 * t;
#if X_PADDED
            v[i / 2][i % 2][k] =
                whole || left > 0 ? *(__global const float4 *)from : (float4)(0);
#else
            v[i / 2][i % 2][k] =
                (float4)(left > 0 ? from[0] : 0, left > 1 ? from[1] : 0,
                         left > 2 ? from[2] : 0, left > 3 ? from[3] : 0);
#endif
        }
    }
}

// rows = v times 2^scales: a sample's largest value just below 2^LEVEL, as far as scales
//        up to `limit` allow
static inline void pack_inputs(Fragments *rows, int (*scales)[2], Values (*v)[2],
                               const int limit, __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2;
        float largest = 0;
UNROLLED
        for (int k = 0; k < FIRST; ++k) {
            const float4 four = fabs(v[m][i % 2][k]);
            largest = fmax(fmax(largest, fmax(four.s0, four.s1)),
                           fmax(four.s2, four.s3));
        }
        const uint most = quad_max(as_uint(largest), SHUFFLE_SPACE(exchange));
        const int power = LEVEL - 1 - exponent_of(most);
        // Most samples stay unscaled.
        scales[m][i % 2] = min(0 <= power && power < UNSCALED_RANGE ? 0 : power, limit);
        if (scales[m][i % 2] != 0) {
UNROLLED
            for (int k = 0; k < FIRST; ++k)
                v[m][i % 2][k] *= power_of_two(scales[m][i % 2]);
        }
UNROLLED
        for (int k = 0; k < FIRST; ++k) pack_words(rows[m][k], i % 2, v[m][i % 2][k]);
    }
    END_EXCHANGES();
}

// Rescale rows by their largest values.
static inline void rescale(Fragments *rows, int (*scales)[2], const int limit,
                           __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2;
        uint two = 0;
UNROLLED
        for (int k = 0; k < HIDDEN; ++k) {
            const uint *words = rows[m][k][0] + i % 2;
            two = max_half2(max_half2(two, words[0]), words[2]);
        }
        const uint most = quad_max(max(two & 0xffff, two >> 16), SHUFFLE_SPACE(exchange));
        // Two factors, for the range of halves. A value times 2^-28 is negligible beside
        // biases.
        int power = min(LEVEL - 1 - ((int)(most >> 10) - 15), limit - scales[m][i % 2]);
        power = clamp(power, -28, 30);
        scales[m][i % 2] = min(scales[m][i % 2] + power, limit);
        const uint first_factor = power_half2(power / 2);
        const uint second_factor = power_half2(power - power / 2);
UNROLLED
        for (int k = 0; k < HIDDEN * SPLITS; ++k) {
            uint *words = rows[m][k / SPLITS][k % SPLITS] + i % 2;
UNROLLED
            for (int w = 0; w < 4; w += 2)
                words[w] = mul_half2(mul_half2(words[w], first_factor), second_factor);
        }
    }
    END_EXCHANGES();
}

// rows = a layer's outputs for its inputs `rows`; the last layer's go to y instead
//
// terms, neurons  its blocks
// Always inline: PoCL 3.0 computes a call of a function with barriers wrongly.
static inline __attribute__((always_inline))
void compute_layer(Fragments *rows, int (*scales)[2], const int layer, const int terms,
                   const int neurons, const int last, Pipeline *pipeline,
                   __local uint4 *exchange, __local const float4 *biases,
                   __local const int2 *steps, __local const float4 *last_factors,
                   __global const float4 *factors, __global float *y, const int ldy, const int first, const int batch)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, t = lane % 4;
    const int code = last ? OUTER : INNER, stays_scaled = code == RELU || code == IDENTITY;
    Fragments next[ROWS_M];
    float up[ROWS_M][2], down[ROWS_M][2], rescale_factor[ROWS_M][2];
    float down_further[ROWS_M][2];
    if (!last && layer > 0 && layer % PERIOD == 0)
        rescale(rows, scales, steps[layer].s1, exchange);
UNROLLED
    for (int m = 0; m < ROWS_M; ++m)
UNROLLED
        for (int i = 0; i < 2; ++i) {
            scales[m][i] += steps[layer].s0 >> 1;
            up[m][i] = power_of_two(scales[m][i]);
            // Two factors of large samples: that of the last layer's row is between them.
            const int half_down = last ? min(scales[m][i], 0) / 2 : 0;
            down_further[m][i] = power_of_two(-half_down);
            down[m][i] = power_of_two(min(half_down - scales[m][i], 127));
            if (last || stays_scaled) continue;
            // |f(v)| <= |v| + 1; |v| is below the bound after this layer.
            const int next_scale = bounded[layer]
                ? LEVEL - 1 : min(scales[m][i], BOUND(layer) + GROWTH) - 1;
            scales[m][i] = min(next_scale, steps[layer + 1].s1);
            rescale_factor[m][i] = power_of_two(scales[m][i]);
        }
    const bool apart = !last && (steps[layer].s0 & 1);  // rare: rows with factors
    PIPELINE_SEEK(pipeline, FORWARD_START(layer));
    STAGE_WORDS(rows, terms, exchange);
UNROLLED
    for (int j = 0; j < neurons; ++j) {
        const int n = BLOCK * j + 4 * t;
        const float4 bias = biases[(layer * MAX_NEURONS + n) / 4];
        float sums[ROWS_M][2][4], low[ROWS_M][2][4];
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const float4 four = bias * up[i / 2][i % 2];
            const float *each = (const float *)&four;
UNROLLED
            for (int e = 0; e < 4; ++e) {
                sums[i / 2][e / 2][i % 2 * 2 + e % 2] = each[e];
                low[i / 2][e / 2][i % 2 * 2 + e % 2] = 0;
            }
        }
        add_products(sums, low, rows, terms, j * terms, pipeline, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, at = i % 2;
            float4 v = sum_of(sums[m], low[m], at);
            if (apart) v *= factors[(layer * MAX_NEURONS + n) / 4];
            if (last) {
                v = v * down[m][at] * last_factors[n / 4] * down_further[m][at];
                v = activate_four(code, v);
                // Samples past the end repeat the last one, and so do their outputs.
                const int sample = min(first + 8 * i + g, batch - 1);
                const int left_outputs = N_LAST - n;
                __global float *to = y + (size_t)sample * ldy + n;
                if (Y_PADDED && (BLOCK * (j + 1) <= N_LAST || left_outputs >= 4)) {
                    *(__global float4 *)to = v;
                } else {
                    if (left_outputs > 0) to[0] = v.s0;
                    if (left_outputs > 1) to[1] = v.s1;
                    if (left_outputs > 2) to[2] = v.s2;
                    if (left_outputs > 3) to[3] = v.s3;
                }
            } else if (code == RELU) {
                pack_words_relu(next[m][j], at, v);
            } else if (code == IDENTITY) {
                pack_words(next[m][j], at, v);
            } else {
                v = activate_four(code, v * down[m][at]);
                pack_words(next[m][j], at, v * rescale_factor[m][at]);
            }
        }
    }
    if (!last) copy_fragments(rows, next);
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx]
//
// weights, biases, factors, steps  as in fused_mma_pack.cl
// index map: work-group: every (groups)-th tile of SAMPLES; a warp: ROWS_M * 16 of them
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void fused_mma(__global const float *x, const int ldx, __global const uint4 *weights,
               __global const float4 *biases, __global const float4 *factors,
               __global const int2 *steps, __global float *y, const int ldy,
               const int batch)
{
    __local uint4 shared[(STAGES > 0 ? STAGES * CHUNK : ALL) * BLOCK_VECTORS];
    __local uint4 exchanges[EXCHANGE_VECTORS];
    __local float4 local_biases[LAYERS * MAX_NEURONS / 4];
    __local float4 local_factors[LAST * BLOCK / 4];
    __local int2 local_steps[LAYERS];
    const int warp = get_local_id(0) / WARP;
    const int all = get_num_groups(0) * SAMPLES;
    __local uint4 *exchange = exchanges + warp * (EXCHANGE_VECTORS / WARPS);
    int first = get_group_id(0) * SAMPLES + warp * ROWS_M * BLOCK;
    Pipeline pipeline = pipeline_begin(shared, weights);
    Values v[ROWS_M][2];
    if (PREFETCH_LAYERS) load_samples(v, x, ldx, first, batch);
    for (int i = get_local_id(0); i < LAYERS * MAX_NEURONS / 4; i += ITEMS)
        local_biases[i] = biases[i];
    for (int i = get_local_id(0); i < LAST * BLOCK / 4; i += ITEMS)
        local_factors[i] = factors[(LAYERS - 1) * MAX_NEURONS / 4 + i];
    for (int i = get_local_id(0); i < LAYERS; i += ITEMS) local_steps[i] = steps[i];
    if (STAGES == 0) CP_ASYNC_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int tile = get_group_id(0) * SAMPLES; tile < batch; tile += all) {
        Fragments rows[ROWS_M];
        int scales[ROWS_M][2], layer = 0;
        if (!PREFETCH_LAYERS) load_samples(v, x, ldx, first, batch);
        pack_inputs(rows, scales, v, local_steps[0].s1, exchange);
#define COMPUTE_LAYER(layer, terms, neurons, last)                                     \
    compute_layer(rows, scales, layer, terms, neurons, last, &pipeline, exchange,      \
                  local_biases, local_steps, local_factors, factors, y, ldy, first, batch)
#if LAYERS > 1 && FIRST != HIDDEN
        COMPUTE_LAYER(0, FIRST, HIDDEN, 0);
        layer = 1;
#endif
        for (; layer < LAYERS - (PREFETCH_LAYERS > 1 ? PREFETCH_LAYERS : 1); ++layer)
            COMPUTE_LAYER(layer, HIDDEN, HIDDEN, 0);
        if (PREFETCH_LAYERS) {
            load_samples(v, x, ldx, first + all, batch);
            LOAD_FENCE();
        }
#if PREFETCH_LAYERS > 1
        for (; layer < LAYERS - 1; ++layer) COMPUTE_LAYER(layer, HIDDEN, HIDDEN, 0);
#endif
#if LAYERS > 1
        COMPUTE_LAYER(LAYERS - 1, HIDDEN, LAST, 1);
#else
        COMPUTE_LAYER(0, FIRST, LAST, 1);
#endif
        first += all;
    }
    CP_ASYNC_WAIT(0);
}

// fused_mma: a chain of narrow dense layers in one launch, on matrix units.
//
// A warp takes ROWS_M * 16 samples through all layers: what a layer leaves in its lanes
// are the fragments that the next one multiplies (fused_mma.h). Nothing but weights
// passes through local memory, and nothing but x and y through global memory. While the
// last layers are computed, the next samples come in.
// The idea is that of tiny-cuda-nn's fused networks: Mueller et al., "Real-time neural
// radiance caching for path tracing", 2021.
//
// WARPS     of a group; with 16 and more a lane has 128 registers
// AHEAD     so many layers before their turn samples are asked for: 0 to 2; more take
//           more registers
// X_PADDED  1: rows of x start on a vector of 4 and end in zeros; 0: not
// Y_PADDED  1: rows of y start on a vector of 4
// INNER     code of the layers' function but the last one's; an expression of `layer`
// OUTER     code of the last one's
// RELU, IDENTITY  these functions' codes; -1 where they do not occur
// BOUNDED   {b, …} whether a layer's function stays within -1 and 1
// N_LAST    neurons of the last layer
// ROWS_M, STAGES  as in pipeline.h; FIRST, HIDDEN, LAST, LAYERS, …  as in fused_mma.h
#include "dense/fused_mma.h"
#define HELD (FIRST > HIDDEN ? FIRST : HIDDEN)
#include "tensor_core/pipeline.h"
#include "tensor_core/fast_math.h"
#if !defined(AHEAD) || !defined(X_PADDED) || !defined(Y_PADDED) || !defined(INNER) \
    || !defined(OUTER) || !defined(RELU) || !defined(IDENTITY) || !defined(BOUNDED) \
    || !defined(N_LAST)
#error "fused_mma.cl needs AHEAD, X_PADDED, Y_PADDED, INNER, OUTER, RELU, IDENTITY, \
BOUNDED and N_LAST"
#endif
#define PLAIN 5     // so many powers of two below 2^LEVEL a sample need not be scaled
__constant int bounded[LAYERS] = BOUNDED;

typedef float4 Values[HELD];  // a sample's 4 values of a lane, of each block of terms

// What was loaded before is asked for before what is loaded from local memory after:
// the compiler would put off such loads until their values are wanted.
#if PTX >= 80
#define ASKED() warp_barrier()
#else
#define ASKED()
#endif

inline float4 activate_four(const int code, const float4 v)
{
    switch (code) {
#define FOUR(number, function, steepness, limit)                                       \
    case number: {                                                                     \
        const float4 w = isinf(limit) ? v : clamp(v, -(limit), limit);                 \
        return (float4)(function(w.s0), function(w.s1),                                \
                        function(w.s2), function(w.s3));                               \
    }
        FUNCTIONS(FOUR)
    }
    return v;
}

// v = what the warp's lanes multiply of x, from sample `first` on
inline void load_samples(Values (*v)[2], __global const float *x, const int ldx,
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

// rows = v times 2^scales: the largest of a sample below 2^LEVEL, and not far below, as
//        far as scales within `limit` allow
inline void first_rows(Words *rows, int (*scales)[2], Values (*v)[2], const int limit,
                       __local uint4 *exchange)
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
        const uint most = largest_of_four(as_uint(largest), FEW(exchange));
        const int power = LEVEL - 1 - exponent_of(most);
        // Most samples are as they should be.
        scales[m][i % 2] = min(0 <= power && power < PLAIN ? 0 : power, limit);
        if (scales[m][i % 2] != 0) {
UNROLLED
            for (int k = 0; k < FIRST; ++k)
                v[m][i % 2][k] *= power_of_two(scales[m][i % 2]);
        }
UNROLLED
        for (int k = 0; k < FIRST; ++k) put_words(rows[m][k], i % 2, v[m][i % 2][k]);
    }
}

// Scale rows anew by their largest values.
inline void scale_rows(Words *rows, int (*scales)[2], const int limit,
                       __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2;
        uint two = 0;
UNROLLED
        for (int k = 0; k < HIDDEN; ++k) {
            const uint *words = rows[m][k][0] + i % 2;
            two = larger(larger(two, words[0]), words[2]);
        }
        const uint most = largest_of_four(max(two & 0xffff, two >> 16), FEW(exchange));
        // In two steps, as halves' powers end. What 2^-28 takes beside biases is
        // nothing.
        int power = min(LEVEL - 1 - ((int)(most >> 10) - 15), limit - scales[m][i % 2]);
        power = clamp(power, -28, 30);
        scales[m][i % 2] = min(scales[m][i % 2] + power, limit);
        const uint half_way = as_halves(power / 2);
        const uint others = as_halves(power - power / 2);
UNROLLED
        for (int k = 0; k < HIDDEN * SPLITS; ++k) {
            uint *words = rows[m][k / SPLITS][k % SPLITS] + i % 2;
UNROLLED
            for (int w = 0; w < 4; w += 2)
                words[w] = times_halves(times_halves(words[w], half_way), others);
        }
    }
}

// rows = a layer's outputs of its inputs `rows`; the last one's go to y instead
//
// terms, neurons  its blocks
inline void compute(Words *rows, int (*scales)[2], const int layer, const int terms,
                    const int neurons, const int last, Pipeline *pipeline,
                    __local uint4 *exchange, __local const float4 *biases,
                    __local const int2 *steps, __local const float4 *factors,
                    __global float *y, const int ldy, const int first,
                    const int batch)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, t = lane % 4;
    const int code = last ? OUTER : INNER, keeps = code == RELU || code == IDENTITY;
    Words next[ROWS_M];
    float up[ROWS_M][2], down[ROWS_M][2], anew[ROWS_M][2];
    if (!last && layer > 0 && layer % PERIOD == 0)
        scale_rows(rows, scales, steps[layer].s1, exchange);
UNROLLED
    for (int m = 0; m < ROWS_M; ++m)
UNROLLED
        for (int i = 0; i < 2; ++i) {
            scales[m][i] += steps[layer].s0;
            up[m][i] = power_of_two(scales[m][i]);
            down[m][i] = power_of_two(-scales[m][i]);
            if (last || keeps) continue;
            // |f(v)| <= |v| + 1; v is below the bound after this layer.
            const int fits = bounded[layer]
                ? LEVEL - 1 : min(scales[m][i], BOUND(layer) + GROWTH) - 1;
            scales[m][i] = min(fits, steps[layer + 1].s1);
            anew[m][i] = power_of_two(scales[m][i]);
        }
    BEGIN_WITH(pipeline, START(layer));
    STAGE_WORDS(rows, exchange);
UNROLLED
    for (int j = 0; j < neurons; ++j) {
        const int n = BLOCK * j + 4 * t;
        const float4 bias = biases[(layer * WIDE + n) / 4];
        float sums[ROWS_M][2][4], rest[ROWS_M][2][4];
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const float4 four = bias * up[i / 2][i % 2];
            const float *each = (const float *)&four;
UNROLLED
            for (int e = 0; e < 4; ++e) {
                sums[i / 2][e / 2][i % 2 * 2 + e % 2] = each[e];
                rest[i / 2][e / 2][i % 2 * 2 + e % 2] = 0;
            }
        }
        add_products(sums, rest, rows, terms, j * terms, pipeline, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, at = i % 2;
            float4 v = sum_of(sums[m], rest[m], at);
            if (last) {
                v *= factors[n / 4] * down[m][at];
                v = activate_four(code, v);
                // Samples past the last one are the last one, and so are their outputs.
                const int sample = min(first + 8 * i + g, batch - 1);
                const int wanted = N_LAST - n;
                __global float *to = y + (size_t)sample * ldy + n;
                if (Y_PADDED && (BLOCK * (j + 1) <= N_LAST || wanted >= 4)) {
                    *(__global float4 *)to = v;
                } else {
                    if (wanted > 0) to[0] = v.s0;
                    if (wanted > 1) to[1] = v.s1;
                    if (wanted > 2) to[2] = v.s2;
                    if (wanted > 3) to[3] = v.s3;
                }
            } else if (code == RELU) {
                put_words_relu(next[m][j], at, v);
            } else if (code == IDENTITY) {
                put_words(next[m][j], at, v);
            } else {
                v = activate_four(code, v * down[m][at]);
                put_words(next[m][j], at, v * anew[m][at]);
            }
        }
    }
    if (!last) copy_rows(rows, next);
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx]
//
// weights, biases, factors, steps  as fused_mma_pack.cl wrote them
// index map: work-group: every (groups)-th tile of SAMPLES; a warp: ROWS_M * 16 of them
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void fused_mma(__global const float *x, const int ldx, __global const uint4 *weights,
               __global const float4 *biases, __global const float4 *factors,
               __global const int2 *steps, __global float *y, const int ldy,
               const int batch)
{
    __local uint4 shared[(STAGES > 0 ? STAGES * CHUNK : ALL) * PART];
    __local uint4 exchanges[EXCHANGED];
    __local float4 near_biases[LAYERS * WIDE / 4];
    __local float4 near_factors[LAST * BLOCK / 4];
    __local int2 near_steps[LAYERS];
    const int warp = get_local_id(0) / WARP;
    const int all = get_num_groups(0) * SAMPLES;
    __local uint4 *exchange = exchanges + warp * (EXCHANGED / WARPS);
    int first = get_group_id(0) * SAMPLES + warp * ROWS_M * BLOCK;
    Pipeline pipeline = pipeline_begin(shared, weights);
    Values v[ROWS_M][2];
    if (AHEAD) load_samples(v, x, ldx, first, batch);
    for (int i = get_local_id(0); i < LAYERS * WIDE / 4; i += ITEMS)
        near_biases[i] = biases[i];
    for (int i = get_local_id(0); i < LAST * BLOCK / 4; i += ITEMS)
        near_factors[i] = factors[i];
    for (int i = get_local_id(0); i < LAYERS; i += ITEMS) near_steps[i] = steps[i];
    if (STAGES == 0) CP_ASYNC_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int tile = get_group_id(0) * SAMPLES; tile < batch; tile += all) {
        Words rows[ROWS_M];
        int scales[ROWS_M][2], layer = 0;
        if (!AHEAD) load_samples(v, x, ldx, first, batch);
        first_rows(rows, scales, v, near_steps[0].s1, exchange);
#define COMPUTE(layer, terms, neurons, last)                                           \
    compute(rows, scales, layer, terms, neurons, last, &pipeline, exchange, near_biases,   \
            near_steps, near_factors, y, ldy, first, batch)
#if LAYERS > 1 && FIRST != HIDDEN
        COMPUTE(0, FIRST, HIDDEN, 0);
        layer = 1;
#endif
        for (; layer < LAYERS - (AHEAD > 1 ? AHEAD : 1); ++layer)
            COMPUTE(layer, HIDDEN, HIDDEN, 0);
        if (AHEAD) {
            load_samples(v, x, ldx, first + all, batch);
            ASKED();
        }
#if AHEAD > 1
        for (; layer < LAYERS - 1; ++layer) COMPUTE(layer, HIDDEN, HIDDEN, 0);
#endif
#if LAYERS > 1
        COMPUTE(LAYERS - 1, HIDDEN, LAST, 1);
#else
        COMPUTE(0, FIRST, LAST, 1);
#endif
        first += all;
    }
    CP_ASYNC_WAIT(0);
}

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
// ROWS_M    blocks of 16 samples of a warp: each block of weights is read once for all
// AHEAD     so many layers before their turn samples are asked for: 0 to 2; more take
//           more registers
// STAGES    0: all weights stay in local memory; else so many chunks of CHUNK blocks,
//           in turn, one of which is multiplied while the others are on their way
// X_PADDED  1: rows of x start on a vector of 4 and end in zeros; 0: not
// Y_PADDED  1: rows of y start on a vector of 4
// INNER     code of the layers' function but the last one's; an expression of `layer`
// OUTER     code of the last one's
// RELU, IDENTITY  these functions' codes; -1 where they do not occur
// BOUNDED   {b, …} whether a layer's function stays within -1 and 1
// N_LAST    neurons of the last layer
// FIRST, HIDDEN, LAST, CHUNK, N_IN, LAYERS, …  as in fused_mma.h
#include "fused_mma.h"
#include "quick.h"
#if !defined(WARPS) || !defined(ROWS_M) || !defined(AHEAD) || !defined(STAGES) \
    || !defined(X_PADDED) \
    || !defined(Y_PADDED) || !defined(INNER) || !defined(OUTER) || !defined(RELU) \
    || !defined(IDENTITY) || !defined(BOUNDED) || !defined(N_LAST)
#error "fused_mma.cl needs WARPS, ROWS_M, AHEAD, STAGES, X_PADDED, Y_PADDED, INNER, \
OUTER, RELU, IDENTITY, BOUNDED and N_LAST"
#endif
#define TERMS (FIRST > HIDDEN ? FIRST : HIDDEN)      // most blocks of terms
#define SAMPLES (WARPS * ROWS_M * BLOCK)             // of a group
#define ITEMS (WARPS * WARP)
#define PLAIN 5     // so many powers of two below 2^LEVEL a sample need not be scaled
__constant int bounded[LAYERS] = BOUNDED;

// A sample's 4 values of a lane, of each block of terms; and halves of them, [.][word].
typedef float4 Values[TERMS];
typedef uint Words[TERMS][PLANES][4];

// most [ROWS_M][2] = the largest of what the four lanes of a sample have; and fragments
// of a warp's words. In plain C both pass through local memory, a warp's `exchange`.
#if PTX >= 80
#define EXCHANGED 1
#define STAGE_WORDS(rows, exchange)
#define ROWS(m, k, p) \
    (uint4)(rows[m][k][p][0], rows[m][k][p][1], rows[m][k][p][2], rows[m][k][p][3])
inline void share_largest(uint (*most)[2], __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        uint other;
        asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;"
                     : "=r"(other) : "r"(most[i / 2][i % 2]));
        const uint two = max(most[i / 2][i % 2], other);
        asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;"
                     : "=r"(other) : "r"(two));
        most[i / 2][i % 2] = max(two, other);
    }
}
#else
#define STAGED (ROWS_M * TERMS * PLANES * WARP)     // of a warp; after them ROWS_M * 16
#define EXCHANGED (WARPS * (STAGED + 4 * ROWS_M))   // values
#define STAGE_WORDS(rows, exchange) stage_words(rows, exchange)
#define ROWS(m, k, p) \
    FRAGMENT(exchange + (((m) * TERMS + (k)) * PLANES + (p)) * WARP, 0)
inline void share_largest(uint (*most)[2], __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
    __local uint *largest = (__local uint *)(exchange + STAGED) + lane / 4;
    for (int i = 0; i < 2 * ROWS_M; ++i) largest[8 * i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 2 * ROWS_M; ++i)
        atomic_max(largest + 8 * i, most[i / 2][i % 2]);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 2 * ROWS_M; ++i) most[i / 2][i % 2] = largest[8 * i];
}
inline void stage_words(Words *rows, __local uint4 *exchange)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ROWS_M * TERMS * PLANES; ++i) {
        const uint *words = rows[i / PLANES / TERMS][i / PLANES % TERMS][i % PLANES];
        exchange[i * WARP + get_local_id(0) % WARP] =
            (uint4)(words[0], words[1], words[2], words[3]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#endif

// What was loaded before is asked for before what is loaded from local memory after:
// the compiler would put off such loads until their values are wanted.
#if PTX >= 80
#define ASKED() asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
#else
#define ASKED()
#endif

// Of two words' halves the larger magnitudes.
inline uint larger(const uint a, const uint b)
{
#if PTX >= 80
    uint word;
    asm("{ .reg .b32 p, q; abs.f16x2 p, %1; abs.f16x2 q, %2; max.f16x2 %0, p, q; }"
        : "=r"(word) : "r"(a), "r"(b));
    return word;
#else
    return max(a & 0x7fff, b & 0x7fff)
           | max(a >> 16 & 0x7fff, b >> 16 & 0x7fff) << 16;
#endif
}

// A word's halves times 2^power, -14 to 15.
inline uint times_power(const uint word, const int power)
{
#if PTX >= 80
    const uint one = (15 + power) << 10;
    uint product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(word), "r"(one | one << 16));
    return product;
#else
    const float2 v = of_halves(word) * power_of_two(power);
    return halves(v.s0, v.s1);
#endif
}

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
    uint most[ROWS_M][2];
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        float largest = 0;
UNROLLED
        for (int k = 0; k < FIRST; ++k) {
            const float4 four = fabs(v[i / 2][i % 2][k]);
            largest = fmax(fmax(largest, fmax(four.s0, four.s1)),
                           fmax(four.s2, four.s3));
        }
        most[i / 2][i % 2] = as_uint(largest);
    }
    share_largest(most, exchange);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, power = LEVEL - 1 - exponent_of(most[m][i % 2]);
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
    uint most[ROWS_M][2];
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        uint two = 0;
UNROLLED
        for (int k = 0; k < HIDDEN; ++k)
        {
            const uint *words = rows[i / 2][k][0] + i % 2;
            two = larger(two, larger(words[0], words[2]));
        }
        most[i / 2][i % 2] = max(two & 0xffff, two >> 16);
    }
    share_largest(most, exchange);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, exponent = (int)(most[m][i % 2] >> 10) - 15;
        // In two steps, as halves' powers end. What 2^-28 takes beside biases is
        // nothing.
        int power = min(LEVEL - 1 - exponent, limit - scales[m][i % 2]);
        power = clamp(power, -28, 30);
        scales[m][i % 2] = min(scales[m][i % 2] + power, limit);
UNROLLED
        for (int k = 0; k < HIDDEN * PLANES; ++k) {
            uint *words = rows[m][k / PLANES][k % PLANES] + i % 2;
UNROLLED
            for (int w = 0; w < 4; w += 2) {
                const uint half_way = times_power(words[w], power / 2);
                words[w] = times_power(half_way, power - power / 2);
            }
        }
    }
}

// Start to copy words of weights to local memory.
inline void copy_weights(__local uint4 *to, __global const uint4 *from, const int count)
{
UNROLLED
    for (int start = 0; start < count; start += ITEMS) {
        const int i = start + get_local_id(0);
        if (count % ITEMS == 0 || i < count) copy_words(to + i, from + i);
    }
    DEPART();
}

#if STAGES > 0
// The chunk of weights whose turn it is; and start to copy the one that takes the place
// of the one before. turn = (the chunk's place in local memory, number of what comes)
inline __local const uint4 *next_chunk(__local uint4 *shared,
                                       __global const uint4 *weights, int2 *turn)
{
    ARRIVED(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the chunk before
    const int place = turn->s0, before = (place == 0 ? STAGES : place) - 1;
    copy_weights(shared + before * CHUNK * PART, weights + turn->s1 * CHUNK * PART,
                 CHUNK * PART);
    *turn = (int2)(place + 1 == STAGES ? 0 : place + 1,
                   turn->s1 + 1 == ALL / CHUNK ? 0 : turn->s1 + 1);
    return shared + place * CHUNK * PART;
}
#endif

// rows = a layer's outputs of its inputs `rows`; the last one's go to y instead
//
// terms, neurons  its blocks
inline void compute(Words *rows, int (*scales)[2], const int layer, const int terms,
                    const int neurons, const int last, __local uint4 *shared,
                    __global const uint4 *weights, int2 *turn, __local uint4 *exchange,
                    __local const float4 *biases, __local const int2 *steps,
                    __local const float4 *factors, __global float *y, const int ldy,
                    const int first, const int batch)
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
    STAGE_WORDS(rows, exchange);
    __local const uint4 *part = shared + START(layer) * PART;
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
UNROLLED
        for (int k = 0; k < terms; ++k) {
            int block = j * terms + k;
#if STAGES > 0
            block %= CHUNK;
            if (block == 0) part = next_chunk(shared, weights, turn);
#endif
            Fragment columns[PLANES];
UNROLLED
            for (int p = 0; p < PLANES; ++p)
                columns[p] = FRAGMENT(part + (block * PLANES + p) * WARP, lane);
UNROLLED
            for (int m = 0; m < ROWS_M; ++m)
UNROLLED
                for (int side = 0; side < 2; ++side) {
                    multiply_add(sums[m][side], ROWS(m, k, 0), columns[0], side);
#if PLANES == 2
                    multiply_add(rest[m][side], ROWS(m, k, 0), columns[1], side);
                    multiply_add(rest[m][side], ROWS(m, k, 1), columns[0], side);
#endif
                }
        }
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, at = i % 2;
            const float *left = sums[m][0] + 2 * at, *right = sums[m][1] + 2 * at;
            float4 v = (float4)(left[0], left[1], right[0], right[1]);
#if PLANES == 2
            left = rest[m][0] + 2 * at;
            right = rest[m][1] + 2 * at;
            v += (float4)(left[0], left[1], right[0], right[1]) / LOW;
#endif
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
    if (last) return;
UNROLLED
    for (int i = 0; i < ROWS_M * HIDDEN * PLANES * 4; ++i) {
        const int m = i / (HIDDEN * PLANES * 4), k = i / (PLANES * 4) % HIDDEN;
        rows[m][k][i / 4 % PLANES][i % 4] = next[m][k][i / 4 % PLANES][i % 4];
    }
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx]
//
// weights, biases, factors, steps  as fused_pack.cl wrote them
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
    int2 turn = (int2)(0, STAGES - 1);
    if (STAGES > 0) {
        for (int i = 0; i < STAGES - 1; ++i)
            copy_weights(shared + i * CHUNK * PART, weights + i * CHUNK * PART,
                         CHUNK * PART);
    } else {
        copy_weights(shared, weights, ALL * PART);
    }
    Values v[ROWS_M][2];
    if (AHEAD) load_samples(v, x, ldx, first, batch);
    for (int i = get_local_id(0); i < LAYERS * WIDE / 4; i += ITEMS)
        near_biases[i] = biases[i];
    for (int i = get_local_id(0); i < LAST * BLOCK / 4; i += ITEMS)
        near_factors[i] = factors[i];
    for (int i = get_local_id(0); i < LAYERS; i += ITEMS) near_steps[i] = steps[i];
    if (STAGES == 0) ARRIVED(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int tile = get_group_id(0) * SAMPLES; tile < batch; tile += all) {
        Words rows[ROWS_M];
        int scales[ROWS_M][2], layer = 0;
        if (!AHEAD) load_samples(v, x, ldx, first, batch);
        first_rows(rows, scales, v, near_steps[0].s1, exchange);
#define COMPUTE(layer, terms, neurons, last)                                           \
    compute(rows, scales, layer, terms, neurons, last, shared, weights, &turn,         \
            exchange, near_biases, near_steps, near_factors, y, ldy, first, batch)
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
    ARRIVED(0);
}

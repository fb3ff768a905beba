// What fused_step.cl and the kernels beside it share: sizes, the order of packed weights,
// and what lanes of a warp tell each other.
//
// A block of weights is one of 16 rows x 16 terms (halves.h), with both in another
// order, as in fused_mma.h: what a lane g, t = lane / 4, lane % 4 holds of the sums of
// 16 neurons are then four in a row, of samples g and g + 8, and packed they are the
// next layer's operand. Blocks lie in the order of their use: each layer's forward, then from the
// last layer to the second each one's turned, each filled up to whole chunks.
//
// FIRST, LAST  blocks of the first layer's terms, and of the last layer's neurons
// HIDDEN       blocks of the widest layer between; 0 where there is one layer only
// CHUNK        blocks that are copied to local memory at once
// LAYERS       how many there are
// N_IN         inputs of the first layer
// N_OUT, STRIDE, WEIGHTS, BIAS  {n, …} of each layer: neurons, from one row of A to the
//              next, where A and the biases start in the parameters; -1: none
// STEEPNESS_OF {s, …} what each layer's sums are multiplied by
// PLANES, PTX  as in halves.h
#include "fragments.h"
#if !defined(FIRST) || !defined(HIDDEN) || !defined(LAST) || !defined(CHUNK) \
    || !defined(LAYERS) || !defined(N_IN) || !defined(N_OUT) || !defined(STRIDE) \
    || !defined(WEIGHTS_OF) || !defined(BIAS_OF) || !defined(STEEPNESS_OF)
#error "fused_step.h needs the macros that its head names"
#endif
#define PART (PLANES * WARP)  // words of a block
#define TERMS_OF(layer) ((layer) == 0 ? FIRST : HIDDEN)
#define NEURONS_OF(layer) ((layer) == LAYERS - 1 ? LAST : HIDDEN)
#define FILLED(blocks) (((blocks) + CHUNK - 1) / CHUNK * CHUNK)
// Blocks before a layer's; and before a layer's turned ones, from the second layer on.
#define START(layer)                                                                     \
    ((layer) == 0 ? 0 : FILLED(FIRST * NEURONS_OF(0))                                    \
                            + ((layer) - 1) * FILLED(HIDDEN * HIDDEN))
#define TURNED                                                                           \
    (START(LAYERS - 1) + FILLED(TERMS_OF(LAYERS - 1) * LAST))
#define START_TURNED(layer)                                                              \
    ((layer) == LAYERS - 1 ? TURNED                                                      \
     : TURNED + FILLED(HIDDEN * LAST) + (LAYERS - 2 - (layer)) * FILLED(HIDDEN * HIDDEN))
#define ALL (LAYERS == 1 ? TURNED : START_TURNED(1) + FILLED(HIDDEN * NEURONS_OF(1)))
#define WIDEST (FIRST > HIDDEN ? (FIRST > LAST ? FIRST : LAST)                           \
                               : (HIDDEN > LAST ? HIDDEN : LAST))
#define WIDE (BLOCK * (LAST > HIDDEN ? LAST : HIDDEN))  // neurons of a layer, at most
#define QUAD 4               // blocks of a square that a warp multiplies over samples
#define NOTHING -127         // exponent of what is zero
#define MOST_SCALE 60        // of exponents
#define LEAST_SCALE -90
__constant int n_out_of[LAYERS] = N_OUT;
__constant int stride_of[LAYERS] = STRIDE;
__constant int weights_of[LAYERS] = WEIGHTS_OF;
__constant int bias_of[LAYERS] = BIAS_OF;
__constant float steepness_of[LAYERS] = STEEPNESS_OF;

inline int terms_of(const int layer) { return layer == 0 ? N_IN : n_out_of[layer - 1]; }

// The exponent of a float's bits, which is no negative one's.
inline int exponent_of(const uint bits) { return (int)(bits >> 23) - 127; }

// 2^e; 0 from -127 on, and infinity from 128 on.
inline float power_of_two(const int e)
{
    return as_float(min(max(e + 127, 0), 255) << 23);
}

// A word of the lane `mask` away. In plain C through 32 words of local memory.
inline uint swapped(const uint v, const int mask, __local uint *exchange)
{
#if PTX >= 80
    uint other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=r"(other) : "r"(v), "r"(mask));
    return other;
#else
    const int lane = get_local_id(0) % WARP;
    barrier(CLK_LOCAL_MEM_FENCE);
    exchange[lane] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    return exchange[lane ^ mask];
#endif
}

// Lane g, t's two halves of row g, columns 2t and 2t + 1, become those of rows 2t and
// 2t + 1, column g.
inline uint turned(const uint word, __local uint *exchange)
{
#if PTX >= 80
    uint found;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(found) : "r"(word));
    return found;
#else
    const int lane = get_local_id(0) % WARP, g = lane / 4, t = lane % 4;
    barrier(CLK_LOCAL_MEM_FENCE);
    exchange[lane] = word;
    barrier(CLK_LOCAL_MEM_FENCE);
    const int shift = 16 * (g % 2);
    const uint first = exchange[8 * t + g / 2] >> shift & 0xffff;
    return first | (exchange[8 * t + 4 + g / 2] >> shift & 0xffff) << 16;
#endif
}

// Of two words' halves the larger; of the second one the magnitudes.
inline uint larger(const uint a, const uint b)
{
    const uint other = b & 0x7fff7fff;
#if PTX >= 90
    uint word;
    asm("max.u16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(other));
    return word;
#else
    return max(a & 0xffff, other & 0xffff) | max(a >> 16, other >> 16) << 16;
#endif
}

// 2^power as two halves, 2^-24 to 2^15; 0 for less.
inline uint as_halves(const int power)
{
    const uint one = power >= -14 ? (uint)(15 + power) << 10
                                  : power >= -24 ? 1u << (24 + power) : 0;
    return one | one << 16;
}

// The products of two words' halves.
inline uint times_halves(const uint a, const uint b)
{
#if PTX >= 80
    uint product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
#else
    const float2 v = of_halves(a) * of_halves(b);
    return halves(v.s0, v.s1);
#endif
}

// Bits 0 and 16: whether a word's halves are above 0.
inline uint positive(const uint word)
{
#if PTX >= 80
    uint ones;  // 1.0 is 0x3c00
    asm("set.gt.f16x2.f16x2 %0, %1, %2;" : "=r"(ones) : "r"(word), "r"(0));
    return ones >> 10 & 0x00010001;
#else
    const float2 v = of_halves(word);
    return (v.s0 > 0 ? 1 : 0) | (v.s1 > 0 ? 1 << 16 : 0);
#endif
}

// Blocks of what a step keeps of each layer, one after the other.
#define BLOCKS_BEFORE(layer) ((layer) == 0 ? 0 : FIRST + ((layer) - 1) * HIDDEN)
#define DERIVATIVES_BEFORE(layer) ((layer) * HIDDEN)
#define VALUE_BLOCKS (FIRST + (LAYERS - 1) * HIDDEN)

// Four values of a lane's sums of two sides of a block, in row half h.
inline float4 four_of(float (*sides)[4], const int h)
{
    return (float4)(sides[0][2 * h], sides[0][2 * h + 1], sides[1][2 * h],
                    sides[1][2 * h + 1]);
}

// Write a block of a layer's slopes, of sums times 2^power; zeros in the rows' padding.
inline void write_slopes(__global float *to, const int layer, const int m, const int n,
                         float (*sides)[4], const int power)
{
    const int lane = get_local_id(0) % WARP, column = BLOCK * n + lane % 4 * 4;
    const float inverse = power_of_two(-(power / 2)) * power_of_two(-(power - power / 2));
    const int stride = stride_of[layer];
UNROLLED
    for (int h = 0; h < 2; ++h) {
        const int row = BLOCK * m + lane / 8 * 4 + h * 2 + lane / 4 % 2;
        const int4 there = column + (int4)(0, 1, 2, 3) < terms_of(layer);
        if (row < n_out_of[layer] && column < stride)
            *(__global float4 *)(to + weights_of[layer] + row * stride + column) =
                select((float4)(0), four_of(sides, h) * inverse, there);
    }
}

// What the kernels of narrow layers share, fused_mma.cl and fused_step.cl and those beside
// them: sizes in blocks, the order of packed weights, and what is done to words.
//
// Blocks.  Weights are packed in blocks of 16 neurons x 16 terms, as in fp16_split.h, but
// for the order of both: what a lane g, t = lane / 4, lane % 4 holds of the sums of a
// block of neurons are then four in a row, and so are the terms that it multiplies
// next:
//
//     a lane's sums of a block of neurons        the next layer's fragment of them
//     sample g      4t 4t+1   4t+2 4t+3          word 0    word 2
//     sample g + 8  4t 4t+1   4t+2 4t+3          word 1    word 3
//
// Outputs packed as halves *are* the next layer's fragments: no value changes lanes.
// Layers lie in a row, each filled up to whole chunks.
//
// FIRST, LAST  blocks of the first layer's terms, and of the last layer's neurons
// HIDDEN       blocks of the widest layer between; 0 where there is one layer only
// CHUNK        blocks that are copied to local memory at once
// LAYERS       how many there are
// N_IN         inputs of the first layer
// SPLITS, PTX  as in fp16_split.h
#include "tensor_core/fragments.h"
#if !defined(FIRST) || !defined(HIDDEN) || !defined(LAST) || !defined(CHUNK) \
    || !defined(LAYERS) || !defined(N_IN)
#error "narrow_layers.h needs FIRST, HIDDEN, LAST, CHUNK, LAYERS and N_IN"
#endif
#define TERMS_OF(layer) ((layer) == 0 ? FIRST : HIDDEN)               // in blocks
#define NEURONS_OF(layer) ((layer) == LAYERS - 1 ? LAST : HIDDEN)     // in blocks
#define FILLED(blocks) (((blocks) + CHUNK - 1) / CHUNK * CHUNK)
// Blocks before a layer's, and of all layers.
#define START(layer)                                                                   \
    ((layer) == 0 ? 0 : FILLED(FIRST * NEURONS_OF(0))                                  \
                            + ((layer) - 1) * FILLED(HIDDEN * HIDDEN))
#define FORWARD_BLOCKS (START(LAYERS - 1) + FILLED(TERMS_OF(LAYERS - 1) * LAST))
#define PART (SPLITS * WARP)                            // words of a block
#define WIDE (BLOCK * (LAST > HIDDEN ? LAST : HIDDEN))  // neurons of a layer, at most

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
    return shuffle_xor_uint(v, mask);
#else
    const int lane = get_local_id(0) % WARP;
    barrier(CLK_LOCAL_MEM_FENCE);
    exchange[lane] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    return exchange[lane ^ mask];
#endif
}

// Of non-negative floats' bits, the largest that the four lanes of a sample have.
inline uint largest_of_four(uint v, __local uint *exchange)
{
    v = max(v, swapped(v, 1, exchange));
    return max(v, swapped(v, 2, exchange));
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
    const float2 v = unpack_half2(a) * unpack_half2(b);
    return pack_half2(v.s0, v.s1);
#endif
}

// Four values of a lane's sums of two sides of a block, in row half h.
inline float4 four_of(float (*sides)[4], const int h)
{
    return (float4)(sides[0][2 * h], sides[0][2 * h + 1], sides[1][2 * h],
                    sides[1][2 * h + 1]);
}

// Narrow layers on Tensor Cores (fused_mma.cl, fused_step.cl and their packing): sizes in
// blocks, the order of packed weights, and arithmetic of packed halves.
//
// Blocks.  Weights are packed in blocks of 16 neurons x 16 terms, as in fp16_split.h, but
// with neurons and terms permuted: lane g, t = lane / 4, lane % 4 then holds four
// consecutive accumulators of a block of neurons, and they are the terms that it
// multiplies next:
//
//     a lane's accumulators of 16 neurons        the next layer's fragment of them
//     sample g      4t 4t+1   4t+2 4t+3          word 0    word 2
//     sample g + 8  4t 4t+1   4t+2 4t+3          word 1    word 3
//
// Outputs packed as halves *are* the next layer's fragments: no value changes lanes.
// Layers are contiguous, each padded to whole chunks.
//
// FIRST, LAST  blocks of the first layer's terms, and of the last layer's neurons
// HIDDEN       blocks of the widest hidden layer; 0 of one layer
// CHUNK        blocks of a pipeline stage
// LAYERS       number of layers
// N_IN         inputs of the first layer
// SPLITS, PTX  as in fp16_split.h
#include "tensor_core/fragments.h"
#if !defined(FIRST) || !defined(HIDDEN) || !defined(LAST) || !defined(CHUNK) \
    || !defined(LAYERS) || !defined(N_IN)
#error "narrow_layers.h needs FIRST, HIDDEN, LAST, CHUNK, LAYERS and N_IN"
#endif
#define TERMS_OF(layer) ((layer) == 0 ? FIRST : HIDDEN)               // in blocks
#define NEURONS_OF(layer) ((layer) == LAYERS - 1 ? LAST : HIDDEN)     // in blocks
#define WHOLE_CHUNKS(blocks) (((blocks) + CHUNK - 1) / CHUNK * CHUNK)
// Blocks of weights before a layer's, and of all layers.
#define FORWARD_START(layer)                                                           \
    ((layer) == 0 ? 0 : WHOLE_CHUNKS(FIRST * NEURONS_OF(0))                            \
                            + ((layer) - 1) * WHOLE_CHUNKS(HIDDEN * HIDDEN))
#define FORWARD_BLOCKS \
    (FORWARD_START(LAYERS - 1) + WHOLE_CHUNKS(TERMS_OF(LAYERS - 1) * LAST))
#define BLOCK_VECTORS (SPLITS * WARP)                  // 4-word vectors of a block
#define MAX_NEURONS (BLOCK * (LAST > HIDDEN ? LAST : HIDDEN))  // of a layer

// The exponent of a non-negative float, from its bits.
static inline int exponent_of(const uint bits) { return (int)(bits >> 23) - 127; }

// 2^e; 0 from -127 down, infinity from 128 up.
static inline float power_of_two(const int e)
{
    return as_float(min(max(e + 127, 0), 255) << 23);
}

// The word of lane ^ mask. In plain C it passes through 32 words of local memory.
static inline uint shuffle_xor_word(const uint v, const int mask,
                                    __local uint *exchange)
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

// Comes behind a loop of such exchanges. In plain C it is a barrier: PoCL 7.1 shares what
// the loop writes to private arrays among work-items, if no barrier precedes the reads.
#if PTX >= 80
#define END_EXCHANGES()
#else
#define END_EXCHANGES() barrier(CLK_LOCAL_MEM_FENCE)
#endif

// The largest of four lanes, a sample's quad: bits of non-negative floats, or of halves.
static inline uint quad_max(uint v, __local uint *exchange)
{
    v = max(v, shuffle_xor_word(v, 1, exchange));
    return max(v, shuffle_xor_word(v, 2, exchange));
}

// The larger halves of a and |b|; a is non-negative.
static inline uint max_half2(const uint a, const uint b)
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

// 2^power in both halves of a word: 2^15 at most, also of the powers above, by which
// rows of zeros are scaled; 0 below 2^-24.
static inline uint power_half2(const int power)
{
    const uint one = power >= -14 ? (uint)(15 + min(power, 15)) << 10
                                  : power >= -24 ? 1u << (24 + power) : 0;
    return one | one << 16;
}

// Products, sums and differences of two words' halves.
#if PTX >= 80
#define HALF2_OP(name, instruction, op)                                                  \
    static inline uint name(const uint a, const uint b)                                  \
    {                                                                                    \
        uint word;                                                                       \
        asm(instruction " %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));                   \
        return word;                                                                     \
    }
#else
#define HALF2_OP(name, instruction, op)                                                  \
    static inline uint name(const uint a, const uint b)                                  \
    {                                                                                    \
        const float2 v = unpack_half2(a) op unpack_half2(b);                             \
        return pack_half2(v.s0, v.s1);                                                   \
    }
#endif
HALF2_OP(mul_half2, "mul.rn.f16x2", *)
HALF2_OP(add_half2, "add.rn.f16x2", +)
HALF2_OP(sub_half2, "sub.rn.f16x2", -)
#undef HALF2_OP

// A lane's four accumulators of two sides of a block, of row g + 8 h.
static inline float4 accumulator_row(float (*sides)[4], const int h)
{
    return (float4)(sides[0][2 * h], sides[0][2 * h + 1], sides[1][2 * h],
                    sides[1][2 * h + 1]);
}

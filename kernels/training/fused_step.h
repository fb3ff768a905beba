// What fused_step.cl and the kernels beside it share, beside what narrow_layers.h says.
//
// Weights are packed as narrow_layers.h says: each layer's forward, then from the last layer to
// the second each one's transposed, in the order of their use.
//
// N_OUT, STRIDE, WEIGHTS, BIAS  {n, …} of each layer: neurons, from one row of A to the
//              next, where A and the biases start in the parameters; -1: none
// STEEPNESS_OF {s, …} what each layer's sums are multiplied by
// FIRST, HIDDEN, LAST, CHUNK, LAYERS, N_IN, …  as in narrow_layers.h
#include "tensor_core/narrow_layers.h"
#if !defined(N_OUT) || !defined(STRIDE) || !defined(WEIGHTS_OF) || !defined(BIAS_OF) \
    || !defined(STEEPNESS_OF)
#error "fused_step.h needs N_OUT, STRIDE, WEIGHTS_OF, BIAS_OF and STEEPNESS_OF"
#endif
// Blocks before a layer's transposed ones, from the second layer on.
#define START_TRANSPOSED(layer)                                                              \
    (FORWARD_BLOCKS                                                                      \
     + ((layer) == LAYERS - 1 ? 0 : FILLED(HIDDEN * LAST)                                \
            + (LAYERS - 2 - (layer)) * FILLED(HIDDEN * HIDDEN)))
#define ALL                                                                              \
    (LAYERS == 1 ? FORWARD_BLOCKS : START_TRANSPOSED(1) + FILLED(HIDDEN * NEURONS_OF(1)))
#define HELD (FIRST > HIDDEN ? (FIRST > LAST ? FIRST : LAST)                             \
                             : (HIDDEN > LAST ? HIDDEN : LAST))
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

// Lane g, t's two halves of row g, columns 2t and 2t + 1, become those of rows 2t and
// 2t + 1, column g.
inline uint transposed(const uint word, __local uint *exchange)
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

// Bits 0 and 16: whether a word's halves are above 0.
inline uint positive(const uint word)
{
#if PTX >= 80
    uint ones;  // 1.0 is 0x3c00
    asm("set.gt.f16x2.f16x2 %0, %1, %2;" : "=r"(ones) : "r"(word), "r"(0));
    return ones >> 10 & 0x00010001;
#else
    const float2 v = unpack_half2(word);
    return (v.s0 > 0 ? 1 : 0) | (v.s1 > 0 ? 1 << 16 : 0);
#endif
}

// Blocks of what a step keeps of each layer, one after the other.
#define BLOCKS_BEFORE(layer) ((layer) == 0 ? 0 : FIRST + ((layer) - 1) * HIDDEN)
#define DERIVATIVES_BEFORE(layer) ((layer) * HIDDEN)
#define VALUE_BLOCKS (FIRST + (LAYERS - 1) * HIDDEN)

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

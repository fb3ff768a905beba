// Sizes and layouts of fused_step.cl and the kernels beside it, beside narrow_layers.h.
//
// Weights are packed in the order of their use: each layer's forward, then transposed
// from the last layer to the second.
//
// N_OUT, STRIDE, WEIGHTS_OF, BIAS_OF  {n, …} of each layer: neurons, the stride of rows
//              of A, the offsets of A and of the biases in the parameters; -1: none
// STEEPNESS_OF {s, …} each layer's steepness
// FIRST, HIDDEN, LAST, CHUNK, LAYERS, N_IN, …  as in narrow_layers.h
#include "tensor_core/narrow_layers.h"
#if !defined(N_OUT) || !defined(STRIDE) || !defined(WEIGHTS_OF) || !defined(BIAS_OF) \
    || !defined(STEEPNESS_OF)
#error "fused_step.h needs N_OUT, STRIDE, WEIGHTS_OF, BIAS_OF and STEEPNESS_OF"
#endif
// Blocks before a layer's transposed weights, from the second layer on.
#define TRANSPOSED_START(layer)                                                          \
    (FORWARD_BLOCKS                                                                      \
     + ((layer) == LAYERS - 1 ? 0 : WHOLE_CHUNKS(HIDDEN * LAST)                          \
            + (LAYERS - 2 - (layer)) * WHOLE_CHUNKS(HIDDEN * HIDDEN)))
#define ALL                                                                              \
    (LAYERS == 1 ? FORWARD_BLOCKS                                                        \
                 : TRANSPOSED_START(1) + WHOLE_CHUNKS(HIDDEN * NEURONS_OF(1)))
#define HELD (FIRST > HIDDEN ? (FIRST > LAST ? FIRST : LAST)                             \
                             : (HIDDEN > LAST ? HIDDEN : LAST))
#define SQUARE 4             // side, in blocks, of a warp's tile of a weight gradient
#define ZERO_EXPONENT -127   // of zero
#define MAX_SCALE 60         // exponents of scales
#define MIN_SCALE -90
__constant int n_out_of[LAYERS] = N_OUT;
__constant int stride_of[LAYERS] = STRIDE;
__constant int weights_of[LAYERS] = WEIGHTS_OF;
__constant int bias_of[LAYERS] = BIAS_OF;
__constant float steepness_of[LAYERS] = STEEPNESS_OF;

static inline int terms_of(const int layer)
{
    return layer == 0 ? N_IN : n_out_of[layer - 1];
}

// movmatrix: lane g, t's halves of row g, columns 2t and 2t + 1, become those of rows 2t
// and 2t + 1, column g.
static inline uint transpose_half2(const uint word, __local uint *exchange)
{
#if PTX >= 80
    uint transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(transposed) : "r"(word));
    return transposed;
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
static inline uint positive(const uint word)
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

// Blocks of stored values and deltas, layer by layer.
#define VALUE_BLOCKS_BEFORE(layer) ((layer) == 0 ? 0 : FIRST + ((layer) - 1) * HIDDEN)
#define DELTA_BLOCKS_BEFORE(layer) ((layer) * HIDDEN)
#define VALUE_BLOCKS (FIRST + (LAYERS - 1) * HIDDEN)

// Store a block of a layer's weight gradients, from sums scaled by 2^power; zeros in the
// rows' padding.
static inline void store_weight_gradients(__global float *to, const int layer,
                                          const int m, const int n, float (*sides)[4],
                                          const int power)
{
    const int lane = get_local_id(0) % WARP, column = BLOCK * n + lane % 4 * 4;
    const float inverse = power_of_two(-(power / 2)) * power_of_two(-(power - power / 2));
    const int stride = stride_of[layer];
UNROLLED
    for (int h = 0; h < 2; ++h) {
        const int row = BLOCK * m + lane / 8 * 4 + h * 2 + lane / 4 % 2;
        const int4 live = column + (int4)(0, 1, 2, 3) < terms_of(layer);
        if (row < n_out_of[layer] && column < stride)
            *(__global float4 *)(to + weights_of[layer] + row * stride + column) =
                select((float4)(0), accumulator_row(sides, h) * inverse, live);
    }
}

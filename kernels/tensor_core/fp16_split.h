// The fp16 split: matrices as halves in the order of Tensor Core operands. pack.cl packs
// for mma.h, pack_tiles.cl for wgmma.h.
//
// A row r is scaled by a power of two so that its largest value lies in [2^14, 2^15); the
// accumulators are multiplied by the inverse. SPLITS = 2 also stores the rounding error,
// scaled by 2^11:
//
//     v * scale = high + low / 2^11        high, low: halves of 11 bits each
//
// and forms the three products that matter of four:
//
//     a b = high high + (high low + low high) / 2^11
//
// This carries 22 bits of every value down to 2^-28 of its row's largest. The two bits
// less than float32's 24 cost less than the rounding of float32's sums. Tensor Cores
// truncate when they accumulate; so they accumulate SLICE * 16 terms only, and float32
// adds these sums: Ootomo and Yokota, "Recovering single precision accuracy from Tensor
// Cores while surpassing the FP32 theoretical peak performance", 2022. SPLITS = 1 is
// TF32's precision.
//
// For mma a packed operand is an array [row blocks, k blocks, SPLITS, 32 lanes] of 4-word
// fragments: blocks of 16 rows x 16 terms, of which each lane of a warp has 8 halves:
//
//         a: k ->  2t 2t+1   2t+8 2t+9        b: k ->  2t 2t+1   2t+8 2t+9
//     row  g       word 0    word 2                    word 0    word 1
//     row  g + 8   word 1    word 3                    word 2    word 3
//
// with g = lane / 4 and t = lane % 4. `mma.m16n8k16` reads 16 rows of a from four
// consecutive registers, and twice 8 rows of b from two. Rows are padded with zeros to a
// multiple of 128, terms to one of 32.
//
// For wgmma, which reads local memory, an operand is an array [panels of PANEL_ROWS, k
// blocks, SPLITS, PANEL_ROWS / 8, 2] of core matrices of 8 rows x 8 terms, so that bulk
// copies are contiguous. Rows are padded to a whole tile, terms to a multiple of 64.
//
// SPLITS   1: TF32's precision; 2: float32's
// PTX      80 and up: mma and cp.async of that generation; else plain C, slow, which
//          tests the index maps
#if !defined(SPLITS) || !defined(PTX)
#error "fp16_split.h needs SPLITS and PTX"
#endif
#if PTX >= 80
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif
#include "include/warp.h"
#define BLOCK 16                     // rows of a block, and its terms
#define LOW_SCALE 2048.0f            // 2^11: the scale of the low halves
#define MAX_EXPONENT 14              // of a row's largest value, scaled
#define MIN_EXPONENT -100            // of a row's largest: below, scales would overflow

// Two values as halves in a word, the first in the low bits; and back.
static inline uint pack_half2(const float first, const float second)
{
#if PTX >= 80
    uint word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
#else
    uchar bytes[4] __attribute__((aligned(4)));  // which halves may alias
    vstore_half_rte(first, 0, (half *)bytes);
    vstore_half_rte(second, 1, (half *)bytes);
    return as_uint(vload4(0, bytes));
#endif
}

static inline float2 unpack_half2(const uint word)
{
#if PTX >= 80
    float first, second;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2;"
        " cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(first), "=f"(second) : "r"(word));
    return (float2)(first, second);
#else
    uchar bytes[4] __attribute__((aligned(4)));
    vstore4(as_uchar4(word), 0, bytes);
    return vload_half2(0, (const half *)bytes);
#endif
}

// A row's scale and its inverse, from the bits of its largest magnitude.
static inline float2 scales_of(const uint max_bits)
{
    const int exponent = max((int)(max_bits >> 23) - 127, MIN_EXPONENT);
    return (float2)(as_float((127 + MAX_EXPONENT - exponent) << 23),
                    as_float((127 - MAX_EXPONENT + exponent) << 23));
}

// A magnitude's bits, which sort as the values do; NaN is above all.
static inline uint magnitude(const float v) { return as_uint(v) & 0x7fffffffu; }

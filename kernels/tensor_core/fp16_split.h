// Matrices as 16-bit halves in the order in which matrix units want them: what pack.cl
// writes and mma.h multiplies, or pack_tiles.cl and wgmma.h.
//
// A row r is scaled by a power of two so that its largest value lies in [2^14, 2^15); the
// inverse is kept and multiplies the sums. SPLITS = 2 keeps what rounding took as well,
// 2^11 times larger:
//
//     v * scale = high + low / 2^11        high, low: halves of 11 bits each
//
// and of the four products the three that matter are formed:
//
//     a b = high high + (high low + low high) / 2^11
//
// which carries 22 bits of every value down to 2^-28 of its row's largest, and is short
// of float32's 24 by less than its sums lose to rounding. The units cut off what they add
// up; so they only add SLICE * 16 terms, and float32 adds those sums: Ootomo and Yokota,
// "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance", 2022. SPLITS = 1 is TF32's precision.
//
// For the units of a warp a packed operand is an array [row blocks, k blocks, SPLITS, 32
// lanes] of 4 words:
// blocks of 16 rows x 16 terms, in each of which a lane of a warp has 8 halves:
//
//         a: k ->  2t 2t+1   2t+8 2t+9        b: k ->  2t 2t+1   2t+8 2t+9
//     row  g       word 0    word 2                    word 0    word 1
//     row  g + 8   word 1    word 3                    word 2    word 3
//
// with g = lane / 4 and t = lane % 4. That is how `mma.m16n8k16` wants 16 rows of a in
// four registers in a row, and twice 8 rows of b in two. Rows end on 128, terms on 32,
// with zeros.
//
// For the units of a warp group, which read local memory, operands are arrays [pieces of
// PIECE_ROWS, k blocks, SPLITS, eights of rows, 2 eights of terms, 8 rows] of 8 terms:
// what a group copies at once lies in a row. Rows end on a tile, terms on 64.
//
// SPLITS   1: TF32's precision; 2: float32's
// PTX      80 and up: mma and cp.async of that generation; else the same in plain C,
//          slow, by which the index maps are tested
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
#define LOW_SCALE 2048.0f                  // 2^11: by which the low parts are larger
#define TOP 14                       // exponent of a row's largest value, scaled
#define LEAST_EXPONENT -100          // of a row's largest: below, scales would overflow

// Two values as halves in a word, the first one low; and back.
inline uint pack_half2(const float first, const float second)
{
#if PTX >= 80
    uint word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
#else
    ushort two[2];
    vstore_half_rte(first, 0, (half *)two);
    vstore_half_rte(second, 1, (half *)two);
    return two[0] | (uint)two[1] << 16;
#endif
}

inline float2 unpack_half2(const uint word)
{
#if PTX >= 80
    float first, second;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2;"
        " cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(first), "=f"(second) : "r"(word));
    return (float2)(first, second);
#else
    const ushort two[2] = {word & 0xffff, word >> 16};
    return vload_half2(0, (const half *)two);
#endif
}

// What a row is multiplied by, and the inverse, from its largest value's bits.
inline float2 scales_of(const uint largest)
{
    const int exponent = max((int)(largest >> 23) - 127, LEAST_EXPONENT);
    return (float2)(as_float((127 + TOP - exponent) << 23),
                    as_float((127 - TOP + exponent) << 23));
}

// Of non-negative floats, and of NaN, bits sort as values do.
inline uint magnitude(const float v) { return as_uint(v) & 0x7fffffffu; }

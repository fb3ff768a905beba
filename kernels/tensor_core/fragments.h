// Fragments of packed blocks (fp16_split.h): their products by mma, and asynchronous
// copies of blocks to local memory.
//
// SPLITS, PTX  as in fp16_split.h
#include "tensor_core/fp16_split.h"

// Added to the sizes of arrays: PoCL 3.0 shares those of one row among work-items.
#define POCL_PAD (PTX < 80)

// A lane's fragment of a block. In plain C it is the whole block, in local memory.
#if PTX >= 80
typedef uint4 Fragment;
#define FRAGMENT(block, lane) (block)[lane]
#else
typedef __local const half *Fragment;
#define FRAGMENT(block, lane) ((__local const half *)(block))
#endif

// mma.m16n8k16: sums [4] += products of 16 rows of a with 8 rows of b, from 8 * side on.
// Accumulators 0 and 1 are c(g, 2t) and c(g, 2t + 1), 2 and 3 those of row g + 8.
static inline void mma_m16n8k16(float *sums, const Fragment a, const Fragment b,
                                const int side)
{
#if PTX >= 80
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.s0), "r"(a.s1), "r"(a.s2), "r"(a.s3),
          "r"(side ? b.s2 : b.s0), "r"(side ? b.s3 : b.s1));
#else
    const int lane = get_local_id(0) % WARP, g = lane / 4, t = lane % 4;
    for (int k = 0; k < BLOCK; ++k) {
        const int k_offset = 8 * (k % 8 / 2) + k % 2;
        for (int i = 0; i < 4; ++i) {
            const int column = 2 * t + i % 2;
            sums[i] += vload_half(32 * g + 2 * (i / 2) + 4 * (k / 8) + k_offset, a)
                       * vload_half(32 * column + 4 * side + 2 * (k / 8) + k_offset, b);
        }
    }
#endif
}

// Start a copy of 4 words to local memory; CP_ASYNC_WAIT and a barrier complete it. It is
// cached in L1 (.ca), since groups of a compute unit share rows; past L1, L2's bandwidth
// would be the bound.
static inline void cp_async(__local uint4 *to, __global const uint4 *from)
{
#if PTX >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;"
                 :: "r"((uint)(size_t)to), "l"(from) : "memory");
#else
    *to = *from;
#endif
}

// Commit a group of copies; wait until at most `left` groups are in flight.
#if PTX >= 80
#define CP_ASYNC_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define CP_ASYNC_WAIT(left) asm volatile("cp.async.wait_group %0;" :: "n"(left) : "memory")
#else
#define CP_ASYNC_COMMIT()
#define CP_ASYNC_WAIT(left)
#endif

// Pack a lane's 4 values into words i and i + 2 of a fragment, for each split.
static inline void pack_words(uint (*words)[4], const int i, const float4 v)
{
    words[0][i] = pack_half2(v.s0, v.s1);
    words[0][2 + i] = pack_half2(v.s2, v.s3);
#if SPLITS == 2
    const float4 high = (float4)(unpack_half2(words[0][i]), unpack_half2(words[0][2 + i]));
    const float4 low = (v - high) * LOW_SCALE;
    words[1][i] = pack_half2(low.s0, low.s1);
    words[1][2 + i] = pack_half2(low.s2, low.s3);
#endif
}

// The same of max(v, 0), in the same instructions where SPLITS is 1.
static inline void pack_words_relu(uint (*words)[4], const int i, const float4 v)
{
#if PTX >= 80 && SPLITS == 1
    uint *word = words[0] + i;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word[0]) : "f"(v.s1), "f"(v.s0));
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word[2]) : "f"(v.s3), "f"(v.s2));
#else
    pack_words(words, i, select(v, (float4)(0), v < 0));
#endif
}

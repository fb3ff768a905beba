// pack: a matrix of rows of terms, split into halves in the order of mma's operands
// (fp16_split.h).
//
// PACKERS        work-items that pack 16 rows: a multiple of 32, usually 1024
// TRANSPOSED     1: rows of the matrix are columns of the source; 0: rows
// SOURCE_PADDED  1: rows of the source start on a vector of 4 and end in zeros; 0: not
// SECOND         1: operand b; 0: operand a
// TOTALS         1: also sum the rows; 0: not
// SPLITS, PTX    as in fp16_split.h
#include "tensor_core/fp16_split.h"
#if !defined(PACKERS) || !defined(TRANSPOSED) || !defined(SOURCE_PADDED) \
    || !defined(SECOND) || !defined(TOTALS)
#error "pack.cl needs PACKERS, TRANSPOSED, SOURCE_PADDED, SECOND and TOTALS"
#endif
#define HELD 4  // blocks that a warp holds in registers between its two passes
#define PACKING_WARPS (PACKERS / WARP)

// A pair of neighbouring terms of a row.
#if TRANSPOSED
#define PAIR(row, k) column_pair(source + (row), k, ld, terms)
static inline float2 column_pair(__global const float *column, const int k,
                                 const int ld, const int terms)
{
    const float first = k < terms ? column[(size_t)k * ld] : 0;
    return (float2)(first, k + 1 < terms ? column[(size_t)(k + 1) * ld] : 0);
}
#else
#define PAIR(row, k) row_pair(source + (size_t)(row) * ld, k, terms)
static inline float2 row_pair(__global const float *row, const int k, const int terms)
{
    if (k >= terms) return (float2)(0);
#if SOURCE_PADDED
    return *(__global const float2 *)(row + k);
#else
    return (float2)(row[k], k + 1 < terms ? row[k + 1] : 0);
#endif
}
#endif

// A lane's pairs of terms of a block.
#define LOAD(pairs, block)                                                             \
    UNROLLED                                                                           \
    for (int i = 0; i < 4; ++i) {                                                      \
        const int row = first + g + 8 * IS_LOWER(i);                                   \
        const int k = (block) * BLOCK + 2 * t + 8 * (SECOND ? i % 2 : i / 2);          \
        pairs[i] = row < rows ? PAIR(row, k) : (float2)(0);                            \
    }
#define IS_LOWER(i) (SECOND ? (i) / 2 : (i) % 2)  // whether a word is of row g + 8

// The largest magnitude so far, with two pairs of a row; and the pairs' sum.
static inline uint max_magnitude(const uint most, const float2 a, const float2 b)
{
    return max(most, max(max(magnitude(a.s0), magnitude(a.s1)),
                         max(magnitude(b.s0), magnitude(b.s1))));
}
static inline float sum_of(const float2 a, const float2 b)
{
    return (a.s0 + a.s1) + (b.s0 + b.s1);
}
// The same for rows g and g + 8 of a lane's pairs. No arrays: PoCL 3.0 shares those
// that start alike among work-items.
#define REDUCE(pairs)                                                                  \
    most = (uint2)(max_magnitude(most.s0, pairs[0], pairs[SECOND ? 1 : 2]),            \
                   max_magnitude(most.s1, pairs[SECOND ? 2 : 1], pairs[3]));           \
    total += (float2)(sum_of(pairs[0], pairs[SECOND ? 1 : 2]),                         \
                      sum_of(pairs[SECOND ? 2 : 1], pairs[3]));

// Store a lane's fragment of a block, scaled.
static inline void store_block(__global uint4 *to, const float2 *pairs,
                               const float2 scales)
{
    uint high[4], low[4];
UNROLLED
    for (int i = 0; i < 4; ++i) {
        float2 v = pairs[i] * (IS_LOWER(i) ? scales.s1 : scales.s0);
        high[i] = pack_half2(v.s0, v.s1);
        v = (v - unpack_half2(high[i])) * LOW_SCALE;
        low[i] = pack_half2(v.s0, v.s1);
    }
    to[0] = (uint4)(high[0], high[1], high[2], high[3]);
    if (SPLITS == 2) to[WARP] = (uint4)(low[0], low[1], low[2], low[3]);
}

// packed  [row blocks, blocks, SPLITS, WARP] from `at` on: `rows` rows of `terms` values
// inverse [16 * row blocks] from `inverse_at` on: the inverse scales of the rows
// totals  [rows] from `totals_at` on, with TOTALS: the rows' sums
// source  term k of row r at offset + r * ld + k; if TRANSPOSED at offset + k * ld + r
// index map: work-group: a block of rows; a warp: every PACKING_WARPS-th block of terms
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *source, const int offset, const int ld, const int rows,
          const int terms, __global uint4 *packed, const int at,
          __global float *inverse, const int inverse_at, const int blocks,
          __global float *totals, const int totals_at)
{
    __local uint largest[BLOCK];
    __local float sums[TOTALS ? PACKERS / 8 : 1][BLOCK];  // a row's 4 lanes, all warps
    const uint id = get_local_id(0);
    const int first = get_group_id(0) * BLOCK;
    const int warp = id / WARP, lane = id % WARP, g = lane / 4, t = lane % 4;
    source += offset;
    if (id < BLOCK) largest[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    float2 held[HELD][4], pairs[4];
    uint2 most = (uint2)(0);
    float2 total = (float2)(0);
UNROLLED
    for (int n = 0; n < HELD; ++n) {
        LOAD(held[n], warp + n * PACKING_WARPS)
    }
UNROLLED
    for (int n = 0; n < HELD; ++n) {
        REDUCE(held[n])
    }
    for (int b = warp + HELD * PACKING_WARPS; b < blocks; b += PACKING_WARPS) {
        LOAD(pairs, b)
        REDUCE(pairs)
    }
    atomic_max(largest + g, most.s0);
    atomic_max(largest + g + 8, most.s1);
    if (TOTALS) {
        sums[4 * warp + t][g] = total.s0;
        sums[4 * warp + t][g + 8] = total.s1;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const float2 upper = scales_of(largest[g]), lower = scales_of(largest[g + 8]);
    const float2 scales = (float2)(upper.s0, lower.s0);
    if (warp == 0 && t == 0) {
        inverse[inverse_at + first + g] = upper.s1;
        inverse[inverse_at + first + g + 8] = lower.s1;
    }
    packed += at + (size_t)get_group_id(0) * blocks * SPLITS * WARP + lane;
UNROLLED
    for (int n = 0; n < HELD; ++n) {
        const int b = warp + n * PACKING_WARPS;
        if (b < blocks) store_block(packed + b * SPLITS * WARP, held[n], scales);
    }
    for (int b = warp + HELD * PACKING_WARPS; b < blocks; b += PACKING_WARPS) {
        LOAD(pairs, b)
        store_block(packed + b * SPLITS * WARP, pairs, scales);
    }
    if (TOTALS && id < BLOCK && first + id < rows) {
        float sum = 0;
        for (int i = 0; i < PACKERS / 8; ++i) sum += sums[i][id];
        totals[totals_at + first + id] = sum;
    }
}

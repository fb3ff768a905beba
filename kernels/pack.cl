// pack: a matrix of rows of terms, as halves in the order that matrix units want
// (halves.h). `pack` finds rows in a row; `pack_turned` finds them below one another.
//
// PACKERS        work-items that pack 16 rows: a multiple of 32, usually 1024
// SOURCE_PADDED  1: rows of the source start on a vector of 4 and end in zeros; 0: not;
//                `pack` alone
// SECOND         1: as the second operand, b; 0: as the first
// TOTALS         1: `pack_turned` also adds up each row; 0: not
// PLANES, PTX    as in halves.h
#include "halves.h"
#if !defined(PACKERS) || !defined(SOURCE_PADDED) || !defined(SECOND) || !defined(TOTALS)
#error "pack.cl needs PACKERS, SOURCE_PADDED, SECOND and TOTALS"
#endif
#define TEAM (PACKERS / BLOCK)  // work-items a row

// A pair of neighbouring terms of a row of `terms` values.
inline float2 pair_of(__global const float *row, const int k, const int terms)
{
    if (k >= terms) return (float2)(0);
#if SOURCE_PADDED
    return *(__global const float2 *)(row + k);
#else
    return (float2)(row[k], k + 1 < terms ? row[k + 1] : 0);
#endif
}

// The same of a column.
inline float2 pair_below(__global const float *column, const int k, const int ld,
                         const int terms)
{
    const float first = k < terms ? column[(size_t)k * ld] : 0;
    return (float2)(first, k + 1 < terms ? column[(size_t)(k + 1) * ld] : 0);
}

// Write every (PACKERS / WARP)-th block of this group's block of rows, from the pairs of
// terms that PAIR(row, k) gives, scaled by scales[row - first].
#define WRITE_BLOCKS(PAIR)                                                               \
    const int lane = id % WARP, g = lane / 4, t = lane % 4;                              \
    packed += (size_t)get_group_id(0) * blocks * PLANES * WARP;                          \
    for (int block = id / WARP; block < blocks; block += PACKERS / WARP) {               \
        uint high[4], low[4];                                                            \
        UNROLLED                                                                         \
        for (int i = 0; i < 4; ++i) {                                                    \
            const int down = 8 * (SECOND ? i / 2 : i % 2) + g;                           \
            const int k = block * BLOCK + 2 * t + 8 * (SECOND ? i % 2 : i / 2);          \
            float2 v = first + down < rows ? PAIR(first + down, k) : (float2)(0);        \
            v *= scales[down];                                                           \
            high[i] = halves(v.s0, v.s1);                                                \
            v = (v - of_halves(high[i])) * LOW;                                          \
            low[i] = halves(v.s0, v.s1);                                                 \
        }                                                                                \
        __global uint4 *to = packed + block * PLANES * WARP + lane;                      \
        to[0] = (uint4)(high[0], high[1], high[2], high[3]);                             \
        if (PLANES == 2) to[WARP] = (uint4)(low[0], low[1], low[2], low[3]);             \
    }

// packed [row blocks, blocks, PLANES, WARP] from `at` on: the rows of
// source[offset + row * ld + k], of which there are `rows` of `terms` values
// inverse [16 * row blocks] from `inverse_at` on: what was divided out of them
// index map: work-group: a block of rows; a warp takes every (PACKERS / WARP)-th block
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *source, const int offset, const int ld, const int rows,
          const int terms, __global uint4 *packed, const int at,
          __global float *inverse, const int inverse_at, const int blocks)
{
    __local uint largest[BLOCK];
    __local float scales[BLOCK];
    const int id = get_local_id(0), first = get_group_id(0) * BLOCK;
    source += offset;
    packed += at;
    inverse += inverse_at;
    if (id < BLOCK) largest[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (first + id / TEAM < rows) {
        __global const float *row = source + (size_t)(first + id / TEAM) * ld;
        uint most = 0;
#if SOURCE_PADDED
        for (int k = 4 * (id % TEAM); k < terms; k += 4 * TEAM) {
            const float4 v = *(__global const float4 *)(row + k);
            most = max(most, max(max(magnitude(v.s0), magnitude(v.s1)),
                                 max(magnitude(v.s2), magnitude(v.s3))));
        }
#else
        for (int k = id % TEAM; k < terms; k += TEAM) most = max(most, magnitude(row[k]));
#endif
        atomic_max(largest + id / TEAM, most);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < BLOCK) {
        const float2 both = scales_of(largest[id]);
        scales[id] = both.s0;
        inverse[first + id] = both.s1;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#define IN_A_ROW(row, k) pair_of(source + (size_t)(row) * ld, k, terms)
    WRITE_BLOCKS(IN_A_ROW)
}

// The same of source[offset + k * ld + row]. With TOTALS
// totals[at + row] = sum over k of source[offset + k * ld + row]
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack_turned(__global const float *source, const int offset, const int ld,
                 const int rows, const int terms, __global uint4 *packed,
                 __global float *inverse, const int blocks, __global float *totals,
                 const int at)
{
    __local uint largest[BLOCK];
    __local float scales[BLOCK];
    __local float sums[TOTALS ? PACKERS : 1];
    const int id = get_local_id(0), first = get_group_id(0) * BLOCK;
    source += offset;
    if (id < BLOCK) largest[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint most = 0;
    float sum = 0;
    if (first + id % BLOCK < rows)
        for (int k = id / BLOCK; k < terms; k += TEAM) {
            const float v = source[(size_t)k * ld + first + id % BLOCK];
            most = max(most, magnitude(v));
            sum += v;
        }
    atomic_max(largest + id % BLOCK, most);
    if (TOTALS) sums[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < BLOCK) {
        const float2 both = scales_of(largest[id]);
        scales[id] = both.s0;
        inverse[first + id] = both.s1;
        if (TOTALS && first + id < rows) {
            float total = 0;
            for (int i = id; i < PACKERS; i += BLOCK) total += sums[i];
            totals[at + first + id] = total;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#define BELOW(row, k) pair_below(source + (row), k, ld, terms)
    WRITE_BLOCKS(BELOW)
}

// pack: a matrix of rows of terms, as halves in the order that matrix units want (mma.h).
//
// PACKERS        work-items that pack 16 rows: a multiple of 32, usually 1024
// SOURCE_PADDED  1: rows of the source start on a vector of 4 and end in zeros; 0: not
// SECOND         1: as the second operand, b; 0: as the first
// PLANES, PTX    as in mma.h
#include "mma.h"
#if !defined(PACKERS) || !defined(SOURCE_PADDED) || !defined(SECOND)
#error "pack.cl needs PACKERS, SOURCE_PADDED and SECOND"
#endif

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

// packed [row blocks, blocks, PLANES, WARP], inverse [16 * row blocks]: what was divided
// out of the rows of source[offset + row * ld + k], of which there are `rows` of `terms`
// values
// index map: work-group: a block of rows; a warp takes every (PACKERS / WARP)-th block
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *source, const int offset, const int ld, const int rows,
          const int terms, __global uint4 *packed, __global float *inverse,
          const int blocks)
{
    __local uint largest[BLOCK];
    const int id = get_local_id(0), first = get_group_id(0) * BLOCK;
    source += offset;
    if (id < BLOCK) largest[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    const int mine = id / (PACKERS / BLOCK);
    if (first + mine < rows) {
        __global const float *row = source + (size_t)(first + mine) * ld;
        uint most = 0;  // of non-negative floats, and of NaN, bits sort as values do
#if SOURCE_PADDED
        for (int k = 4 * (id % (PACKERS / BLOCK)); k < terms; k += 4 * PACKERS / BLOCK) {
            const uint4 bits = as_uint4(*(__global const float4 *)(row + k)) & 0x7fffffffu;
            most = max(max(most, max(bits.s0, bits.s1)), max(bits.s2, bits.s3));
        }
#else
        for (int k = id % (PACKERS / BLOCK); k < terms; k += PACKERS / BLOCK)
            most = max(most, as_uint(row[k]) & 0x7fffffffu);
#endif
        atomic_max(largest + mine, most);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int lane = id % WARP, g = lane / 4, t = lane % 4;
    float scales[2];
UNROLLED
    for (int i = 0; i < 2; ++i) {
        const int exponent =
            max((int)(largest[g + 8 * i] >> 23) - 127, LEAST_EXPONENT);
        scales[i] = as_float((127 + TOP - exponent) << 23);
        if (id < WARP && t == 0)
            inverse[first + g + 8 * i] = as_float((127 - TOP + exponent) << 23);
    }
    packed += (size_t)get_group_id(0) * blocks * PLANES * WARP;
    for (int block = id / WARP; block < blocks; block += PACKERS / WARP) {
        uint high[4], low[4];
UNROLLED
        for (int i = 0; i < 4; ++i) {
            const int below = SECOND ? i / 2 : i % 2, on = SECOND ? i % 2 : i / 2;
            const int row = first + g + 8 * below;
            const int k = block * BLOCK + 2 * t + 8 * on;
            float2 v = (float2)(0);
            if (row < rows) v = pair_of(source + (size_t)row * ld, k, terms);
            v *= scales[below];
            high[i] = halves(v.s0, v.s1);
            v = (v - of_halves(high[i])) * LOW;
            low[i] = halves(v.s0, v.s1);
        }
        __global uint4 *to = packed + block * PLANES * WARP + lane;
        to[0] = (uint4)(high[0], high[1], high[2], high[3]);
        if (PLANES == 2) to[WARP] = (uint4)(low[0], low[1], low[2], low[3]);
    }
}

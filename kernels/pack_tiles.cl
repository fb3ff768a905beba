// pack: a matrix of rows of terms, as halves in the order that the matrix units of a warp
// group want (halves.h).
//
// PACKERS        work-items that pack 8 rows: a power of two, 64 to 1024
// HELD           parts of a row that a work-item keeps from finding their largest
// TURNED         1: rows of the matrix are columns of the source; 0: they are its rows
// SOURCE_PADDED  1: rows of the source start on a vector of 4 and end in zeros; 0: not
// TOTALS         1: rows are added up too; 0: not
// PLANES, PTX    as in halves.h
#include "halves.h"
#if !defined(PACKERS) || !defined(HELD) || !defined(TURNED) || !defined(SOURCE_PADDED) \
    || !defined(TOTALS)
#error "pack_tiles.cl needs PACKERS, HELD, TURNED, SOURCE_PADDED and TOTALS"
#endif
#define UNIT 8                      // terms of a 4-word part, and rows of a group
#define ACROSS (PACKERS / UNIT)     // parts of a row that are packed at once

// 8 terms of a row, from k on.
inline float8 load(__global const float *row, const int k, const int ld, const int terms)
{
    float v[UNIT];
#if !TURNED && SOURCE_PADDED
    const float4 none = (float4)(0);
    return (float8)(k < terms ? *(__global const float4 *)(row + k) : none,
                    k + 4 < terms ? *(__global const float4 *)(row + k + 4) : none);
#else
UNROLLED
    for (int i = 0; i < UNIT; ++i)
        v[i] = k + i < terms ? row[(size_t)(k + i) * (TURNED ? ld : 1)] : 0;
    return (float8)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
#endif
}

inline uint largest_of(const float8 v)
{
    const uint8 bits = as_uint8(v) & 0x7fffffffu;
    const uint4 four = max(bits.lo, bits.hi);
    const uint2 two = max(four.lo, four.hi);
    return max(two.s0, two.s1);
}

inline float sum_of(const float8 v)
{
    const float4 four = v.lo + v.hi;
    return (four.s0 + four.s1) + (four.s2 + four.s3);
}

inline uint4 halves_of(const float8 v)
{
    return (uint4)(halves(v.s0, v.s1), halves(v.s2, v.s3), halves(v.s4, v.s5),
                   halves(v.s6, v.s7));
}

inline void put(__global uint4 *to, const float8 v)
{
    const uint4 high = halves_of(v);
    to[0] = high;
    if (PLANES == 2) {
        const float8 cut = (float8)(of_halves(high.s0), of_halves(high.s1),
                                    of_halves(high.s2), of_halves(high.s3));
        to[2 * TILE_ROWS] = halves_of((v - cut) * LOW);
    }
}

// packed [row tiles, blocks, PLANES, 8, 2, 8] parts of 4 words from `at` on: the rows of
//         the source, of which there are `rows` of `terms` values
// inverse [TILE_ROWS * row tiles] from `inverse_at` on: what was divided out of them
// totals  [rows] from `totals_at` on, with TOTALS: their sums
// source  TURNED 0: row r has its term k at offset + r * ld + k; 1: at offset + k * ld + r
// index map: work-group: 8 rows; work-item: a row, and every ACROSS-th part of it
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *source, const int offset, const int ld, const int rows,
          const int terms, __global uint4 *packed, const int at,
          __global float *inverse, const int inverse_at, const int blocks,
          __global float *totals, const int totals_at)
{
    __local uint largest[PACKERS];
    __local float sums[TOTALS ? PACKERS : 1];
    const int id = get_local_id(0), row = get_group_id(0) * UNIT + id % UNIT;
    const int first = id / UNIT, parts = 2 * blocks;
    const int there = row < rows ? terms : 0;
    source += offset + (size_t)row * (TURNED ? 1 : ld);
    float8 held[HELD];
    uint most = 0;
    float total = 0;
UNROLLED
    for (int n = 0; n < HELD; ++n)
        held[n] = load(source, UNIT * (first + n * ACROSS), ld, there);
UNROLLED
    for (int n = 0; n < HELD; ++n) {
        most = max(most, largest_of(held[n]));
        total += sum_of(held[n]);
    }
    for (int p = first + HELD * ACROSS; p < parts; p += ACROSS) {
        const float8 v = load(source, UNIT * p, ld, there);
        most = max(most, largest_of(v));
        total += sum_of(v);
    }
    largest[id] = most;
    if (TOTALS) sums[id] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int left = PACKERS / 2; left >= UNIT; left /= 2) {
        if (id < left) {
            largest[id] = max(largest[id], largest[id + left]);
            if (TOTALS) sums[id] += sums[id + left];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float2 scales = scales_of(largest[id % UNIT]);
    if (id < UNIT) inverse[inverse_at + row] = scales.s1;
    packed += at + (size_t)(row / TILE_ROWS) * parts * PLANES * TILE_ROWS
              + row % TILE_ROWS / 8 * 16 + row % 8;
#define PUT(p, v) \
    put(packed + (p) / 2 * PLANES * 2 * TILE_ROWS + (p) % 2 * 8, (v) * scales.s0)
UNROLLED
    for (int n = 0; n < HELD; ++n)
        if (first + n * ACROSS < parts) PUT(first + n * ACROSS, held[n]);
    for (int p = first + HELD * ACROSS; p < parts; p += ACROSS)
        PUT(p, load(source, UNIT * p, ld, there));
    if (TOTALS && id < UNIT && row < rows) totals[totals_at + row] = sums[id];
}

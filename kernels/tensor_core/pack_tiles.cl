// pack: a matrix of rows of terms, as halves in the order in which the matrix units of a
// warp group read them from local memory (fp16_split.h).
//
// PIECE_ROWS     rows of a piece: a multiple of 8
// PACKERS        work-items that pack 8 rows: a power of two, 64 to 1024
// HELD           parts of a row that a work-item keeps from finding their largest
// TRANSPOSED         1: rows of the matrix are columns of the source; 0: they are its rows
// SOURCE_PADDED  1: rows of the source start on a vector of 4 and end in zeros; 0: not
// TOTALS         1: rows are added up too; 0: not
// PAIR           1: another matrix is packed in the same launch; 0: not
// SPLITS, PTX    as in fp16_split.h
#include "tensor_core/fp16_split.h"
#include "tensor_core/core_matrices.h"
#if !defined(PIECE_ROWS) || !defined(PACKERS) || !defined(HELD) || !defined(TRANSPOSED) \
    || !defined(SOURCE_PADDED) || !defined(TOTALS) || !defined(PAIR)
#error "pack_tiles.cl needs PIECE_ROWS, PACKERS, HELD, TRANSPOSED, SOURCE_PADDED, TOTALS, PAIR"
#endif
#define ACROSS (PACKERS / UNIT)     // parts of a row that are packed at once

// 8 rows of a matrix; with constants for transposed, padded, piece and wants_totals.
inline void pack_rows(__local uint *largest, __local float *sums, const int group,
                      const int transposed, const int padded, const int piece,
                      const int wants_totals, __global const float *source, const int ld,
                      const int rows, const int terms, __global uint4 *packed,
                      __global float *inverse, const int blocks, __global float *totals)
{
    const int id = get_local_id(0), row = group * UNIT + id % UNIT;
    const int first = id / UNIT, parts = 2 * blocks, apart = transposed ? ld : 1;
    const int there = row < rows ? terms : 0;
    source += (size_t)row * (transposed ? 1 : ld);
    float8 held[HELD];
    uint most = 0;
    float total = 0;
UNROLLED
    for (int n = 0; n < HELD; ++n)
        held[n] = load(source, UNIT * (first + n * ACROSS), apart, there, padded);
UNROLLED
    for (int n = 0; n < HELD; ++n) {
        most = max(most, largest_of(held[n]));
        total += sum_of(held[n]);
    }
    for (int p = first + HELD * ACROSS; p < parts; p += ACROSS) {
        const float8 v = load(source, UNIT * p, apart, there, padded);
        most = max(most, largest_of(v));
        total += sum_of(v);
    }
    largest[id] = most;
    if (wants_totals) sums[id] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int left = PACKERS / 2; left >= UNIT; left /= 2) {
        if (id < left) {
            largest[id] = max(largest[id], largest[id + left]);
            if (wants_totals) sums[id] += sums[id + left];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float2 scales = scales_of(largest[id % UNIT]);
    if (id < UNIT) inverse[row] = scales.s1;
    packed += (size_t)(row / piece) * parts * SPLITS * piece + row % piece / 8 * 16
              + row % 8;
#define PUT(p, v)                                                                        \
    put(packed + (p) / 2 * SPLITS * 2 * piece + (p) % 2 * 8, (v) * scales.s0, piece)
UNROLLED
    for (int n = 0; n < HELD; ++n)
        if (first + n * ACROSS < parts) PUT(first + n * ACROSS, held[n]);
    for (int p = first + HELD * ACROSS; p < parts; p += ACROSS)
        PUT(p, load(source, UNIT * p, apart, there, padded));
    if (wants_totals && id < UNIT && row < rows) totals[row] = sums[id];
}

// packed [row pieces, blocks, SPLITS, PIECE_ROWS / 8, 2, 8] parts of 4 words from `at` on:
//         the rows of the source, of which there are `rows` of `terms` values
// inverse [PIECE_ROWS * row pieces] from `inverse_at` on: what was divided out of them
// totals  [rows] from `totals_at` on, with TOTALS: their sums
// source  TRANSPOSED 0: row r has its term k at offset + r * ld + k; 1: at offset + k * ld + r
// …_2     with PAIR: another matrix, of PIECE_ROWS_2, TRANSPOSED_2, SOURCE_PADDED_2; its
//         groups come after `groups` of the first
// index map: work-group: 8 rows; work-item: a row, and every ACROSS-th part of it
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *source, const int offset, const int ld, const int rows,
          const int terms, __global uint4 *packed, const int at,
          __global float *inverse, const int inverse_at, const int blocks,
          __global float *totals, const int totals_at
#if PAIR
          , const int groups, __global const float *source_2, const int offset_2,
          const int ld_2, const int rows_2, const int terms_2, __global uint4 *packed_2,
          const int at_2, __global float *inverse_2, const int inverse_at_2,
          const int blocks_2
#endif
          )
{
    __local uint largest[PACKERS];
    __local float sums[TOTALS ? PACKERS : 1];
    const int group = get_group_id(0);
#if PAIR
    if (group >= groups) {
        pack_rows(largest, sums, group - groups, TRANSPOSED_2, !TRANSPOSED_2 && SOURCE_PADDED_2,
                  PIECE_ROWS_2, 0, source_2 + offset_2, ld_2, rows_2, terms_2,
                  packed_2 + at_2, inverse_2 + inverse_at_2, blocks_2, totals);
        return;
    }
#endif
    pack_rows(largest, sums, group, TRANSPOSED, !TRANSPOSED && SOURCE_PADDED, PIECE_ROWS, TOTALS,
              source + offset, ld, rows, terms, packed + at, inverse + inverse_at, blocks,
              totals + totals_at);
}

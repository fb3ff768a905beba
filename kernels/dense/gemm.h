// Products of matrices, by tiles in local memory and tiles in registers:
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// A group computes TILE_M x TILE_N of c. For each step of TILE_K it puts its part of a
// and of b into local memory, k running down; each work-item then holds ITEM_M x ITEM_N
// sums in registers and reads ITEM_M + ITEM_N values from local memory for ITEM_M *
// ITEM_N multiply-adds.
//
//                       part of b:  TILE_K x TILE_N
//                               n ->
//                           +-----------+       A work-item's rows and columns come in
//                        k  |           |       chunks of 4, CHUNKS_M and CHUNKS_N of
//                           +-----------+       them, TILE / CHUNKS apart: neighbours
//   part of a,    k         |     .     |       then read neighbouring vectors, and no
//   transposed:     +---+       |     .     |       two of them the same bank.
//   TILE_K x  m |   |    m  | . . o . . |  o: ITEM_M x ITEM_N sums of one work-item
//   TILE_M      |   |       |     .     |
//               +---+       +-----------+
//
// While one step is computed from one side of local memory, the next is under way
// through registers into the other: one barrier a step. A row of local memory is TILE +
// 4 values long, so that 16 rows x 2 vectors, which a warp of 32 turns at once, fall on
// 32 different banks. Beyond the edges are zeros.
//
// Where c is small and k long, TEAMS teams of work-items share a tile: each takes its
// part of every step's k, and in the end their sums are added in the teams' order.
//
// The scheme is the one of Volkov and Demmel, "Benchmarking GPUs to tune dense linear
// algebra", 2008, with the double buffering that became usual after it.
//
// REAL            float or double (activations.h comes first)
// TILE_M, TILE_N  rows and columns of a group: multiples of 8; usually 8 to 128
// TILE_K          terms of a step: a multiple of 8 and of TEAMS; usually 16 to 128
// ITEM_M, ITEM_N  rows and columns of a work-item: 4, 8 or 16, and dividing the tile
// TEAMS           work-items that share a sum; usually 1 to 32
// LANES, DEPTH    neighbouring work-items lie in blocks, so many side by side and so
//                 many below: divisors of TILE_N / ITEM_N and TILE_M / ITEM_M; usually
//                 2 x 8, 4 x 8 or 8 x 4
// UNROLL          1: loops are written out, so that arrays are registers; 0: not, on
//                 CPUs, where it gains nothing and takes long to build
// A_ALONG         1: a(m, k) is at a[m * lda + k], and is transposed; 0: at a[k * lda + m]
// A_PADDED        1: its rows start on a vector of 4, padded with zeros to vectors
// B_ALONG, B_PADDED  the same of b
// X_PADDED        as in vectors.h: 0 where an operand is not padded
#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(ITEM_M) \
    || !defined(ITEM_N) || !defined(TEAMS) || !defined(LANES) || !defined(DEPTH) \
    || !defined(UNROLL)
#error "gemm.h needs TILE_M, TILE_N, TILE_K, ITEM_M, ITEM_N, TEAMS, LANES, DEPTH and \
UNROLL"
#endif
#if !defined(A_ALONG) || !defined(A_PADDED) || !defined(B_ALONG) || !defined(B_PADDED)
#error "gemm.h needs A_ALONG, A_PADDED, B_ALONG and B_PADDED"
#endif
#define X_SPACE __global
#include "include/vectors.h"

#if UNROLL
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif

#define CHUNKS_M (ITEM_M / 4)
#define CHUNKS_N (ITEM_N / 4)
#define DOWN (TILE_M / ITEM_M)              // work-items one below another in a tile
#define ACROSS (TILE_N / ITEM_N)            // and side by side
#define TEAM (DOWN * ACROSS)
#define ITEMS (TEAM * TEAMS)                // work-items of a group
#define PITCH(tile) ((tile) + 4)
#define VECTORS(tile) ((tile) * TILE_K / 4)                    // vectors of a step
#define HELD(tile) ((VECTORS(tile) + ITEMS - 1) / ITEMS)       // of them a work-item's
#define SIDE (TILE_K * (PITCH(TILE_M) + PITCH(TILE_N)))        // values of a side
#define EXCHANGED (ITEMS * ITEM_N)          // values that teams exchange at once
#define SHARED (2 * SIDE > EXCHANGED ? 2 * SIDE : EXCHANGED)   // values in local memory

// Where a work-item is in its team, and which of a tile's rows and columns are its own.
#define TEAM_OF(id) ((id) / TEAM)
#define BLOCK_OF(id) ((id) % TEAM / (LANES * DEPTH))
#define DOWN_OF(id) ((id) / LANES % DEPTH + BLOCK_OF(id) / (ACROSS / LANES) * DEPTH)
#define ACROSS_OF(id) ((id) % LANES + BLOCK_OF(id) % (ACROSS / LANES) * LANES)
#define ROW_OF(id, i) ((i) / 4 * 4 * DOWN + 4 * DOWN_OF(id) + (i) % 4)
#define COLUMN_OF(id, c) (4 * ((c) * ACROSS + ACROSS_OF(id)))

// Which value of a step the s-th vector starts at, as (k, m). What is transposed: two
// vectors of a row lie side by side in the order of s, then come the other rows.
#define K_OF(s, tile, along) \
    ((along) ? 4 * ((s) / (2 * (tile)) * 2 + (s) % 2) : (s) / ((tile) / 4))
#define M_OF(s, tile, along) ((along) ? (s) / 2 % (tile) : 4 * ((s) % ((tile) / 4)))

// held [HELD(tile)] = what this work-item carries of a step of an operand, of which
// there are `rows` rows and `terms` terms left from `from` on
inline void fetch(VEC *held, __global const REAL *from, const int ld, const int rows,
                  const int terms, const int tile, const int along, const int padded)
{
UNROLLED
    for (int h = 0; h < HELD(tile); ++h) {
        const int s = h * ITEMS + get_local_id(0);
        const int k = K_OF(s, tile, along), m = M_OF(s, tile, along);
        const int row = along ? m : k, column = along ? k : m;
        const bool carried = VECTORS(tile) % ITEMS == 0 || s < VECTORS(tile);
        held[h] = (VEC)(0);
        if (carried && m < rows && k < terms)
            held[h] = padded ? *(__global const VEC *)(from + (row * ld + column))
                             : four_of(from + row * ld, column / 4,
                                       along ? terms : rows);
    }
}

// Put what was fetched into its tile [TILE_K, tile + 4].
inline void put(__local REAL *values, const VEC *held, const int tile, const int along)
{
UNROLLED
    for (int h = 0; h < HELD(tile); ++h) {
        const int s = h * ITEMS + get_local_id(0);
        __local REAL *to =
            values + K_OF(s, tile, along) * PITCH(tile) + M_OF(s, tile, along);
        if (VECTORS(tile) % ITEMS == 0 || s < VECTORS(tile)) {
            if (along) {
                to[0] = held[h].s0;
                to[PITCH(tile)] = held[h].s1;
                to[2 * PITCH(tile)] = held[h].s2;
                to[3 * PITCH(tile)] = held[h].s3;
            } else {
                *(__local VEC *)to = held[h];
            }
        }
    }
}

// One row of a work-item's sums [CHUNKS_N] += value * b [CHUNKS_N]
inline void multiply_add(VEC *sums, const REAL value, const VEC *b)
{
UNROLLED
    for (int c = 0; c < CHUNKS_N; ++c) sums[c] += value * b[c];
}

// sums += the terms of this work-item's team in a step
inline void add_step(VEC (*sums)[CHUNKS_N], __local const REAL *a,
                     __local const REAL *b)
{
    const int id = get_local_id(0), start = TEAM_OF(id) * (TILE_K / TEAMS);
UNROLLED
    for (int k = start; k < start + TILE_K / TEAMS; ++k) {
        __local const VEC *a_row = (__local const VEC *)(a + k * PITCH(TILE_M));
        __local const VEC *b_row = (__local const VEC *)(b + k * PITCH(TILE_N));
        VEC own[CHUNKS_N];
UNROLLED
        for (int c = 0; c < CHUNKS_N; ++c) own[c] = b_row[c * ACROSS + ACROSS_OF(id)];
UNROLLED
        for (int c = 0; c < CHUNKS_M; ++c) {
            const VEC four = a_row[c * DOWN + DOWN_OF(id)];
            multiply_add(sums[4 * c], four.s0, own);
            multiply_add(sums[4 * c + 1], four.s1, own);
            multiply_add(sums[4 * c + 2], four.s2, own);
            multiply_add(sums[4 * c + 3], four.s3, own);
        }
    }
}

// The sums of all teams, in the first team.
inline void add_teams(VEC (*sums)[CHUNKS_N], __local VEC *exchanged)
{
    const int id = get_local_id(0);
UNROLLED
    for (int i = 0; i < ITEM_M; ++i) {
        barrier(CLK_LOCAL_MEM_FENCE);
UNROLLED
        for (int c = 0; c < CHUNKS_N; ++c) exchanged[c * ITEMS + id] = sums[i][c];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (TEAM_OF(id) == 0)
            for (int t = 1; t < TEAMS; ++t)
UNROLLED
                for (int c = 0; c < CHUNKS_N; ++c)
                    sums[i][c] += exchanged[c * ITEMS + t * TEAM + id];
    }
}

// sums = this work-item's of the product, whole in the first team: of so many terms, of
// `rows` rows from a on and `columns` from b on. shared [SHARED] is local memory.
// Returned: the sum of what the work-item carried of a; that is of the rows from
// M_OF(id, TILE_M, 0) on, if a is not transposed and TILE_M / 4 divides ITEMS.
inline VEC multiply(VEC (*sums)[CHUNKS_N], __local REAL *shared,
                    __global const REAL *a, const int lda, const int rows,
                    __global const REAL *b, const int ldb, const int columns,
                    const int terms)
{
    VEC a_held[HELD(TILE_M)], b_held[HELD(TILE_N)], carried = (VEC)(0);
UNROLLED
    for (int i = 0; i < ITEM_M; ++i)
UNROLLED
        for (int c = 0; c < CHUNKS_N; ++c) sums[i][c] = (VEC)(0);
    fetch(a_held, a, lda, rows, terms, TILE_M, A_ALONG, A_PADDED);
    fetch(b_held, b, ldb, columns, terms, TILE_N, B_ALONG, B_PADDED);
    int side = 0;
    for (int left = terms; left > 0; left -= TILE_K) {
        __local REAL *a_tile = shared + side, *b_tile = a_tile + TILE_K * PITCH(TILE_M);
        put(a_tile, a_held, TILE_M, A_ALONG);
        put(b_tile, b_held, TILE_N, B_ALONG);
UNROLLED
        for (int h = 0; h < HELD(TILE_M); ++h) carried += a_held[h];
        barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the other side
        a += A_ALONG ? TILE_K : TILE_K * (size_t)lda;
        b += B_ALONG ? TILE_K : TILE_K * (size_t)ldb;
        fetch(a_held, a, lda, rows, left - TILE_K, TILE_M, A_ALONG, A_PADDED);
        fetch(b_held, b, ldb, columns, left - TILE_K, TILE_N, B_ALONG, B_PADDED);
        add_step(sums, a_tile, b_tile);
        side = SIDE - side;
    }
#if TEAMS > 1
    add_teams(sums, (__local VEC *)shared);
#endif
    return carried;
}

// to[0] … = the first values of v, as many of the 4 as are left before the row's end
inline void put_four(__global REAL *to, const VEC v, const int left, const int padded)
{
    if (padded && left >= 4) {
        *(__global VEC *)to = v;
    } else {
        to[0] = v.s0;
        if (left > 1) to[1] = v.s1;
        if (left > 2) to[2] = v.s2;
        if (left > 3) to[3] = v.s3;
    }
}

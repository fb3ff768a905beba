// Matrix products by tiles in local memory and in registers:
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// A group computes a TILE_M x TILE_N tile of c. In each step of TILE_K terms it copies
// a tile of a and one of b to local memory, a row for each k; each work-item holds
// ITEM_M x ITEM_N accumulators in registers and reads ITEM_M + ITEM_N values from local
// memory for ITEM_M * ITEM_N multiply-adds.
//
//                       tile of b:  TILE_K x TILE_N
//                               n ->
//                           +-----------+       A work-item's rows and columns come in
//                        k  |           |       chunks of 4, CHUNKS_M and CHUNKS_N of
//                           +-----------+       them, TILE / CHUNKS apart: neighbours
//   tile of a,    k         |     .     |       then read neighbouring vectors, without
//   transposed: +---+       |     .     |       bank conflicts.
//   TILE_K x  m |   |    m  | . . o . . |  o: ITEM_M x ITEM_N sums of one work-item
//   TILE_M      |   |       |     .     |
//               +---+       +-----------+
//
// Local memory is double-buffered: while one step is computed from one buffer, the next
// one is loaded to registers and stored to the other buffer, with one barrier per step.
// Rows in local memory are TILE + 4 values long, so that the 16 rows x 2 vectors that a
// warp of 32 transposes at once fall on 32 banks. Loads beyond the edges give zeros.
//
// Slice-k: where c is small and k long, TEAMS teams of work-items share a tile. Each
// computes its slice of every step's k; the sums are added at the end, in the teams'
// order.
//
// After Volkov and Demmel, "Benchmarking GPUs to tune dense linear algebra", 2008, with
// double buffering.
//
// REAL            float or double (activations.h is included before)
// TILE_M, TILE_N  rows and columns of a group: multiples of 8; usually 8 to 128
// TILE_K          terms of a step: a multiple of 8 and of TEAMS; usually 16 to 128
// ITEM_M, ITEM_N  rows and columns of a work-item: 4, 8 or 16, and dividing the tile
// TEAMS           slices of k; usually 1 to 32
// LANES, DEPTH    width and height of blocks of neighbouring work-items: divisors of
//                 TILE_N / ITEM_N and TILE_M / ITEM_M; usually 2 x 8, 4 x 8 or 8 x 4
// UNROLL          1: loops are unrolled, so that arrays are registers; 0: they are not,
//                 on CPUs, where unrolling gains nothing and takes long to build
// A_K_MAJOR         1: a(m, k) is a[m * lda + k], and is transposed; 0: a[k * lda + m]
// A_PADDED        1: its rows are aligned to vectors of 4 and padded with zeros
// B_K_MAJOR, B_PADDED  the same of b
// X_PADDED        as in vectors.h: 0 if an operand is not padded
#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(ITEM_M) \
    || !defined(ITEM_N) || !defined(TEAMS) || !defined(LANES) || !defined(DEPTH) \
    || !defined(UNROLL)
#error "gemm.h needs TILE_M, TILE_N, TILE_K, ITEM_M, ITEM_N, TEAMS, LANES, DEPTH and \
UNROLL"
#endif
#if !defined(A_K_MAJOR) || !defined(A_PADDED) || !defined(B_K_MAJOR) || !defined(B_PADDED)
#error "gemm.h needs A_K_MAJOR, A_PADDED, B_K_MAJOR and B_PADDED"
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
#define GRID_M (TILE_M / ITEM_M)            // a team's work-items along m
#define GRID_N (TILE_N / ITEM_N)            // and along n
#define TEAM (GRID_M * GRID_N)
#define ITEMS (TEAM * TEAMS)                // work-items of a group
#define PITCH(tile) ((tile) + 4)
#define VECTORS(tile) ((tile) * TILE_K / 4)                       // of a step
#define LOADS(tile) ((VECTORS(tile) + ITEMS - 1) / ITEMS)         // of a work-item
#define BUFFER (TILE_K * (PITCH(TILE_M) + PITCH(TILE_N)))         // values of a buffer
#define EXCHANGED (ITEMS * ITEM_N)          // values that teams exchange at once
#define SHARED (2 * BUFFER > EXCHANGED ? 2 * BUFFER : EXCHANGED)  // in local memory

// A work-item's team and position in it, and the tile's rows and columns it computes.
#define TEAM_OF(id) ((id) / TEAM)
#define BLOCK_OF(id) ((id) % TEAM / (LANES * DEPTH))
#define GRID_M_OF(id) ((id) / LANES % DEPTH + BLOCK_OF(id) / (GRID_N / LANES) * DEPTH)
#define GRID_N_OF(id) ((id) % LANES + BLOCK_OF(id) % (GRID_N / LANES) * LANES)
#define ROW_OF(id, i) ((i) / 4 * 4 * GRID_M + 4 * GRID_M_OF(id) + (i) % 4)
#define COLUMN_OF(id, c) (4 * ((c) * GRID_N + GRID_N_OF(id)))

// (k, m) of the first value of a step's s-th vector. In an operand that is transposed,
// s runs over two neighbouring vectors of a row, then over the rows.
#define K_OF(s, tile, k_major) \
    ((k_major) ? 4 * ((s) / (2 * (tile)) * 2 + (s) % 2) : (s) / ((tile) / 4))
#define M_OF(s, tile, k_major) ((k_major) ? (s) / 2 % (tile) : 4 * ((s) % ((tile) / 4)))

// loaded [LOADS(tile)] = this work-item's vectors of a step of an operand, which has
// `rows` rows and `terms` terms left from `from` on
static inline void load_step(VEC *loaded, __global const REAL *from, const int ld,
                             const int rows, const int terms, const int tile,
                             const int k_major, const int padded)
{
UNROLLED
    for (int h = 0; h < LOADS(tile); ++h) {
        const int s = h * ITEMS + get_local_id(0);
        const int k = K_OF(s, tile, k_major), m = M_OF(s, tile, k_major);
        const int row = k_major ? m : k, column = k_major ? k : m;
        const bool valid = VECTORS(tile) % ITEMS == 0 || s < VECTORS(tile);
        loaded[h] = (VEC)(0);
        if (valid && m < rows && k < terms)
            loaded[h] = padded ? *(__global const VEC *)(from + (row * ld + column))
                             : four_of(from + row * ld, column / 4,
                                       k_major ? terms : rows);
    }
}

// Store loaded vectors to their tile [TILE_K, tile + 4].
static inline void store_step(__local REAL *values, const VEC *loaded, const int tile,
                              const int k_major)
{
UNROLLED
    for (int h = 0; h < LOADS(tile); ++h) {
        const int s = h * ITEMS + get_local_id(0);
        __local REAL *to =
            values + K_OF(s, tile, k_major) * PITCH(tile) + M_OF(s, tile, k_major);
        if (VECTORS(tile) % ITEMS == 0 || s < VECTORS(tile)) {
            if (k_major) {
                to[0] = loaded[h].s0;
                to[PITCH(tile)] = loaded[h].s1;
                to[2 * PITCH(tile)] = loaded[h].s2;
                to[3 * PITCH(tile)] = loaded[h].s3;
            } else {
                *(__local VEC *)to = loaded[h];
            }
        }
    }
}

// A row of a work-item's sums [CHUNKS_N] += value * b [CHUNKS_N]
static inline void multiply_add(VEC *sums, const REAL value, const VEC *b)
{
UNROLLED
    for (int c = 0; c < CHUNKS_N; ++c) sums[c] += value * b[c];
}

// sums += the terms of this team's slice of a step
static inline void multiply_step(VEC (*sums)[CHUNKS_N], __local const REAL *a,
                                 __local const REAL *b)
{
    const int id = get_local_id(0), start = TEAM_OF(id) * (TILE_K / TEAMS);
UNROLLED
    for (int k = start; k < start + TILE_K / TEAMS; ++k) {
        __local const VEC *a_row = (__local const VEC *)(a + k * PITCH(TILE_M));
        __local const VEC *b_row = (__local const VEC *)(b + k * PITCH(TILE_N));
        VEC b_chunks[CHUNKS_N];
UNROLLED
        for (int c = 0; c < CHUNKS_N; ++c)
            b_chunks[c] = b_row[c * GRID_N + GRID_N_OF(id)];
UNROLLED
        for (int c = 0; c < CHUNKS_M; ++c) {
            const VEC four = a_row[c * GRID_M + GRID_M_OF(id)];
            multiply_add(sums[4 * c], four.s0, b_chunks);
            multiply_add(sums[4 * c + 1], four.s1, b_chunks);
            multiply_add(sums[4 * c + 2], four.s2, b_chunks);
            multiply_add(sums[4 * c + 3], four.s3, b_chunks);
        }
    }
}

// Add the sums of all teams; the first team has the result.
static inline void reduce_slices(VEC (*sums)[CHUNKS_N], __local VEC *exchanged)
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

// sums = this work-item's part of the product of `terms` terms, `rows` rows from a on
// and `columns` rows from b on; complete in the first team. shared [SHARED] is local
// memory. Returns the sum of the vectors of a that the work-item loaded: they are of the
// rows from M_OF(id, TILE_M, 0) on, if a is not transposed and TILE_M / 4 divides ITEMS.
static inline VEC multiply(VEC (*sums)[CHUNKS_N], __local REAL *shared,
                           __global const REAL *a, const int lda, const int rows,
                           __global const REAL *b, const int ldb, const int columns,
                           const int terms)
{
    VEC a_loaded[LOADS(TILE_M)], b_loaded[LOADS(TILE_N)], a_sum = (VEC)(0);
UNROLLED
    for (int i = 0; i < ITEM_M; ++i)
UNROLLED
        for (int c = 0; c < CHUNKS_N; ++c) sums[i][c] = (VEC)(0);
    load_step(a_loaded, a, lda, rows, terms, TILE_M, A_K_MAJOR, A_PADDED);
    load_step(b_loaded, b, ldb, columns, terms, TILE_N, B_K_MAJOR, B_PADDED);
    int buffer = 0;
    for (int left = terms; left > 0; left -= TILE_K) {
        __local REAL *a_tile = shared + buffer;
        __local REAL *b_tile = a_tile + TILE_K * PITCH(TILE_M);
        store_step(a_tile, a_loaded, TILE_M, A_K_MAJOR);
        store_step(b_tile, b_loaded, TILE_N, B_K_MAJOR);
UNROLLED
        for (int h = 0; h < LOADS(TILE_M); ++h) a_sum += a_loaded[h];
        barrier(CLK_LOCAL_MEM_FENCE);  // also: the other buffer is no longer read
        a += A_K_MAJOR ? TILE_K : TILE_K * (size_t)lda;
        b += B_K_MAJOR ? TILE_K : TILE_K * (size_t)ldb;
        load_step(a_loaded, a, lda, rows, left - TILE_K, TILE_M, A_K_MAJOR, A_PADDED);
        load_step(b_loaded, b, ldb, columns, left - TILE_K, TILE_N, B_K_MAJOR, B_PADDED);
        multiply_step(sums, a_tile, b_tile);
        buffer = BUFFER - buffer;
    }
#if TEAMS > 1
    reduce_slices(sums, (__local VEC *)shared);
#endif
    return a_sum;
}

// to[0] … = the first min(left, 4) values of v
static inline void store_vector(__global REAL *to, const VEC v, const int left,
                                const int padded)
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

// Products of matrices on matrix units, of operands that pack.cl has packed (fp16_split.h):
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// A group computes TILE_M x TILE_N of c. Blocks of both operands are copied to local
// memory as they are, STAGES - 1 steps ahead; a lane's part of a block is one read of 16
// bytes, free of bank conflicts; and the units do the rest.
//
// TILE_M, TILE_N    rows and columns of a group: 16 to 128, powers of two
// WARPS_M, WARPS_N  warps of a group, below and beside one another: they divide the tile
//                   into blocks of 16 x 16 or multiples; 128 work-items or more
// STEP              blocks of 16 terms that are copied at once: 1 or 2
// STAGES            steps in local memory: 2 to 6, of which one is computed
// SLICE             blocks of terms that the units add up: a divisor of STEP
// PANEL             as in products.h
// SPLITS, PTX       as in fp16_split.h
#include "tensor_core/fragments.h"
#include "tensor_core/products.h"
#if !defined(TILE_M) || !defined(TILE_N) || !defined(WARPS_M) || !defined(WARPS_N) \
    || !defined(STEP) || !defined(STAGES) || !defined(SLICE)
#error "mma.h needs TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES and SLICE"
#endif

#define ITEMS (WARPS_M * WARPS_N * WARP)
#define BLOCKS_M (TILE_M / WARPS_M / BLOCK)   // blocks of rows of a warp
#define BLOCKS_N (TILE_N / WARPS_N / BLOCK)   // and of columns
#define CHUNK (STEP * SPLITS * WARP)          // 4-word parts of a block row's step
#define A_STEP (TILE_M / BLOCK * CHUNK)
#define B_STEP (TILE_N / BLOCK * CHUNK)
#define SHARED (STAGES * (A_STEP + B_STEP))   // 4-word parts in local memory
#define ROUND STEP                            // blocks of terms of a round

// Rows and columns of a lane's sums, from its group's tile on.
#define LANE (get_local_id(0) % WARP)
#define ROW_OF(i) \
    (get_local_id(0) / WARP % WARPS_M * (TILE_M / WARPS_M) + 8 * (i) + LANE / 4)
#define COLUMN_OF(j) \
    (get_local_id(0) / WARP / WARPS_M * (TILE_N / WARPS_N) + 8 * (j) + 2 * (LANE % 4))

// Where terms k and k + 1 of row m of a first operand of `blocks` blocks of terms lie, in
// words; and from there, in the next plane.
#define NEXT_PLANE (4 * WARP)
inline size_t pair_at(const int m, const int k, const int blocks)
{
    const int lane = 4 * (m % 8) + k % 8 / 2, word = 2 * (k % BLOCK / 8) + m % BLOCK / 8;
    return ((size_t)(m / BLOCK) * blocks + k / BLOCK) * SPLITS * NEXT_PLANE + 4 * lane
           + word;
}

// Start to copy a step of an operand: `count` parts to local memory, CHUNK of them from
// every block row, which lie `pitch` parts apart. ITEMS is a multiple of CHUNK.
inline void copy_step(__local uint4 *to, __global const uint4 *from, const int count,
                      const int pitch)
{
    const int id = get_local_id(0);
    from += id / CHUNK * pitch + id % CHUNK;
UNROLLED
    for (int c = 0; c < count; c += ITEMS)
        if (count % ITEMS == 0 || c + id < count)
            cp_async(to + c + id, from + c / CHUNK * pitch);
}

// sums += a warp's part of a step; a and b: where its blocks start in local memory
inline void add_step(float (*sums)[2 * BLOCKS_N][4], __local const uint4 *a,
                     __local const uint4 *b)
{
    const int lane = get_local_id(0) % WARP;
UNROLLED
    for (int start = 0; start < STEP; start += SLICE) {
        Fragment rows[BLOCKS_M][SLICE][SPLITS], columns[BLOCKS_N][SLICE][SPLITS];
UNROLLED
        for (int s = 0; s < SLICE; ++s) {
UNROLLED
            for (int p = 0; p < SPLITS; ++p) {
                const int at = ((start + s) * SPLITS + p) * WARP;
UNROLLED
                for (int i = 0; i < BLOCKS_M; ++i)
                    rows[i][s][p] = FRAGMENT(a + i * CHUNK + at, lane);
UNROLLED
                for (int j = 0; j < BLOCKS_N; ++j)
                    columns[j][s][p] = FRAGMENT(b + j * CHUNK + at, lane);
            }
        }
UNROLLED
        for (int i = 0; i < BLOCKS_M; ++i) {
UNROLLED
            for (int j = 0; j < 2 * BLOCKS_N; ++j) {
#if SPLITS == 1
UNROLLED
                for (int s = 0; s < SLICE; ++s)
                    multiply_add(sums[i][j], rows[i][s][0], columns[j / 2][s][0], j % 2);
#else
                float main[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
UNROLLED
                for (int s = 0; s < SLICE; ++s) {
                    multiply_add(main, rows[i][s][0], columns[j / 2][s][0], j % 2);
                    multiply_add(rest, rows[i][s][0], columns[j / 2][s][1], j % 2);
                    multiply_add(rest, rows[i][s][1], columns[j / 2][s][0], j % 2);
                }
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] += fma(rest[e], 1 / LOW_SCALE, main[e]);
#endif
            }
        }
    }
}

// sums = this lane's of the tile at `tile`, of the rounds from `from` to `to` of operands
// of `blocks` blocks of terms; shared [SHARED] is local memory. Which they are: sums
// [i][j][e] belong to row ROW_OF(2 i + e / 2) and column COLUMN_OF(j) + e % 2. Returns
// whether this work-item has any.
inline int multiply(float (*sums)[2 * BLOCKS_N][4], __local uint4 *shared,
                     __global const uint4 *a, __global const uint4 *b, const int2 tile,
                     const int blocks, const int from, const int to)
{
    const int pitch = blocks * SPLITS * WARP;
    const int warp = get_local_id(0) / WARP;
    const int row = warp % WARPS_M * BLOCKS_M, column = warp / WARPS_M * BLOCKS_N;
    a += (size_t)(tile.s0 / BLOCK) * pitch + from * CHUNK;
    b += (size_t)(tile.s1 / BLOCK) * pitch + from * CHUNK;
UNROLLED
    for (int i = 0; i < BLOCKS_M; ++i)
UNROLLED
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
            for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;

UNROLLED
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (from + stage < to) {
            __local uint4 *tiles = shared + stage * (A_STEP + B_STEP);
            copy_step(tiles, a, A_STEP, pitch);
            copy_step(tiles + A_STEP, b, B_STEP, pitch);
        }
        a += CHUNK;
        b += CHUNK;
        CP_ASYNC_COMMIT();
    }
    int stage = 0, next = STAGES - 1;
    for (int step = from; step < to; ++step) {
        CP_ASYNC_WAIT(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the stage before
        if (step + STAGES - 1 < to) {
            __local uint4 *tiles = shared + next * (A_STEP + B_STEP);
            copy_step(tiles, a, A_STEP, pitch);
            copy_step(tiles + A_STEP, b, B_STEP, pitch);
        }
        a += CHUNK;
        b += CHUNK;
        CP_ASYNC_COMMIT();
        __local const uint4 *tiles = shared + stage * (A_STEP + B_STEP);
        add_step(sums, tiles + row * CHUNK, tiles + A_STEP + column * CHUNK);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    return 1;
}

// Products of matrices by mma on Tensor Cores, of operands that pack.cl packs
// (fp16_split.h):
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// A group computes TILE_M x TILE_N of c. Blocks of both operands are copied unchanged to
// local memory, STAGES - 1 steps ahead. A lane's fragment of a block is one load of 16
// bytes, free of bank conflicts.
//
// TILE_M, TILE_N    rows and columns of a group's tile: 16 to 128, powers of two
// WARPS_M, WARPS_N  warps of a group, along rows and columns: they divide the tile into
//                   multiples of 16 x 16; 128 work-items or more
// STEP              blocks of 16 terms of a pipeline stage: 1 or 2
// STAGES            pipeline stages in local memory: 2 to 6, of which one is read
// SLICE             blocks of terms that Tensor Cores accumulate: a divisor of STEP
// SWIZZLE             as in products.h
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
#define ROW_STEP (STEP * SPLITS * WARP)       // 4-word fragments of a block row's step
#define A_STEP (TILE_M / BLOCK * ROW_STEP)
#define B_STEP (TILE_N / BLOCK * ROW_STEP)
#define SHARED (STAGES * (A_STEP + B_STEP))   // 4-word fragments in local memory
#define ROUND STEP                            // blocks of terms of a round

// Rows and columns of a lane's accumulators within the tile.
#define LANE (get_local_id(0) % WARP)
#define ROW_OF(i) \
    (get_local_id(0) / WARP % WARPS_M * (TILE_M / WARPS_M) + 8 * (i) + LANE / 4)
#define COLUMN_OF(j) \
    (get_local_id(0) / WARP / WARPS_M * (TILE_N / WARPS_N) + 8 * (j) + 2 * (LANE % 4))

// The offset, in words, of terms k and k + 1 of row m of operand a of `blocks` blocks of
// terms; and from there to the next split.
#define SPLIT_STRIDE (4 * WARP)
static inline size_t pair_offset(const int m, const int k, const int blocks)
{
    const int lane = 4 * (m % 8) + k % 8 / 2, word = 2 * (k % BLOCK / 8) + m % BLOCK / 8;
    return ((size_t)(m / BLOCK) * blocks + k / BLOCK) * SPLITS * SPLIT_STRIDE + 4 * lane
           + word;
}

// Start the copy of an operand's step: `count` fragments, ROW_STEP of them of every block
// row, which lie `pitch` fragments apart. ITEMS is a multiple of ROW_STEP.
static inline void load_step(__local uint4 *to, __global const uint4 *from,
                             const int count, const int pitch)
{
    const uint id = get_local_id(0);  // of signed ones PoCL 5.0 shares the quotient
    from += id / ROW_STEP * pitch + id % ROW_STEP;
UNROLLED
    for (int c = 0; c < count; c += ITEMS)
        if (count % ITEMS == 0 || c + id < count)
            cp_async(to + c + id, from + c / ROW_STEP * pitch);
}

// sums += a warp's products of a step; a and b: its blocks in local memory
static inline void mma_step(float (*sums)[2 * BLOCKS_N][4], __local const uint4 *a,
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
                    rows[i][s][p] = FRAGMENT(a + i * ROW_STEP + at, lane);
UNROLLED
                for (int j = 0; j < BLOCKS_N; ++j)
                    columns[j][s][p] = FRAGMENT(b + j * ROW_STEP + at, lane);
            }
        }
UNROLLED
        for (int i = 0; i < BLOCKS_M; ++i) {
UNROLLED
            for (int j = 0; j < 2 * BLOCKS_N; ++j) {
#if SPLITS == 1
UNROLLED
                for (int s = 0; s < SLICE; ++s)
                    mma_m16n8k16(sums[i][j], rows[i][s][0], columns[j / 2][s][0], j % 2);
#else
                float high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
UNROLLED
                for (int s = 0; s < SLICE; ++s) {
                    mma_m16n8k16(high, rows[i][s][0], columns[j / 2][s][0], j % 2);
                    mma_m16n8k16(low, rows[i][s][0], columns[j / 2][s][1], j % 2);
                    mma_m16n8k16(low, rows[i][s][1], columns[j / 2][s][0], j % 2);
                }
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] += fma(low[e], 1 / LOW_SCALE, high[e]);
#endif
            }
        }
    }
}

// sums = this lane's accumulators of the tile at `tile`, of rounds `from` to `to` of
// operands of `blocks` blocks of terms; shared [SHARED] is local memory. sums [i][j][e]
// is of row ROW_OF(2 i + e / 2) and column COLUMN_OF(j) + e % 2. Returns whether this
// work-item is a consumer, which has accumulators.
static inline int mainloop(float (*sums)[2 * BLOCKS_N][4], __local uint4 *shared,
                           __global const uint4 *a, __global const uint4 *b,
                           const int2 tile, const int blocks, const int from,
                           const int to)
{
    const int pitch = blocks * SPLITS * WARP;
    const uint warp = get_local_id(0) / WARP;
    const int row = warp % WARPS_M * BLOCKS_M, column = warp / WARPS_M * BLOCKS_N;
    a += (size_t)(tile.s0 / BLOCK) * pitch + from * ROW_STEP;
    b += (size_t)(tile.s1 / BLOCK) * pitch + from * ROW_STEP;
UNROLLED
    for (int i = 0; i < BLOCKS_M; ++i)
UNROLLED
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
            for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;

UNROLLED
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (from + stage < to) {
            __local uint4 *operands = shared + stage * (A_STEP + B_STEP);
            load_step(operands, a, A_STEP, pitch);
            load_step(operands + A_STEP, b, B_STEP, pitch);
        }
        a += ROW_STEP;
        b += ROW_STEP;
        CP_ASYNC_COMMIT();
    }
    int read = 0, write = STAGES - 1;   // stages
    for (int step = from; step < to; ++step) {
        CP_ASYNC_WAIT(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);  // also releases the stage before
        if (step + STAGES - 1 < to) {
            __local uint4 *operands = shared + write * (A_STEP + B_STEP);
            load_step(operands, a, A_STEP, pitch);
            load_step(operands + A_STEP, b, B_STEP, pitch);
        }
        a += ROW_STEP;
        b += ROW_STEP;
        CP_ASYNC_COMMIT();
        __local const uint4 *operands = shared + read * (A_STEP + B_STEP);
        mma_step(sums, operands + row * ROW_STEP, operands + A_STEP + column * ROW_STEP);
        read = read + 1 == STAGES ? 0 : read + 1;
        write = write + 1 == STAGES ? 0 : write + 1;
    }
    return 1;
}

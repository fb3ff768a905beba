// Products of matrices on the matrix units of compute capability 9.0, which read both
// operands from local memory and serve 128 work-items, a warp group, at once:
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// of operands that pack_tiles.cl has packed (halves.h). A work-group is one warp group
// and computes 64 x TILE_N of c. Steps are copied, whole pieces of 64 rows at a time,
// STAGES of them ahead of the units; a barrier in local memory tells when a stage is
// full. Once the units have done with a step, its stage is filled again:
//
//     copies     | stage 0 | 1 | 2 | …        | 0 | 1 | …
//     products             | 0 | 1 | 2 | … add to sums | 0 | …
//
// Local memory is short (48 KB a group): four groups a unit, each with its own copies
// under way, do what one with a larger tile could not.
//
// The interface is that of mma.h. Local memory starts on 128 bytes, where 8 rows x 8
// terms do.
//
// TILE_M, TILE_N    64 rows, and columns of a group: a multiple of 64
// WARPS_M, WARPS_N  4 and 1: warps below and beside one another
// STEP              blocks of 16 terms that are copied at once
// STAGES            steps in local memory: 2 or more
// SLICE             blocks of terms that the units add up: STEP, 2 STEP or 4 STEP
// PANEL             as in products.h
// PLANES            as in halves.h
// PTX               90: such units; else the same in plain C
#include "halves.h"
#include "products.h"
#if !defined(WARPS_M) || !defined(WARPS_N) || !defined(STEP) || !defined(STAGES) \
    || !defined(SLICE)
#error "wgmma.h needs WARPS_M, WARPS_N, STEP, STAGES and SLICE"
#endif

#define ITEMS (WARPS_M * WARPS_N * WARP)
#define BLOCKS_M 1
#define BLOCKS_N (TILE_N / BLOCK)                   // blocks of columns
#define PIECES (TILE_N / TILE_ROWS)                 // pieces of columns
#define PLANE (2 * TILE_ROWS)                       // 4-word parts of a piece's plane
#define PIECE (PLANES * PLANE)                      // of 64 rows x 16 terms
#define ROWS_STEP (STEP * PIECE)                    // a step of 64 rows
#define STAGE ((1 + PIECES) * ROWS_STEP)
#define SHARED (STAGES * STAGE + (STAGES + 1) / 2)  // and a barrier a stage
#define ROUND SLICE                                 // blocks of terms of a round

#define LANE (get_local_id(0) % WARP)
#define ROW_OF(i) (get_local_id(0) / WARP * BLOCK + 8 * (i) + LANE / 4)
#define COLUMN_OF(j) (8 * (j) + 2 * (LANE % 4))

// As in mma.h, for either operand.
#define NEXT_PLANE (4 * PLANE)
inline size_t pair_at(const int m, const int k, const int blocks)
{
    const size_t piece = (size_t)(m / TILE_ROWS) * blocks + k / BLOCK;
    return 4 * (piece * PIECE + k % BLOCK / 8 * TILE_ROWS + m % TILE_ROWS) + k % 8 / 2;
}

#if PTX == 90
// A compiler whose target is older refuses these instructions: they pass it as comments
// (program.py).
#define FENCE() asm volatile("//sm_90a wgmma.fence.sync.aligned;\n" ::: "memory")
#define COMMIT() asm volatile("//sm_90a wgmma.commit_group.sync.aligned;\n" ::: "memory")
#define DONE_BUT(n) \
    asm volatile("//sm_90a wgmma.wait_group.sync.aligned " #n ";\n" ::: "memory")
#define FOUR(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])

// sums [8][4] of 64 rows x 64 columns, of which a lane has those of mma.h, = products of
// two pieces of 16 terms; += if more
#define MULTIPLY(sums, a, b, more)                                                       \
    asm volatile(                                                                        \
        "{ .reg .pred more; setp.ne.b32 more, %34, 0;\n"                                 \
        "//sm_90a wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "                   \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "        \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "    \
        "%31}, %32, %33, more, 1, 1, 0, 0;\n}"                                           \
        : FOUR((sums)[0]), FOUR((sums)[1]), FOUR((sums)[2]), FOUR((sums)[3]),            \
          FOUR((sums)[4]), FOUR((sums)[5]), FOUR((sums)[6]), FOUR((sums)[7])             \
        : "l"(a), "l"(b), "r"(more) : "memory")

// How the units address a piece at `at`: 128 bytes from one 8 rows to the next, 1024 from
// one 8 terms to the next, all in units of 16.
inline ulong descriptor(const uint at)
{
    return (at & 0x3ffff) >> 4 | (ulong)(1024 >> 4) << 16 | (ulong)(128 >> 4) << 32;
}

// Wait for a phase of a barrier in local memory; phases are counted modulo 2.
inline void wait_for(const uint barrier, const uint phase)
{
    uint there;
    do {
        asm volatile(
            "{ .reg .pred there; "
            "mbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2; "
            "selp.u32 %0, 1, 0, there; }"
            : "=r"(there) : "r"(barrier), "r"(phase) : "memory");
    } while (!there);
}

// Start to copy a step of a and b to the stage at `to`; the barrier's phase ends with it.
inline void copy_step(const uint to, __global const uint4 *a, __global const uint4 *b,
                      const int pitch, const uint barrier)
{
    const uint bytes = ROWS_STEP * sizeof(uint4);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"((1 + PIECES) * bytes) : "memory");
UNROLLED
    for (int i = 0; i <= PIECES; ++i) {
        __global const uint4 *from = i == 0 ? a : b + (size_t)(i - 1) * pitch;
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%0], [%1], %2, [%3];"
            :: "r"(to + i * bytes), "l"(from), "r"(bytes), "r"(barrier) : "memory");
    }
}

// sums (+)= products of a stage, of STEP blocks of terms; begin: sums start at zero. Of
// PLANES 2 those of the low parts are added to rest.
inline void add_step(float (*sums)[4], float (*rest)[4], const uint stage,
                     const int begin)
{
    const ulong rows = descriptor(stage);
    const ulong columns = descriptor(stage + ROWS_STEP * sizeof(uint4));
    FENCE();
UNROLLED
    for (int k = 0; k < STEP; ++k)
UNROLLED
        for (int j = 0; j < PIECES; ++j) {
            const ulong x = rows + k * PIECE, y = columns + (j * STEP + k) * PIECE;
            MULTIPLY(sums + 8 * j, x, y, !begin || k > 0);
#if PLANES == 2
            MULTIPLY(rest + 8 * j, x, y + PLANE, 1);
            MULTIPLY(rest + 8 * j, x + PLANE, y, 1);
#endif
        }
    COMMIT();
}

// As in mma.h: sums = this lane's of the tile at `tile`, of rounds `from` to `to`.
inline void multiply(float (*all)[2 * BLOCKS_N][4], __local uint4 *shared,
                     __global const uint4 *a, __global const uint4 *b, const int2 tile,
                     const int blocks, const int from, const int to)
{
    const int id = get_local_id(0), pitch = blocks * PIECE;
    const uint start = (uint)(size_t)shared, stage_bytes = STAGE * sizeof(uint4);
    const uint full = start + STAGES * stage_bytes;  // the barriers
    int left = (to - from) * (SLICE / STEP);         // steps that are not yet copied
    a += (size_t)(tile.s0 / TILE_ROWS) * pitch + from * SLICE * PIECE;
    b += (size_t)(tile.s1 / TILE_ROWS) * pitch + from * SLICE * PIECE;
#define FILL(stage)                                                                      \
    if (id == 0 && left-- > 0) {                                                         \
        copy_step(start + (stage) * stage_bytes, a, b, pitch, full + 8 * (stage));       \
        a += STEP * PIECE;                                                               \
        b += STEP * PIECE;                                                               \
    }
    if (id == 0) {
        for (int stage = 0; stage < STAGES; ++stage)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                         :: "r"(full + 8 * stage) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster; "
                     "fence.proxy.async.shared::cta;" ::: "memory");
        for (int stage = 0; stage < STAGES; ++stage) FILL(stage)
    }
    float (*sums)[4] = all[0], part[2 * BLOCKS_N][4], rest[2 * BLOCKS_N][4];
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e) sums[j][e] = part[j][e] = rest[j][e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    int stage = 0, before = 0;
    uint phase = 0;
    for (int round = from; round < to; ++round) {
UNROLLED
        for (int step = 0; step < SLICE / STEP; ++step) {
            wait_for(full + 8 * stage, phase);
            add_step(PLANES == 2 ? part : sums, rest, start + stage * stage_bytes,
                     PLANES == 2 && step == 0);
            if (step > 0 || (PLANES == 1 && round > from)) {
                DONE_BUT(1);
                FILL(before)
            }
            before = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
#if PLANES == 2
        DONE_BUT(0);
        FILL(before)
UNROLLED
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
            for (int e = 0; e < 4; ++e) sums[j][e] += part[j][e];
#endif
    }
#if PLANES == 2
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e) sums[j][e] = fma(rest[j][e], 1 / LOW, sums[j][e]);
#else
    DONE_BUT(0);
#endif
}

#else
// The same, of which steps are copied by all and multiplied one by one.
inline void multiply(float (*all)[2 * BLOCKS_N][4], __local uint4 *shared,
                     __global const uint4 *a, __global const uint4 *b, const int2 tile,
                     const int blocks, const int from, const int to)
{
    const int id = get_local_id(0), pitch = blocks * PIECE;
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
        for (int e = 0; e < 4; ++e) all[0][j][e] = 0;
    for (int block = from * SLICE; block < to * SLICE; ++block) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int c = id; c < (1 + PIECES) * PIECE; c += ITEMS) {
            const int piece = c / PIECE, at = block * PIECE + c % PIECE;
            shared[c] = piece == 0
                ? a[(size_t)(tile.s0 / TILE_ROWS) * pitch + at]
                : b[(size_t)(tile.s1 / TILE_ROWS + piece - 1) * pitch + at];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        __local const half *rows = (__local const half *)shared;
        __local const half *columns = rows + PIECE * 8;
#define AT(piece_of, n, p, k) \
    vload_half((n) / TILE_ROWS * PIECE * 8 + (p) * PLANE * 8 \
               + ((k) / 8 * TILE_ROWS + (n) % TILE_ROWS) * 8 + (k) % 8, piece_of)
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
            for (int e = 0; e < 4; ++e) {
                const int m = ROW_OF(e / 2), n = COLUMN_OF(j) + e % 2;
                float main = 0, rest = 0;
                for (int k = 0; k < BLOCK; ++k) {
                    main += AT(rows, m, 0, k) * AT(columns, n, 0, k);
                    if (PLANES == 2)
                        rest += AT(rows, m, 0, k) * AT(columns, n, 1, k)
                                + AT(rows, m, 1, k) * AT(columns, n, 0, k);
                }
                all[0][j][e] += fma(rest, 1 / LOW, main);
            }
    }
}
#endif

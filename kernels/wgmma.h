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
// TILE_M, TILE_N    64 rows, and columns of a group: 32, 64 or 128
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
#define BLOCKS_N (TILE_N / BLOCK)                    // blocks of columns
#define PLANE (2 * TILE_ROWS)                        // 4-word parts of 64 rows x 16 terms
#define PIECE (PLANES * PLANE)
#define B_PLANE (2 * TILE_N)                         // of the group's columns
#define B_PIECE (PLANES * B_PLANE)
#define STAGE (STEP * (PIECE + B_PIECE))
#define SHARED (STAGES * STAGE + (STAGES + 1) / 2)   // and a barrier a stage
#define ROUND SLICE                                 // blocks of terms of a round

#define LANE (get_local_id(0) % WARP)
#define ROW_OF(i) (get_local_id(0) / WARP * BLOCK + 8 * (i) + LANE / 4)
#define COLUMN_OF(j) (8 * (j) + 2 * (LANE % 4))

// As in mma.h, for either operand.
#define NEXT_PLANE (4 * PLANE)
inline size_t pair_at(const int m, const int k, const int blocks)
{
    const size_t piece = (size_t)(m / TILE_ROWS) * blocks + k / BLOCK;
    const int part = m % TILE_ROWS / 8 * 16 + k % BLOCK / 8 * 8 + m % 8;
    return 4 * (piece * PIECE + part) + k % 8 / 2;
}

#if PTX == 90
// A compiler whose target is older refuses these instructions: they pass it as comments
// (program.py).
#define FENCE() asm volatile("//sm_90a wgmma.fence.sync.aligned;\n" ::: "memory")
#define COMMIT() asm volatile("//sm_90a wgmma.commit_group.sync.aligned;\n" ::: "memory")
#define DONE_BUT(n) \
    asm volatile("//sm_90a wgmma.wait_group.sync.aligned " #n ";\n" ::: "memory")
#define FOUR(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])
#define SIXTEEN(d) FOUR((d)[0]), FOUR((d)[1]), FOUR((d)[2]), FOUR((d)[3])
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, " \
    "%27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, " \
    "%43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
    "%59, %60, %61, %62, %63"
#if TILE_N == 32
#define SHAPE "m64n32k16"
#define NAMES NAMES_16
#define ALL(d) SIXTEEN(d)
#elif TILE_N == 64
#define SHAPE "m64n64k16"
#define NAMES NAMES_32
#define ALL(d) SIXTEEN(d), SIXTEEN((d) + 4)
#else
#define SHAPE "m64n128k16"
#define NAMES NAMES_64
#define ALL(d) SIXTEEN(d), SIXTEEN((d) + 4), SIXTEEN((d) + 8), SIXTEEN((d) + 12)
#endif

// sums [TILE_N / 8][4], of which a lane has those of mma.h, = products of 64 rows and
// TILE_N columns of 16 terms; += if more
#define MULTIPLY(sums, a, b, more)                                                       \
    asm volatile(                                                                        \
        "{ .reg .pred more; setp.ne.b32 more, %[add], 0;\n"                              \
        "//sm_90a wgmma.mma_async.sync.aligned." SHAPE ".f32.f16.f16 "                   \
        "{" NAMES "}, %[rows], %[columns], more, 1, 1, 0, 0;\n}"                         \
        : ALL(sums) : [rows] "l"(a), [columns] "l"(b), [add] "r"(more) : "memory")

// How the units address a plane at `at`: 256 bytes from one 8 rows to the next, 128 from
// one 8 terms to the next, all in units of 16.
inline ulong descriptor(const uint at)
{
    return (at & 0x3ffff) >> 4 | (ulong)(128 >> 4) << 16 | (ulong)(256 >> 4) << 32;
}

// Wait for a phase of a barrier in local memory; phases are counted modulo 2. It needs
// no bound: copies that its own group has started end it.
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

// Start to copy so many 4-word parts; the barrier counts their bytes.
inline void copy(const uint to, __global const uint4 *from, const int parts,
                 const uint barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(parts * 16), "r"(barrier) : "memory");
}

// Start to copy a step of a and b to the stage at `to`; the barrier's phase ends with it.
inline void copy_step(const uint to, __global const uint4 *a, __global const uint4 *b,
                      const int pitch, const uint barrier)
{
    const uint b_to = to + STEP * PIECE * 16;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(STAGE * 16) : "memory");
    copy(to, a, STEP * PIECE, barrier);
#if TILE_N == TILE_ROWS
    copy(b_to, b, STEP * PIECE, barrier);
#else  // a plane's columns are half a piece, or two
UNROLLED
    for (int p = 0; p < STEP * PLANES; ++p) {
        copy(b_to + p * B_PLANE * 16, b + p * PLANE, min(PLANE, B_PLANE), barrier);
        if (TILE_N > TILE_ROWS)
            copy(b_to + (p * B_PLANE + PLANE) * 16, b + pitch + p * PLANE, PLANE,
                 barrier);
    }
#endif
}

// sums (+)= products of a stage, of STEP blocks of terms; begin: sums start at zero. Of
// PLANES 2 those of the low parts are added to rest.
inline void add_step(float (*sums)[4], float (*rest)[4], const uint stage,
                     const int begin)
{
    const ulong rows = descriptor(stage), columns = descriptor(stage + STEP * PIECE * 16);
    FENCE();
UNROLLED
    for (int k = 0; k < STEP; ++k) {
        const ulong x = rows + k * PIECE, y = columns + k * B_PIECE;
        MULTIPLY(sums, x, y, !begin || k > 0);
#if PLANES == 2
        MULTIPLY(rest, x, y + B_PLANE, 1);
        MULTIPLY(rest, x + PLANE, y, 1);
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
    const uint start = (uint)(size_t)shared, stage_bytes = STAGE * 16;
    const uint full = start + STAGES * stage_bytes;  // the barriers
    int left = (to - from) * (SLICE / STEP);         // steps that are not yet copied
    a += (size_t)(tile.s0 / TILE_ROWS) * pitch + from * SLICE * PIECE;
    b += (size_t)(tile.s1 / TILE_ROWS) * pitch + from * SLICE * PIECE
         + 2 * (tile.s1 % TILE_ROWS);
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
    const int id = get_local_id(0);
    a += (size_t)(tile.s0 / TILE_ROWS) * blocks * PIECE;
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
        for (int e = 0; e < 4; ++e) all[0][j][e] = 0;
    for (int block = from * SLICE; block < to * SLICE; ++block) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int c = id; c < PIECE; c += ITEMS) shared[c] = a[block * PIECE + c];
        for (int c = id; c < B_PIECE; c += ITEMS) {
            const int n = tile.s1 + c % B_PLANE / 16 * 8;  // and the 7 columns after it
            const int piece = n / TILE_ROWS * blocks + block;
            shared[PIECE + c] = b[(size_t)piece * PIECE + c / B_PLANE * PLANE
                                  + n % TILE_ROWS * 2 + c % 16];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        __local const half *rows = (__local const half *)shared;
        __local const half *columns = rows + 8 * PIECE;
#define AT(n, k) (((n) / 8 * 16 + (k) / 8 * 8 + (n) % 8) * 8 + (k) % 8)
#define ROW(p) vload_half(8 * (p) * PLANE + AT(m, k), rows)
#define COLUMN(p) vload_half(8 * (p) * B_PLANE + AT(n, k), columns)
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
            for (int e = 0; e < 4; ++e) {
                const int m = ROW_OF(e / 2), n = COLUMN_OF(j) + e % 2;
                float main = 0, rest = 0;
                for (int k = 0; k < BLOCK; ++k) {
                    main += ROW(0) * COLUMN(0);
                    if (PLANES == 2) rest += ROW(0) * COLUMN(1) + ROW(1) * COLUMN(0);
                }
                all[0][j][e] += fma(rest, 1 / LOW, main);
            }
    }
}
#endif

// Products of matrices on the matrix units of compute capability 9.0, which read both
// operands from local memory and serve 128 work-items, a warp group, at once:
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// of operands that pack_tiles.cl has packed (halves.h). A group computes TILE_M x TILE_N
// of c. One warp does nothing but copy, whole pieces of 64 rows at a time, STAGES steps
// ahead of the warp groups that multiply. Of each stage, one barrier in local memory
// tells these that it is full, a second one the copying warp that it is free again:
//
//     copying warp    | fill 0 | fill 1 | fill 2 |  …  until 0 is free: fill 0 | …
//     warp groups              | 0 | 1 | 2 | add to sums | 0 | …
//
// The interface is that of mma.h. Local memory starts on 128 bytes, where 8 rows x 8
// terms do.
//
// TILE_M, TILE_N    rows and columns of a group: multiples of 64
// WARPS_M, WARPS_N  warps below and beside one another: each has 16 rows, and TILE_N /
//                   WARPS_N columns, a multiple of 64
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

#define WARP_GROUP 128                              // work-items
#define MULTIPLIERS (WARPS_M * WARPS_N * WARP)      // that multiply
#define ITEMS (MULTIPLIERS + WARP)                  // and those that copy
#define BLOCKS_M 1
#define BLOCKS_N (TILE_N / WARPS_N / BLOCK)         // blocks of columns of a warp
#define PIECES (TILE_N / WARPS_N / TILE_ROWS)       // pieces of columns likewise
#define PLANE (2 * TILE_ROWS)                       // 4-word parts of a piece's plane
#define PIECE (PLANES * PLANE)                      // of 64 rows x 16 terms
#define A_STEP (TILE_M / TILE_ROWS * STEP * PIECE)
#define B_STEP (TILE_N / TILE_ROWS * STEP * PIECE)
#define SHARED (STAGES * (A_STEP + B_STEP + 1))     // and two barriers a stage
#define ROUND SLICE                                 // blocks of terms of a round

#define LANE (get_local_id(0) % WARP)
#define ROW_OF(i) (get_local_id(0) / WARP % WARPS_M * BLOCK + 8 * (i) + LANE / 4)
#define COLUMN_OF(j) \
    (get_local_id(0) / WARP / WARPS_M * (TILE_N / WARPS_N) + 8 * (j) + 2 * (LANE % 4))

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

// A barrier in local memory: made for `count` arrivals; one of them, and `bytes` of
// copies that are to arrive too; one of them; the wait for a phase, counted modulo 2.
inline void make_barrier(const uint barrier, const uint count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(barrier), "r"(count) : "memory");
}
inline void expect(const uint barrier, const uint bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}
inline void arrive(const uint barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
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
inline void copy_piece(const uint to, __global const uint4 *from, const uint bytes,
                       const uint barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];"
        :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// What the copying warp does: `steps` steps to local memory at `shared`.
inline void copy_steps(const uint shared, const uint full, const uint free,
                       __global const uint4 *a, __global const uint4 *b,
                       const size_t pitch, const int steps)
{
    const uint bytes = STEP * PIECE * sizeof(uint4);
    int stage = 0;
    uint phase = 1;  // the first time stages are free
    for (int step = 0; step < steps; ++step) {
        const uint to = shared + stage * (A_STEP + B_STEP) * sizeof(uint4);
        wait_for(free + 8 * stage, phase);
        expect(full + 8 * stage, (A_STEP + B_STEP) * sizeof(uint4));
UNROLLED
        for (int i = 0; i < TILE_M / TILE_ROWS; ++i)
            copy_piece(to + i * bytes, a + i * pitch, bytes, full + 8 * stage);
UNROLLED
        for (int i = 0; i < TILE_N / TILE_ROWS; ++i)
            copy_piece(to + (TILE_M / TILE_ROWS + i) * bytes, b + i * pitch, bytes,
                       full + 8 * stage);
        a += STEP * PIECE;
        b += STEP * PIECE;
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// sums (+)= products of a warp group's pieces at a and b, of STEP blocks of terms;
// begin: sums start at zero. With PLANES 2 the low parts are added to rest.
inline void add_step(float (*sums)[4], float (*rest)[4], const uint a, const uint b,
                     const int begin)
{
    const ulong rows = descriptor(a), columns = descriptor(b);
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

// As in mma.h: sums = this lane's of the tile at `tile`, of the rounds from `from` to
// `to`. Returned: whether there are any; the copying warp has none.
inline bool multiply(float (*all)[2 * BLOCKS_N][4], __local uint4 *shared,
                     __global const uint4 *a, __global const uint4 *b, const int2 tile,
                     const int blocks, const int from, const int to)
{
    const int id = get_local_id(0), pitch = blocks * PIECE;
    const uint start = (uint)(size_t)shared;
    const uint full = start + STAGES * (A_STEP + B_STEP) * sizeof(uint4);
    const uint free = full + 8 * STAGES;
    if (id == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            make_barrier(full + 8 * stage, 1);
            make_barrier(free + 8 * stage, MULTIPLIERS / WARP_GROUP);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id >= MULTIPLIERS) {
        a += (size_t)(tile.s0 / TILE_ROWS) * pitch + from * SLICE * PIECE;
        b += (size_t)(tile.s1 / TILE_ROWS) * pitch + from * SLICE * PIECE;
        if (id == MULTIPLIERS)
            copy_steps(start, full, free, a, b, pitch, (to - from) * (SLICE / STEP));
        return false;
    }
    float (*sums)[4] = all[0], part[2 * BLOCKS_N][4], rest[2 * BLOCKS_N][4];
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e) sums[j][e] = part[j][e] = rest[j][e] = 0;
    const uint row = id / WARP_GROUP % (WARPS_M / 4);
    const uint column = id / WARP_GROUP / (WARPS_M / 4) * PIECES;
    const uint bytes = STEP * PIECE * sizeof(uint4);
    int stage = 0, before = 0;
    uint phase = 0;
    for (int round = from; round < to; ++round) {
UNROLLED
        for (int step = 0; step < SLICE / STEP; ++step) {
            const uint at = start + stage * (A_STEP + B_STEP) * sizeof(uint4);
            wait_for(full + 8 * stage, phase);
            add_step(PLANES == 2 ? part : sums, rest, at + row * bytes,
                     at + A_STEP * sizeof(uint4) + column * bytes,
                     PLANES == 2 && step == 0);
            if (PLANES == 2 ? step > 0 : step > 0 || round > from) {
                DONE_BUT(1);
                if (id % WARP_GROUP == 0) arrive(free + 8 * before);
            }
            before = stage;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
#if PLANES == 2
        DONE_BUT(0);
        if (id % WARP_GROUP == 0) arrive(free + 8 * before);
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
    return true;
}

#else
// The same, of which steps are copied by all and multiplied one by one.
inline bool multiply(float (*all)[2 * BLOCKS_N][4], __local uint4 *shared,
                     __global const uint4 *a, __global const uint4 *b, const int2 tile,
                     const int blocks, const int from, const int to)
{
    const int id = get_local_id(0), pitch = blocks * PIECE;
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
        for (int e = 0; e < 4; ++e) all[0][j][e] = 0;
    for (int block = from * SLICE; block < to * SLICE; ++block) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int c = id; c < (TILE_M + TILE_N) / TILE_ROWS * PIECE; c += ITEMS) {
            const int piece = c / PIECE - TILE_M / TILE_ROWS;
            shared[c] = piece < 0
                ? a[(size_t)(tile.s0 / TILE_ROWS + c / PIECE) * pitch + block * PIECE
                    + c % PIECE]
                : b[(size_t)(tile.s1 / TILE_ROWS + piece) * pitch + block * PIECE
                    + c % PIECE];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        __local const half *rows = (__local const half *)shared;
        __local const half *columns = rows + TILE_M / TILE_ROWS * PIECE * 8;
#define AT(piece_of, n, p, k) \
    vload_half((n) / TILE_ROWS * PIECE * 8 + (p) * PLANE * 8 \
               + ((k) / 8 * TILE_ROWS + (n) % TILE_ROWS) * 8 + (k) % 8, piece_of)
        for (int j = 0; id < MULTIPLIERS && j < 2 * BLOCKS_N; ++j)
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
    return id < MULTIPLIERS;
}
#endif

// Products of matrices on the matrix units of compute capability 9.0, which read both
// operands from local memory and serve 128 work-items, a warp group, at once:
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// of operands that pack_tiles.cl has packed (fp16_split.h): a in pieces of 64 rows, b in
// pieces of TILE_N. Each warp group of a work-group has one piece of a, and all of them
// the one of b. A step is copied whole, STAGES of them ahead of the units; a flag in
// local memory (bulk_copy.h) tells when a stage is full. Where PRODUCER is not 0 a warp of its
// own copies what another flag tells that all warp groups have done with; else the last
// of them does:
//
//     copies     | stage 0 | 1 | 2 | …        | 0 | 1 | …
//     products             | 0 | 1 | 2 | … add to sums | 0 | …
//
// The interface is that of mma.h. Local memory starts on 128 bytes, where 8 rows x 8
// terms do; it may be all of a unit's, more than OpenCL tells of.
//
// TILE_M, TILE_N    rows of a group, 64 for each warp group, and columns: 32 to 256
// WARPS_M, WARPS_N  4 for each warp group, and 1: warps below and beside one another
// STEP              blocks of 16 terms that are copied at once
// STAGES            steps in local memory: 2 or more
// SLICE             blocks of terms that the units add up: STEP, 2 STEP or 4 STEP
// PRODUCER            1: a warp beside the warp groups copies; 0: they do; 2: the first of
//                   a warp group that leaves the two others its registers and ends
//                   (where it goes on with them, code for few registers is slow)
// NARROW            columns of tiles that are narrower than TILE_N, if there are such
// PANEL             as in products.h
// SPLITS            as in fp16_split.h
// PTX               90: such units; else the same in plain C
#include "tensor_core/fp16_split.h"
#include "tensor_core/products.h"
#if !defined(WARPS_M) || !defined(WARPS_N) || !defined(STEP) || !defined(STAGES) \
    || !defined(SLICE) || !defined(PRODUCER)
#error "wgmma.h needs WARPS_M, WARPS_N, STEP, STAGES, SLICE and PRODUCER"
#endif

#define WARP_GROUP (4 * WARP)
#define GROUPS (WARPS_M / 4)
#define CONSUMERS (GROUPS * WARP_GROUP)
#define ITEMS (CONSUMERS + (PRODUCER == 2 ? WARP_GROUP : PRODUCER * WARP))
#define BLOCKS_M 1                                   // of a warp
#define BLOCKS_N (TILE_N / BLOCK)                    // blocks of columns
#define A_ROWS 64                                    // rows of a piece of a
#define A_PLANE (2 * A_ROWS)                         // 4-word parts of it: 16 terms
#define A_PIECE (SPLITS * A_PLANE)
#define B_PLANE(width) (2 * (width))                 // of b, for tiles so wide
#define B_STEP(width) (STEP * SPLITS * B_PLANE(width))
#define A_STEP (STEP * A_PIECE)
#define STAGE (GROUPS * A_STEP + B_STEP(TILE_N))
#define SHARED (STAGES * (STAGE + 1))                 // a stage has two flags
#define ROUND SLICE                                  // blocks of terms of a round

#define LANE (get_local_id(0) % WARP)
#define ROW_OF(i) (get_local_id(0) / WARP * BLOCK + 8 * (i) + LANE / 4)
#define COLUMN_OF(j) (8 * (j) + 2 * (LANE % 4))

// Where 8 terms of a row lie in an operand of pieces of `piece` rows, in 4-word parts.
inline size_t part_at(const int row, const int k, const int blocks, const int piece)
{
    return ((size_t)(row / piece) * blocks + k / BLOCK) * SPLITS * 2 * piece
           + row % piece / 8 * 16 + k % BLOCK / 8 * 8 + row % 8;
}

// As in mma.h.
#define NEXT_PLANE (4 * A_PLANE)
inline size_t pair_at(const int m, const int k, const int blocks)
{
    return 4 * part_at(m, k, blocks, A_ROWS) + k % 8 / 2;
}

#if PTX == 90
#include "tensor_core/bulk_copy.h"
// A compiler whose target is older refuses these instructions: they pass it as comments
// (program.py).
#define WGMMA_FENCE() asm volatile("//sm_90a wgmma.fence.sync.aligned;\n" ::: "memory")
#define WGMMA_COMMIT() asm volatile("//sm_90a wgmma.commit_group.sync.aligned;\n" ::: "memory")
#define WGMMA_WAIT(n) \
    asm volatile("//sm_90a wgmma.wait_group.sync.aligned " #n ";\n" ::: "memory")
#define FOUR(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])
#define SIXTEEN(d) FOUR((d)[0]), FOUR((d)[1]), FOUR((d)[2]), FOUR((d)[3])
#define SUMS_32(d) SIXTEEN(d)
#define SUMS_64(d) SUMS_32(d), SIXTEEN((d) + 4)
#define SUMS_96(d) SUMS_64(d), SIXTEEN((d) + 8)
#define SUMS_128(d) SUMS_96(d), SIXTEEN((d) + 12)
#define SUMS_192(d) SUMS_128(d), SIXTEEN((d) + 16), SIXTEEN((d) + 20)
#define SUMS_256(d) SUMS_192(d), SIXTEEN((d) + 24), SIXTEEN((d) + 28)
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_64 NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, " \
    "%27, %28, %29, %30, %31"
#define NAMES_96 NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, " \
    "%43, %44, %45, %46, %47"
#define NAMES_128 NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
    "%59, %60, %61, %62, %63"
#define NAMES_192 NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, " \
    "%75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, " \
    "%91, %92, %93, %94, %95"
#define NAMES_256 NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, " \
    "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define JOINED(name, columns) name##columns
#define OF(name, columns) JOINED(name, columns)
#define ALL(width, d) OF(SUMS_, width)(d)
#define NAMES(width) OF(NAMES_, width)
#define QUOTED(columns) #columns
#define SHAPE_OF(columns) "m64n" QUOTED(columns) "k16"

// sums [width / 8][4], of which a lane has those of mma.h, = products of 64 rows and
// as many columns as `width` says of 16 terms; += if more
#define WGMMA(width, sums, a, b, more)                                                \
    asm volatile(                                                                        \
        "{ .reg .pred more; setp.ne.b32 more, %[add], 0;\n"                              \
        "//sm_90a wgmma.mma_async.sync.aligned." SHAPE_OF(width) ".f32.f16.f16 "         \
        "{" NAMES(width) "}, %[rows], %[columns], more, 1, 1, 0, 0;\n}"                  \
        : ALL(width, sums) : [rows] "l"(a), [columns] "l"(b), [add] "r"(more) : "memory")

// What the units have written is read after this, and not before.
#define WRITTEN(width, sums) asm volatile("" : ALL(width, sums) :: "memory")

// The same with a width that is constant, but no literal.
#ifdef NARROW
#define WGMMA_WIDTH(width, sums, a, b, more)                                           \
    if ((width) == TILE_N) WGMMA(TILE_N, sums, a, b, more);                           \
    else WGMMA(NARROW, sums, a, b, more)
#define WRITTEN_SOME(width, sums)                                                        \
    if ((width) == TILE_N) WRITTEN(TILE_N, sums);                                        \
    else WRITTEN(NARROW, sums)
#else
#define WGMMA_WIDTH(width, sums, a, b, more) WGMMA(TILE_N, sums, a, b, more)
#define WRITTEN_SOME(width, sums) WRITTEN(TILE_N, sums)
#endif

// How the units address a plane at `at`: 256 bytes from one 8 rows to the next, 128 from
// one 8 terms to the next, all in units of 16.
inline ulong descriptor(const uint at)
{
    return (at & 0x3ffff) >> 4 | (ulong)(128 >> 4) << 16 | (ulong)(256 >> 4) << 32;
}

// Start to copy so many 4-word parts, which a flag expects.
inline void copy(const uint to, __global const uint4 *from, const int parts,
                 __local Mbarrier *flag)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(16 * parts), "r"((uint)(size_t)flag)
                 : "memory");
}

// A stage's flag is to expect a step.
inline void mbarrier_expect_stage(__local Mbarrier *flag, const int width)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"((uint)(size_t)flag), "r"(16 * (GROUPS * A_STEP + B_STEP(width)))
                 : "memory");
}

// Start to copy a step of a to the stage at `to`; rows of pieces lie `pitch` parts apart.
inline void copy_rows(const uint to, __global const uint4 *a, const int pitch,
                      __local Mbarrier *flag)
{
UNROLLED
    for (int i = 0; i < GROUPS; ++i)
        copy(to + 16 * i * A_STEP, a + (size_t)i * pitch, A_STEP, flag);
}

// The same of b.
inline void copy_columns(const uint to, __global const uint4 *b, __local Mbarrier *flag,
                         const int width)
{
    copy(to + 16 * GROUPS * A_STEP, b, B_STEP(width), flag);
}

// sums (+)= products of a stage, of STEP blocks of terms; begin: sums start at zero. Of
// SPLITS 2 those of the low parts are added to rest.
inline void add_step(float (*sums)[4], float (*rest)[4], const uint stage,
                     const int begin, const int width)
{
    const ulong rows = descriptor(stage + get_local_id(0) / WARP_GROUP * (16 * A_STEP));
    const ulong columns = descriptor(stage + 16 * GROUPS * A_STEP);
    WGMMA_FENCE();
UNROLLED
    for (int k = 0; k < STEP; ++k) {
        const ulong x = rows + k * A_PIECE, y = columns + k * SPLITS * B_PLANE(width);
        WGMMA_WIDTH(width, sums, x, y, !begin || k > 0);
#if SPLITS == 2
        WGMMA_WIDTH(width, rest, x, y + B_PLANE(width), 1);
        WGMMA_WIDTH(width, rest, x + A_PLANE, y, 1);
#endif
    }
    WGMMA_COMMIT();
}

#if PRODUCER == 2
// Of the 168 that each of three warp groups' work-items begin with.
inline void setmaxnreg_dec(void)
{
    asm volatile("//sm_90a setmaxnreg.dec.sync.aligned.u32 24;\n" ::: "memory");
}

inline void setmaxnreg_inc(void)
{
    asm volatile("//sm_90a setmaxnreg.inc.sync.aligned.u32 240;\n" ::: "memory");
}
#else
inline void setmaxnreg_dec(void) {}
inline void setmaxnreg_inc(void) {}
#endif

// A stage that is filled or read next, and the phase of its flags then.
typedef struct {
    int stage;
    uint phase;
} PipelineState;

inline void go_on(PipelineState *place)
{
    if (++place->stage == STAGES) {
        place->stage = 0;
        place->phase ^= 1;
    }
}

// The stages in local memory, their flags, and what is copied to them: steps of a and b.
typedef struct {
    uint start;
    __local Mbarrier *full, *empty;
    __global const uint4 *a, *b;
    int pitch, steps, done;     // steps of the tile, and those that were multiplied
} Ring;

inline Ring ring_of(__local uint4 *shared)
{
    __local Mbarrier *flags = (__local Mbarrier *)(shared + STAGES * STAGE);
    const Ring ring = {(uint)(size_t)shared, flags, flags + STAGES, 0, 0, 0, 0, 0};
    return ring;
}

// By one work-item, before a barrier.
inline void ready(const Ring *ring)
{
    for (int stage = 0; stage < STAGES; ++stage) {
        mbarrier_init(ring->full + stage, 1);
        if (PRODUCER) mbarrier_init(ring->empty + stage, GROUPS);
        else ring->empty[stage] = 0;
    }
    fence_mbarrier_init();
}

inline uint stage_at(const Ring *ring, const int stage)
{
    return ring->start + stage * (16 * STAGE);
}

inline void fill(const Ring *ring, const int stage, const int step)
{
    mbarrier_expect_stage(ring->full + stage, TILE_N);
    copy_rows(stage_at(ring, stage), ring->a + (size_t)step * A_STEP, ring->pitch,
              ring->full + stage);
    copy_columns(stage_at(ring, stage), ring->b + (size_t)step * B_STEP(TILE_N),
                 ring->full + stage, TILE_N);
}

// A warp group has done with a stage.
inline void release_stage(Ring *ring, const int stage)
{
    const bool one = get_local_id(0) % WARP_GROUP == 0;
#if PRODUCER
    if (one) mbarrier_arrive(ring->empty + stage);
#else
    // Another step takes the place of the one before.
    if (one && ring->done + STAGES < ring->steps
        && (GROUPS == 1
            || atomic_inc((__local int *)(ring->empty + stage)) % GROUPS == GROUPS - 1))
        fill(ring, stage, ring->done + STAGES);
    ++ring->done;
#endif
}

// sums [width / 8][4] = this lane's of so many rounds, whose steps come to `place`
inline void add_rounds(float (*sums)[4], Ring *ring, PipelineState *place, const int rounds,
                       const int width)
{
    float part[2 * BLOCKS_N][4], rest[2 * BLOCKS_N][4];
    int before = 0;
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e) sums[j][e] = part[j][e] = rest[j][e] = 0;
    for (int round = 0; round < rounds; ++round) {
UNROLLED
        for (int step = 0; step < SLICE / STEP; ++step) {
            mbarrier_wait(ring->full + place->stage, place->phase);
            add_step(SPLITS == 2 ? part : sums, rest, stage_at(ring, place->stage),
                     SPLITS == 2 && step == 0, width);
            WGMMA_WAIT(1);
            if (step > 0 || (SPLITS == 1 && round > 0)) release_stage(ring, before);
            before = place->stage;
            go_on(place);
        }
#if SPLITS == 2
        WGMMA_WAIT(0);
        WRITTEN_SOME(width, part);
        release_stage(ring, before);
UNROLLED
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
            for (int e = 0; e < 4; ++e)
                if (8 * j < width) sums[j][e] += part[j][e];
#endif
    }
    WGMMA_WAIT(0);
#if SPLITS == 2
    WRITTEN_SOME(width, rest);
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e)
            if (8 * j < width) sums[j][e] = fma(rest[j][e], 1 / LOW_SCALE, sums[j][e]);
#else
    release_stage(ring, before);
    WRITTEN_SOME(width, sums);
#endif
}

// As in mma.h: sums = this lane's of the tile at `tile`, of rounds `from` to `to`.
inline int multiply(float (*all)[2 * BLOCKS_N][4], __local uint4 *shared,
                     __global const uint4 *a, __global const uint4 *b, const int2 tile,
                     const int blocks, const int from, const int to)
{
    const int id = get_local_id(0);
    Ring ring = ring_of(shared);
    ring.a = a + part_at(tile.s0, from * SLICE * BLOCK, blocks, A_ROWS);
    ring.b = b + part_at(tile.s1, from * SLICE * BLOCK, blocks, TILE_N);
    ring.pitch = blocks * A_PIECE;
    ring.steps = (to - from) * (SLICE / STEP);
    if (id == 0) {
        ready(&ring);
        for (int stage = 0; !PRODUCER && stage < min(STAGES, ring.steps); ++stage)
            fill(&ring, stage, stage);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    PipelineState place = {0, 0};
#if PRODUCER
    if (id >= CONSUMERS) {
        for (int step = 0; id == CONSUMERS && step < ring.steps; ++step) {
            mbarrier_wait(ring.empty + place.stage, place.phase ^ 1);
            fill(&ring, place.stage, step);
            go_on(&place);
        }
        return 0;
    }
#endif
    add_rounds(all[0], &ring, &place, to - from, TILE_N);
    return 1;
}

#else
// The same in plain C, of values as they come.
inline float half_at(__global const uint4 *parts, const size_t part, const int plane,
                     const int k)
{
    return vload_half(8 * (part + plane) + k % 8, (__global const half *)parts);
}

inline void multiply_width(float (*sums)[4], __global const uint4 *a,
                           __global const uint4 *b, const int2 tile, const int blocks,
                           const int from, const int to, const int width)
{
    for (int j = 0; j < width / 8; ++j)
        for (int e = 0; e < 4; ++e) {
            const int m = tile.s0 + ROW_OF(e / 2), n = tile.s1 + COLUMN_OF(j) + e % 2;
            float main = 0, rest = 0;
            for (int k = from * SLICE * BLOCK; k < to * SLICE * BLOCK; ++k) {
                const size_t row = part_at(m, k, blocks, A_ROWS);
                const size_t column = part_at(n, k, blocks, width);
                const float x = half_at(a, row, 0, k), y = half_at(b, column, 0, k);
                main += x * y;
                if (SPLITS == 2)
                    rest += x * half_at(b, column, B_PLANE(width), k)
                            + half_at(a, row, A_PLANE, k) * y;
            }
            sums[j][e] = fma(rest, 1 / LOW_SCALE, main);
        }
}

inline int multiply(float (*all)[2 * BLOCKS_N][4], __local uint4 *shared,
                     __global const uint4 *a, __global const uint4 *b, const int2 tile,
                     const int blocks, const int from, const int to)
{
    multiply_width(all[0], a, b, tile, blocks, from, to, TILE_N);
    return get_local_id(0) < CONSUMERS;
}
#endif

// Products of matrices by wgmma (NVIDIA, compute capability 9.0), whose Tensor Cores read
// both operands from local memory and serve 128 work-items, a warp group, at once:
//
//     c(m, n) = sum over k of a(m, k) b(n, k)
//
// The operands are those that pack_tiles.cl packs (fp16_split.h): a in panels of 64 rows,
// b in panels of TILE_N. Each warp group of a work-group multiplies one panel of a, and
// all of them the same panel of b. Bulk copies fill a pipeline of STAGES steps; a `full`
// mbarrier completes with a stage's bytes (bulk_copy.h). If PRODUCER is not 0, a producer
// warp refills stages that all warp groups have released, by an `empty` mbarrier; else the
// last warp group to release a stage refills it:
//
//     copies     | stage 0 | 1 | 2 | …        | 0 | 1 | …
//     products             | 0 | 1 | 2 | … add to sums | 0 | …
//
// The interface is that of mma.h. Local memory starts on 128 bytes, the size of a core
// matrix; it may be all of a compute unit's, more than OpenCL reports.
//
// TILE_M, TILE_N    rows of a group, 64 for each warp group, and columns: 32 to 256
// WARPS_M, WARPS_N  4 for each warp group, and 1: warps along rows and columns
// STEP              blocks of 16 terms of a pipeline stage
// STAGES            pipeline stages in local memory: 2 or more
// SLICE             blocks of terms that Tensor Cores accumulate: STEP, 2 STEP or 4 STEP
// PRODUCER          0: the consumers copy; 1: a producer warp copies; 2: a producer warp
//                   group leaves the two others its registers, its first work-item
//                   copies, and it ends (going on with the consumers, in code for few
//                   registers, is slow)
// NARROW            columns of tiles narrower than TILE_N, if there are any
// SWIZZLE           as in products.h
// SPLITS            as in fp16_split.h
// PTX               90: wgmma; else plain C
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
#define A_ROWS 64                                    // rows of a panel of a
#define A_SPLIT (2 * A_ROWS)                         // 4-word vectors of 16 terms of it
#define A_BLOCK (SPLITS * A_SPLIT)
#define B_SPLIT(width) (2 * (width))                 // of b, in tiles of `width` columns
#define B_STEP(width) (STEP * SPLITS * B_SPLIT(width))
#define A_STEP (STEP * A_BLOCK)
#define STAGE (GROUPS * A_STEP + B_STEP(TILE_N))
#define SHARED (STAGES * (STAGE + 1))                // a stage has two mbarriers
#define ROUND SLICE                                  // blocks of terms of a round

#define LANE (get_local_id(0) % WARP)
#define ROW_OF(i) (get_local_id(0) / WARP * BLOCK + 8 * (i) + LANE / 4)
#define COLUMN_OF(j) (8 * (j) + 2 * (LANE % 4))

// The offset, in 4-word vectors, of 8 terms of a row, in an operand of panels of `panel`
// rows: a row of a core matrix.
static inline size_t core_row_offset(const int row, const int k, const int blocks,
                                     const int panel)
{
    return ((size_t)(row / panel) * blocks + k / BLOCK) * SPLITS * 2 * panel
           + row % panel / 8 * 16 + k % BLOCK / 8 * 8 + row % 8;
}

// As in mma.h.
#define SPLIT_STRIDE (4 * A_SPLIT)
static inline size_t pair_offset(const int m, const int k, const int blocks)
{
    return 4 * core_row_offset(m, k, blocks, A_ROWS) + k % 8 / 2;
}

#if PTX == 90
#include "tensor_core/bulk_copy.h"
// A compiler for an older target refuses these instructions: they pass it as comments
// (program.py).
#define WGMMA_FENCE() asm volatile("//sm_90a wgmma.fence.sync.aligned;\n" ::: "memory")
#define WGMMA_COMMIT() \
    asm volatile("//sm_90a wgmma.commit_group.sync.aligned;\n" ::: "memory")
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
#define CONCAT(name, columns) name##columns
#define CONCAT_VALUE(name, columns) CONCAT(name, columns)
#define ACCUMULATORS(width, d) CONCAT_VALUE(SUMS_, width)(d)
#define NAMES(width) CONCAT_VALUE(NAMES_, width)
#define QUOTED(columns) #columns
#define SHAPE_OF(columns) "m64n" QUOTED(columns) "k16"

// sums [width / 8][4], distributed over lanes as in mma.h, = products of 64 rows and
// `width` columns of 16 terms; += if more
#define WGMMA(width, sums, a, b, more)                                                   \
    asm volatile(                                                                        \
        "{ .reg .pred more; setp.ne.b32 more, %[add], 0;\n"                              \
        "//sm_90a wgmma.mma_async.sync.aligned." SHAPE_OF(width) ".f32.f16.f16 "         \
        "{" NAMES(width) "}, %[rows], %[columns], more, 1, 1, 0, 0;\n}"                  \
        : ACCUMULATORS(width, sums)                                                      \
        : [rows] "l"(a), [columns] "l"(b), [add] "r"(more) : "memory")

// Accumulators are read after this fence, not before.
#define WGMMA_FENCE_OPERAND(width, sums) \
    asm volatile("" : ACCUMULATORS(width, sums) :: "memory")

// The same of a width that is constant, but no literal.
#ifdef NARROW
#define WGMMA_WIDTH(width, sums, a, b, more)                                             \
    if ((width) == TILE_N) WGMMA(TILE_N, sums, a, b, more);                              \
    else WGMMA(NARROW, sums, a, b, more)
#define WGMMA_FENCE_OPERAND_WIDTH(width, sums)                                           \
    if ((width) == TILE_N) WGMMA_FENCE_OPERAND(TILE_N, sums);                            \
    else WGMMA_FENCE_OPERAND(NARROW, sums)
#else
#define WGMMA_WIDTH(width, sums, a, b, more) WGMMA(TILE_N, sums, a, b, more)
#define WGMMA_FENCE_OPERAND_WIDTH(width, sums) WGMMA_FENCE_OPERAND(TILE_N, sums)
#endif

// The matrix descriptor of a split at address `at`: core matrices are 128 bytes apart
// along terms, 256 along rows; all in units of 16 bytes.
static inline ulong matrix_descriptor(const uint at)
{
    return (at & 0x3ffff) >> 4 | (ulong)(128 >> 4) << 16 | (ulong)(256 >> 4) << 32;
}

// Start the copy of 4-word vectors, whose bytes an mbarrier expects.
static inline void copy_vectors(const uint to, __global const uint4 *from,
                                const int vectors, __local Mbarrier *mbarrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(16 * vectors), "r"((uint)(size_t)mbarrier)
                 : "memory");
}

// A stage's mbarrier expects the bytes of a step.
static inline void mbarrier_expect_stage(__local Mbarrier *mbarrier, const int width)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"((uint)(size_t)mbarrier),
                 "r"(16 * (GROUPS * A_STEP + B_STEP(width))) : "memory");
}

// Start the copy of a step of a to the stage at `to`; panels lie `pitch` vectors apart.
static inline void load_a(const uint to, __global const uint4 *a, const int pitch,
                          __local Mbarrier *mbarrier)
{
UNROLLED
    for (int i = 0; i < GROUPS; ++i)
        copy_vectors(to + 16 * i * A_STEP, a + (size_t)i * pitch, A_STEP, mbarrier);
}

// The same of b.
static inline void load_b(const uint to, __global const uint4 *b,
                          __local Mbarrier *mbarrier, const int width)
{
    copy_vectors(to + 16 * GROUPS * A_STEP, b, B_STEP(width), mbarrier);
}

// sums (+)= products of a stage, of STEP blocks of terms; begin: sums start at zero. If
// SPLITS is 2, low += those of the low halves.
static inline void mma_stage(float (*sums)[4], float (*low)[4], const uint stage,
                             const int begin, const int width)
{
    const ulong rows =
        matrix_descriptor(stage + get_local_id(0) / WARP_GROUP * (16 * A_STEP));
    const ulong columns = matrix_descriptor(stage + 16 * GROUPS * A_STEP);
    WGMMA_FENCE();
UNROLLED
    for (int k = 0; k < STEP; ++k) {
        const ulong x = rows + k * A_BLOCK, y = columns + k * SPLITS * B_SPLIT(width);
        WGMMA_WIDTH(width, sums, x, y, !begin || k > 0);
#if SPLITS == 2
        WGMMA_WIDTH(width, low, x, y + B_SPLIT(width), 1);
        WGMMA_WIDTH(width, low, x + A_SPLIT, y, 1);
#endif
    }
    WGMMA_COMMIT();
}

#if PRODUCER == 2
// Each of three warp groups' work-items begins with 168 registers.
static inline void setmaxnreg_dec(void)
{
    asm volatile("//sm_90a setmaxnreg.dec.sync.aligned.u32 24;\n" ::: "memory");
}

static inline void setmaxnreg_inc(void)
{
    asm volatile("//sm_90a setmaxnreg.inc.sync.aligned.u32 240;\n" ::: "memory");
}
#else
static inline void setmaxnreg_dec(void) {}
static inline void setmaxnreg_inc(void) {}
#endif

// The next stage to fill or to read, and the phase of its mbarriers then.
typedef struct {
    int stage;
    uint phase;
} PipelineState;

static inline void advance(PipelineState *state)
{
    if (++state->stage == STAGES) {
        state->stage = 0;
        state->phase ^= 1;
    }
}

// The stages in local memory, their mbarriers, and the operands that fill them.
typedef struct {
    uint start;
    __local Mbarrier *full, *empty;
    __global const uint4 *a, *b;
    int pitch, steps, released; // steps of the tile, and those released
} Pipeline;

static inline Pipeline pipeline_of(__local uint4 *shared)
{
    __local Mbarrier *mbarriers = (__local Mbarrier *)(shared + STAGES * STAGE);
    const Pipeline pipeline = {
        (uint)(size_t)shared, mbarriers, mbarriers + STAGES, 0, 0, 0, 0, 0
    };
    return pipeline;
}

// By one work-item, before a barrier.
static inline void pipeline_init(const Pipeline *pipeline)
{
    for (int stage = 0; stage < STAGES; ++stage) {
        mbarrier_init(pipeline->full + stage, 1);
        if (PRODUCER) mbarrier_init(pipeline->empty + stage, GROUPS);
        else pipeline->empty[stage] = 0;
    }
    fence_mbarrier_init();
}

static inline uint stage_address(const Pipeline *pipeline, const int stage)
{
    return pipeline->start + stage * (16 * STAGE);
}

static inline void load_stage(const Pipeline *pipeline, const int stage, const int step)
{
    mbarrier_expect_stage(pipeline->full + stage, TILE_N);
    load_a(stage_address(pipeline, stage), pipeline->a + (size_t)step * A_STEP,
           pipeline->pitch, pipeline->full + stage);
    load_b(stage_address(pipeline, stage), pipeline->b + (size_t)step * B_STEP(TILE_N),
           pipeline->full + stage, TILE_N);
}

// A warp group releases a stage.
static inline void release_stage(Pipeline *pipeline, const int stage)
{
    const bool elected = get_local_id(0) % WARP_GROUP == 0;
#if PRODUCER
    if (elected) mbarrier_arrive(pipeline->empty + stage);
#else
    // The last warp group refills it.
    if (elected && pipeline->released + STAGES < pipeline->steps
        && (GROUPS == 1
            || atomic_inc((__local int *)(pipeline->empty + stage)) % GROUPS == GROUPS - 1))
        load_stage(pipeline, stage, pipeline->released + STAGES);
    ++pipeline->released;
#endif
}

// The consumers' mainloop: sums [width / 8][4] = this lane's accumulators of `rounds`
// rounds, whose steps arrive from `state` on.
static inline void consume(float (*sums)[4], Pipeline *pipeline, PipelineState *state,
                           const int rounds, const int width)
{
    float partial[2 * BLOCKS_N][4], low[2 * BLOCKS_N][4];
    int previous = 0;
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e) sums[j][e] = partial[j][e] = low[j][e] = 0;
    for (int round = 0; round < rounds; ++round) {
UNROLLED
        for (int step = 0; step < SLICE / STEP; ++step) {
            mbarrier_wait(pipeline->full + state->stage, state->phase);
            mma_stage(SPLITS == 2 ? partial : sums, low,
                      stage_address(pipeline, state->stage), SPLITS == 2 && step == 0,
                      width);
            WGMMA_WAIT(1);
            if (step > 0 || (SPLITS == 1 && round > 0)) release_stage(pipeline, previous);
            previous = state->stage;
            advance(state);
        }
#if SPLITS == 2
        WGMMA_WAIT(0);
        WGMMA_FENCE_OPERAND_WIDTH(width, partial);
        release_stage(pipeline, previous);
UNROLLED
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
            for (int e = 0; e < 4; ++e)
                if (8 * j < width) sums[j][e] += partial[j][e];
#endif
    }
    WGMMA_WAIT(0);
#if SPLITS == 2
    WGMMA_FENCE_OPERAND_WIDTH(width, low);
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e)
            if (8 * j < width) sums[j][e] = fma(low[j][e], 1 / LOW_SCALE, sums[j][e]);
#else
    release_stage(pipeline, previous);
    WGMMA_FENCE_OPERAND_WIDTH(width, sums);
#endif
}

// As in mma.h: sums = this lane's accumulators of the tile at `tile`, of rounds `from` to
// `to`.
static inline int mainloop(float (*sums)[2 * BLOCKS_N][4], __local uint4 *shared,
                           __global const uint4 *a, __global const uint4 *b,
                           const int2 tile, const int blocks, const int from,
                           const int to)
{
    const int id = get_local_id(0);
    Pipeline pipeline = pipeline_of(shared);
    pipeline.a = a + core_row_offset(tile.s0, from * SLICE * BLOCK, blocks, A_ROWS);
    pipeline.b = b + core_row_offset(tile.s1, from * SLICE * BLOCK, blocks, TILE_N);
    pipeline.pitch = blocks * A_BLOCK;
    pipeline.steps = (to - from) * (SLICE / STEP);
    if (id == 0) {
        pipeline_init(&pipeline);
        for (int stage = 0; !PRODUCER && stage < min(STAGES, pipeline.steps); ++stage)
            load_stage(&pipeline, stage, stage);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    PipelineState state = {0, 0};
#if PRODUCER
    if (id >= CONSUMERS) {
        for (int step = 0; id == CONSUMERS && step < pipeline.steps; ++step) {
            mbarrier_wait(pipeline.empty + state.stage, state.phase ^ 1);
            load_stage(&pipeline, state.stage, step);
            advance(&state);
        }
        return 0;
    }
#endif
    consume(sums[0], &pipeline, &state, to - from, TILE_N);
    return 1;
}

#else
// The same in plain C, without a pipeline. The producer's work-items, which have no rows
// of the tile, do nothing.
static inline float half_at(__global const uint4 *packed, const size_t core_row,
                            const int split, const int k)
{
    return vload_half(8 * (core_row + split) + k % 8, (__global const half *)packed);
}

static inline void mainloop_width(float (*sums)[4], __global const uint4 *a,
                                  __global const uint4 *b, const int2 tile,
                                  const int blocks, const int from, const int to,
                                  const int width)
{
    if (get_local_id(0) >= CONSUMERS) return;
    for (int j = 0; j < width / 8; ++j)
        for (int e = 0; e < 4; ++e) {
            const int m = tile.s0 + ROW_OF(e / 2), n = tile.s1 + COLUMN_OF(j) + e % 2;
            float high = 0, low = 0;
            for (int k = from * SLICE * BLOCK; k < to * SLICE * BLOCK; ++k) {
                const size_t row = core_row_offset(m, k, blocks, A_ROWS);
                const size_t column = core_row_offset(n, k, blocks, width);
                const float x = half_at(a, row, 0, k), y = half_at(b, column, 0, k);
                high += x * y;
                if (SPLITS == 2)
                    low += x * half_at(b, column, B_SPLIT(width), k)
                           + half_at(a, row, A_SPLIT, k) * y;
            }
            sums[j][e] = fma(low, 1 / LOW_SCALE, high);
        }
}

static inline int mainloop(float (*sums)[2 * BLOCKS_N][4], __local uint4 *shared,
                           __global const uint4 *a, __global const uint4 *b,
                           const int2 tile, const int blocks, const int from,
                           const int to)
{
    mainloop_width(sums[0], a, b, tile, blocks, from, to, TILE_N);
    return get_local_id(0) < CONSUMERS;
}
#endif

// Narrow layers in sequence, of a warp's samples: activations stay in registers, and a
// pipeline copies the weights, shared by all warps, to local memory.
//
// WARPS     of a group
// ROWS_M    blocks of 16 samples of a warp: each block of weights is read once for all
// STAGES    0: all weights stay in local memory; else pipeline stages of a chunk each, of
//           which one is read while the others are in flight
// HELD      most blocks of a sample's values in registers
// ALL       blocks of weights, in the order of their use
// FIRST, HIDDEN, LAST, CHUNK, …  as in narrow_layers.h
#if !defined(WARPS) || !defined(ROWS_M) || !defined(STAGES) || !defined(HELD) \
    || !defined(ALL)
#error "pipeline.h needs WARPS, ROWS_M, STAGES, HELD and ALL"
#endif
#define SAMPLES (WARPS * ROWS_M * BLOCK)  // of a group's tile
#define ITEMS (WARPS * WARP)

// A lane's fragments of 16 samples: [block][split][word].
typedef uint Fragments[HELD][SPLITS][4];

// Access to `terms` blocks of a warp's fragments, and memory for its shuffles. In plain C
// both are in local memory, the warp's `exchange`.
#if PTX >= 80
#define EXCHANGE_VECTORS 1
#define STAGE_WORDS(rows, terms, exchange)
#define ROWS(m, k, p) \
    (uint4)(rows[m][k][p][0], rows[m][k][p][1], rows[m][k][p][2], rows[m][k][p][3])
#define SHUFFLE_SPACE(exchange) 0
#else
#define STAGED_VECTORS (ROWS_M * HELD * SPLITS * WARP)  // of a warp; then WARP words
#define EXCHANGE_VECTORS (WARPS * (STAGED_VECTORS + WARP / 4))
#define STAGE_WORDS(rows, terms, exchange) stage_words(rows, terms, exchange)
#define ROWS(m, k, p) FRAGMENT(exchange + (((m) * HELD + (k)) * SPLITS + (p)) * WARP, 0)
#define SHUFFLE_SPACE(exchange) ((__local uint *)((exchange) + STAGED_VECTORS))
static inline void stage_words(Fragments *rows, const int terms, __local uint4 *exchange)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ROWS_M * terms * SPLITS; ++i) {
        const int m = i / SPLITS / terms, k = i / SPLITS % terms, p = i % SPLITS;
        const uint *words = rows[m][k][p];
        exchange[((m * HELD + k) * SPLITS + p) * WARP + get_local_id(0) % WARP] =
            (uint4)(words[0], words[1], words[2], words[3]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#endif

// The pipeline of weights through local memory.
typedef struct {
    __local uint4 *shared;
    __global const uint4 *weights;
    __local const uint4 *chunk;  // the chunk to read
    int stage, next;             // its stage; the next chunk to copy
} Pipeline;

// Start the copy of `count` vectors of weights to local memory.
static inline void copy_weights(__local uint4 *to, __global const uint4 *from,
                                const int count)
{
UNROLLED
    for (int start = 0; start < count; start += ITEMS) {
        const int i = start + get_local_id(0);
        if (count % ITEMS == 0 || i < count) cp_async(to + i, from + i);
    }
    CP_ASYNC_COMMIT();
}

// A pipeline with its first chunks in flight. If STAGES is 0, CP_ASYNC_WAIT(0) and a
// barrier precede the first product.
static inline Pipeline pipeline_begin(__local uint4 *shared,
                                      __global const uint4 *weights)
{
#if STAGES > 0
    for (int i = 0; i < STAGES - 1; ++i)
        copy_weights(shared + i * CHUNK * BLOCK_VECTORS,
                     weights + i % (ALL / CHUNK) * CHUNK * BLOCK_VECTORS,
                     CHUNK * BLOCK_VECTORS);
    const Pipeline pipeline = {shared, weights, shared, 0, (STAGES - 1) % (ALL / CHUNK)};
#else
    copy_weights(shared, weights, ALL * BLOCK_VECTORS);
    const Pipeline pipeline = {shared, weights, shared, 0, 0};
#endif
    return pipeline;
}

// Advance to the next chunk, and start the copy of another into the released stage.
#if STAGES > 0
static inline void pipeline_advance(Pipeline *pipeline)
{
    CP_ASYNC_WAIT(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);  // also releases the previous stage
    const int previous = (pipeline->stage == 0 ? STAGES : pipeline->stage) - 1;
    copy_weights(pipeline->shared + previous * CHUNK * BLOCK_VECTORS,
                 pipeline->weights + pipeline->next * CHUNK * BLOCK_VECTORS,
                 CHUNK * BLOCK_VECTORS);
    pipeline->chunk = pipeline->shared + pipeline->stage * CHUNK * BLOCK_VECTORS;
    pipeline->stage = pipeline->stage + 1 == STAGES ? 0 : pipeline->stage + 1;
    pipeline->next = pipeline->next + 1 == ALL / CHUNK ? 0 : pipeline->next + 1;
}
#define PIPELINE_SEEK(pipeline, start)
#else
#define PIPELINE_SEEK(pipeline, start) \
    (pipeline)->chunk = (pipeline)->shared + (start) * BLOCK_VECTORS
#endif

// sums += products of rows with the weights of a block of 16 neurons; rest += those of
// the low halves, scaled by LOW_SCALE
//
// terms: blocks; first: the index of its first block among the layer's
static inline void add_products(float (*sums)[2][4], float (*low)[2][4],
                                Fragments *rows, const int terms, const int first,
                                Pipeline *pipeline, __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
UNROLLED
    for (int k = 0; k < terms; ++k) {
#if STAGES > 0
        const int block = (first + k) % CHUNK;
        if (block == 0) pipeline_advance(pipeline);
#else
        const int block = first + k;
#endif
        Fragment columns[SPLITS];
UNROLLED
        for (int p = 0; p < SPLITS; ++p)
            columns[p] = FRAGMENT(pipeline->chunk + (block * SPLITS + p) * WARP, lane);
UNROLLED
        for (int m = 0; m < ROWS_M; ++m)
UNROLLED
            for (int side = 0; side < 2; ++side) {
                mma_m16n8k16(sums[m][side], ROWS(m, k, 0), columns[0], side);
#if SPLITS == 2
                mma_m16n8k16(low[m][side], ROWS(m, k, 0), columns[1], side);
                mma_m16n8k16(low[m][side], ROWS(m, k, 1), columns[0], side);
#endif
            }
    }
}

// A lane's four sums of sample g + 8 h.
static inline float4 sum_of(float (*sums)[4], float (*low)[4], const int h)
{
#if SPLITS == 2
    return accumulator_row(sums, h) + accumulator_row(low, h) / LOW_SCALE;
#else
    return accumulator_row(sums, h);
#endif
}

static inline void copy_fragments(Fragments *rows, Fragments *from)
{
UNROLLED
    for (int m = 0; m < ROWS_M; ++m)
UNROLLED
        for (int k = 0; k < HIDDEN; ++k)
UNROLLED
            for (int i = 0; i < SPLITS * 4; ++i)
                rows[m][k][i / 4][i % 4] = from[m][k][i / 4][i % 4];
}

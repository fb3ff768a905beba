// Narrow layers one after the other, of a warp's samples: values stay in its lanes, and
// weights, which are all that passes through local memory, are the same for all warps.
//
// WARPS     of a group
// ROWS_M    blocks of 16 samples of a warp: each block of weights is read once for all
// STAGES    0: all weights stay in local memory; else so many chunks of them, in turn,
//           one of which is multiplied while the others are on their way
// HELD      most blocks of a sample's values that lanes hold
// ALL       blocks of weights, in the order of their use
// others    as in narrow_layers.h
#if !defined(WARPS) || !defined(ROWS_M) || !defined(STAGES) || !defined(HELD) \
    || !defined(ALL)
#error "pipeline.h needs WARPS, ROWS_M, STAGES, HELD and ALL"
#endif
#define SAMPLES (WARPS * ROWS_M * BLOCK)  // of a group
#define ITEMS (WARPS * WARP)

// Halves of a lane's values of 16 samples: [block][plane][word].
typedef uint Words[HELD][SPLITS][4];

// Fragments of a warp's words, and room for what its lanes tell each other. In plain C
// both are in local memory, a warp's `exchange`.
#if PTX >= 80
#define EXCHANGED 1
#define STAGE_WORDS(rows, exchange)
#define ROWS(m, k, p) \
    (uint4)(rows[m][k][p][0], rows[m][k][p][1], rows[m][k][p][2], rows[m][k][p][3])
#define FEW(exchange) 0
#else
#define STAGED (ROWS_M * HELD * SPLITS * WARP)    // words of a warp; behind them WARP
#define EXCHANGED (WARPS * (STAGED + WARP / 4))   // values
#define STAGE_WORDS(rows, exchange) stage_words(rows, exchange)
#define ROWS(m, k, p) FRAGMENT(exchange + (((m) * HELD + (k)) * SPLITS + (p)) * WARP, 0)
#define FEW(exchange) ((__local uint *)((exchange) + STAGED))
inline void stage_words(Words *rows, __local uint4 *exchange)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ROWS_M * HELD * SPLITS; ++i) {
        const uint *words = rows[i / SPLITS / HELD][i / SPLITS % HELD][i % SPLITS];
        exchange[i * WARP + get_local_id(0) % WARP] =
            (uint4)(words[0], words[1], words[2], words[3]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#endif

// Weights on their way through local memory.
typedef struct {
    __local uint4 *shared;
    __global const uint4 *weights;
    __local const uint4 *part;  // the chunk whose turn it is
    int place, next;            // its place; number of the chunk that comes next
} Pipeline;

// Start to copy words of weights to local memory.
inline void copy_weights(__local uint4 *to, __global const uint4 *from, const int count)
{
UNROLLED
    for (int start = 0; start < count; start += ITEMS) {
        const int i = start + get_local_id(0);
        if (count % ITEMS == 0 || i < count) cp_async(to + i, from + i);
    }
    CP_ASYNC_COMMIT();
}

// The pipeline, its first chunks on their way; where all stay, before the first product:
// CP_ASYNC_WAIT(0) and a barrier.
inline Pipeline pipeline_begin(__local uint4 *shared, __global const uint4 *weights)
{
#if STAGES > 0
    for (int i = 0; i < STAGES - 1; ++i)
        copy_weights(shared + i * CHUNK * PART,
                     weights + i % (ALL / CHUNK) * CHUNK * PART, CHUNK * PART);
    const Pipeline pipeline = {shared, weights, shared, 0, (STAGES - 1) % (ALL / CHUNK)};
#else
    copy_weights(shared, weights, ALL * PART);
    const Pipeline pipeline = {shared, weights, shared, 0, 0};
#endif
    return pipeline;
}

// Go on to the next chunk, and start to copy the one that takes the place of the last.
#if STAGES > 0
inline void pipeline_advance(Pipeline *pipeline)
{
    CP_ASYNC_WAIT(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the chunk before
    const int before = (pipeline->place == 0 ? STAGES : pipeline->place) - 1;
    copy_weights(pipeline->shared + before * CHUNK * PART,
                 pipeline->weights + pipeline->next * CHUNK * PART, CHUNK * PART);
    pipeline->part = pipeline->shared + pipeline->place * CHUNK * PART;
    pipeline->place = pipeline->place + 1 == STAGES ? 0 : pipeline->place + 1;
    pipeline->next = pipeline->next + 1 == ALL / CHUNK ? 0 : pipeline->next + 1;
}
#define BEGIN_WITH(pipeline, start)
#else
#define BEGIN_WITH(pipeline, start) (pipeline)->part = (pipeline)->shared + (start) * PART
#endif

// sums += products of rows with the weights of a block of 16 neurons; rest += those with
// low halves, LOW_SCALE times as large
//
// terms: blocks; first: which block of the layer's weights is the first one's
inline void add_products(float (*sums)[2][4], float (*rest)[2][4], Words *rows,
                         const int terms, const int first, Pipeline *pipeline,
                         __local uint4 *exchange)
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
            columns[p] = FRAGMENT(pipeline->part + (block * SPLITS + p) * WARP, lane);
UNROLLED
        for (int m = 0; m < ROWS_M; ++m)
UNROLLED
            for (int side = 0; side < 2; ++side) {
                multiply_add(sums[m][side], ROWS(m, k, 0), columns[0], side);
#if SPLITS == 2
                multiply_add(rest[m][side], ROWS(m, k, 0), columns[1], side);
                multiply_add(rest[m][side], ROWS(m, k, 1), columns[0], side);
#endif
            }
    }
}

// A lane's four sums of 16 samples' row half h.
inline float4 sum_of(float (*sums)[4], float (*rest)[4], const int h)
{
#if SPLITS == 2
    return four_of(sums, h) + four_of(rest, h) / LOW_SCALE;
#else
    return four_of(sums, h);
#endif
}

inline void copy_rows(Words *rows, Words *from)
{
UNROLLED
    for (int i = 0; i < ROWS_M * HIDDEN * SPLITS * 4; ++i) {
        const int m = i / (HIDDEN * SPLITS * 4), k = i / (SPLITS * 4) % HIDDEN;
        rows[m][k][i / 4 % SPLITS][i % 4] = from[m][k][i / 4 % SPLITS][i % 4];
    }
}

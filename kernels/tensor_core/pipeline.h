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
typedef uint Words[HELD][PLANES][4];

// Fragments of a warp's words, and room for what its lanes tell each other. In plain C
// both are in local memory, a warp's `exchange`.
#if PTX >= 80
#define EXCHANGED 1
#define STAGE_WORDS(rows, exchange)
#define ROWS(m, k, p) \
    (uint4)(rows[m][k][p][0], rows[m][k][p][1], rows[m][k][p][2], rows[m][k][p][3])
#define FEW(exchange) 0
#else
#define STAGED (ROWS_M * HELD * PLANES * WARP)    // words of a warp; behind them WARP
#define EXCHANGED (WARPS * (STAGED + WARP / 4))   // values
#define STAGE_WORDS(rows, exchange) stage_words(rows, exchange)
#define ROWS(m, k, p) FRAGMENT(exchange + (((m) * HELD + (k)) * PLANES + (p)) * WARP, 0)
#define FEW(exchange) ((__local uint *)((exchange) + STAGED))
inline void stage_words(Words *rows, __local uint4 *exchange)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ROWS_M * HELD * PLANES; ++i) {
        const uint *words = rows[i / PLANES / HELD][i / PLANES % HELD][i % PLANES];
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
} Feed;

// Start to copy words of weights to local memory.
inline void copy_weights(__local uint4 *to, __global const uint4 *from, const int count)
{
UNROLLED
    for (int start = 0; start < count; start += ITEMS) {
        const int i = start + get_local_id(0);
        if (count % ITEMS == 0 || i < count) copy_words(to + i, from + i);
    }
    DEPART();
}

// The feed, its first chunks on their way; where all stay, before the first product:
// ARRIVED(0) and a barrier.
inline Feed begun(__local uint4 *shared, __global const uint4 *weights)
{
#if STAGES > 0
    for (int i = 0; i < STAGES - 1; ++i)
        copy_weights(shared + i * CHUNK * PART,
                     weights + i % (ALL / CHUNK) * CHUNK * PART, CHUNK * PART);
    const Feed feed = {shared, weights, shared, 0, (STAGES - 1) % (ALL / CHUNK)};
#else
    copy_weights(shared, weights, ALL * PART);
    const Feed feed = {shared, weights, shared, 0, 0};
#endif
    return feed;
}

// Go on to the next chunk, and start to copy the one that takes the place of the last.
#if STAGES > 0
inline void next_chunk(Feed *feed)
{
    ARRIVED(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the chunk before
    const int before = (feed->place == 0 ? STAGES : feed->place) - 1;
    copy_weights(feed->shared + before * CHUNK * PART,
                 feed->weights + feed->next * CHUNK * PART, CHUNK * PART);
    feed->part = feed->shared + feed->place * CHUNK * PART;
    feed->place = feed->place + 1 == STAGES ? 0 : feed->place + 1;
    feed->next = feed->next + 1 == ALL / CHUNK ? 0 : feed->next + 1;
}
#define BEGIN_WITH(feed, start)
#else
#define BEGIN_WITH(feed, start) (feed)->part = (feed)->shared + (start) * PART
#endif

// sums += products of rows with the weights of a block of 16 neurons; rest += those with
// low halves, LOW times as large
//
// terms: blocks; first: which block of the layer's weights is the first one's
inline void add_products(float (*sums)[2][4], float (*rest)[2][4], Words *rows,
                         const int terms, const int first, Feed *feed,
                         __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
UNROLLED
    for (int k = 0; k < terms; ++k) {
#if STAGES > 0
        const int block = (first + k) % CHUNK;
        if (block == 0) next_chunk(feed);
#else
        const int block = first + k;
#endif
        Fragment columns[PLANES];
UNROLLED
        for (int p = 0; p < PLANES; ++p)
            columns[p] = FRAGMENT(feed->part + (block * PLANES + p) * WARP, lane);
UNROLLED
        for (int m = 0; m < ROWS_M; ++m)
UNROLLED
            for (int side = 0; side < 2; ++side) {
                multiply_add(sums[m][side], ROWS(m, k, 0), columns[0], side);
#if PLANES == 2
                multiply_add(rest[m][side], ROWS(m, k, 0), columns[1], side);
                multiply_add(rest[m][side], ROWS(m, k, 1), columns[0], side);
#endif
            }
    }
}

// A lane's four sums of 16 samples' row half h.
inline float4 sum_of(float (*sums)[4], float (*rest)[4], const int h)
{
#if PLANES == 2
    return four_of(sums, h) + four_of(rest, h) / LOW;
#else
    return four_of(sums, h);
#endif
}

inline void copy_rows(Words *rows, Words *from)
{
UNROLLED
    for (int i = 0; i < ROWS_M * HIDDEN * PLANES * 4; ++i) {
        const int m = i / (HIDDEN * PLANES * 4), k = i / (PLANES * 4) % HIDDEN;
        rows[m][k][i / 4 % PLANES][i % 4] = from[m][k][i / 4 % PLANES][i % 4];
    }
}

// Tasks of groups that stay resident through all layers, and each warp's stream of
// blocks of weights.
//
// WARPS     warps of a group
// ROWS      rows of blocks of a task, at most
// CHUNK     blocks of inputs that a warp holds at once
// TASKS     tasks of a group, at most
// SPLITS, PTX  as in fp16_split.h, which is included before
#if !defined(WARPS) || !defined(ROWS) || !defined(CHUNK) || !defined(TASKS)
#error "persistent_mma_tasks.h needs WARPS, ROWS, CHUNK and TASKS"
#endif
#define BLOCK_VECTORS (SPLITS * WARP)                    // 4-word vectors of a block

// A group's work in a layer: a tile of the product, or a split-k slice of one. Offsets
// are in blocks, fragments or values.
typedef struct {
    int weights, stride;    // its first block; between rows of blocks
    int first, blocks;      // of the inputs: its slice
    int rows, reduces;      // rows of blocks; bit mask of the fragments it reduces
    int slice, slices;
    int values, scaled;     // the first fragment of its inputs; 1: they have scales
    int sums;               // the first fragment of the exchange
    int out, out_scaled;    // the first fragment of its outputs
    int next;               // blocks of the next layer's inputs; 0: outputs go to y
    int neuron, n_out;      // its first neuron; neurons of its layer
    int bias, inverse;      // offsets of its layer's; no bias: -1
    int column, function;   // its first tile of samples; its activation's code
} Task;
#define TASK_INTS (int)(sizeof(Task) / sizeof(int))

// A warp's blocks of the slice: from s0 to s1.
static inline int2 share_of(__local const Task *task, const int warp)
{
    const int blocks = task->blocks, each = (blocks + WARPS - 1) / WARPS;
    return min((int2)(warp * each, (warp + 1) * each), (int2)(blocks));
}

#if PTX >= 80
// A lane's vector of a block of weights; zeros unless `valid`.
static inline uint4 load_weights(__global const uint4 *from, const bool valid)
{
    uint4 v;
    asm volatile("{ .reg .pred valid; setp.ne.s32 valid, %5, 0;"
                 " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
                 " @valid ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(from), "r"((int)valid));
    return v;
}

// A warp's stream of blocks: its share of each task, in order.
typedef struct {
    __global const uint4 *from;     // this lane's vector of the first row's next block
    int stride, rows, left, task;   // of its task; blocks left; the next task
} Stream;

// Advance the stream to the next task in which the warp has a share, if there is one.
static inline void next_task(Stream *s, __local const Task *tasks,
                             __global const uint4 *weights)
{
    s->left = 0;
    while (s->left <= 0 && s->task < TASKS) {
        __local const Task *task = tasks + s->task++;
        const int2 share = share_of(task, get_local_id(0) / WARP);
        s->left = share.s1 - share.s0;
        s->rows = task->rows;
        s->stride = task->stride * BLOCK_VECTORS;
        s->from = weights + get_local_id(0) % WARP
                  + ((size_t)task->weights + share.s0) * BLOCK_VECTORS;
    }
}

// loaded [CHUNK, ROWS, SPLITS] = the stream's next blocks, which are then in flight
#define LOAD_BLOCKS(loaded, stream, tasks, weights)                                   \
    {                                                                                 \
        UNROLLED                                                                      \
        for (int b = 0; b < CHUNK; ++b)                                               \
            UNROLLED                                                                  \
            for (int i = 0; i < ROWS; ++i)                                            \
                UNROLLED                                                              \
                for (int p = 0; p < SPLITS; ++p)                                      \
                    loaded[b][i][p] =                                                 \
                        load_weights(stream.from + i * stream.stride                  \
                                         + b * BLOCK_VECTORS + p * WARP,              \
                                     b < stream.left && i < stream.rows);             \
        stream.from += CHUNK * BLOCK_VECTORS;                                         \
        stream.left -= CHUNK;                                                         \
        if (stream.left <= 0) next_task(&stream, tasks, weights);                     \
    }
#endif

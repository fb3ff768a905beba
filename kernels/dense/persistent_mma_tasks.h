// Tasks of groups that stay for all layers, and each warp's stream of blocks of weights.
//
// WARPS     of a group
// ROWS      rows of blocks of a task, at most
// CHUNK     blocks of inputs that a warp holds at once
// TASKS     of a group, at most
// SPLITS, PTX  as in fp16_split.h, which comes first
#if !defined(WARPS) || !defined(ROWS) || !defined(CHUNK) || !defined(TASKS)
#error "persistent_mma_tasks.h needs WARPS, ROWS, CHUNK and TASKS"
#endif
#define BOTH (SPLITS * WARP)                    // 4-word parts of a block

// What a group does in a layer. Places are in blocks, pieces or values.
typedef struct {
    int weights, pitch;     // its first block; from one row of blocks to the next
    int first, blocks;      // of the inputs: its slice
    int rows, keeps;        // rows of blocks; pieces of sums it finishes, a bit each
    int slice, slices;
    int values, scaled;     // the first piece of its inputs; whether they have scales
    int sums;               // the first piece of the exchange
    int out, out_scaled;    // the first piece of its outputs
    int next;               // blocks of the next layer's inputs; 0: outputs go to y
    int neuron, n_out;      // its first neuron, and all of its layer
    int bias, inverse;      // where those of its layer start; no bias: -1
    int column, function;   // its first tile of samples; its activation's code
} Task;
#define TASK_INTS (int)(sizeof(Task) / sizeof(int))

// The blocks of a slice that are a warp's: from s0 to s1.
inline int2 part_of(__local const Task *task, const int warp)
{
    const int blocks = task->blocks, share = (blocks + WARPS - 1) / WARPS;
    return min((int2)(warp * share, (warp + 1) * share), (int2)(blocks));
}

#if PTX >= 80
// A lane's part of a block of weights, or zeros.
inline uint4 part_at(__global const uint4 *from, const bool there)
{
    uint4 v;
    asm volatile("{ .reg .pred there; setp.ne.s32 there, %5, 0;"
                 " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
                 " @there ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(from), "r"((int)there));
    return v;
}

// A warp's stream of blocks: of its part of each task in turn.
typedef struct {
    __global const uint4 *from;     // this lane's part of the first row's next block
    int pitch, rows, left, task;    // of its task; blocks that are left; the next task
} Stream;

// Go to the stream's next task in which the warp has a part, if there is one.
inline void enter(Stream *s, __local const Task *tasks, __global const uint4 *weights)
{
    s->left = 0;
    while (s->left <= 0 && s->task < TASKS) {
        __local const Task *task = tasks + s->task++;
        const int2 part = part_of(task, get_local_id(0) / WARP);
        s->left = part.s1 - part.s0;
        s->rows = task->rows;
        s->pitch = task->pitch * BOTH;
        s->from = weights + get_local_id(0) % WARP
                  + ((size_t)task->weights + part.s0) * BOTH;
    }
}

// held [CHUNK, ROWS, SPLITS] = the stream's next blocks, once they arrive
#define FETCH(held, stream, tasks, weights)                                            \
    {                                                                                  \
        UNROLLED                                                                       \
        for (int b = 0; b < CHUNK; ++b)                                                \
            UNROLLED                                                                   \
            for (int i = 0; i < ROWS; ++i)                                             \
                UNROLLED                                                               \
                for (int p = 0; p < SPLITS; ++p)                                       \
                    held[b][i][p] =                                                    \
                        part_at(stream.from + i * stream.pitch + b * BOTH + p * WARP,  \
                                b < stream.left && i < stream.rows);                   \
        stream.from += CHUNK * BOTH;                                                   \
        stream.left -= CHUNK;                                                          \
        if (stream.left <= 0) enter(&stream, tasks, weights);                          \
    }
#endif

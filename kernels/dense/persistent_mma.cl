// persistent_mma: a chain of dense layers in one launch over all compute units, for a
// small batch, on matrix units.
//
// A small batch is bound as one sample is: by reading weights, and by waiting between
// layers. So groups stay from the first layer to the last (persistent.cl), weights are
// read once for all samples, and are on their way, into registers, while a group waits
// for values. What is new is that all groups together read the values of a layer many
// times over. Hence a group's task in a layer is a tile: some rows of blocks, some
// columns of samples, and, where rows and columns are too few for all groups, a slice
// of the inputs:
//
//              inputs: blocks of 16                   samples: columns of 8
//   neurons:   slice 0 | slice 1 | …
//   row 0      warp 0 1 2 3 | 0 1 2 3 |     x     16 inputs x 8 samples: a piece
//   row 1      warp 0 1 2 3 | 0 1 2 3 |
//
// The warps of a group divide its slice, so that each block and each piece is wanted by
// one warp alone and comes straight into its registers. Then warps add their sums in
// local memory, and groups that share a tile exchange theirs: each adds up those pieces
// of sums that it `keeps`, always in the same order. A piece is finished by four warps,
// a value a lane, since all other groups wait for it.
//
// All that groups hand over, pieces, scales (ll_fragments.h) and sums, are words transposed over,
// so that 0 means "not there yet" (ll_protocol.h), and what is not there in the end is NaN;
// launches use two sets of words in turn, and each empties the other one. The first
// layer's values nobody hands over: each warp makes its pieces of x.
//
// All groups must run at the same time; waits are bounded as in ll_protocol.h.
//
// WARPS, ROWS, CHUNK, TASKS  as in persistent_mma_tasks.h
// COLUMNS   tiles of 8 samples of a task; TILES of the batch are a multiple of it
// TOGETHER  of a task's sums, pieces that warps add at a time
// SLICES    that share a tile, at most
// PIECES    words' pieces of a set, and PARTS pieces of sums after them
// MAX_POLLS  looks at a word before the timeout
// FUNCTIONS as in functions.h; REAL (float) as in activations.h
// SPLITS (2), PTX  as in fp16_split.h
#define WIDTH 1
#include "include/activations.h"
#include "include/functions.h"
#include "tensor_core/fragments.h"
#define BACKOFF_NS 20  // leaves the way to a unit to those of its warps that tell values
#include "sync/ll_protocol.h"
#include "sync/ll_fragments.h"
#include "dense/persistent_mma_tasks.h"
#if !defined(COLUMNS) || !defined(TILES) || !defined(TOGETHER) || !defined(SLICES) \
    || !defined(PIECES) || !defined(PARTS) || !defined(MAX_POLLS)
#error "persistent_mma.cl needs COLUMNS, TILES, TOGETHER, SLICES, PIECES, PARTS and \
MAX_POLLS"
#endif
#define GROUP (WARPS * WARP)
#define SCALES ((PIECES + PARTS) * PIECE)       // where a set's scales start
#define SET (SCALES + PIECES * PIECE_SAMPLES)   // words of a set
#define SUMS (ROWS * COLUMNS)                   // a task's pieces of sums, at most
#define RUNS ((4 * SUMS + WARPS - 1) / WARPS)   // quarters that a warp finishes
#define FEW (SUMS <= 4)                         // registers have room for more
#define APART FEW                               // low products' sums apart
#define SPARE (PTX < 80)  // PoCL 3.0 shares arrays of one row among work-items

// A warp finishes quarters of a task's pieces, a value a lane: of this neuron of the
// layer, and this sample of the batch.
inline int neuron_of(__local const Task *task, const int quarter)
{
    return task->neuron + quarter / 4 / COLUMNS * BLOCK
           + neuron_in(quarter % 4, get_local_id(0) % WARP);
}
inline int sample_of(__local const Task *task, const int quarter)
{
    return (task->column + quarter / 4 % COLUMNS) * PIECE_SAMPLES
           + sample_in(quarter % 4, get_local_id(0) % WARP);
}

// What it takes.
typedef struct {
    int out;                    // the piece of the outputs
    bool has, keeps, tells;     // the task has it; the group finishes it; hands it over
    float factor, bias;
} Own;
inline Own own_of(__local const Task *task, const int quarter,
                  __global const float *inverse, __global const float *parameters)
{
    const int piece = quarter / 4, row = piece / COLUMNS;
    const int neuron = neuron_of(task, quarter);
    Own own;
    own.out = task->out + row * TILES + piece % COLUMNS;
    own.has = piece < task->rows * COLUMNS;
    own.keeps = own.has && (task->keeps >> piece & 1);
    own.tells = own.keeps && task->neuron / BLOCK + row < task->next;
    const bool live = own.keeps && neuron < task->n_out;
    own.factor = live ? inverse[task->inverse + neuron] : 0.0f;
    own.bias = live && task->bias >= 0 ? parameters[task->bias + neuron] : 0.0f;
    return own;
}

// Values k, k + 1, k + 8 and k + 9 of a sample of x, of the first n_in, or zeros.
inline float4 four_of(__global const float *x, const int ldx, const int sample,
                      const int batch, const int k, const int n_in)
{
    __global const float *from = x + (size_t)sample * ldx + k;
    const int live = sample < batch ? n_in - k : 0;
    return (float4)(live > 0 ? from[0] : 0.0f, live > 1 ? from[1] : 0.0f,
                    live > 8 ? from[8] : 0.0f, live > 9 ? from[9] : 0.0f);
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx] of n_in inputs
//
// weights    packed layers (fp16_split.h): row blocks, blocks of terms; inverse: scales
// parameters the biases
// words      [2][SET], 0 at first
// launches   [groups] the number of each group's launches so far, 0 at first
// schedule   [groups][TASKS] tasks in the order of their layers; no blocks: none
// timeout      set where a wait hit its bound
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void persistent_mma(__global const uint4 *weights, __global const float *inverse,
                    __global const float *parameters, __global const float *x,
                    const int ldx, const int n_in, __global float *y, const int ldy,
                    const int batch, __global uint *words, __global uint *launches,
                    __global const int *schedule, __global int *timeout)
{
    __local Task tasks[TASKS];
#if PTX >= 80
    __local float *exchange = 0;  // not used there
#else
    __local float exchange[GROUP];
#endif
    __local float4 shared[2 * WARPS * TOGETHER * WARP];
    const int id = get_local_id(0), warp = id / WARP, lane = id % WARP;
    const int group = get_group_id(0), groups = get_num_groups(0);
    for (int i = id; i < TASKS * TASK_INTS; i += GROUP)
        ((__local int *)tasks)[i] = schedule[group * TASKS * TASK_INTS + i];
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint launch = launches[group];
    // Words of this launch, and those of the next one, which are to be empty then.
    __global uint *now = words + (launch & 1) * SET;
    __global uint *then = words + (~launch & 1) * SET;
    int patience = MAX_POLLS, turn = 0;
#if PTX >= 80
    uint4 held[CHUNK][ROWS][SPLITS];
    Stream stream = {weights, 0, 0, 0, 0};
    enter(&stream, tasks, weights);
    FETCH(held, stream, tasks, weights)
#endif
    for (int n = 0; n < TASKS && tasks[n].blocks > 0; ++n) {
        __local const Task *task = tasks + n;
        const int2 part = part_of(task, warp) + task->first;
        const int slices = task->slices, slice = task->slice;
        const int next = task->next, function = task->function;
        const bool out_scaled = task->out_scaled;
        const int values = task->values;
        const bool scaled = task->scaled, given = values < 0;
        // Bounded values were all scaled alike. (Used where nobody waits for factors.)
        const float unscaled = scaled ? 1.0f : scales_of(BOUND).s1;
        __global const uint4 *pieces = (__global const uint4 *)now + values * WARP;
        volatile __global const uint *scales = now + SCALES + values * PIECE_SAMPLES;
        float sums[ROWS][COLUMNS + SPARE][4];
#if APART
        float low_sums[ROWS][COLUMNS + SPARE][4];
#endif
UNROLLED
        for (int i = 0; i < ROWS; ++i)
UNROLLED
            for (int j = 0; j < COLUMNS; ++j)
UNROLLED
                for (int e = 0; e < 4; ++e) {
                    sums[i][j][e] = 0;
#if APART
                    low_sums[i][j][e] = 0;
#endif
                }
        Own own[RUNS + SPARE];  // of each run
#define QUARTER(r) (warp + (r) * WARPS)
#define FIND_OWN()                                                                     \
    UNROLLED                                                                           \
    for (int r = 0; r < RUNS; ++r)                                                     \
        own[r] = own_of(task, QUARTER(r), inverse, parameters);
#if PTX >= 80
        // A step: CHUNK blocks of inputs from k on, and their pieces of all columns.
#define PLACE(k, d, j) ((((k) + (d)) * TILES + (j)) * WARP + lane)
#define EACH_PIECE(statement)                                                          \
    UNROLLED                                                                           \
    for (int d = 0; d < CHUNK; ++d)                                                    \
        UNROLLED                                                                       \
        for (int j = 0; j < COLUMNS; ++j) {                                            \
            statement;                                                                 \
        }
        // Ask for a step's pieces, each of them if it is there, or for x's values.
#define ASK(k)                                                                         \
    if (given) {                                                                       \
        EACH_PIECE(found[d][j] = as_uint4(four_of(                                     \
            x, ldx, (task->column + j) * 8 + lane / 4, batch,                          \
            ((k) + d) * BLOCK + lane % 4 * 2, (k) + d < part.s1 ? n_in : 0)))          \
    } else {                                                                           \
        EACH_PIECE(found[d][j] = (uint4)(~0u); if ((k) + d < part.s1)                  \
            found[d][j] = poll(pieces + PLACE(k, d, j)))                               \
    }
        uint4 found[CHUNK][COLUMNS];
        ASK(part.s0)
#if FEW
        FIND_OWN()
#endif
        for (int k = part.s0; k < part.s1; k += CHUNK) {
            float scale[CHUNK][COLUMNS];    // of this lane's sample g
            EACH_PIECE(scale[d][j] = 1)
            if (given) {
                EACH_PIECE(found[d][j] = words_of(as_float4(found[d][j]), &scale[d][j]))
            } else for (;;) {
                bool there = true;
UNROLLED
                for (int d = 0; d < CHUNK; ++d)
UNROLLED
                    for (int j = 0; j < COLUMNS; ++j) {
                        there = there && all_valid(found[d][j]);
                        if (scaled && k + d < part.s1) {
                            const uint word = scales[((k + d) * TILES + j) * 8
                                                     + lane / 4];
                            there = there && word;
                            scale[d][j] = as_float(~word);
                        }
                    }
                if (vote_all(there)) break;
                if (--patience < 0) {
                    *timeout = 1;
                    break;
                }
                backoff();
                EACH_PIECE(
                    found[d][j] = poll_again(pieces + PLACE(k, d, j), found[d][j]))
            }
            // The units cut off what they add up; so they only add a block of products
            // of high halves, and float32 adds those. The others lose 2^11 times less.
#define ADD_PRODUCTS(SCALED)                                                           \
    EACH_PIECE(                                                                        \
        const uint4 piece = ~found[d][j];                                              \
        const float2 by = SCALED ? of_samples(scale[d][j]) : (float2)(1.0f);           \
        UNROLLED                                                                       \
        for (int i = 0; i < ROWS; ++i) {                                               \
            float high[4] = {0};                                                       \
            float low[4] = {0};                                                        \
            float *lows = SCALED || !APART ? low : LOW_SUMS(i, j);                     \
            multiply_add(high, held[d][i][0], piece, 0);                               \
            multiply_add(lows, held[d][i][0], piece, 1);                               \
            multiply_add(lows, held[d][i][1], piece, 0);                               \
            UNROLLED                                                                   \
            for (int e = 0; e < 4; ++e) {                                              \
                const float both = fma(low[e], 1 / LOW_SCALE, high[e]);                      \
                if (SCALED) sums[i][j][e] += (e % 2 ? by.s1 : by.s0) * both;           \
                else sums[i][j][e] += APART ? high[e] : both;                          \
            }                                                                          \
        })
#if APART
#define LOW_SUMS(i, j) low_sums[i][j]
#else
#define LOW_SUMS(i, j) low
#endif
            if (scaled) {
                ADD_PRODUCTS(true)
            } else {
                ADD_PRODUCTS(false)
            }
            if (k + CHUNK < part.s1) {
                ASK(k + CHUNK)
                FETCH(held, stream, tasks, weights)
            }
        }
#if APART
UNROLLED
        for (int i = 0; i < ROWS; ++i)
UNROLLED
            for (int j = 0; j < COLUMNS; ++j)
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] = fma(low_sums[i][j][e], 1 / LOW_SCALE, sums[i][j][e]);
#endif
#else
        FIND_OWN()
        for (int k = part.s0; k < part.s1; ++k)
            for (int j = 0; j < COLUMNS; ++j) {
                __global const uint4 *piece = pieces + (k * TILES + j) * WARP;
                volatile __global const uint *both = scales + (k * TILES + j) * 8
                                                     + lane % 4 * 2;
                bool there = given;
                while (!there) {
                    there = !scaled || (both[0] && both[1]);
                    for (int i = 0; i < WARP; ++i)
                        there = there && all_valid(poll(piece + i));
                    if (!there && --patience < 0) {
                        *timeout = 1;
                        break;
                    }
                }
                for (int i = 0; i < task->rows; ++i) {
                    __global const uint4 *block =
                        weights + ((size_t)task->weights + i * task->pitch + k
                                   - task->first) * BOTH;
                    for (int e = 0; e < 4; ++e)
                        for (int f = 0; f < BLOCK; ++f) {
                            const int neuron = lane / 4 + e / 2 * 8;
                            const int one = lane % 4 * 2 + e % 2, at = k * BLOCK + f;
                            const int sample = (task->column + j) * PIECE_SAMPLES + one;
                            float v = 0;
                            if (!given)
                                v = value_at((__global const uint *)piece, one, f)
                                    * (scaled ? as_float(~both[e % 2]) : 1.0f);
                            else if (sample < batch && at < n_in)
                                v = x[(size_t)sample * ldx + at];
                            sums[i][j][e] += weight_at(block, neuron, f) * v;
                        }
                }
            }
#endif
#if PTX >= 80 && !FEW
        FIND_OWN()
#endif
        // Add up the warps' sums, as many pieces at a time as local memory holds twice.
        float sum[RUNS + SPARE];
UNROLLED
        for (int r = 0; r < RUNS; ++r) sum[r] = 0;
UNROLLED
        for (int p = 0; p < SUMS; p += TOGETHER) {
#if PTX >= 80
            if (p >= task->rows * COLUMNS) continue;
#endif
            __local float4 *all = shared + turn * WARPS * TOGETHER * WARP;
            turn ^= 1;
UNROLLED
            for (int f = 0; f < TOGETHER; ++f)
                if (p + f < SUMS) {
                    const float *four = sums[(p + f) / COLUMNS][(p + f) % COLUMNS];
                    all[(warp * TOGETHER + f) * WARP + place_of_sums(lane)] =
                        (float4)(four[0], four[1], four[2], four[3]);
                }
            barrier(CLK_LOCAL_MEM_FENCE);
UNROLLED
            for (int r = 0; r < RUNS; ++r) {
                const int quarter = QUARTER(r) - 4 * p;
                if (own[r].has && 0 <= quarter && quarter < 4 * TOGETHER)
UNROLLED
                    for (int w = 0; w < WARPS; ++w)
                        sum[r] += ((__local float *)all)[w * TOGETHER * PIECE
                                                         + quarter * WARP + lane];
            }
        }
        if (slices > 1) {
            // Where the sums of a quarter are exchanged.
#define EXCHANGED(r, q)                                                                \
    ((task->sums + QUARTER(r) / 4 * slices + (q)) * PIECE + QUARTER(r) % 4 * WARP      \
     + lane)
UNROLLED
            for (int r = 0; r < RUNS; ++r)
                if (own[r].has && !own[r].keeps)
                    publish(now + EXCHANGED(r, slice), then + EXCHANGED(r, slice), sum[r]);
            uint word[RUNS][SLICES + SPARE];
UNROLLED
            for (int r = 0; r < RUNS; ++r)
UNROLLED
                for (int q = 0; q < SLICES; ++q)
                    word[r][q] = own[r].keeps && q < slices && q != slice
                                     ? 0 : max(~as_uint(sum[r]), 1u);
            for (;;) {
UNROLLED
                for (int r = 0; r < RUNS; ++r)
UNROLLED
                    for (int q = 0; q < SLICES; ++q)
                        word[r][q] = poll_word(now + EXCHANGED(r, q), word[r][q]);
                bool there = true;
UNROLLED
                for (int r = 0; r < RUNS; ++r)
UNROLLED
                    for (int q = 0; q < SLICES; ++q) there = there && word[r][q];
                if (there) break;
                if (--patience < 0) {
                    *timeout = 1;
                    break;
                }
            }
UNROLLED
            for (int r = 0; r < RUNS; ++r) {
                sum[r] = 0;
UNROLLED
                for (int q = 0; q < SLICES; ++q)
                    if (q < slices) sum[r] += as_float(~word[r][q]);
            }
        }
UNROLLED
        for (int r = 0; r < RUNS; ++r) {
#if PTX >= 80
            if (!own[r].keeps) continue;
#endif
            const float v = activate_as(
                function, sum[r] * (own[r].factor * unscaled) + own[r].bias);
            if (next) {
                publish_fragment(v, own[r].out, QUARTER(r) % 4, out_scaled, own[r].tells, SCALES,
                        now, then, exchange);
            } else if (own[r].keeps) {
                const int neuron = neuron_of(task, QUARTER(r));
                const int sample = sample_of(task, QUARTER(r));
                if (sample < batch && neuron < task->n_out)
                    y[(size_t)sample * ldy + neuron] = v;
            }
        }
#if PTX >= 80
        // Others wait for the sums: so the next weights are asked for after them.
        if (part.s0 < part.s1) FETCH(held, stream, tasks, weights)
#endif
    }
    if (id == 0) launches[group] = launch + 1;
}

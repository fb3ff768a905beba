// persistent_mma: a chain of dense layers in one launch over all compute units, for a
// small batch, on matrix units.
//
// A small batch is bound as one sample is, by loading weights and by the latency between
// layers. So groups stay resident from the first layer to the last (persistent.cl), and
// weights are loaded once for all samples, and prefetched to registers while a group
// waits for values. Unlike there, the values of a layer are read many times by all
// groups together. Hence a group's task in a layer is a tile, some rows of blocks and
// some columns of samples, and, if rows and columns are too few for all groups, a split-k
// slice of the inputs:
//
//              inputs: blocks of 16                   samples: columns of 8
//   neurons:   slice 0 | slice 1 | …
//   row 0      warp 0 1 2 3 | 0 1 2 3 |     x     16 inputs x 8 samples: a fragment
//   row 1      warp 0 1 2 3 | 0 1 2 3 |
//
// The warps of a group divide its slice (slice-k), so that each block and each fragment
// is loaded by one warp only, straight to its registers. Warps then add their partial
// sums in local memory, and groups that share a tile exchange theirs: each adds up the
// fragments that it `reduces`, always in the same order. Four warps finish a fragment, a
// value per lane, since all other groups wait for it.
//
// Groups publish fragments, scales (ll_fragments.h) and partial sums as complemented
// words in two alternating sets (ll_protocol.h). The first layer's inputs are not
// published: each warp packs its fragments of x.
//
// All groups must run concurrently; waits are bounded as in ll_protocol.h.
//
// WARPS, ROWS, CHUNK, TASKS  as in persistent_mma_tasks.h
// COLUMNS    tiles of 8 samples of a task; TILES of the batch are a multiple of it
// REDUCED    fragments of a task's partial sums that warps add at a time
// SLICES     slices of a tile, at most
// FRAGMENTS  fragments of values in a set of words, followed by EXCHANGED_FRAGMENTS
//            fragments of partial sums
// MAX_POLLS, BACKOFF_NS  as in ll_protocol.h
// FUNCTIONS  as in functions.h; REAL (float) as in activations.h
// SPLITS (2), PTX  as in fp16_split.h
#define WIDTH 1
#include "include/activations.h"
#include "include/functions.h"
#include "tensor_core/fragments.h"
#include "sync/ll_protocol.h"
#include "sync/ll_fragments.h"
#include "dense/persistent_mma_tasks.h"
#if !defined(COLUMNS) || !defined(TILES) || !defined(REDUCED) || !defined(SLICES) \
    || !defined(FRAGMENTS) || !defined(EXCHANGED_FRAGMENTS) || !defined(MAX_POLLS)
#error "persistent_mma.cl needs COLUMNS, TILES, REDUCED, SLICES, FRAGMENTS, \
EXCHANGED_FRAGMENTS and MAX_POLLS"
#endif
#define GROUP (WARPS * WARP)
// Of a set of words: the offset of its scales, and its size.
#define SCALES ((FRAGMENTS + EXCHANGED_FRAGMENTS) * FRAGMENT_WORDS)
#define SET (SCALES + FRAGMENTS * FRAGMENT_SAMPLES)
// Of a task, at most: fragments of outputs, and quarters that a warp finishes.
#define TASK_FRAGMENTS (ROWS * COLUMNS)
#define WARP_QUARTERS ((4 * TASK_FRAGMENTS + WARPS - 1) / WARPS)
#define SMALL_TASK (TASK_FRAGMENTS <= 4)        // leaves registers free
#define LOW_ACCUMULATORS SMALL_TASK             // separate ones for the low products

// A warp finishes quarters of a task's fragments, a value per lane: its neuron of the
// layer and its sample of the batch.
static inline int neuron_of(__local const Task *task, const int quarter)
{
    return task->neuron + quarter / 4 / COLUMNS * BLOCK
           + neuron_in(quarter % 4, get_local_id(0) % WARP);
}
static inline int sample_of(__local const Task *task, const int quarter)
{
    return (task->column + quarter / 4 % COLUMNS) * FRAGMENT_SAMPLES
           + sample_in(quarter % 4, get_local_id(0) % WARP);
}

// A lane's output in a quarter.
typedef struct {
    int out;                    // its fragment among the layer's outputs
    bool exists, reduces;       // the task has it; this group reduces it
    bool publishes;             // and publishes it
    float factor, bias;
} Output;
static inline Output output_of(__local const Task *task, const int quarter,
                               __global const float *inverse,
                               __global const float *parameters)
{
    const int fragment = quarter / 4, row = fragment / COLUMNS;
    const int neuron = neuron_of(task, quarter);
    Output found;
    found.out = task->out + row * TILES + fragment % COLUMNS;
    found.exists = fragment < task->rows * COLUMNS;
    found.reduces = found.exists && (task->reduces >> fragment & 1);
    found.publishes = found.reduces && task->neuron / BLOCK + row < task->next;
    const bool live = found.reduces && neuron < task->n_out;
    found.factor = live ? inverse[task->inverse + neuron] : 0.0f;
    found.bias = live && task->bias >= 0 ? parameters[task->bias + neuron] : 0.0f;
    return found;
}

// Values k, k + 1, k + 8 and k + 9 of a sample of x; zeros beyond the batch and n_in.
static inline float4 load_inputs(__global const float *x, const int ldx,
                                 const int sample, const int batch, const int k,
                                 const int n_in)
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
// words      [2][SET], double-buffered; initially 0
// launches   [groups] number of each group's launches so far; initially 0
// schedule   [groups][TASKS] tasks in the order of their layers; no blocks: no task.
//            Rows of blocks end within the weights; fragments of inputs, outputs and
//            the exchange within their parts of a set; biases and scales in theirs
// timeout    set when a wait reaches its bound
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
    __local float4 shared[2 * WARPS * REDUCED * WARP];
    const int id = get_local_id(0), warp = id / WARP, lane = id % WARP;
    const int group = get_group_id(0), groups = get_num_groups(0);
    const uint launch = launches[group];
    for (int i = id; i < TASKS * TASK_INTS; i += GROUP)
        ((__local int *)tasks)[i] = schedule[group * TASKS * TASK_INTS + i];
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    // The words of this launch, and those of the next one, which this one clears.
    __global uint *now = words + (launch & 1) * SET;
    __global uint *then = words + (~launch & 1) * SET;
    int polls_left = MAX_POLLS, buffer = 0;
#if PTX >= 80
    uint4 loaded[CHUNK][ROWS][SPLITS];
    Stream stream = {weights, 0, 0, 0, 0};
    next_task(&stream, tasks, weights);
    LOAD_BLOCKS(loaded, stream, tasks, weights)
#endif
    for (int n = 0; n < TASKS && tasks[n].blocks > 0; ++n) {
        __local const Task *task = tasks + n;
        const int2 share = share_of(task, warp) + task->first;
        const int slices = task->slices, slice = task->slice;
        const int next = task->next, function = task->function;
        const bool out_scaled = task->out_scaled;
        const int values = task->values;
        const bool scaled = task->scaled, from_x = values < 0;
        // Bounded values share one scale. (Applied off the critical path.)
        const float unscaled = scaled ? 1.0f : scales_of(BOUND).s1;
        const float sums_inverse = scaled ? 1 / SUM_SCALE : 1.0f;
        __global const uint4 *fragments = (__global const uint4 *)now + values * WARP;
        volatile __global const uint *scales = now + SCALES + values * FRAGMENT_SAMPLES;
        float sums[ROWS][COLUMNS + POCL_PAD][4];
#if LOW_ACCUMULATORS
        float low_sums[ROWS][COLUMNS + POCL_PAD][4];
#endif
UNROLLED
        for (int i = 0; i < ROWS; ++i)
UNROLLED
            for (int j = 0; j < COLUMNS; ++j)
UNROLLED
                for (int e = 0; e < 4; ++e) {
                    sums[i][j][e] = 0;
#if LOW_ACCUMULATORS
                    low_sums[i][j][e] = 0;
#endif
                }
        Output outputs[WARP_QUARTERS + POCL_PAD];
#define QUARTER(r) (warp + (r) * WARPS)
#define FIND_OUTPUTS()                                                                \
    UNROLLED                                                                          \
    for (int r = 0; r < WARP_QUARTERS; ++r)                                           \
        outputs[r] = output_of(task, QUARTER(r), inverse, parameters);
#if PTX >= 80
        // A step: CHUNK blocks of inputs from k on, and their fragments of all columns.
#define FRAGMENT_VECTOR(k, d, j) ((((k) + (d)) * TILES + (j)) * WARP + lane)
#define EACH_FRAGMENT(statement)                                                      \
    UNROLLED                                                                          \
    for (int d = 0; d < CHUNK; ++d)                                                   \
        UNROLLED                                                                      \
        for (int j = 0; j < COLUMNS; ++j) {                                           \
            statement;                                                                \
        }
        // Issue the first poll of a step's fragments, or load x.
#define LOAD_FRAGMENTS(k)                                                             \
    if (from_x) {                                                                     \
        EACH_FRAGMENT(found[d][j] = as_uint4(load_inputs(                             \
            x, ldx, (task->column + j) * 8 + lane / 4, batch,                         \
            ((k) + d) * BLOCK + lane % 4 * 2, (k) + d < share.s1 ? n_in : 0)))        \
    } else {                                                                          \
        EACH_FRAGMENT(found[d][j] = (uint4)(~0u); if ((k) + d < share.s1)             \
            found[d][j] = poll(fragments + FRAGMENT_VECTOR(k, d, j)))                 \
    }
        uint4 found[CHUNK][COLUMNS];
        LOAD_FRAGMENTS(share.s0)
#if SMALL_TASK
        FIND_OUTPUTS()
#endif
        for (int k = share.s0; k < share.s1; k += CHUNK) {
            float scale[CHUNK][COLUMNS];    // of this lane's sample g
            EACH_FRAGMENT(scale[d][j] = 1)
            if (from_x) {
                EACH_FRAGMENT(
                    found[d][j] = pack_fragment(as_float4(found[d][j]), &scale[d][j]))
            } else for (;;) {
                bool valid = true;
UNROLLED
                for (int d = 0; d < CHUNK; ++d)
UNROLLED
                    for (int j = 0; j < COLUMNS; ++j) {
                        valid = valid && all_valid(found[d][j]);
                        if (scaled && k + d < share.s1) {
                            const uint word = scales[((k + d) * TILES + j) * 8
                                                     + lane / 4];
                            valid = valid && word;
                            scale[d][j] = as_float(~word);
                        }
                    }
                if (vote_all(valid)) break;
                if (--polls_left < 0) {
                    *timeout = 1;
                    break;
                }
                backoff();
                EACH_FRAGMENT(
                    found[d][j] =
                        poll_again(fragments + FRAGMENT_VECTOR(k, d, j), found[d][j]))
            }
            // Matrix units truncate their sums. So they add the products of one block of
            // high splits only, and float32 adds those; the errors of products with low
            // splits are 2^11 times smaller.
#define ADD_PRODUCTS(SCALED)                                                          \
    EACH_FRAGMENT(                                                                    \
        const uint4 fragment = ~found[d][j];                                          \
        const float2 by = SCALED ? shuffle_samples(scale[d][j]) : (float2)(1.0f);     \
        UNROLLED                                                                      \
        for (int i = 0; i < ROWS; ++i) {                                              \
            float high[4] = {0};                                                      \
            float low[4] = {0};                                                       \
            float *lows = SCALED || !LOW_ACCUMULATORS ? low : LOW_SUMS(i, j);         \
            mma_m16n8k16(high, loaded[d][i][0], fragment, 0);                         \
            mma_m16n8k16(lows, loaded[d][i][0], fragment, 1);                         \
            mma_m16n8k16(lows, loaded[d][i][1], fragment, 0);                         \
            UNROLLED                                                                  \
            for (int e = 0; e < 4; ++e) {                                             \
                const float both = fma(low[e], 1 / LOW_SCALE, high[e]);               \
                if (SCALED) sums[i][j][e] += (e % 2 ? by.s1 : by.s0) * both;          \
                else sums[i][j][e] += LOW_ACCUMULATORS ? high[e] : both;              \
            }                                                                         \
        })
#if LOW_ACCUMULATORS
#define LOW_SUMS(i, j) low_sums[i][j]
#else
#define LOW_SUMS(i, j) low
#endif
            if (scaled) {
                ADD_PRODUCTS(true)
            } else {
                ADD_PRODUCTS(false)
            }
            if (k + CHUNK < share.s1) {
                LOAD_FRAGMENTS(k + CHUNK)
                LOAD_BLOCKS(loaded, stream, tasks, weights)
            }
        }
#if LOW_ACCUMULATORS
UNROLLED
        for (int i = 0; i < ROWS; ++i)
UNROLLED
            for (int j = 0; j < COLUMNS; ++j)
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] =
                        fma(low_sums[i][j][e], 1 / LOW_SCALE, sums[i][j][e]);
#endif
#else
        FIND_OUTPUTS()
        for (int k = share.s0; k < share.s1; ++k)
            for (int j = 0; j < COLUMNS; ++j) {
                __global const uint4 *fragment = fragments + (k * TILES + j) * WARP;
                volatile __global const uint *both = scales + (k * TILES + j) * 8
                                                     + lane % 4 * 2;
                bool valid = from_x;
                while (!valid) {
                    valid = !scaled || (both[0] && both[1]);
                    for (int i = 0; i < WARP; ++i)
                        valid = valid && all_valid(poll(fragment + i));
                    if (!valid && --polls_left < 0) {
                        *timeout = 1;
                        break;
                    }
                }
                for (int i = 0; i < task->rows; ++i) {
                    __global const uint4 *block =
                        weights + ((size_t)task->weights + i * task->stride + k
                                   - task->first) * BLOCK_VECTORS;
                    for (int e = 0; e < 4; ++e)
                        for (int f = 0; f < BLOCK; ++f) {
                            const int neuron = lane / 4 + e / 2 * 8;
                            const int one = lane % 4 * 2 + e % 2, at = k * BLOCK + f;
                            const int sample =
                                (task->column + j) * FRAGMENT_SAMPLES + one;
                            float v = 0;
                            if (!from_x)
                                v = value_at((__global const uint *)fragment, one, f)
                                    * (scaled ? as_float(~both[e % 2]) : 1.0f);
                            else if (sample < batch && at < n_in)
                                v = x[(size_t)sample * ldx + at] * SUM_SCALE;
                            sums[i][j][e] += weight_at(block, neuron, f) * v;
                        }
                }
            }
#endif
#if PTX >= 80 && !SMALL_TASK
        FIND_OUTPUTS()
#endif
        // Add up the warps' partial sums, REDUCED fragments at a time, double-buffered.
        float sum[WARP_QUARTERS + POCL_PAD];
UNROLLED
        for (int r = 0; r < WARP_QUARTERS; ++r) sum[r] = 0;
UNROLLED
        for (int p = 0; p < TASK_FRAGMENTS; p += REDUCED) {
#if PTX >= 80
            if (p >= task->rows * COLUMNS) continue;
#endif
            __local float4 *all = shared + buffer * WARPS * REDUCED * WARP;
            buffer ^= 1;
UNROLLED
            for (int f = 0; f < REDUCED; ++f)
                if (p + f < TASK_FRAGMENTS) {
                    const float *four = sums[(p + f) / COLUMNS][(p + f) % COLUMNS];
                    all[(warp * REDUCED + f) * WARP + accumulator_slot(lane)] =
                        (float4)(four[0], four[1], four[2], four[3]);
                }
            barrier(CLK_LOCAL_MEM_FENCE);
UNROLLED
            for (int r = 0; r < WARP_QUARTERS; ++r) {
                const int quarter = QUARTER(r) - 4 * p;
                if (outputs[r].exists && 0 <= quarter && quarter < 4 * REDUCED)
UNROLLED
                    for (int w = 0; w < WARPS; ++w)
                        sum[r] += ((__local float *)all)[w * REDUCED * FRAGMENT_WORDS
                                                         + quarter * WARP + lane];
            }
        }
        if (slices > 1) {
            // Word of slice q's partial sum of quarter r.
#define EXCHANGED(r, q)                                                               \
    ((task->sums + QUARTER(r) / 4 * slices + (q)) * FRAGMENT_WORDS                    \
     + QUARTER(r) % 4 * WARP + lane)
UNROLLED
            for (int r = 0; r < WARP_QUARTERS; ++r)
                if (outputs[r].exists && !outputs[r].reduces)
                    publish(now + EXCHANGED(r, slice), then + EXCHANGED(r, slice),
                            sum[r]);
            uint word[WARP_QUARTERS][SLICES + POCL_PAD];
UNROLLED
            for (int r = 0; r < WARP_QUARTERS; ++r)
UNROLLED
                for (int q = 0; q < SLICES; ++q)
                    word[r][q] = outputs[r].reduces && q < slices && q != slice
                                     ? 0 : max(~as_uint(sum[r]), 1u);
            for (;;) {
UNROLLED
                for (int r = 0; r < WARP_QUARTERS; ++r)
UNROLLED
                    for (int q = 0; q < SLICES; ++q)
                        word[r][q] = poll_word(now + EXCHANGED(r, q), word[r][q]);
                bool valid = true;
UNROLLED
                for (int r = 0; r < WARP_QUARTERS; ++r)
UNROLLED
                    for (int q = 0; q < SLICES; ++q) valid = valid && word[r][q];
                if (valid) break;
                if (--polls_left < 0) {
                    *timeout = 1;
                    break;
                }
            }
UNROLLED
            for (int r = 0; r < WARP_QUARTERS; ++r) {
                sum[r] = 0;
UNROLLED
                for (int q = 0; q < SLICES; ++q)
                    if (q < slices) sum[r] += as_float(~word[r][q]);
            }
        }
UNROLLED
        for (int r = 0; r < WARP_QUARTERS; ++r) {
#if PTX >= 80
            if (!outputs[r].reduces) continue;
#endif
            const float v = activate_as(
                function, sum[r] * (outputs[r].factor * unscaled) * sums_inverse
                              + outputs[r].bias);
            if (next) {
                publish_fragment(v, outputs[r].out, QUARTER(r) % 4, out_scaled,
                                 outputs[r].publishes, SCALES, now, then, exchange);
            } else if (outputs[r].reduces) {
                const int neuron = neuron_of(task, QUARTER(r));
                const int sample = sample_of(task, QUARTER(r));
                if (sample < batch && neuron < task->n_out)
                    y[(size_t)sample * ldy + neuron] = v;
            }
        }
#if PTX >= 80
        // Prefetch the next weights after publishing: other groups wait for the values.
        if (share.s0 < share.s1) LOAD_BLOCKS(loaded, stream, tasks, weights)
#endif
    }
    if (id == 0) launches[group] = launch + 1;
}

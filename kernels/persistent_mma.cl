// persistent_mma: a chain of dense layers in one launch over all compute units, for a
// small batch, on matrix units.
//
// A small batch is bound as one sample is: by reading weights, and by waiting between
// layers. So groups stay from the first layer to the last (persistent.cl), weights are
// read once for all samples, and are on their way while a group waits for values. What
// is new is that all groups together read the values of a layer many times over. Hence a
// group's task in a layer is a tile: some rows of blocks, some columns of samples, and,
// where rows and columns are too few for all groups, a slice of the inputs:
//
//              inputs: blocks of 16                   samples: columns of 8
//   neurons:   slice 0 | slice 1 | …
//   row 0      warp 0 1 2 3 | 0 1 2 3 |     x     16 inputs x 8 samples: a piece
//   row 1      warp 0 1 2 3 | 0 1 2 3 |
//
// The warps of a group divide its slice, so that each block and each piece is wanted by
// one warp alone: blocks pass from memory through a warp's ring of SLOTS to the matrix
// units, pieces come from memory straight into registers. Then warps add their sums in
// local memory, and groups that share a tile exchange theirs: slice q adds up those rows
// that it `keeps`, always in the same order.
//
// Values pass from layer to layer as they are multiplied, in two halves (halves.h): the
// low ones are rows 8 to 15 of a piece, which so is a block of the second operand. They
// have a scale of their own for each sample of a piece, unless their activation is
// bounded by 1. All that groups hand over, pieces, scales and sums, are words turned
// over, so that 0 means "not there yet" (words.h), and what is not there in the end
// is NaN; launches use two sets of words in turn, and each empties the other one.
//
// All groups must run at the same time; waits are bounded as in words.h.
//
// WARPS     of a group
// ROWS      rows of blocks of a task, at most
// COLUMNS   tiles of 8 samples of a task; TILES of the batch are a multiple of it
// CHUNK     pieces of a column that are looked for at once
// SLOTS     blocks of weights on their way to a warp
// TOGETHER  of a task's sums, pieces that warps add at a time: WARPS at most
// SLICES    that share a tile, at most
// TASKS     of a group, at most
// PIECES    words' pieces of a set, and PARTS pieces of sums after them
// PATIENCE  looks at a word before the alarm
// FUNCTIONS as in functions.h; REAL (float) as in activations.h
// PLANES (2), PTX  as in halves.h
#define WIDTH 1
#include "activations.h"
#include "functions.h"
#include "fragments.h"
#define NAP 0  // a wait is short, and many warps share it
#include "words.h"
#if !defined(WARPS) || !defined(ROWS) || !defined(COLUMNS) || !defined(TILES) \
    || !defined(CHUNK) || !defined(SLOTS) || !defined(TOGETHER) || !defined(SLICES) \
    || !defined(TASKS) || !defined(PIECES) || !defined(PARTS) || !defined(PATIENCE)
#error "persistent_mma.cl needs WARPS, ROWS, COLUMNS, TILES, CHUNK, SLOTS, TOGETHER, \
SLICES, TASKS, PIECES, PARTS and PATIENCE"
#endif
#define GROUP (WARPS * WARP)
#define BOTH (PLANES * WARP)                    // 4-word parts of a block
#define SCALES ((PIECES + PARTS) * WARP)        // where a set's scales start, in parts
#define SET (SCALES + PIECES * 2)               // 4-word parts of a set
#define ROUNDS ((ROWS * COLUMNS + TOGETHER - 1) / TOGETHER)
#define PITCH 20                                // floats of a sample of a piece of sums
#define BOUND 0x3f800000u                       // of bounded values: 1

// What a group does in a layer. Places are in blocks, pieces or values.
typedef struct {
    int weights, pitch;     // its first block; from one row of blocks to the next
    int first, blocks;      // of the inputs: its slice
    int rows, keeps;        // rows of blocks, and those that it finishes, a bit each
    int slice, slices;
    int values, scaled;     // the first piece of its inputs, and whether they have scales
    int sums;               // the first piece of the exchange
    int out, out_scaled;    // the first piece of its outputs
    int next;               // blocks of the next layer's inputs; 0: outputs go to y
    int neuron, n_out;      // its first neuron, and all of its layer
    int bias, inverse;      // where those of its layer start; no bias: -1
    int column, function;   // its first tile of samples; its activation's code
} Task;
#define TASK_INTS (int)(sizeof(Task) / sizeof(int))

// The blocks of a slice that are a warp's: from x to y.
inline int2 part_of(__local const Task *task, const int warp)
{
    const int share = (task->blocks + WARPS - 1) / WARPS;
    return (int2)(min(task->blocks, warp * share), min(task->blocks, (warp + 1) * share));
}

// Write words, turned over, and empty those of the next launch. No word is 0: the one
// NaN that would be becomes another.
inline void tell_words(__global uint4 *now, __global uint4 *then, const int at, uint4 v)
{
    v = select(~v, (uint4)(1), ~v == (uint4)(0));
#if PTX >= 80
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(now + at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
    volatile __global uint *each = (volatile __global uint *)(now + at);
    for (int i = 0; i < 4; ++i) each[i] = ((uint *)&v)[i];
#endif
    then[at] = (uint4)(0);
}

#if PTX >= 80
// Whether it is so for all lanes of a warp.
inline bool in_all(const bool so)
{
    int all;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0;"
                 " vote.sync.all.pred q, p, 0xffffffff; selp.s32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"((int)so));
    return all;
}

// A warp's stream of blocks: of its part of each task in turn, row by row.
typedef struct {
    __global const uint4 *from;     // this lane's part of the next block
    int pitch, rows, row, left;     // of its task; blocks of inputs that are left
    int task, slot;                 // the next task, the next slot
} Stream;

// The stream's next task in which the warp has a part; after the last, any block.
inline void enter(Stream *s, __local const Task *tasks, __global const uint4 *weights)
{
    const int warp = get_local_id(0) / WARP;
    s->left = s->pitch = 0;
    s->rows = 1;
    s->from = weights + get_local_id(0) % WARP;
    while (s->left == 0 && s->task < TASKS) {
        __local const Task *task = tasks + s->task++;
        const int2 part = part_of(task, warp);
        if (part.s1 == part.s0) continue;
        s->left = part.s1 - part.s0;
        s->pitch = task->pitch * BOTH;
        s->rows = task->rows;
        s->from += ((size_t)task->weights + part.s0) * BOTH;
    }
}

// Start to copy the next block to the next slot.
inline void fetch(Stream *s, __local uint4 *ring, __local const Task *tasks,
                  __global const uint4 *weights)
{
UNROLLED
    for (int p = 0; p < PLANES; ++p)
        copy_words(ring + s->slot * BOTH + p * WARP, s->from + p * WARP);
    DEPART();
    s->slot = s->slot + 1 == SLOTS ? 0 : s->slot + 1;
    s->from += s->pitch;
    if (++s->row == s->rows) {
        s->row = 0;
        s->from += BOTH - s->rows * s->pitch;
        if (--s->left <= 0) enter(s, tasks, weights);
    }
}

// sums [4] += a block times a piece: of neurons g and g + 8, samples 2t and 2t + 1
inline void multiply(float *sums, const uint4 high, const uint4 low, const uint4 piece,
                     const float2 scale)
{
    float main[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
    multiply_add(main, high, piece, 0);
    multiply_add(rest, high, piece, 1);
    multiply_add(rest, low, piece, 0);
UNROLLED
    for (int e = 0; e < 4; ++e)
        sums[e] += (e % 2 ? scale.s1 : scale.s0) * fma(rest[e], 1 / LOW, main[e]);
}
#define EXCHANGED 1
#define SPARE 0
#else
// The same in plain C, of a whole block and piece in memory: the product for sum e.
inline float product(__global const uint4 *block, __global const uint4 *piece, const int e)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, t = lane % 4;
    __global const half *a = (__global const half *)block;
    __global const uint *b = (__global const uint *)piece;
    float sum = 0;
    for (int k = 0; k < BLOCK; ++k) {
        const int at = 32 * g + 8 * (k % 8 / 2) + k / 8 * 4 + e / 2 * 2 + k % 2;
        const int word = 4 * (4 * (2 * t + e % 2) + k % 8 / 2) + k / 8;
        const float2 high = of_halves(~b[word]), low = of_halves(~b[word + 2]);
        const float v = (k % 2 ? high.s1 : high.s0) + (k % 2 ? low.s1 : low.s0) / LOW;
        sum += (vload_half(at, a) + vload_half(at + BLOCK * BLOCK, a) / LOW) * v;
    }
    return sum;
}
#define EXCHANGED (WARPS * 8)
#define SPARE 1  // PoCL 3.0 shares arrays of one row among work-items
#endif

// The largest of what the four lanes of a sample have. In plain C all work-items come
// together here.
inline uint largest_of_sample(const uint most, __local uint *exchange)
{
#if PTX >= 80
    uint two, other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=r"(two) : "r"(most));
    two = max(most, two);
    asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;" : "=r"(other) : "r"(two));
    return max(two, other);
#else
    exchange[get_local_id(0) / 4] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_max(exchange + get_local_id(0) / 4, most);
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint largest = exchange[get_local_id(0) / 4];
    barrier(CLK_LOCAL_MEM_FENCE);
    return largest;
#endif
}

// Hand over this lane's values of a piece: of neurons 2t, 2t + 8, 2t + 1, 2t + 9 and
// sample g. Nothing unless it is `mine`.
inline void publish(const float4 v, const int piece, const bool scaled, const bool mine,
                    __global uint4 *now, __global uint4 *then, __local uint *exchange)
{
    const uint most = max(max(magnitude(v.s0), magnitude(v.s1)),
                          max(magnitude(v.s2), magnitude(v.s3)));
    const float2 scales = scales_of(scaled ? largest_of_sample(most, exchange) : BOUND);
    if (!mine) return;
    const int lane = get_local_id(0) % WARP;
    const float4 w = v * scales.s0;
    const uint2 high = (uint2)(halves(w.s0, w.s2), halves(w.s1, w.s3));
    const float2 first = of_halves(high.s0), second = of_halves(high.s1);
    const float4 low = (w - (float4)(first.s0, second.s0, first.s1, second.s1)) * LOW;
    tell_words(now, then, piece * WARP + lane,
         (uint4)(high, halves(low.s0, low.s2), halves(low.s1, low.s3)));
    if (scaled && lane % 4 == 0) {
        const int at = 4 * (SCALES + piece * 2) + lane / 4;
        *((volatile __global uint *)now + at) = ~as_uint(scales.s1);
        *((__global uint *)then + at) = 0;
    }
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx] of n_in inputs
//
// weights    packed layers (halves.h): row blocks, blocks of terms; inverse: their scales
// parameters the biases
// words      [2][SET], 0 at first
// launches   [groups] the number of each group's launches so far, 0 at first
// schedule   [groups][TASKS] tasks in the order of their layers; no blocks: none
// alarm      set where a wait hit its bound
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void persistent_mma(__global const uint4 *weights, __global const float *inverse,
                    __global const float *parameters, __global const float *x,
                    const int ldx, const int n_in, __global float *y, const int ldy,
                    const int batch, __global uint4 *words, __global uint *launches,
                    __global const int *schedule, __global int *alarm)
{
    __local float shared[WARPS * TOGETHER * 8 * PITCH] __attribute__((aligned(16)));
    __local Task tasks[TASKS];
    __local uint exchange[EXCHANGED];
    const int id = get_local_id(0), warp = id / WARP, lane = id % WARP;
    const int g = lane / 4, t = lane % 4;
    const int group = get_group_id(0), groups = get_num_groups(0);
    for (int i = id; i < TASKS * TASK_INTS; i += GROUP)
        ((__local int *)tasks)[i] = schedule[group * TASKS * TASK_INTS + i];
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint launch = launches[group];
    // Words of this launch, and those of the next one, which are to be empty then.
    __global uint4 *now = words + (launch & 1) * SET, *then = words + (~launch & 1) * SET;
    int patience = PATIENCE;
#if PTX >= 80
    __local uint4 rings[WARPS * SLOTS * BOTH] __attribute__((aligned(16)));
    __local uint4 *ring = rings + warp * SLOTS * BOTH + lane;
    Stream stream = {weights, 0, 1, 0, 0, 0, 0};
    enter(&stream, tasks, weights);
    for (int i = 0; i < SLOTS; ++i) fetch(&stream, ring, tasks, weights);
#endif
    const int x_pieces = (n_in + BLOCK - 1) / BLOCK * TILES;
    for (int first = group * WARPS; first < x_pieces; first += groups * WARPS) {
        const int piece = first + warp, sample = piece % TILES * 8 + g;
        float v[4];
UNROLLED
        for (int e = 0; e < 4; ++e) {
            const int k = piece / TILES * BLOCK + 2 * t + e / 2 + e % 2 * 8;
            v[e] = sample < batch && k < n_in ? x[(size_t)sample * ldx + k] : 0.0f;
        }
        publish((float4)(v[0], v[1], v[2], v[3]), piece, true, piece < x_pieces, now, then,
                exchange);
    }
    for (int n = 0; n < TASKS && tasks[n].blocks > 0; ++n) {
        __local const Task *task = tasks + n;
        const int2 part = part_of(task, warp) + task->first;
        const int rows = task->rows;
        const bool scaled = task->scaled;
        __global const uint4 *pieces = now + task->values * WARP;
        __global const uint *scales =
            (__global const uint *)(now + SCALES + task->values * 2);
        const float2 unscaled = (float2)(scales_of(BOUND).s1);
        float sums[ROWS][COLUMNS + SPARE][4];
UNROLLED
        for (int i = 0; i < ROWS; ++i)
UNROLLED
            for (int j = 0; j < COLUMNS; ++j)
UNROLLED
                for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
#if PTX >= 80
        // Pieces of CHUNK blocks of inputs from k on, each of them if it is there.
#define LOOK(found, k)                                                                   \
    UNROLLED                                                                             \
    for (int d = 0; d < CHUNK; ++d)                                                      \
        if ((k) + d < part.s1) {                                                         \
            UNROLLED                                                                     \
            for (int j = 0; j < COLUMNS; ++j)                                            \
                found[d][j] = look(pieces + (((k) + d) * TILES + j) * WARP + lane);      \
        }
        uint4 found[CHUNK][COLUMNS], coming[CHUNK][COLUMNS];
        LOOK(found, part.s0)
        for (int k = part.s0; k < part.s1; k += CHUNK) {
            LOOK(coming, k + CHUNK)
            float2 scale[CHUNK][COLUMNS];
            for (;;) {
                bool there = true;
UNROLLED
                for (int d = 0; d < CHUNK; ++d)
UNROLLED
                    for (int j = 0; j < COLUMNS; ++j) {
                        if (k + d >= part.s1) continue;
                        there = there && complete(found[d][j]);
                        scale[d][j] = unscaled;
                        if (scaled) {
                            const int at = ((k + d) * TILES + j) * 8 + 2 * t;
                            uint2 two;
                            asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                                         : "=r"(two.s0), "=r"(two.s1) : "l"(scales + at)
                                         : "memory");
                            there = there && two.s0 && two.s1;
                            scale[d][j] = as_float2(~two);
                        }
                    }
                if (in_all(there)) break;
                if (--patience < 0) {
                    *alarm = 1;
                    break;
                }
                LOOK(found, k)
            }
UNROLLED
            for (int d = 0; d < CHUNK; ++d) {
                if (k + d >= part.s1) continue;
UNROLLED
                for (int i = 0; i < ROWS; ++i) {
                    if (i >= rows) continue;
                    ARRIVED(SLOTS - 1);
                    const uint4 high = ring[stream.slot * BOTH];
                    const uint4 low = ring[stream.slot * BOTH + WARP];
UNROLLED
                    for (int j = 0; j < COLUMNS; ++j)
                        multiply(sums[i][j], high, low, ~found[d][j], scale[d][j]);
                    fetch(&stream, ring, tasks, weights);
                }
            }
UNROLLED
            for (int d = 0; d < CHUNK; ++d)
UNROLLED
                for (int j = 0; j < COLUMNS; ++j) found[d][j] = coming[d][j];
        }
#else
        for (int k = part.s0; k < part.s1; ++k)
            for (int j = 0; j < COLUMNS; ++j) {
                __global const uint4 *piece = pieces + (k * TILES + j) * WARP;
                volatile __global const uint *two = scales + (k * TILES + j) * 8 + 2 * t;
                bool there = false;
                while (!there) {
                    there = !scaled || (two[0] && two[1]);
                    for (int i = 0; i < WARP; ++i)
                        there = there && complete(look(piece + i));
                    if (!there && --patience < 0) {
                        *alarm = 1;
                        break;
                    }
                }
                const float2 scale =
                    scaled ? as_float2(~(uint2)(two[0], two[1])) : unscaled;
                for (int i = 0; i < rows; ++i) {
                    const int block = i * task->pitch + k - task->first;
                    for (int e = 0; e < 4; ++e)
                        sums[i][j][e] +=
                            (e % 2 ? scale.s1 : scale.s0)
                            * product(weights + ((size_t)task->weights + block) * BOTH,
                                      piece, e);
                }
            }
#endif
        // A warp's piece of sums of each round: its row and column, and whether it is one.
#define ROW(round) (((round) * TOGETHER + warp) / COLUMNS)
#define COLUMN(round) (((round) * TOGETHER + warp) % COLUMNS)
#define HAS(round) (warp < TOGETHER && (round) * TOGETHER + warp < rows * COLUMNS)
#define KEEPS(round) (HAS(round) && (task->keeps >> ROW(round) & 1))
        float4 own[ROUNDS], bias[ROUNDS], factor[ROUNDS];
UNROLLED
        for (int r = 0; r < ROUNDS; ++r) {
            bias[r] = factor[r] = (float4)(0);
            if (!KEEPS(r)) continue;
            float two[4], one[4];
UNROLLED
            for (int e = 0; e < 4; ++e) {
                const int k = task->neuron + ROW(r) * BLOCK + 2 * t + e / 2 + e % 2 * 8;
                const bool live = k < task->n_out;
                one[e] = live ? inverse[task->inverse + k] : 0.0f;
                two[e] = live && task->bias >= 0 ? parameters[task->bias + k] : 0.0f;
            }
            factor[r] = (float4)(one[0], one[1], one[2], one[3]);
            bias[r] = (float4)(two[0], two[1], two[2], two[3]);
        }
UNROLLED
        for (int r = 0; r < ROUNDS; ++r) {
#if PTX >= 80
            if (r * TOGETHER >= rows * COLUMNS) continue;
#endif
            barrier(CLK_LOCAL_MEM_FENCE);
UNROLLED
            for (int f = 0; f < TOGETHER; ++f)
                if (r * TOGETHER + f < ROWS * COLUMNS) {
                    const float *v = sums[(r * TOGETHER + f) / COLUMNS]
                                         [(r * TOGETHER + f) % COLUMNS];
                    __local float *to = shared + (warp * TOGETHER + f) * 8 * PITCH
                                        + 2 * t * PITCH + 2 * g;
                    *(__local float2 *)to = (float2)(v[0], v[2]);
                    *(__local float2 *)(to + PITCH) = (float2)(v[1], v[3]);
                }
            barrier(CLK_LOCAL_MEM_FENCE);
            own[r] = (float4)(0);
            if (HAS(r)) {
UNROLLED
                for (int w = 0; w < WARPS; ++w)
                    own[r] += *(__local const float4 *)(
                        shared + ((w * TOGETHER + warp) * 8 + g) * PITCH + 4 * t);
                if (!KEEPS(r))
                    tell_words(now, then,
                         (task->sums + (r * TOGETHER + warp) * task->slices + task->slice)
                             * WARP + lane,
                         as_uint4(own[r]));
            }
        }
UNROLLED
        for (int r = 0; r < ROUNDS; ++r) {
#if PTX >= 80
            if (!KEEPS(r)) continue;
#endif
            const int slices = task->slices, slice = task->slice;
            float4 v = own[r];
            if (KEEPS(r) && slices > 1) {
                __global const uint4 *parts =
                    now + (task->sums + (r * TOGETHER + warp) * slices) * WARP + lane;
                uint4 sum[SLICES];
                bool there = false;
                while (!there) {
                    there = true;
UNROLLED
                    for (int q = 0; q < SLICES; ++q)
                        sum[q] = q < slices && q != slice ? look(parts + q * WARP)
                                                          : ~as_uint4(own[r]);
UNROLLED
                    for (int q = 0; q < SLICES; ++q)
                        there = there && (q == slice || q >= slices || complete(sum[q]));
                    if (!there && --patience < 0) {
                        *alarm = 1;
                        break;
                    }
                }
                v = (float4)(0);
UNROLLED
                for (int q = 0; q < SLICES; ++q)
                    if (q < slices) v += as_float4(~sum[q]);
            }
            v = v * factor[r] + bias[r];
            const int function = task->function;
            v = (float4)(activate_as(function, v.s0), activate_as(function, v.s1),
                         activate_as(function, v.s2), activate_as(function, v.s3));
            const int block = task->neuron / BLOCK + ROW(r);
            if (task->next) {
                publish(v, task->out + ROW(r) * TILES + COLUMN(r), task->out_scaled,
                        KEEPS(r) && block < task->next, now, then, exchange);
            } else if (KEEPS(r)) {
                const int sample = (task->column + COLUMN(r)) * 8 + g;
                const float out[4] = {v.s0, v.s1, v.s2, v.s3};
                for (int e = 0; e < 4; ++e) {
                    const int k = block * BLOCK + 2 * t + e / 2 + e % 2 * 8;
                    if (sample < batch && k < task->n_out)
                        y[(size_t)sample * ldy + k] = out[e];
                }
            }
        }
    }
    if (id == 0) launches[group] = launch + 1;
}

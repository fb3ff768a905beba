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
// of sums that it `keeps`, always in the same order.
//
// The matrix units take samples as rows, so that what they give a lane, of sample g
// neurons 2t, 2t + 1, 2t + 8 and 2t + 9 (g and t as in halves.h), is what the lane
// hands over to the next layer: as two halves a value, with a scale of their own for
// each sample of a piece, unless their activation is bounded by 1. All that groups hand
// over, pieces, scales and sums, are words turned over, so that 0 means "not there yet"
// (words.h), and what is not there in the end is NaN; launches use two sets of words in
// turn, and each empties the other one.
//
// All groups must run at the same time; waits are bounded as in words.h.
//
// WARPS     of a group
// ROWS      rows of blocks of a task, at most
// COLUMNS   tiles of 8 samples of a task; TILES of the batch are a multiple of it
// CHUNK     blocks of inputs that a warp holds at once
// TOGETHER  of a task's sums, pieces that warps add at a time
// SLICES    that share a tile, at most
// TASKS     of a group, at most
// PIECES    words' pieces of a set, and PARTS pieces of sums after them
// STREAMED  1: weights are too many to stay in the last cache
// PATIENCE  looks at a word before the alarm
// FUNCTIONS as in functions.h; REAL (float) as in activations.h
// PLANES (2), PTX  as in halves.h
#define WIDTH 1
#include "activations.h"
#include "functions.h"
#include "halves.h"
#define NAP 0  // a wait is short, and many warps share it
#include "words.h"
#if !defined(WARPS) || !defined(ROWS) || !defined(COLUMNS) || !defined(TILES) \
    || !defined(CHUNK) || !defined(TOGETHER) || !defined(SLICES) || !defined(TASKS) \
    || !defined(PIECES) || !defined(PARTS) || !defined(STREAMED) || !defined(PATIENCE)
#error "persistent_mma.cl needs WARPS, ROWS, COLUMNS, TILES, CHUNK, TOGETHER, SLICES, \
TASKS, PIECES, PARTS, STREAMED and PATIENCE"
#endif
#define GROUP (WARPS * WARP)
#define BOTH (PLANES * WARP)                    // 4-word parts of a block
#define SCALES ((PIECES + PARTS) * WARP)        // where a set's scales start, in parts
#define SET (SCALES + PIECES * 2)               // 4-word parts of a set
#define BOUND 0x3f800000u                       // of bounded values: 1
#define PAIRS ((COLUMNS + 1) / 2)               // of columns: 16 samples
#define SUMS (ROWS * COLUMNS)                   // a task's pieces of sums, at most
#define ROUNDS ((SUMS + TOGETHER - 1) / TOGETHER)

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

// The same four words, looked at again unless they are there.
inline uint4 look_again(__global const uint4 *words, uint4 found)
{
#if PTX >= 80
    asm volatile("{ .reg .pred missing; setp.ne.s32 missing, %5, 0;"
                 " @missing ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(found.x), "+r"(found.y), "+r"(found.z), "+r"(found.w)
                 : "l"(words), "r"((int)!complete(found)) : "memory");
    return found;
#else
    return look(words);
#endif
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

// A lane's part of a block of weights, or zeros. Where weights are too many to stay in
// the last cache they are the first to leave it.
inline uint4 part_at(__global const uint4 *from, const bool there, const ulong policy)
{
    uint4 v;
#define ZEROS_UNLESS_THERE                                                             \
    "{ .reg .pred there; setp.ne.s32 there, %5, 0;"                                    \
    " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"                     \
    " @there ld.global.nc.L1::no_allocate"
#if STREAMED
    asm volatile(ZEROS_UNLESS_THERE
                 ".L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6; }"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(from), "r"((int)there), "l"(policy));
#else
    asm volatile(ZEROS_UNLESS_THERE ".v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(from), "r"((int)there));
#endif
    return v;
}

// A warp's stream of blocks: of its part of each task in turn.
typedef struct {
    __global const uint4 *from;     // this lane's part of the first row's next block
    int pitch, rows, left, task;    // of its task; blocks that are left; the next task
    ulong policy;
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

// Ask for the stream's next blocks.
#define FETCH()                                                                        \
    {                                                                                  \
        UNROLLED                                                                       \
        for (int b = 0; b < CHUNK; ++b)                                                \
            UNROLLED                                                                   \
            for (int i = 0; i < ROWS; ++i)                                             \
                UNROLLED                                                               \
                for (int p = 0; p < PLANES; ++p)                                       \
                    held[b][i][p] = part_at(                                           \
                        stream.from + i * stream.pitch + b * BOTH + p * WARP,          \
                        b < stream.left && i < stream.rows, stream.policy);            \
        stream.from += CHUNK * BOTH;                                                   \
        stream.left -= CHUNK;                                                          \
        if (stream.left <= 0) enter(&stream, tasks, weights);                          \
    }

// sums [4] += two pieces times half of a block: of samples g (0, 1) and g + 8 (2, 3),
// neurons 2t and 2t + 1
inline void multiply_add(float *sums, const uint4 a, const uint b0, const uint b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.s0), "r"(a.s1), "r"(a.s2), "r"(a.s3), "r"(b0), "r"(b1));
}

// The same with both halves of values, for half h of a block's neurons. The units cut
// off what they add up; so they only add a block, and float32 adds those.
inline void multiply(float *sums, const uint4 one, const uint4 other, const uint4 high,
                     const uint4 low, const int h, const float2 scale)
{
    const uint4 a = (uint4)(one.s0, other.s0, one.s1, other.s1);
    const uint4 a_low = (uint4)(one.s2, other.s2, one.s3, other.s3);
    float main[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
    multiply_add(main, a, h ? high.s1 : high.s0, h ? high.s3 : high.s2);
    multiply_add(rest, a, h ? low.s1 : low.s0, h ? low.s3 : low.s2);
    multiply_add(rest, a_low, h ? high.s1 : high.s0, h ? high.s3 : high.s2);
UNROLLED
    for (int e = 0; e < 4; ++e)
        sums[e] += (e < 2 ? scale.s0 : scale.s1) * fma(rest[e], 1 / LOW, main[e]);
}
#define EXCHANGED 1
#define SPARE 0
#else
// The product of a piece and a block, both in memory, for a lane's neuron e.
inline float product(__global const uint4 *block, __global const uint4 *piece,
                     const int e)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, t = lane % 4;
    __global const half *a = (__global const half *)block;
    __global const uint *b = (__global const uint *)piece;
    const int row = 2 * t + e / 2;  // of a half of the block
    float sum = 0;
    for (int k = 0; k < BLOCK; ++k) {
        const int at = 32 * row + 8 * (k % 8 / 2) + k / 8 * 4 + e % 2 * 2 + k % 2;
        const int word = 4 * (4 * g + k % 8 / 2) + k / 8;
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
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;"
                 : "=r"(two) : "r"(most));
    two = max(most, two);
    asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;"
                 : "=r"(other) : "r"(two));
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

// Hand over this lane's values of a piece: of sample g, neurons 2t, 2t + 8, 2t + 1,
// 2t + 9. Nothing unless it is `mine`.
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

// Those of numbers 0, 8, 1 and 9 that are live, else 0.
inline float4 four_of(__global const float *from, const int live)
{
    return (float4)(live > 0 ? from[0] : 0.0f, live > 8 ? from[8] : 0.0f,
                    live > 1 ? from[1] : 0.0f, live > 9 ? from[9] : 0.0f);
}

// Scales and biases of a row of a task, for what a lane finishes.
typedef struct {
    float4 factor, bias;
} Terms;
inline Terms terms_of(__local const Task *task, const int row, const bool wanted,
                      __global const float *inverse, __global const float *parameters)
{
    const int k = task->neuron + row * BLOCK + get_local_id(0) % WARP % 4 * 2;
    const int live = wanted ? task->n_out - k : 0;
    Terms terms;
    terms.factor = four_of(inverse + task->inverse + k, live);
    terms.bias = four_of(parameters + task->bias + k, task->bias < 0 ? 0 : live);
    return terms;
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx] of n_in inputs
//
// weights    packed layers (halves.h): row blocks, blocks of terms; inverse: scales
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
    __local Task tasks[TASKS];
    __local uint exchange[EXCHANGED];
    __local float4 shared[2 * WARPS * TOGETHER * WARP];
    const int id = get_local_id(0), warp = id / WARP, lane = id % WARP;
    const int g = lane / 4, t = lane % 4;
    const int group = get_group_id(0), groups = get_num_groups(0);
    for (int i = id; i < TASKS * TASK_INTS; i += GROUP)
        ((__local int *)tasks)[i] = schedule[group * TASKS * TASK_INTS + i];
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint launch = launches[group];
    // Words of this launch, and those of the next one, which are to be empty then.
    __global uint4 *now = words + (launch & 1) * SET;
    __global uint4 *then = words + (~launch & 1) * SET;
    int patience = PATIENCE, turn = 0;
#if PTX >= 80
    uint4 held[CHUNK][ROWS][PLANES];
    Stream stream = {weights, 0, 0, 0, 0, 0};
#if STREAMED
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;"
                 : "=l"(stream.policy));
#endif
    enter(&stream, tasks, weights);
    FETCH()
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
        publish((float4)(v[0], v[1], v[2], v[3]), piece, true, piece < x_pieces, now,
                then, exchange);
    }
    for (int n = 0; n < TASKS && tasks[n].blocks > 0; ++n) {
        __local const Task *task = tasks + n;
        const int2 part = part_of(task, warp) + task->first;
        const int rows = task->rows;
        const bool scaled = task->scaled;
        __global const uint4 *pieces = now + task->values * WARP;
        volatile __global const uint *scales =
            (volatile __global const uint *)(now + SCALES + task->values * 2);
        const float unscaled = scales_of(BOUND).s1;
        // Warp c finishes piece c of the sums, of this row and column.
        const int own_row = warp / COLUMNS, own_column = warp % COLUMNS;
        const bool has = warp < rows * COLUMNS;
        const bool keeps = has && (task->keeps >> warp & 1);
        float sums[ROWS][PAIRS + SPARE][2][4];
UNROLLED
        for (int i = 0; i < ROWS; ++i)
UNROLLED
            for (int j = 0; j < PAIRS; ++j)
UNROLLED
                for (int e = 0; e < 8; ++e) sums[i][j][e / 4][e % 4] = 0;
#if PTX >= 80
        // Pieces of CHUNK blocks of inputs from k on, each of them if it is there.
#define EACH(d, j) (((d) * TILES + (j)) * WARP + lane)
#define LOOK(k)                                                                        \
    UNROLLED                                                                           \
    for (int d = 0; d < CHUNK; ++d)                                                    \
        UNROLLED                                                                       \
        for (int j = 0; j < COLUMNS; ++j) {                                            \
            found[d][j] = (uint4)(~0u);                                                \
            if ((k) + d < part.s1) found[d][j] = look(pieces + EACH((k) + d, j));      \
        }
        uint4 found[CHUNK][COLUMNS];
        LOOK(part.s0)
        // While they are on their way.
        const Terms terms = terms_of(task, own_row, keeps, inverse, parameters);
        for (int k = part.s0; k < part.s1; k += CHUNK) {
            float scale[CHUNK][COLUMNS];
            for (;;) {
                bool there = true;
UNROLLED
                for (int d = 0; d < CHUNK; ++d)
UNROLLED
                    for (int j = 0; j < COLUMNS; ++j) {
                        there = there && complete(found[d][j]);
                        scale[d][j] = unscaled;
                        if (scaled && k + d < part.s1) {
                            const uint word = scales[((k + d) * TILES + j) * 8 + g];
                            there = there && word;
                            scale[d][j] = as_float(~word);
                        }
                    }
                if (in_all(there)) break;
                if (--patience < 0) {
                    *alarm = 1;
                    break;
                }
UNROLLED
                for (int d = 0; d < CHUNK; ++d)
UNROLLED
                    for (int j = 0; j < COLUMNS; ++j)
                        found[d][j] = look_again(pieces + EACH(k + d, j), found[d][j]);
            }
UNROLLED
            for (int d = 0; d < CHUNK; ++d)
UNROLLED
                for (int j = 0; j < PAIRS; ++j) {
                    const bool both = 2 * j + 1 < COLUMNS;
                    const uint4 one = ~found[d][2 * j];
                    const uint4 other = both ? ~found[d][2 * j + both] : (uint4)(0);
                    const float2 by = (float2)(scale[d][2 * j], scale[d][2 * j + both]);
UNROLLED
                    for (int i = 0; i < ROWS; ++i)
UNROLLED
                        for (int h = 0; h < 2; ++h)
                            multiply(sums[i][j][h], one, other, held[d][i][0],
                                     held[d][i][1], h, by);
                }
            if (k + CHUNK < part.s1) {
                LOOK(k + CHUNK)
                FETCH()
            }
        }
#else
        const Terms terms = terms_of(task, own_row, keeps, inverse, parameters);
        for (int k = part.s0; k < part.s1; ++k)
            for (int j = 0; j < COLUMNS; ++j) {
                __global const uint4 *piece = pieces + (k * TILES + j) * WARP;
                volatile __global const uint *one = scales + (k * TILES + j) * 8 + g;
                bool there = false;
                while (!there) {
                    there = !scaled || *one;
                    for (int i = 0; i < WARP; ++i)
                        there = there && complete(look(piece + i));
                    if (!there && --patience < 0) {
                        *alarm = 1;
                        break;
                    }
                }
                const float scale = scaled ? as_float(~*one) : unscaled;
                for (int i = 0; i < rows; ++i) {
                    __global const uint4 *block =
                        weights + ((size_t)task->weights + i * task->pitch + k
                                   - task->first) * BOTH;
                    for (int e = 0; e < 4; ++e)
                        sums[i][j / 2][e % 2][j % 2 * 2 + e / 2] +=
                            scale * product(block, piece, e);
                }
            }
#endif
        // Add up the warps' sums, as many pieces at a time as local memory holds twice.
        float4 own = (float4)(0);
UNROLLED
        for (int r = 0; r < ROUNDS; ++r) {
#if PTX >= 80
            if (r * TOGETHER >= rows * COLUMNS) continue;
#endif
            __local float4 *all = shared + turn * WARPS * TOGETHER * WARP;
            turn ^= 1;
UNROLLED
            for (int f = 0; f < TOGETHER; ++f)
                if (r * TOGETHER + f < SUMS) {
                    const int i = (r * TOGETHER + f) / COLUMNS;
                    const int j = (r * TOGETHER + f) % COLUMNS, e = j % 2 * 2;
                    all[(warp * TOGETHER + f) * WARP + lane] = (float4)(
                        sums[i][j / 2][0][e], sums[i][j / 2][1][e],
                        sums[i][j / 2][0][e + 1], sums[i][j / 2][1][e + 1]);
                }
            barrier(CLK_LOCAL_MEM_FENCE);
            if (has && warp / TOGETHER == r)
UNROLLED
                for (int w = 0; w < WARPS; ++w)
                    own += all[(w * TOGETHER + warp % TOGETHER) * WARP + lane];
        }
        const int slices = task->slices, slice = task->slice;
        const int parts = (task->sums + warp * slices) * WARP + lane;
        if (has && !keeps) tell_words(now, then, parts + slice * WARP, as_uint4(own));
#if PTX >= 80
        if (keeps)
#endif
        {
            float4 v = own;
            if (keeps && slices > 1) {
                uint4 sum[SLICES];
UNROLLED
                for (int q = 0; q < SLICES; ++q)
                    sum[q] = q < slices && q != slice ? look(now + parts + q * WARP)
                                                      : (uint4)(~0u);
                for (;;) {
                    bool there = true;
UNROLLED
                    for (int q = 0; q < SLICES; ++q) there = there && complete(sum[q]);
                    if (there) break;
                    if (--patience < 0) {
                        *alarm = 1;
                        break;
                    }
UNROLLED
                    for (int q = 0; q < SLICES; ++q)
                        if (q < slices && q != slice)
                            sum[q] = look_again(now + parts + q * WARP, sum[q]);
                }
                v = (float4)(0);
UNROLLED
                for (int q = 0; q < SLICES; ++q)
                    if (q < slices) v += q == slice ? own : as_float4(~sum[q]);
            }
            v = v * terms.factor + terms.bias;
            const int function = task->function;
            v = (float4)(activate_as(function, v.s0), activate_as(function, v.s1),
                         activate_as(function, v.s2), activate_as(function, v.s3));
            const int block = task->neuron / BLOCK + own_row;
            if (task->next) {
                publish(v, task->out + own_row * TILES + own_column, task->out_scaled,
                        keeps && block < task->next, now, then, exchange);
            } else if (keeps) {
                const int sample = (task->column + own_column) * 8 + g;
                const float out[4] = {v.s0, v.s1, v.s2, v.s3};
                for (int e = 0; e < 4; ++e) {
                    const int k = block * BLOCK + 2 * t + e / 2 + e % 2 * 8;
                    if (sample < batch && k < task->n_out)
                        y[(size_t)sample * ldy + k] = out[e];
                }
            }
        }
#if PTX >= 80
        // Others wait for the sums: so the next weights are asked for after them.
        if (part.s0 < part.s1) FETCH()
#endif
    }
    if (id == 0) launches[group] = launch + 1;
}

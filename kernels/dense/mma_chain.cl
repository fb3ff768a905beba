// mma_chain: a chain of dense layers of a batch on matrix units (wgmma.h), in one launch
// of as many groups as run at the same time.
//
// The tiles of all layers are numbered one after the other, and group g takes tiles g,
// g + groups …. A tile reads the values of its own rows alone, so that it waits for the
// tiles of these rows in the layer before, and for nothing else:
//
//   x          rows 0, rows 1 …, packed by all
//   layer 0    rows 0: tiles 0 1 2     rows 1: tiles 3 4 5     groups 0 1 2 3
//   layer 1    rows 0: tiles 6 7 8     …                       tile 6 waits for 0, 1, 2
//
// A warp of its own copies what a group multiplies through all its tiles, into a ring of
// stages. A tile's weights wait for nobody: they are on their way while its rows are
// waited for and while the sums of the tile before are finished.
//
// Values that layers hand over are packed halves, whose scale must be known before they
// are: that of what activations bound by 1; else a row's own, by which no sum is too
// large, from the row's largest input, the largest weight and the largest bias:
//
//     |A x + b| <= n_in max |A| max |x| + max |b|
//
// A half is as exact far below its largest value as close to it.
//
// Groups count what they have finished of each layer's inputs, rows of x, then tiles,
// through all launches: nothing is ever emptied. Every wait is bounded: after MAX_POLLS
// looks a group sets the timeout and waits no more, and what is then written to y is NaN.
//
// LAYERS    of the chain
// N_OUT     {n, …} neurons of each layer
// BLOCKS    {n, …} blocks of its inputs' terms
// WIDTHS    {n, …} columns of its tiles: TILE_N, or NARROW where that leaves groups idle
// TILES     {n, …} tiles before each layer, and all
// SCALED    {n, …} 1 where rows of its inputs have scales of their own; and 0 of y
// REACH     {f, …} the activation's steepness: its bound is that of sums times this
// VALUES    {n, …} where its packed inputs start, in 4-word parts
// WEIGHTS   {n, …} where its packed A starts, likewise; INVERSE: the scales of its rows
// BIAS      {n, …} where its biases start in the parameters; -1 where there are none
// FUNCTION  {n, …} code of its activation, but for the last; FUNCTIONS: as in functions.h
// ACTIVATION, STEEPNESS, LIMIT  the last layer's, as in activations.h; LAST_WIDTH: its
//           tiles' columns
// N_IN      inputs of the first layer
// X_PADDED, Y_PADDED  1: rows of x, y start on a vector of 4, those of x end in zeros
// UNBOUNDED 1: SCALED says so of others than the first; 0: not
// MAX_POLLS  looks before the timeout
// REAL      (float) as in activations.h
// TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PRODUCER (not 0), PANEL, SPLITS,
//           PTX  as in wgmma.h
#define WIDTH 1
#include "include/activations.h"
#include "tensor_core/wgmma.h"
#include "tensor_core/fast_math.h"
#include "include/functions.h"
#include "tensor_core/core_matrices.h"
#if !defined(LAYERS) || !defined(N_OUT) || !defined(BLOCKS) || !defined(WIDTHS) \
    || !defined(TILES) || !defined(SCALED) || !defined(REACH) || !defined(VALUES) \
    || !defined(WEIGHTS) || !defined(INVERSE) \
    || !defined(BIAS) || !defined(FUNCTION) || !defined(ACTIVATION) \
    || !defined(LAST_WIDTH) || !defined(N_IN) || !defined(X_PADDED) \
    || !defined(Y_PADDED) || !defined(UNBOUNDED) || !defined(MAX_POLLS)
#error "mma_chain.cl needs LAYERS, N_OUT, BLOCKS, WIDTHS, TILES, SCALED, REACH, VALUES, \
WEIGHTS, INVERSE, BIAS, FUNCTION, ACTIVATION, LAST_WIDTH, N_IN, X_PADDED, Y_PADDED, \
UNBOUNDED and MAX_POLLS"
#endif
#define SCALES scales_of(as_uint(1.0f))  // of rows whose values are not beyond 1
#define OWN ((TILE_N + WARP_GROUP - 1) / WARP_GROUP)  // columns

__constant int n_out_of[LAYERS] = N_OUT;
__constant int blocks_of[LAYERS] = BLOCKS;
__constant int width_of[LAYERS] = WIDTHS;
__constant int tiles_before[LAYERS + 1] = TILES;
__constant int is_scaled[LAYERS + 1] = SCALED;
__constant float reach_of[LAYERS] = REACH;
__constant int values_of[LAYERS] = VALUES;
__constant int weights_of[LAYERS] = WEIGHTS;
__constant int inverse_of[LAYERS] = INVERSE;
__constant int bias_of[LAYERS] = BIAS;
__constant int function_of[LAYERS - 1] = FUNCTION;

#include "dense/mma_chain_tiles.h"

#if PTX == 90
#define ROW_LANES WARP      // work-items that pack a row
inline void row_barrier(void) { warp_barrier(); }

// The largest of a warp's work-items.
inline uint largest_of_warp(const uint most)
{
    uint largest;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(most));
    return largest;
}

// The largest of the four that have outputs of the same rows.
inline uint largest_of_four(const uint most)
{
    const uint two = max(most, shuffle_xor_uint(most, 1));
    return max(two, shuffle_xor_uint(two, 2));
}
#else
#define ROW_LANES 1
inline void row_barrier(void) { mem_fence(CLK_GLOBAL_MEM_FENCE); }
inline uint largest_of_warp(const uint most) { return most; }
inline uint largest_of_four(const uint most) { return most; }
#endif

// Pack rows of x, each by ROW_LANES work-items, those of a tile by neighbours.
inline void pack_x(__global const float *x, const int ldx, __global uint4 *packed,
                   __global float *inverse, __global uint *largest, const int batch,
                   __global uint *counts)
{
    const int id = get_local_id(0), lane = id % ROW_LANES;
    const int together = CONSUMERS / ROW_LANES;
    const int rows = rows_of(batch), parts = 2 * blocks_of[0];
    for (int first = get_group_id(0) * together; first < rows;
         first += get_num_groups(0) * together) {
        const int row = first + id / ROW_LANES, terms = row < batch ? N_IN : 0;
        __global const float *source = x + (size_t)row * ldx;
        if (row >= rows) break;
        // The first part is kept from finding the row's largest value.
        const float8 held = load(source, UNIT * lane, 1, terms, X_PADDED);
        uint most = largest_of(held);
        for (int p = lane + ROW_LANES; p < parts; p += ROW_LANES)
            most = max(most, largest_of(load(source, UNIT * p, 1, terms, X_PADDED)));
        most = largest_of_warp(most);
        const float2 scales = scales_of(most);
        if (lane == 0) {
            inverse[row] = scales.s1;
            largest[row] = most;
        }
        for (int p = lane; p < parts; p += ROW_LANES) {
            const float8 v = p == lane ? held
                                       : load(source, UNIT * p, 1, terms, X_PADDED);
            put(packed + part_at(row, UNIT * p, blocks_of[0], A_ROWS), v * scales.s0,
                A_ROWS);
        }
        fence_proxy_async();
        row_barrier();
        if (lane == 0) add_one(counts + count_of(0, row, batch));
    }
}

#if PTX == 90
// Copy the steps of all a group's tiles.
inline void copy_tiles(Ring *ring, Task task, __global const uint4 *weights,
                       __global const uint4 *values, const int batch,
                       __global uint *counts, const uint launch, __global int *timeout)
{
    const int groups = get_num_groups(0);
    PipelineState place = {0, 1};  // no flag is in the phase before the first: all are free
    int patience = MAX_POLLS;
    while (next_task(&task, groups, batch)) {
        const int layer = task.layer, blocks = blocks_of[layer], steps = blocks / STEP;
        const int width = width_of[layer], b_step = B_STEP(width);
        __global const uint4 *a = values + values_of[layer]
                                  + part_at(task.at.s0, 0, blocks, A_ROWS);
        __global const uint4 *b = weights + weights_of[layer]
                                  + part_at(task.at.s1, 0, blocks, width);
        __global uint *count = counts + count_of(layer, task.at.s0, batch);
        const uint wanted = wanted_of(task, launch);
        bool come = there(count, wanted);
        // Weights alone until rows are there.
        PipelineState ahead = place;
        int step = 0;
        for (; !come && step < min(STAGES, steps); ++step) {
            mbarrier_wait(ring->empty + ahead.stage, ahead.phase);
            mbarrier_expect_stage(ring->full + ahead.stage, width);
            copy_columns(stage_at(ring, ahead.stage), b + step * b_step,
                         ring->full + ahead.stage, width);
            go_on(&ahead);
            come = there(count, wanted);
        }
        while (!come && --patience > 0) come = there(count, wanted);
        if (!come) *timeout = 1;
        fence_proxy_async();
        for (int i = 0; i < steps; ++i) {
            __local Mbarrier *full = ring->full + place.stage;
            if (i >= step) {
                mbarrier_wait(ring->empty + place.stage, place.phase);
                mbarrier_expect_stage(full, width);
                copy_columns(stage_at(ring, place.stage), b + i * b_step, full, width);
            }
            copy_rows(stage_at(ring, place.stage), a + i * A_STEP, blocks * A_PIECE,
                      full);
            go_on(&place);
        }
    }
}
#endif

// What a work-item reads and writes beside its sums.
typedef struct {
    __global uint4 *values;
    __global const uint4 *weights;
    __global const float *inverse, *parameters;
    volatile __global float *row_inverse;
    volatile __global uint *largest;
    __global float *y;
    __global uint *counts;
    __global int *timeout;
    __local float2 *columns;    // scales and biases of its team's columns
    __local float2 *extremes;   // the largest of the layer's, of each warp of the team
    int ldy, batch;
    uint launch;
} Buffers;

// Two neighbouring sums of row i of a work-item's two, scaled, with their biases.
inline float2 scaled(float (*sums)[4], const int j, const int i, const float *of_rows,
                     const Buffers *at)
{
    const float4 both = *(__local const float4 *)(at->columns + COLUMN_OF(j));
    const float2 v = (float2)(sums[j][2 * i], sums[j][2 * i + 1]) * of_rows[i];
    return (float2)(fma(v.s0, both.s0, both.s1), fma(v.s1, both.s2, both.s3));
}

// Write a word if it is wanted.
inline void put_if(__global uint *to, const uint word, const bool wanted)
{
#if PTX == 90
    // Without a branch, in which all that leads to the word would end up; reads of local
    // memory may pass it.
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %2, 0;"
                 " @wanted st.global.u32 [%0], %1; }"
                 :: "l"(to), "r"(word), "r"((int)wanted));
#else
    if (wanted) *to = word;
#endif
}

// Write what comes of a tile's sums, times `scales`, as the next layer's inputs; the
// largest of each of the two rows.
inline void hand_over(float (*sums)[4], const int code, const int width,
                      const Task task, const float *of_rows, const float *scales,
                      uint *most, const Buffers *at)
{
    const int following = min(task.layer + 1, LAYERS - 1);
    const int left = n_out_of[task.layer] - task.at.s1 - COLUMN_OF(0);
    const int m = task.at.s0 + ROW_OF(0);
    __global uint *to = (__global uint *)(at->values + values_of[following])
                        + pair_at(m, task.at.s1, blocks_of[following]) + LANE % 4;
UNROLLED
    for (int j = 0; j < width / 8; ++j)
UNROLLED
        for (int i = 0; i < 2; ++i) {
            float2 v = scaled(sums, j, i, of_rows, at);
            v = (float2)(activate_as(code, v.s0), activate_as(code, v.s1));
            v = (float2)(left > 8 * j ? v.s0 : 0, left > 8 * j + 1 ? v.s1 : 0);
            most[i] = max(most[i], max(magnitude(v.s0), magnitude(v.s1)));
            v *= scales[i];
            // Eight rows further, eight terms, a block.
            __global uint *pair = to + i * 64 + j % 2 * 32 + j / 2 * (4 * A_PIECE);
            const uint high = pack_half2(v.s0, v.s1);
            put_if(pair, high, left > 8 * j);
            v = (v - unpack_half2(high)) * LOW_SCALE;
            if (SPLITS == 2)
                put_if(pair + NEXT_PLANE, pack_half2(v.s0, v.s1), left > 8 * j);
        }
}

// Write what comes of a last layer's sums: y, or NaN.
inline void put_out(float (*sums)[4], const int width, const bool spoilt,
                    const Task task, const float *of_rows, const Buffers *at)
{
    const int m = task.at.s0 + ROW_OF(0);
UNROLLED
    for (int j = 0; j < width / 8; ++j)
UNROLLED
        for (int i = 0; i < 2; ++i) {
            const int n = task.at.s1 + COLUMN_OF(j), left = n_out_of[task.layer] - n;
            if (left <= 0 || m + 8 * i >= at->batch) continue;
            float2 v = scaled(sums, j, i, of_rows, at);
            v = spoilt ? (float2)(NAN) : (float2)(activate(v.s0), activate(v.s1));
            put_pair(at->y + (size_t)(m + 8 * i) * at->ldy + n, v, left, Y_PADDED);
        }
}

#if UNBOUNDED
// The largest scale of a layer's neurons, and the largest bias, of those that a warp's
// work-items look at.
inline float2 extremes_of(const int layer, const Buffers *at)
{
    const int n_out = n_out_of[layer], bias = bias_of[layer];
    const int step = PTX == 90 ? WARP_GROUP : 1;
    uint scale = 0, most = 0;
    for (int n = get_local_id(0) % step; n < n_out; n += step) {
        scale = max(scale, magnitude(at->inverse[inverse_of[layer] + n]));
        if (bias >= 0) most = max(most, magnitude(at->parameters[bias + n]));
    }
    return (float2)(as_float(largest_of_warp(scale)), as_float(largest_of_warp(most)));
}

// What no sum of a layer is beyond where no input of the row is beyond `most`: its bits.
inline uint bound_of(const int layer, const float most, const Buffers *at)
{
    const float n_in = layer ? n_out_of[max(layer, 1) - 1] : N_IN;
    float2 extremes = at->extremes[0];
UNROLLED
    for (int w = 1; w < WARP_GROUP / WARP; ++w)
        extremes = fmax(extremes, at->extremes[w]);
    return magnitude(reach_of[layer] * (n_in * most * (2 << TOP) * extremes.s0
                                        + extremes.s1));
}
#endif

// Multiply a tile, of so many columns, and finish it.
inline void compute(const int width, const Task task, const Buffers *at
#if PTX == 90
                    , Ring *ring, PipelineState *place
#endif
                    )
{
    const int layer = task.layer, n_out = n_out_of[layer], bias = bias_of[layer];
    const int lane = get_local_id(0) % WARP_GROUP, rounds = blocks_of[layer] / ROUND;
    const int row = task.at.s0 + ROW_OF(0), first = layer * rows_of(at->batch) + row;
    float2 own[OWN];
    float sums[2 * BLOCKS_N][4], of_rows[2], scales[2];
    uint most[2] = {0, 0};
#if UNBOUNDED
    float2 extremes = (float2)(0);
    if (is_scaled[layer + 1]) extremes = extremes_of(layer, at);
#endif
UNROLLED
    for (int i = 0; i < OWN; ++i) {
        const int n = min(task.at.s1 + lane + i * WARP_GROUP, n_out - 1);
        own[i] = (float2)(at->inverse[inverse_of[layer] + n],
                          bias < 0 ? 0.0f : at->parameters[bias + n]);
    }
#if PTX == 90
    add_rounds(sums, ring, place, rounds, width);
#else
    __global uint *count = at->counts + count_of(layer, task.at.s0, at->batch);
    for (int left = MAX_POLLS; left >= 0 && !there(count, wanted_of(task, at->launch));
         --left)
        if (left == 0) *at->timeout = 1;
    multiply_width(sums, at->values + values_of[layer], at->weights + weights_of[layer],
                   task.at, blocks_of[layer], 0, rounds, width);
#endif
UNROLLED
    for (int i = 0; i < OWN; ++i)
        if (lane + i * WARP_GROUP < width) at->columns[lane + i * WARP_GROUP] = own[i];
#if UNBOUNDED
    if (LANE == 0 || PTX != 90) at->extremes[lane / WARP] = extremes;
#endif
    team_barrier();
    const bool multiplies = get_local_id(0) < CONSUMERS;
    // Rows' own scales were written in this launch, before the rows were copied.
UNROLLED
    for (int i = 0; i < 2; ++i) {
        const int at_row = first + 8 * i, after = at_row + rows_of(at->batch);
        of_rows[i] = is_scaled[layer] && multiplies ? at->row_inverse[at_row]
                                                    : SCALES.s1;
        scales[i] = SCALES.s0;
#if UNBOUNDED
        if (is_scaled[layer + 1] && multiplies) {
            const float largest = is_scaled[layer] ? as_float(at->largest[at_row]) : 1;
            const float2 both = scales_of(bound_of(layer, largest, at));
            scales[i] = both.s0;
            at->row_inverse[after] = both.s1;
        }
#endif
    }
#define HAND_OVER(code, function, steepness, limit)                                      \
    case code: hand_over(sums, code, width, task, of_rows, scales, most, at); break;
    if (multiplies && layer < LAYERS - 1)
        switch (function_of[layer]) { FUNCTIONS(HAND_OVER) }
#if UNBOUNDED
    if (multiplies && is_scaled[layer + 1])
        for (int i = 0; i < 2; ++i) {
            const uint largest = largest_of_four(most[i]);
            if (LANE % 4 == 0 || PTX != 90)
                atomic_max(at->largest + first + rows_of(at->batch) + 8 * i, largest);
        }
#endif
    // Told of by those who wrote what this tile depends on, or by its own group.
    if (multiplies && layer == LAYERS - 1 && width == LAST_WIDTH)
        put_out(sums, width, *(volatile __global int *)at->timeout, task, of_rows, at);
    publish(at->counts + count_of(layer + 1, task.at.s0, at->batch));
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx]
//
// values      packed inputs of each layer
// row_inverse [LAYERS, rows] the scales of their rows, of whole tiles
// largest     [2, LAYERS, rows] the largest value of each row, 0 at first; launches use
//             two sets in turn, and each empties the other one
// weights     packed A of each layer; inverse: the scales of their rows
// parameters  the biases
// counts      [LAYERS + 1, tiles of rows], 0 at first
// launches    [groups] the number of each group's launches so far, 0 at first
// timeout       set where a wait hit its bound
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void mma_chain(__global const float *x, const int ldx, __global uint4 *values,
               __global float *row_inverse, __global uint *largest,
               __global const uint4 *weights, __global const float *inverse,
               __global const float *parameters, __global float *y, const int ldy,
               const int batch, __global uint *counts, __global uint *launches,
               __global int *timeout)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    __local float2 columns[GROUPS * TILE_N] __attribute__((aligned(16)));
    __local float2 extremes[CONSUMERS / WARP];
    const int id = get_local_id(0), groups = get_num_groups(0);
    const uint launch = launches[get_group_id(0)];
    Task task = {(int)get_group_id(0) - groups, 0, (int2)(0)};
#if PTX == 90
    Ring ring = ring_of(shared);
    if (id == 0) ready(&ring);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id >= CONSUMERS) {
        setmaxnreg_dec();
        if (id == CONSUMERS)
            copy_tiles(&ring, task, weights, values, batch, counts, launch, timeout);
        return;
    }
    setmaxnreg_inc();
    PipelineState place = {0, 0};
#define COMPUTE(width) compute(width, task, &at, &ring, &place);
#else
#define COMPUTE(width) compute(width, task, &at);
#endif
    const int all_rows = LAYERS * rows_of(batch);
    __global uint *now = largest + (launch & 1) * all_rows;
    if (id < CONSUMERS) {
        __global uint *then = largest + (~launch & 1) * all_rows;
        for (int i = get_group_id(0) * CONSUMERS + id; UNBOUNDED && i < all_rows;
             i += groups * CONSUMERS)
            then[i] = 0;
        pack_x(x, ldx, values, row_inverse, now, batch, counts);
    }
    team_barrier();
    const Buffers at = {
        values, weights, inverse, parameters, row_inverse, now, y, counts, timeout,
        columns + id % CONSUMERS / WARP_GROUP * TILE_N,
        extremes + id % CONSUMERS / WARP_GROUP * (WARP_GROUP / WARP), ldy, batch,
        launch
    };
    while (next_task(&task, groups, batch)) {
#ifdef NARROW
        if (width_of[task.layer] != TILE_N) {
            COMPUTE(NARROW)
            continue;
        }
#endif
        COMPUTE(TILE_N)
    }
    if (id == 0) launches[get_group_id(0)] = launch + 1;
}

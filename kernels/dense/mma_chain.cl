// mma_chain: a chain of dense layers of a batch on Tensor Cores (wgmma.h), in one
// persistent launch of as many groups as run concurrently.
//
// The tiles of all layers are numbered consecutively, and group g computes tiles g,
// g + groups …. A tile reads the values of its own rows alone, so it waits for the tiles
// of these rows in the layer before, and for nothing else:
//
//   x          rows 0, rows 1 …, packed by all
//   layer 0    rows 0: tiles 0 1 2     rows 1: tiles 3 4 5     groups 0 1 2 3
//   layer 1    rows 0: tiles 6 7 8     …                       tile 6 waits for 0, 1, 2
//
// A producer warp copies the operands of all the group's tiles through one pipeline. A
// tile's weights depend on no other group: their copies are in flight while the producer
// waits for rows and the consumers are in the epilogue of the tile before.
//
// Values between layers are packed halves, whose scale must be known in advance: that of
// activations bounded by 1; else one for each row, from a bound on its pre-activations by
// the row's largest input, the largest weight and the largest bias:
//
//     |A x + b| <= n_in max |A| max |x| + max |b|
//
// A half is as precise far below the bound as close to it.
//
// Counters count the finished rows of x, then tiles, of each layer's inputs, through all
// launches, and are never reset. Every wait is bounded: after MAX_POLLS polls a group sets
// the timeout and waits no more, and outputs written to y from then on are NaN.
//
// LAYERS    of the chain
// N_OUT     {n, …} neurons of each layer
// BLOCKS    {n, …} blocks of its inputs' terms
// WIDTHS    {n, …} columns of its tiles: TILE_N, or NARROW where that leaves groups idle
// TILES     {n, …} tiles before each layer, and all
// SCALED    {n, …} 1: rows of its inputs have scales of their own; last, 0 for y
// STEEPNESS_OF  {f, …} the activation's |steepness|, a factor of its bound
// VALUES    {n, …} offset of its packed inputs, in 4-word vectors
// WEIGHTS   {n, …} offset of its packed A, likewise; INVERSE: of its inverse scales
// BIAS      {n, …} offset of its biases in the parameters; -1: none
// FUNCTION  {n, …} code of its activation, except the last layer's; FUNCTIONS: as in
//           functions.h
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  the last layer's, as in activations.h; LAST_WIDTH: its
//           tiles' columns
// N_IN      inputs of the first layer
// X_PADDED, Y_PADDED  1: rows of x, y start on a vector of 4, those of x end in zeros
// UNBOUNDED 1: SCALED is 1 of another layer than the first; 0: not
// MAX_POLLS polls before the timeout
// REAL      (float) as in activations.h
// TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PRODUCER (not 0), SWIZZLE,
//           SPLITS, PTX  as in wgmma.h
#define WIDTH 1
#include "include/activations.h"
#include "tensor_core/wgmma.h"
#include "tensor_core/fast_math.h"
#include "include/functions.h"
#include "tensor_core/core_matrices.h"
#if !defined(LAYERS) || !defined(N_OUT) || !defined(BLOCKS) || !defined(WIDTHS) \
    || !defined(TILES) || !defined(SCALED) || !defined(STEEPNESS_OF) || !defined(VALUES) \
    || !defined(WEIGHTS) || !defined(INVERSE) \
    || !defined(BIAS) || !defined(FUNCTION) || !defined(ACTIVATION) \
    || !defined(LAST_WIDTH) || !defined(N_IN) || !defined(X_PADDED) \
    || !defined(Y_PADDED) || !defined(UNBOUNDED) || !defined(MAX_POLLS)
#error "mma_chain.cl needs LAYERS, N_OUT, BLOCKS, WIDTHS, TILES, SCALED, STEEPNESS_OF, \
VALUES, WEIGHTS, INVERSE, BIAS, FUNCTION, ACTIVATION, LAST_WIDTH, N_IN, X_PADDED, \
Y_PADDED, UNBOUNDED and MAX_POLLS"
#endif
#define UNIT_SCALES scales_of(as_uint(1.0f))  // of rows bounded by 1
#define COLUMNS_PER_LANE ((TILE_N + WARP_GROUP - 1) / WARP_GROUP)

__constant int n_out_of[LAYERS] = N_OUT;
__constant int blocks_of[LAYERS] = BLOCKS;
__constant int width_of[LAYERS] = WIDTHS;
__constant int tiles_before[LAYERS + 1] = TILES;
__constant int is_scaled[LAYERS + 1] = SCALED;
__constant float steepness_of[LAYERS] = STEEPNESS_OF;
__constant int values_of[LAYERS] = VALUES;
__constant int weights_of[LAYERS] = WEIGHTS;
__constant int inverse_of[LAYERS] = INVERSE;
__constant int bias_of[LAYERS] = BIAS;
__constant int function_of[LAYERS - 1] = FUNCTION;

#include "dense/mma_chain_tiles.h"

#if PTX == 90
#define ROW_LANES WARP      // work-items that pack a row
static inline void row_barrier(void) { warp_barrier(); }

static inline uint warp_max(const uint most)
{
    uint largest;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(most));
    return largest;
}

// The largest of the four lanes with outputs of the same rows.
static inline uint quad_max(const uint most)
{
    const uint two = max(most, shuffle_xor_uint(most, 1));
    return max(two, shuffle_xor_uint(two, 2));
}
#else
#define ROW_LANES 1
static inline void row_barrier(void) { mem_fence(CLK_GLOBAL_MEM_FENCE); }
static inline uint warp_max(const uint most) { return most; }
static inline uint quad_max(const uint most) { return most; }
#endif

// Pack rows of x, each by ROW_LANES work-items, neighbouring rows by neighbouring groups.
static inline void pack_x(__global const float *x, const int ldx,
                          __global uint4 *packed, __global float *inverse,
                          __global uint *largest, const int batch,
                          __global uint *counters)
{
    const int id = get_local_id(0), lane = id % ROW_LANES;
    const int rows_at_once = CONSUMERS / ROW_LANES;
    const int rows = rows_of(batch), core_rows = 2 * blocks_of[0];
    for (int first_row = get_group_id(0) * rows_at_once; first_row < rows;
         first_row += get_num_groups(0) * rows_at_once) {
        const int row = first_row + id / ROW_LANES, terms = row < batch ? N_IN : 0;
        __global const float *source = x + (size_t)row * ldx;
        if (row >= rows) break;
        // The first terms are held in registers between the two passes.
        const float8 held = load_terms(source, CORE * lane, 1, terms, X_PADDED);
        uint most = max_magnitude(held);
        for (int p = lane + ROW_LANES; p < core_rows; p += ROW_LANES)
            most = max(most, max_magnitude(load_terms(source, CORE * p, 1, terms,
                                                      X_PADDED)));
        most = warp_max(most);
        const float2 scales = scales_of(most);
        if (lane == 0) {
            inverse[row] = scales.s1;
            largest[row] = most;
        }
        for (int p = lane; p < core_rows; p += ROW_LANES) {
            const float8 v = p == lane ? held
                                       : load_terms(source, CORE * p, 1, terms, X_PADDED);
            store_core_row(packed + core_row_offset(row, CORE * p, blocks_of[0], A_ROWS),
                           v * scales.s0, A_ROWS);
        }
        fence_proxy_async();
        row_barrier();
        if (lane == 0) red_add_release(counters + counter_at(0, row, batch));
    }
}

#if PTX == 90
// The producer: copy the steps of all the group's tiles.
static inline void produce(Pipeline *pipeline, WorkTile tile,
                           __global const uint4 *weights, __global const uint4 *values,
                           const int batch, __global uint *counters, const uint launch,
                           __global int *timeout)
{
    const int groups = get_num_groups(0);
    PipelineState state = {0, 1};  // waits for the phase before the first return at once
    int polls_left = MAX_POLLS;
    while (next_tile(&tile, groups, batch)) {
        const int layer = tile.layer, blocks = blocks_of[layer], steps = blocks / STEP;
        const int width = width_of[layer], b_step = B_STEP(width);
        __global const uint4 *a = values + values_of[layer]
                                  + core_row_offset(tile.origin.s0, 0, blocks, A_ROWS);
        __global const uint4 *b = weights + weights_of[layer]
                                  + core_row_offset(tile.origin.s1, 0, blocks, width);
        __global uint *counter = counters + counter_at(layer, tile.origin.s0, batch);
        const uint target = target_count(tile, launch);
        bool arrived = has_arrived(counter, target);
        // Weights alone until the rows arrive.
        PipelineState weights_state = state;
        int step = 0;
        for (; !arrived && step < min(STAGES, steps); ++step) {
            mbarrier_wait(pipeline->empty + weights_state.stage, weights_state.phase);
            mbarrier_expect_stage(pipeline->full + weights_state.stage, width);
            load_b(stage_address(pipeline, weights_state.stage), b + step * b_step,
                   pipeline->full + weights_state.stage, width);
            advance(&weights_state);
            arrived = has_arrived(counter, target);
        }
        while (!arrived && --polls_left > 0) arrived = has_arrived(counter, target);
        if (!arrived) *timeout = 1;
        fence_proxy_async();
        for (int i = 0; i < steps; ++i) {
            __local Mbarrier *full = pipeline->full + state.stage;
            if (i >= step) {
                mbarrier_wait(pipeline->empty + state.stage, state.phase);
                mbarrier_expect_stage(full, width);
                load_b(stage_address(pipeline, state.stage), b + i * b_step, full, width);
            }
            load_a(stage_address(pipeline, state.stage), a + i * A_STEP, blocks * A_BLOCK,
                   full);
            advance(&state);
        }
    }
}
#endif

// The buffers of the epilogues.
typedef struct {
    __global uint4 *values;
    __global const uint4 *weights;
    __global const float *inverse, *parameters;
    volatile __global float *row_inverse;
    volatile __global uint *largest;
    __global float *y;
    __global uint *counters;
    __global int *timeout;
    __local float2 *columns;    // scales and biases of the warp group's columns
    __local float2 *extremes;   // the largest scale and bias, by each of its warps
    int ldy, batch;
    uint launch;
} Buffers;

// Two neighbouring sums of row i of a work-item's two, scaled, with their biases.
static inline float2 scaled_sums(float (*sums)[4], const int j, const int i,
                                 const float *row_scales, const Buffers *buffers)
{
    const float4 both = *(__local const float4 *)(buffers->columns + COLUMN_OF(j));
    const float2 pair = (float2)(sums[j][2 * i], sums[j][2 * i + 1]);
    return scaled_pair(pair, row_scales[i], both.s02) + both.s13;
}

// Store a word if it is live.
static inline void store_if(__global uint *to, const uint word, const bool live)
{
#if PTX == 90
    // Predicated: the compiler would sink the word's computation into a branch. Loads of
    // local memory may pass the store.
    asm volatile("{ .reg .pred live; setp.ne.s32 live, %2, 0;"
                 " @live st.global.u32 [%0], %1; }"
                 :: "l"(to), "r"(word), "r"((int)live));
#else
    if (live) *to = word;
#endif
}

// A hidden layer's epilogue: store the outputs of a tile, times `scales`, as the next
// layer's packed inputs; most: the largest magnitude of each of the two rows.
static inline void epilogue_hidden(float (*sums)[4], const int code, const int width,
                                   const WorkTile tile, const float *row_scales,
                                   const float *scales, uint *most,
                                   const Buffers *buffers)
{
    const int next_layer = min(tile.layer + 1, LAYERS - 1);
    const int left = n_out_of[tile.layer] - tile.origin.s1 - COLUMN_OF(0);
    const int m = tile.origin.s0 + ROW_OF(0);
    __global uint *to = (__global uint *)(buffers->values + values_of[next_layer])
                        + pair_offset(m, tile.origin.s1, blocks_of[next_layer]) + LANE % 4;
UNROLLED
    for (int j = 0; j < width / 8; ++j)
UNROLLED
        for (int i = 0; i < 2; ++i) {
            float2 v = scaled_sums(sums, j, i, row_scales, buffers);
            v = (float2)(activate_as(code, v.s0), activate_as(code, v.s1));
            v = (float2)(left > 8 * j ? v.s0 : 0, left > 8 * j + 1 ? v.s1 : 0);
            most[i] = max(most[i], max(magnitude(v.s0), magnitude(v.s1)));
            v *= scales[i];
            // On by eight rows, by eight terms, by a block.
            __global uint *pair = to + i * 64 + j % 2 * 32 + j / 2 * (4 * A_BLOCK);
            const uint high = pack_half2(v.s0, v.s1);
            store_if(pair, high, left > 8 * j);
            v = (v - unpack_half2(high)) * LOW_SCALE;
            if (SPLITS == 2)
                store_if(pair + SPLIT_STRIDE, pack_half2(v.s0, v.s1), left > 8 * j);
        }
}

// The last layer's epilogue: store y, or NaN after a timeout.
static inline void epilogue_y(float (*sums)[4], const int width, const bool timed_out,
                              const WorkTile tile, const float *row_scales,
                              const Buffers *buffers)
{
    const int m = tile.origin.s0 + ROW_OF(0);
UNROLLED
    for (int j = 0; j < width / 8; ++j)
UNROLLED
        for (int i = 0; i < 2; ++i) {
            const int n = tile.origin.s1 + COLUMN_OF(j), left = n_out_of[tile.layer] - n;
            if (left <= 0 || m + 8 * i >= buffers->batch) continue;
            float2 v = scaled_sums(sums, j, i, row_scales, buffers);
            v = timed_out ? (float2)(NAN) : (float2)(activate(v.s0), activate(v.s1));
            store_pair(buffers->y + (size_t)(m + 8 * i) * buffers->ldy + n, v, left,
                       Y_PADDED);
        }
}

#if UNBOUNDED
// The largest inverse scale of a layer's neurons, and the largest bias, of a warp's share
// of them.
static inline float2 extremes_of(const int layer, const Buffers *buffers)
{
    const int n_out = n_out_of[layer], bias = bias_of[layer];
    const int step = PTX == 90 ? WARP_GROUP : 1;
    uint scale = 0, most = 0;
    for (int n = get_local_id(0) % step; n < n_out; n += step) {
        scale = max(scale, magnitude(buffers->inverse[inverse_of[layer] + n]));
        if (bias >= 0) most = max(most, magnitude(buffers->parameters[bias + n]));
    }
    return (float2)(as_float(warp_max(scale)), as_float(warp_max(most)));
}

// The bits of a bound on a layer's pre-activations, given a bound `most` on its inputs.
static inline uint bound_of(const int layer, const float most, const Buffers *buffers)
{
    const float n_in = layer ? n_out_of[max(layer, 1) - 1] : N_IN;
    float2 extremes = buffers->extremes[0];
UNROLLED
    for (int w = 1; w < WARP_GROUP / WARP; ++w)
        extremes = fmax(extremes, buffers->extremes[w]);
    return magnitude(steepness_of[layer]
                     * (n_in * most * (2 << MAX_EXPONENT) * extremes.s0 + extremes.s1));
}
#endif

// A consumer's tile of `width` columns: the mainloop and the epilogue.
static inline void compute_tile(const int width, const WorkTile tile,
                                const Buffers *buffers
#if PTX == 90
                                , Pipeline *pipeline, PipelineState *state
#endif
                                )
{
    const int layer = tile.layer, n_out = n_out_of[layer], bias = bias_of[layer];
    const int lane = get_local_id(0) % WARP_GROUP, rounds = blocks_of[layer] / ROUND;
    const int tile_row = tile.origin.s0 + ROW_OF(0);
    const int first_row = layer * rows_of(buffers->batch) + tile_row;
    float2 loaded[COLUMNS_PER_LANE];
    float sums[2 * BLOCKS_N][4], row_scales[2], scales[2];
    uint most[2] = {0, 0};
#if UNBOUNDED
    float2 extremes = (float2)(0);
    if (is_scaled[layer + 1]) extremes = extremes_of(layer, buffers);
#endif
UNROLLED
    for (int i = 0; i < COLUMNS_PER_LANE; ++i) {
        const int n = min(tile.origin.s1 + lane + i * WARP_GROUP, n_out - 1);
        loaded[i] = (float2)(buffers->inverse[inverse_of[layer] + n],
                             bias < 0 ? 0.0f : buffers->parameters[bias + n]);
    }
#if PTX == 90
    consume(sums, pipeline, state, rounds, width);
#else
    __global uint *counter =
        buffers->counters + counter_at(layer, tile.origin.s0, buffers->batch);
    const uint target = target_count(tile, buffers->launch);
    for (int left = MAX_POLLS; left >= 0 && !has_arrived(counter, target); --left)
        if (left == 0) *buffers->timeout = 1;
    mainloop_width(sums, buffers->values + values_of[layer],
                   buffers->weights + weights_of[layer], tile.origin, blocks_of[layer], 0,
                   rounds, width);
#endif
UNROLLED
    for (int i = 0; i < COLUMNS_PER_LANE; ++i)
        if (lane + i * WARP_GROUP < width)
            buffers->columns[lane + i * WARP_GROUP] = loaded[i];
#if UNBOUNDED
    if (LANE == 0 || PTX != 90) buffers->extremes[lane / WARP] = extremes;
#endif
    warp_group_barrier();
    const bool is_consumer = get_local_id(0) < CONSUMERS;
    // Scales of rows were written in this launch, before the rows were copied.
UNROLLED
    for (int i = 0; i < 2; ++i) {
        const int row = first_row + 8 * i, next_row = row + rows_of(buffers->batch);
        row_scales[i] = is_scaled[layer] && is_consumer ? buffers->row_inverse[row]
                                                        : UNIT_SCALES.s1;
        scales[i] = UNIT_SCALES.s0;
#if UNBOUNDED
        if (is_scaled[layer + 1] && is_consumer) {
            const float largest = is_scaled[layer] ? as_float(buffers->largest[row]) : 1;
            const float2 both = scales_of(bound_of(layer, largest, buffers));
            scales[i] = both.s0;
            buffers->row_inverse[next_row] = both.s1;
        }
#endif
    }
#define EPILOGUE(code, function, steepness, limit)                                       \
    case code:                                                                           \
        epilogue_hidden(sums, code, width, tile, row_scales, scales, most, buffers);     \
        break;
    if (is_consumer && layer < LAYERS - 1)
        switch (function_of[layer]) { FUNCTIONS(EPILOGUE) }
#if UNBOUNDED
    if (is_consumer && is_scaled[layer + 1])
        for (int i = 0; i < 2; ++i) {
            const uint largest = quad_max(most[i]);
            if (LANE % 4 == 0 || PTX != 90)
                atomic_max(buffers->largest + first_row + rows_of(buffers->batch) + 8 * i,
                           largest);
        }
#endif
    // A timeout is set by the group itself, or by the writers of this tile's inputs.
    if (is_consumer && layer == LAYERS - 1 && width == LAST_WIDTH)
        epilogue_y(sums, width, *(volatile __global int *)buffers->timeout, tile,
                   row_scales, buffers);
    publish(buffers->counters + counter_at(layer + 1, tile.origin.s0, buffers->batch));
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx]
//
// values      packed inputs of each layer
// row_inverse [LAYERS, rows] inverse scales of their rows, of whole tiles
// largest     [2, LAYERS, rows] the largest magnitude of each row, 0 at first; launches
//             alternate between two sets, and each clears the other
// weights     packed A of each layer; inverse: inverse scales of their rows
// parameters  the biases
// counters    [LAYERS + 1, tiles of rows], 0 at first
// launches    [groups] each group's launches so far, 0 at first
// timeout     set when a wait reaches its bound
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void mma_chain(__global const float *x, const int ldx, __global uint4 *values,
               __global float *row_inverse, __global uint *largest,
               __global const uint4 *weights, __global const float *inverse,
               __global const float *parameters, __global float *y, const int ldy,
               const int batch, __global uint *counters, __global uint *launches,
               __global int *timeout)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    __local float2 columns[GROUPS * TILE_N] __attribute__((aligned(16)));
    __local float2 extremes[CONSUMERS / WARP];
    const int id = get_local_id(0), groups = get_num_groups(0);
    const uint launch = launches[get_group_id(0)];
    WorkTile tile = {(int)get_group_id(0) - groups, 0, (int2)(0)};
#if PTX == 90
    Pipeline pipeline = pipeline_of(shared);
    if (id == 0) pipeline_init(&pipeline);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id >= CONSUMERS) {
        setmaxnreg_dec();
        if (id == CONSUMERS)
            produce(&pipeline, tile, weights, values, batch, counters, launch, timeout);
        return;
    }
    setmaxnreg_inc();
    PipelineState state = {0, 0};
#define COMPUTE_TILE(width) compute_tile(width, tile, &buffers, &pipeline, &state);
#else
#define COMPUTE_TILE(width) compute_tile(width, tile, &buffers);
#endif
    const int all_rows = LAYERS * rows_of(batch);
    __global uint *current = largest + (launch & 1) * all_rows;
    if (id < CONSUMERS) {
        __global uint *other = largest + (~launch & 1) * all_rows;
        for (int i = get_group_id(0) * CONSUMERS + id; UNBOUNDED && i < all_rows;
             i += groups * CONSUMERS)
            other[i] = 0;
        pack_x(x, ldx, values, row_inverse, current, batch, counters);
    }
    warp_group_barrier();
    const Buffers buffers = {
        values, weights, inverse, parameters, row_inverse, current, y, counters, timeout,
        columns + id % CONSUMERS / WARP_GROUP * TILE_N,
        extremes + id % CONSUMERS / WARP_GROUP * (WARP_GROUP / WARP), ldy, batch,
        launch
    };
    while (next_tile(&tile, groups, batch)) {
#ifdef NARROW
        if (width_of[tile.layer] != TILE_N) {
            COMPUTE_TILE(NARROW)
            continue;
        }
#endif
        COMPUTE_TILE(TILE_N)
    }
    if (id == 0) launches[get_group_id(0)] = launch + 1;
}

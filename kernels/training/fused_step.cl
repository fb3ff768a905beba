// fused_step: gradients of a training step of narrow layers, on Tensor Cores.
//
//   pack     the weights, as halves, forward and transposed (fused_step_pack.cl)
//   train    the forward pass, the loss and the backward pass of ROWS_M * 16 samples a
//            warp; stores the values and deltas of each layer transposed, as halves, the
//            operands of the weights' gradients
//   weight_gradients  the products of deltas and values (fused_step_gradients.cl); with
//            FUSE_GRADIENTS `train` forms them itself, of a tile's values in local
//            memory, accumulated in registers
//   reduce   adds the partial sums and updates the parameters (fused_step_reduce.cl)
//
// Deltas are the loss gradients by pre-activations. A layer's outputs are, in registers,
// the fragments that the next one multiplies, both ways (narrow_layers.h). The idea is
// that of tiny-cuda-nn's fused networks: Mueller et al., "Real-time neural radiance
// caching for path tracing", 2021.
//
// Scales.  Halves end at 2^16. A sample's values or deltas of a layer are scaled by
// 2^scale, from a bound on them. The deltas of 16 samples at a time carry both scales of
// the product over samples; the largest of them is then 2^8 to 2^15. A delta below 2^-22
// of it is a subnormal high half. With SPLITS = 2 the low half takes what that loses.
//
// FUSE_GRADIENTS  1: layers of at most SQUARE blocks, WARPS 8; else 0
// WARPS, ROWS_M, STAGES  of `train`, as in pipeline.h
// X_PADDED, T_PADDED  1: rows of x, of t start on a vector of 4
// HIDDEN_CODE, LAST_CODE  codes of the hidden layers' and the last layer's activation
// HIDDEN_BOUNDED  1: the hidden layers' is bounded by 1
// HIDDEN_LIMIT, LAST_LIMIT  bounds at which pre-activations times steepness are clipped
// INNER_RELU  1: the hidden layers' is ReLU, not clipped
// DERIVATIVE_EXPONENT  hidden activations' derivatives, times steepness, are at most
//           2^DERIVATIVE_EXPONENT
// SHARE     of the outputs' errors, as in losses.h
// SIZE, BIASES  elements of the flat buffer, and those before the first bias
// others    as in fused_step.h and steps.h
#if !defined(FUSE_GRADIENTS) || !defined(X_PADDED) || !defined(T_PADDED)                 \
    || !defined(HIDDEN_CODE) || !defined(LAST_CODE) || !defined(INNER_RELU)              \
    || !defined(HIDDEN_BOUNDED) || !defined(HIDDEN_LIMIT) || !defined(LAST_LIMIT)        \
    || !defined(DERIVATIVE_EXPONENT) || !defined(SHARE) || !defined(SIZE)                \
    || !defined(BIASES)
#error "fused_step.cl needs the macros of its head comment"
#endif
#define WIDTH 1
#define PER_NETWORK REAL
#define RESIDENT 0
#include "include/steps.h"
#include "training/fused_step.h"
#include "tensor_core/pipeline.h"
#include "training/fused_step_layers.h"
#define CACHE_LINE 32  // floats
#define GROUP_SUMS (SIZE - BIASES + APART)  // of a group: biases' gradients, its record

#if FUSE_GRADIENTS
#define TERM_BLOCKS 2  // of a warp, beside one block of neurons
#define TILE_BLOCKS (WARPS * ROWS_M)

// Add products of a tile's deltas and values to a warp's sums [TERM_BLOCKS * 2], which are
// scaled by 2^reference.
//
// down, across: blocks of the layer's neurons and terms
static inline void add_weight_gradients(float (*sums)[4], int *reference,
                                        const int down, const int across,
                                        __local const uint4 *values,
                                        __local const uint4 *deltas,
                                        __local const int *powers)
{
    const int lane = get_local_id(0) % WARP, warp = get_local_id(0) / WARP;
    const int m = warp % SQUARE, n = warp / SQUARE * TERM_BLOCKS;
    if (m >= down || n >= across) return;
    int least = *reference;
UNROLLED
    for (int k = 0; k < TILE_BLOCKS; ++k) least = min(least, powers[k]);
    if (least < *reference) {
        const float less = power_of_two(least - *reference);
UNROLLED
        for (int i = 0; i < 8 * TERM_BLOCKS; ++i) sums[i / 4][i % 4] *= less;
        *reference = least;
    }
UNROLLED
    for (int k = 0; k < TILE_BLOCKS; ++k) {
        Fragment row[SPLITS], columns[TERM_BLOCKS][SPLITS];
UNROLLED
        for (int p = 0; p < SPLITS; ++p) {
            row[p] = FRAGMENT(deltas + ((k * down + m) * SPLITS + p) * WARP, lane);
UNROLLED
            for (int j = 0; j < TERM_BLOCKS; ++j) {
                const int block = min(n + j, across - 1);
                columns[j][p] =
                    FRAGMENT(values + ((k * across + block) * SPLITS + p) * WARP, lane);
            }
        }
        const int less = least - powers[k];
#if SPLITS == 1
        if (less == 0) {
UNROLLED
            for (int j = 0; j < 2 * TERM_BLOCKS; ++j)
                mma_m16n8k16(sums[j], row[0], columns[j / 2][0], j % 2);
            continue;
        }
#endif
        const float factor = power_of_two(less);
UNROLLED
        for (int j = 0; j < 2 * TERM_BLOCKS; ++j) {
            float high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
            mma_m16n8k16(high, row[0], columns[j / 2][0], j % 2);
#if SPLITS == 2
            mma_m16n8k16(low, row[0], columns[j / 2][1], j % 2);
            mma_m16n8k16(low, row[1], columns[j / 2][0], j % 2);
#endif
UNROLLED
            for (int e = 0; e < 4; ++e)
                sums[j][e] += fma(low[e], 1 / LOW_SCALE, high[e]) * factor;
        }
    }
}
#endif

// The data set's row at index `i` of the epoch's order.
static inline int row_of(const int i, const int n, const int bits, const uint8 key)
{
#if GATHERED == 2
    return permuted(i, n, bits, key);
#else
    return i;
#endif
}

// Four values of a row of `width`, from `start` on; zeros past its end.
static inline float4 load_four(__global const float *row, const int start,
                               const int width, const int padded)
{
    const int left = width - start;
    if (padded) return left > 0 ? *(__global const float4 *)(row + start) : (float4)(0);
    return (float4)(left > 0 ? row[start] : 0, left > 1 ? row[start + 1] : 0,
                    left > 2 ? row[start + 2] : 0, left > 3 ? row[start + 3] : 0);
}

// Prefetch a row to L2: the four lanes of a sample, a cache line each.
static inline void prefetch_l2(__global const float *row, const int width)
{
#if PTX >= 80
UNROLLED
    for (int i = 0; i < width; i += 4 * CACHE_LINE) {
        const int lane_start = i + get_local_id(0) % 4 * CACHE_LINE;
        if (lane_start < width)
            asm volatile("prefetch.global.L2 [%0];"
                         :: "l"(row + lane_start) : "memory");
    }
#endif
}

static inline float quad_max_float(float v, __local uint *exchange)
{
    v = fmax(v, as_float(shuffle_xor_word(as_uint(v), 1, exchange)));
    return fmax(v, as_float(shuffle_xor_word(as_uint(v), 2, exchange)));
}

static inline float quad_sum(float v, __local uint *exchange)
{
    v += as_float(shuffle_xor_word(as_uint(v), 1, exchange));
    return v + as_float(shuffle_xor_word(as_uint(v), 2, exchange));
}

// A sample's loss; z: steepness * (A x + b) of the last layer, replaced by its deltas
//
// target_values, factor: its targets and weight; live: 0 past the last sample
// limit, record: the bit-fail limit; loss, squared error and bit fails, added to
static inline void loss_of(float4 *z, const float4 *target_values, const float factor,
                           const int live, const float limit, float *record,
                           __local uint *exchange)
{
    const int t = get_local_id(0) % 4, width = n_out_of[LAYERS - 1];
    const float part = MEAN ? factor / width : factor;
    const int weighs = live && factor != 0;  // 0 times an overflow would be NaN
    float sum = 0;
#if SOFTMAX
#define LOGIT(i) clipped(((const float *)(z + (i) / 4))[(i) % 4], -LAST_LIMIT, LAST_LIMIT)
    float top = -INFINITY, total = 0, targets = 0;
UNROLLED
    for (int i = 0; i < 4 * LAST; ++i)
        if (i / 4 * BLOCK + 4 * t + i % 4 < width)
            top = fmax(top, LOGIT(i));
    top = quad_max_float(top, exchange);
UNROLLED
    for (int i = 0; i < 4 * LAST; ++i)
        if (i / 4 * BLOCK + 4 * t + i % 4 < width) {
            total += exponential(LOGIT(i) - top);
            targets += ((const float *)(target_values + i / 4))[i % 4];
        }
    total = quad_sum(total, exchange);
    targets = quad_sum(targets, exchange);
    const float log_total = logarithm(total);
#undef LOGIT
#endif
UNROLLED
    for (int i = 0; i < 4 * LAST; ++i) {
        float *at = (float *)(z + i / 4) + i % 4;
        const float target = ((const float *)(target_values + i / 4))[i % 4];
        const float2 both = activate(1, *at);
        const float y = both.s0, output = LOSS_OUTPUT(y);
        const float loss = LOSS_TERM(y, target, SHARE);
        const float gradient = LOSS_SLOPE(y, output, target, SHARE);
        const int inside = i / 4 * BLOCK + 4 * t + i % 4 < width;
        const float error = (target - output) * SHARE;
        sum += weighs && inside ? loss : 0;
        record[1] += weighs && inside ? factor * error * error : 0;
        record[2] += live && inside && fabs(error) >= limit ? 1 : 0;
        *at = weighs && inside ? gradient * part * both.s1 : 0;
    }
    record[0] += sum * part;
}

// x, t, weight [n, width]: the data set
// packed, biases, exponents: as in fused_step_pack.cl
// values       [layers' blocks: sample blocks, blocks, SPLITS, WARP] the layers' inputs
// deltas       likewise, of their pre-activations
// powers       [LAYERS, sample_blocks] exponents of the scales of products of both
// partial_gradients  FUSE_GRADIENTS: [groups, BIASES] the weights' gradients instead
// derivatives  of each warp, of the hidden activations, stored by `forward`
// sums         [groups, GROUP_SUMS] of biases' gradients, then the record
// index map: work-group: every (groups)-th tile of SAMPLES; a warp: ROWS_M * 16 of them
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void train(__global const float *x, const int ldx, __global const float *t, const int ldt,
           __global const float *weight, __global const uint4 *packed,
           __global const float4 *biases, __global const int4 *exponents,
#if FUSE_GRADIENTS
           __global float *partial_gradients,
#else
           __global uint4 *values, __global uint4 *deltas, __global int *powers,
           const int sample_blocks,
#endif
           __global Derivatives *derivatives, __global float *sums, const int n,
           const int bits, const float bit_fail_limit, const int first, const int samples,
           const uint k0, const uint k1, const uint k2, const uint k3,
           const uint k4, const uint k5, const uint k6, const uint k7)
{
    __local uint4 shared[(STAGES > 0 ? STAGES * CHUNK : ALL) * BLOCK_VECTORS];
    __local uint4 exchanges[EXCHANGE_VECTORS];
    __local float4 local_biases[LAYERS * MAX_NEURONS / 4];
    __local int4 local_exponents[LAYERS];
    __local float bias_sums[WARPS][LAYERS][MAX_NEURONS + BLOCK]; // of two blocks at once
    __local float records[RECORD][ITEMS];
    __local int value_scales[LAYERS * SAMPLES];
#if FUSE_GRADIENTS
    const int sample_blocks = TILE_BLOCKS;
    __local uint4 values[VALUE_BLOCKS * TILE_BLOCKS * BLOCK_VECTORS];
    __local uint4 local_deltas[2][MAX_NEURONS / BLOCK * TILE_BLOCKS * BLOCK_VECTORS];
    __local int local_powers[2][TILE_BLOCKS];
    float weight_sums[LAYERS][2 * TERM_BLOCKS][4];
    int references[LAYERS];
UNROLLED
    for (int i = 0; i < LAYERS * 8 * TERM_BLOCKS; ++i)
        weight_sums[i / (8 * TERM_BLOCKS)][i / 4 % (2 * TERM_BLOCKS)][i % 4] = 0;
UNROLLED
    for (int i = 0; i < LAYERS; ++i) references[i] = 2 * MAX_SCALE;
#endif
    const uint8 key = (uint8)(k0, k1, k2, k3, k4, k5, k6, k7);
    const int warp = get_local_id(0) / WARP, lane = get_local_id(0) % WARP;
    const int g = lane / 4, at = lane % 4;
    const int all = get_num_groups(0) * SAMPLES;
    __local int *own_scales = value_scales + warp * ROWS_M * BLOCK;
    __local uint4 *exchange = exchanges + warp * (EXCHANGE_VECTORS / WARPS);
    Pipeline pipeline = pipeline_begin(shared, packed);
    for (int i = get_local_id(0); i < LAYERS * MAX_NEURONS / 4; i += ITEMS)
        local_biases[i] = biases[i];
    for (int i = get_local_id(0); i < LAYERS; i += ITEMS)
        local_exponents[i] = exponents[i];
    __local float *own_sums = bias_sums[warp][0];
    for (int i = lane; i < LAYERS * (MAX_NEURONS + BLOCK); i += WARP) own_sums[i] = 0;
    derivatives +=
        (size_t)(get_global_id(0) / WARP) * (LAYERS - 1) * LAYER_DERIVATIVES + lane;
    float record[RECORD] = {0, 0, 0};
    size_t next_rows[ROWS_M][2];  // of the next tile's samples
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int number = (get_group_id(0) * WARPS + warp) * ROWS_M * BLOCK + 8 * i + g;
        next_rows[i / 2][i % 2] = row_of(first + min(number, samples - 1), n, bits, key);
    }
    if (STAGES == 0) CP_ASYNC_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int tile = get_group_id(0) * SAMPLES; tile < samples; tile += all) {
        const int start = tile + warp * ROWS_M * BLOCK;
        const int row = FUSE_GRADIENTS ? warp * ROWS_M : start / BLOCK;
        Fragments rows[ROWS_M];
        size_t sample_rows[ROWS_M][2];
        float4 v[ROWS_M][2][HELD];
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int next = min(start + all + 8 * i + g, samples - 1);
            sample_rows[i / 2][i % 2] = next_rows[i / 2][i % 2];
            next_rows[i / 2][i % 2] = row_of(first + next, n, bits, key);
            prefetch_l2(x + next_rows[i / 2][i % 2] * ldx, N_IN);
            prefetch_l2(t + sample_rows[i / 2][i % 2] * ldt, n_out_of[LAYERS - 1]);
            __global const float *from = x + sample_rows[i / 2][i % 2] * ldx;
UNROLLED
            for (int k = 0; k < FIRST; ++k)
                v[i / 2][i % 2][k] = load_four(from, BLOCK * k + 4 * at, N_IN, X_PADDED);
        }
        int scale[ROWS_M][2];
        pack_rows(rows, scale, v, FIRST, exchange);
        if (at == 0)
UNROLLED
            for (int i = 0; i < 2 * ROWS_M; ++i)
                own_scales[8 * i + g] = scale[i / 2][i % 2];
        WARP_BARRIER();

        // Forward.
#define VALUES(layer) \
    (values + (size_t)VALUE_BLOCKS_BEFORE(layer) * sample_blocks * BLOCK_VECTORS)
#define FORWARD(layer, terms, neurons, last)                                             \
    forward(layer, terms, neurons, last, rows, v, own_scales, VALUES(layer), row,        \
            derivatives, &pipeline, local_biases, local_exponents[layer], exchange);     \
    WARP_BARRIER()
#if LAYERS > 1
        int layer = 0;
#if FIRST != HIDDEN
        FORWARD(0, FIRST, HIDDEN, 0);
        ++layer;
#endif
#pragma nounroll
        for (; layer < LAYERS - 1; ++layer) {
            FORWARD(layer, HIDDEN, HIDDEN, 0);
        }
        FORWARD(LAYERS - 1, HIDDEN, LAST, 1);
#else
        FORWARD(0, FIRST, LAST, 1);
#endif

        // The loss.
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int live = start + 8 * i + g < samples;
            const size_t of = sample_rows[i / 2][i % 2];
            float4 target_values[LAST];
UNROLLED
            for (int k = 0; k < LAST; ++k)
                target_values[k] = load_four(t + of * ldt, BLOCK * k + 4 * at,
                                             n_out_of[LAYERS - 1], T_PADDED);
            loss_of(v[i / 2][i % 2], target_values, WEIGHTED ? weight[of] : 1.0f, live,
                    bit_fail_limit, record, SHUFFLE_SPACE(exchange));
        }
        pack_rows(rows, scale, v, LAST, exchange);
UNROLLED
        for (int k = 0; k < LAST; k += 2) {
            float4 a[ROWS_M][2], b[ROWS_M][2];
UNROLLED
            for (int i = 0; i < 2 * ROWS_M; ++i) {
                a[i / 2][i % 2] = v[i / 2][i % 2][k];
                b[i / 2][i % 2] = k + 1 < LAST ? v[i / 2][i % 2][k + 1] : (float4)(0);
            }
            add_biases(bias_sums[warp][LAYERS - 1] + BLOCK * k, a, b, exchange);
        }

        // Backward.
        int most[ROWS_M][2];
#if FUSE_GRADIENTS
#define DELTAS(layer, terms)                                                             \
    max_exponents(most, rows, terms, exchange);                                          \
    store_deltas(local_deltas[(layer) % 2], local_powers[(layer) % 2], rows, most,       \
                 scale, own_scales + (layer) * SAMPLES, terms, row, exchange);           \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    add_weight_gradients(weight_sums[layer], references + (layer), terms,                \
                         TERMS_OF(layer), VALUES(layer), local_deltas[(layer) % 2],      \
                         local_powers[(layer) % 2])
#define LAYER_BY_LAYER UNROLLED
#else
#define DELTAS(layer, terms)                                                             \
    max_exponents(most, rows, terms, exchange);                                          \
    store_deltas(                                                                        \
        deltas + (size_t)DELTA_BLOCKS_BEFORE(layer) * sample_blocks * BLOCK_VECTORS,     \
        powers + (layer) * sample_blocks, rows, most, scale,                             \
        own_scales + (layer) * SAMPLES, terms, row, exchange)
#define LAYER_BY_LAYER _Pragma("nounroll")
#endif
#define BACKWARD_FROM(layer, terms)                                                      \
    DELTAS(layer, terms);                                                                \
    backward(layer, terms, rows, most, scale, derivatives, &pipeline,                    \
             local_exponents[layer], bias_sums[warp][(layer) - 1], exchange)
#if LAYERS > 1
        BACKWARD_FROM(LAYERS - 1, LAST);
LAYER_BY_LAYER
        for (int l = LAYERS - 2; l > 0; --l) {
            BACKWARD_FROM(l, HIDDEN);
        }
        DELTAS(0, HIDDEN);
#else
        DELTAS(0, LAST);
#endif
        if (FUSE_GRADIENTS) barrier(CLK_LOCAL_MEM_FENCE); else WARP_BARRIER();
    }
    CP_ASYNC_WAIT(0);
    for (int k = 0; k < RECORD; ++k) records[k][get_local_id(0)] = record[k];
    barrier(CLK_LOCAL_MEM_FENCE);
#if FUSE_GRADIENTS
    partial_gradients += (size_t)get_group_id(0) * BIASES;
UNROLLED
    for (int l = 0; l < LAYERS; ++l)
UNROLLED
        for (int j = 0; j < TERM_BLOCKS; ++j) {
            const int m = warp % SQUARE, n = warp / SQUARE * TERM_BLOCKS + j;
            if (m < NEURONS_OF(l) && n < TERMS_OF(l))
                store_weight_gradients(partial_gradients, l, m, n,
                                       weight_sums[l] + 2 * j, references[l]);
        }
#endif
    sums += (size_t)get_group_id(0) * GROUP_SUMS;
    for (int i = get_local_id(0); i < LAYERS * MAX_NEURONS; i += ITEMS) {
        const int layer = i / MAX_NEURONS;
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += bias_sums[w][layer][i % MAX_NEURONS];
        if (bias_of[layer] >= 0 && i % MAX_NEURONS < n_out_of[layer])
            sums[bias_of[layer] - BIASES + i % MAX_NEURONS] = sum;
    }
    if (get_local_id(0) < RECORD) {
        float sum = 0;
        for (int i = 0; i < ITEMS; ++i) sum += records[get_local_id(0)][i];
        sums[SIZE - BIASES + get_local_id(0)] = sum;
    }
}

// fused_step: gradients of a step of training of narrow layers, on matrix units.
//
//   pack     the weights, in halves, forward and transposed (fused_step_pack.cl)
//   train    a warp takes ROWS_M * 16 samples through all layers, through the loss, and
//            back; what the weights' gradients are products of, outputs and derivatives,
//            it writes transposed, in halves
//   slopes   those products (fused_step_gradients.cl); where INSIDE, `train` itself forms them,
//            of a tile's values in local memory, its sums in registers
//   combine  adds what parts and groups have, and updates (fused_step_reduce.cl)
//
// What a layer leaves in a warp's lanes are the fragments that the next one multiplies,
// both ways (fused_step.h). The idea is that of tiny-cuda-nn's fused networks: Mueller et
// al., "Real-time neural radiance caching for path tracing", 2021.
//
// Scales.  Halves end at 2^16. A sample's values of a layer, outputs or derivatives, are
// held times 2^scale, by what they can be at most; both scales of a product over samples
// are made one in the derivatives, for 16 samples at a time.
//
// INSIDE    1: of layers of QUAD blocks at most; WARPS is 8; else 0
// WARPS, ROWS_M, STAGES  of `train`, as in pipeline.h
// X_PADDED, T_PADDED  1: rows of x, of t start on a vector of 4
// HIDDEN_CODE, LAST_CODE  codes of the functions of the layers but the last one, and of
//           that
// HIDDEN_BOUNDED  1 where the former stays within -1 and 1
// HIDDEN_LIMIT, LAST_LIMIT  where sums times steepness are clipped
// INNER_RELU  1 where it is ReLU, not clipped
// SLOPE_EXPONENT  hidden layers' derivatives, with steepness, are at most 2^that
// SHARE     of the outputs' errors, as in losses.h
// SIZE, BIASES  elements of the flat buffer, and those before the first bias
// others    as in fused_step.h and steps.h
#if !defined(INSIDE) || !defined(X_PADDED) || !defined(T_PADDED)                         \
    || !defined(HIDDEN_CODE) || !defined(LAST_CODE) || !defined(INNER_RELU)              \
    || !defined(HIDDEN_BOUNDED) || !defined(HIDDEN_LIMIT) || !defined(LAST_LIMIT)        \
    || !defined(SLOPE_EXPONENT) || !defined(SHARE) || !defined(SIZE) || !defined(BIASES)
#error "fused_step.cl needs the macros that its head names"
#endif
#define WIDTH 1
#include "training/steps.h"
#include "training/fused_step.h"
#include "tensor_core/pipeline.h"
#include "training/fused_step_layers.h"
#define LINE 32  // floats of the cache's
#define REST (SIZE - BIASES + APART)  // of a group's sums of biases and records

#if INSIDE
#define MINE 2  // blocks of terms of a warp, with one of neurons
#define TILE_BLOCKS (WARPS * ROWS_M)

// Add products of a tile's derivatives and values to a warp's sums [MINE * 2], which are
// times 2^reference.
//
// down, across: blocks of the layer's neurons and terms
inline void add_slopes(float (*sums)[4], int *reference, const int down, const int across,
                       __local const uint4 *values, __local const uint4 *derivatives,
                       __local const int *powers)
{
    const int lane = get_local_id(0) % WARP, warp = get_local_id(0) / WARP;
    const int m = warp % QUAD, n = warp / QUAD * MINE;
    if (m >= down || n >= across) return;
    int least = *reference;
UNROLLED
    for (int k = 0; k < TILE_BLOCKS; ++k) least = min(least, powers[k]);
    if (least < *reference) {
        const float less = power_of_two(least - *reference);
UNROLLED
        for (int i = 0; i < 8 * MINE; ++i) sums[i / 4][i % 4] *= less;
        *reference = least;
    }
UNROLLED
    for (int k = 0; k < TILE_BLOCKS; ++k) {
        Fragment row[SPLITS], columns[MINE][SPLITS];
UNROLLED
        for (int p = 0; p < SPLITS; ++p) {
            row[p] = FRAGMENT(derivatives + ((k * down + m) * SPLITS + p) * WARP, lane);
UNROLLED
            for (int j = 0; j < MINE; ++j) {
                const int block = min(n + j, across - 1);
                columns[j][p] =
                    FRAGMENT(values + ((k * across + block) * SPLITS + p) * WARP, lane);
            }
        }
        const int less = least - powers[k];
#if SPLITS == 1
        if (less == 0) {
UNROLLED
            for (int j = 0; j < 2 * MINE; ++j)
                multiply_add(sums[j], row[0], columns[j / 2][0], j % 2);
            continue;
        }
#endif
        const float factor = power_of_two(less);
UNROLLED
        for (int j = 0; j < 2 * MINE; ++j) {
            float main[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
            multiply_add(main, row[0], columns[j / 2][0], j % 2);
#if SPLITS == 2
            multiply_add(rest, row[0], columns[j / 2][1], j % 2);
            multiply_add(rest, row[1], columns[j / 2][0], j % 2);
#endif
UNROLLED
            for (int e = 0; e < 4; ++e)
                sums[j][e] += fma(rest[e], 1 / LOW_SCALE, main[e]) * factor;
        }
    }
}
#endif

// The data set's row that is number `i` of the epoch's order.
inline int row_of(const int i, const int n, const int bits, const uint8 key)
{
#if GATHERED == 2
    return permuted(i, n, bits, key);
#else
    return i;
#endif
}

// Four values of a row of `width`, from `start` on; zeros behind it.
inline float4 load_four(__global const float *row, const int start, const int width,
                        const int padded)
{
    const int left = width - start;
    if (padded) return left > 0 ? *(__global const float4 *)(row + start) : (float4)(0);
    return (float4)(left > 0 ? row[start] : 0, left > 1 ? row[start + 1] : 0,
                    left > 2 ? row[start + 2] : 0, left > 3 ? row[start + 3] : 0);
}

// Ask for a row to come to the last cache; the four lanes of a sample, a line each.
inline void announce(__global const float *row, const int width)
{
#if PTX >= 80
UNROLLED
    for (int i = 0; i < width; i += 4 * LINE) {
        const int mine = i + get_local_id(0) % 4 * LINE;
        if (mine < width)
            asm volatile("prefetch.global.L2 [%0];" :: "l"(row + mine) : "memory");
    }
#endif
}

inline float largest_of(float v, __local uint *exchange)
{
    v = fmax(v, as_float(swapped(as_uint(v), 1, exchange)));
    return fmax(v, as_float(swapped(as_uint(v), 2, exchange)));
}

inline float total_of(float v, __local uint *exchange)
{
    v += as_float(swapped(as_uint(v), 1, exchange));
    return v + as_float(swapped(as_uint(v), 2, exchange));
}

// z: what the last layer has summed up of a sample, becomes the loss's derivatives by it
//
// wanted: its targets; factor: its weight; there: 0 where it is none
// limit, record: errors from which on outputs fail; what is counted, added to
inline void loss_of(float4 *z, const float4 *wanted, const float factor, const int there,
                    const float limit, float *record, __local uint *exchange)
{
    const int t = get_local_id(0) % 4, width = n_out_of[LAYERS - 1];
    const float part = MEAN ? factor / width : factor;
    float sum = 0;
#if SOFTMAX
    float top = -INFINITY, total = 0, targets = 0;
UNROLLED
    for (int i = 0; i < 4 * LAST; ++i)
        if (i / 4 * BLOCK + 4 * t + i % 4 < width)
            top = fmax(top, ((const float *)(z + i / 4))[i % 4]);
    top = largest_of(top, exchange);
UNROLLED
    for (int i = 0; i < 4 * LAST; ++i)
        if (i / 4 * BLOCK + 4 * t + i % 4 < width) {
            total += exponential(((const float *)(z + i / 4))[i % 4] - top);
            targets += ((const float *)(wanted + i / 4))[i % 4];
        }
    total = total_of(total, exchange);
    targets = total_of(targets, exchange);
    const float log_total = logarithm(total);
#endif
UNROLLED
    for (int i = 0; i < 4 * LAST; ++i) {
        float *at = (float *)(z + i / 4) + i % 4;
        const float target = ((const float *)(wanted + i / 4))[i % 4];
        const float2 both = activate(1, *at);
        float output = both.s0, slope;
#if SOFTMAX
        const float z_top = output - top;
        output = exponential(z_top) / total;
        const float loss = target * (log_total - z_top);
        slope = output * targets - target;
#else
        const float loss = LOSS(output, target, SHARE);
        slope = LOSS_GRADIENT(output, target, SHARE);
#endif
#if SIGMOID
        output = act_sigmoid(output);
#endif
        const int counts = there && i / 4 * BLOCK + 4 * t + i % 4 < width;
        const float error = (target - output) * SHARE;
        sum += counts ? loss : 0;
        record[1] += counts ? error * error : 0;
        record[2] += counts && fabs(error) >= limit ? 1 : 0;
        *at = counts ? slope * part * both.s1 : 0;
    }
    record[0] += sum * part;
}

// x, t, weight [n, width]: the data set
// packed, biases, about: as pack wrote them
// values       [layers' blocks: sample blocks, blocks, SPLITS, WARP] what layers read
// derivatives  likewise by what they sum up
// powers       [LAYERS, sample_blocks] of two, by which products of both are too large
// parts        INSIDE: [groups, BIASES] the weights' gradients instead
// slopes       of each warp, of the hidden layers, as `forward` keeps them
// sums         [groups, REST] of biases' gradients, and behind them the records
// index map: work-group: every (groups)-th tile of SAMPLES; a warp: ROWS_M * 16 of them
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void train(__global const float *x, const int ldx, __global const float *t, const int ldt,
           __global const float *weight, __global const uint4 *packed,
           __global const float4 *biases, __global const int4 *about,
#if INSIDE
           __global float *parts,
#else
           __global uint4 *values, __global uint4 *derivatives, __global int *powers,
           const int sample_blocks,
#endif
           __global Slopes *slopes, __global float *sums, const int n, const int bits,
           const float bit_fail_limit, const int first, const int samples,
           const uint k0, const uint k1, const uint k2, const uint k3,
           const uint k4, const uint k5, const uint k6, const uint k7)
{
    __local uint4 shared[(STAGES > 0 ? STAGES * CHUNK : ALL) * PART];
    __local uint4 exchanges[EXCHANGED];
    __local float4 near_biases[LAYERS * WIDE / 4];
    __local int4 near[LAYERS];
    __local float bias_sums[WARPS][LAYERS][WIDE + BLOCK];  // of two blocks at once
    __local float records[RECORD][ITEMS];
    __local int kept[LAYERS * SAMPLES];
#if INSIDE
    const int sample_blocks = TILE_BLOCKS;
    __local uint4 values[VALUE_BLOCKS * TILE_BLOCKS * PART];
    __local uint4 near_derivatives[2][WIDE / BLOCK * TILE_BLOCKS * PART];
    __local int near_powers[2][TILE_BLOCKS];
    float found[LAYERS][2 * MINE][4];
    int references[LAYERS];
UNROLLED
    for (int i = 0; i < LAYERS * 8 * MINE; ++i)
        found[i / (8 * MINE)][i / 4 % (2 * MINE)][i % 4] = 0;
UNROLLED
    for (int i = 0; i < LAYERS; ++i) references[i] = 2 * MOST_SCALE;
#endif
    const uint8 key = (uint8)(k0, k1, k2, k3, k4, k5, k6, k7);
    const int warp = get_local_id(0) / WARP, lane = get_local_id(0) % WARP;
    const int g = lane / 4, at = lane % 4;
    const int all = get_num_groups(0) * SAMPLES;
    __local int *own = kept + warp * ROWS_M * BLOCK;
    __local uint4 *exchange = exchanges + warp * (EXCHANGED / WARPS);
    Pipeline pipeline = pipeline_begin(shared, packed);
    for (int i = get_local_id(0); i < LAYERS * WIDE / 4; i += ITEMS)
        near_biases[i] = biases[i];
    for (int i = get_local_id(0); i < LAYERS; i += ITEMS) near[i] = about[i];
    for (int i = lane; i < LAYERS * (WIDE + BLOCK); i += WARP) bias_sums[warp][0][i] = 0;
    slopes += (size_t)(get_global_id(0) / WARP) * (LAYERS - 1) * SLOPES_OF_LAYER + lane;
    float record[RECORD] = {0, 0, 0};
    size_t ahead[ROWS_M][2];  // rows of the samples of the next tile
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int number = (get_group_id(0) * WARPS + warp) * ROWS_M * BLOCK + 8 * i + g;
        ahead[i / 2][i % 2] = row_of(first + min(number, samples - 1), n, bits, key);
    }
    if (STAGES == 0) CP_ASYNC_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int tile = get_group_id(0) * SAMPLES; tile < samples; tile += all) {
        const int start = tile + warp * ROWS_M * BLOCK;
        const int row = INSIDE ? warp * ROWS_M : start / BLOCK;
        Words rows[ROWS_M];
        size_t rows_of[ROWS_M][2];
        float4 v[ROWS_M][2][HELD];
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int next = min(start + all + 8 * i + g, samples - 1);
            rows_of[i / 2][i % 2] = ahead[i / 2][i % 2];
            ahead[i / 2][i % 2] = row_of(first + next, n, bits, key);
            announce(x + ahead[i / 2][i % 2] * ldx, N_IN);
            announce(t + rows_of[i / 2][i % 2] * ldt, n_out_of[LAYERS - 1]);
            __global const float *from = x + rows_of[i / 2][i % 2] * ldx;
UNROLLED
            for (int k = 0; k < FIRST; ++k)
                v[i / 2][i % 2][k] = load_four(from, BLOCK * k + 4 * at, N_IN, X_PADDED);
        }
        int scale[ROWS_M][2];
        pack_rows(rows, scale, v, FIRST, exchange);
        if (at == 0)
UNROLLED
            for (int i = 0; i < 2 * ROWS_M; ++i) own[8 * i + g] = scale[i / 2][i % 2];
        MEET_WARP();

        // Forward.
#define VALUES(layer) (values + (size_t)BLOCKS_BEFORE(layer) * sample_blocks * PART)
#define FORWARD(layer, terms, neurons, last)                                             \
    forward(layer, terms, neurons, last, rows, v, own, VALUES(layer), row, slopes,       \
            &pipeline, near_biases, near[layer], exchange);                                  \
    MEET_WARP()
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
            const int there = start + 8 * i + g < samples;
            const size_t of = rows_of[i / 2][i % 2];
            float4 wanted[LAST];
UNROLLED
            for (int k = 0; k < LAST; ++k)
                wanted[k] = load_four(t + of * ldt, BLOCK * k + 4 * at,
                                      n_out_of[LAYERS - 1], T_PADDED);
            loss_of(v[i / 2][i % 2], wanted, WEIGHTED ? weight[of] : 1.0f, there,
                    bit_fail_limit, record, FEW(exchange));
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

        // Back.
        int most[ROWS_M][2];
#if INSIDE
#define DERIVATIVES(layer, terms)                                                        \
    look_up(most, rows, terms, exchange);                                                \
    write_derivatives(near_derivatives[(layer) % 2], near_powers[(layer) % 2], rows,     \
                      most, scale, own + (layer) * SAMPLES, terms, row, exchange);       \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    add_slopes(found[layer], references + (layer), terms, TERMS_OF(layer),               \
               VALUES(layer), near_derivatives[(layer) % 2], near_powers[(layer) % 2])
#define LAYER_BY_LAYER UNROLLED
#else
#define DERIVATIVES(layer, terms)                                                        \
    look_up(most, rows, terms, exchange);                                                \
    write_derivatives(                                                                   \
        derivatives + (size_t)DERIVATIVES_BEFORE(layer) * sample_blocks * PART,          \
        powers + (layer) * sample_blocks, rows, most, scale, own + (layer) * SAMPLES,    \
        terms, row, exchange)
#define LAYER_BY_LAYER _Pragma("nounroll")
#endif
#define BACKWARD_FROM(layer, terms)                                                      \
    DERIVATIVES(layer, terms);                                                           \
    backward(layer, terms, rows, most, scale, slopes, &pipeline, near[layer],                \
             bias_sums[warp][(layer) - 1], exchange)
#if LAYERS > 1
        BACKWARD_FROM(LAYERS - 1, LAST);
LAYER_BY_LAYER
        for (int l = LAYERS - 2; l > 0; --l) {
            BACKWARD_FROM(l, HIDDEN);
        }
        DERIVATIVES(0, HIDDEN);
#else
        DERIVATIVES(0, LAST);
#endif
        if (INSIDE) barrier(CLK_LOCAL_MEM_FENCE); else MEET_WARP();
    }
    CP_ASYNC_WAIT(0);
    for (int k = 0; k < RECORD; ++k) records[k][get_local_id(0)] = record[k];
    barrier(CLK_LOCAL_MEM_FENCE);
#if INSIDE
    parts += (size_t)get_group_id(0) * BIASES;
UNROLLED
    for (int l = 0; l < LAYERS; ++l)
UNROLLED
        for (int j = 0; j < MINE; ++j) {
            const int m = warp % QUAD, n = warp / QUAD * MINE + j;
            if (m < NEURONS_OF(l) && n < TERMS_OF(l))
                write_slopes(parts, l, m, n, found[l] + 2 * j, references[l]);
        }
#endif
    sums += (size_t)get_group_id(0) * REST;
    for (int i = get_local_id(0); i < LAYERS * WIDE; i += ITEMS) {
        const int layer = i / WIDE;
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += bias_sums[w][layer][i % WIDE];
        if (bias_of[layer] >= 0 && i % WIDE < n_out_of[layer])
            sums[bias_of[layer] - BIASES + i % WIDE] = sum;
    }
    if (get_local_id(0) < RECORD) {
        float sum = 0;
        for (int i = 0; i < ITEMS; ++i) sum += records[get_local_id(0)][i];
        sums[SIZE - BIASES + get_local_id(0)] = sum;
    }
}

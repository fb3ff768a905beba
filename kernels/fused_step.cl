// fused_step: whole steps of training of narrow layers on matrix units.
//
//   pack     the weights, in halves, forward and turned
//   train    a warp takes ROWS_M * 16 samples through all layers, through the loss, and
//            back; what the weights' gradients are products of, outputs and derivatives,
//            it writes turned, in halves
//   slopes   those products: a warp takes 64 x 64 of a layer's and a part of the samples
//   combine  adds the parts, and updates
//
// What a layer leaves in a warp's lanes are the fragments that the next one multiplies,
// both ways (fused_step.h). The idea is that of tiny-cuda-nn's fused networks: Mueller et
// al., "Real-time neural radiance caching for path tracing", 2021.
//
// Scales.  Halves end at 2^16. A sample's values of a layer, outputs or derivatives, are
// held times 2^scale, by what they can be at most; both scales of a product over samples
// are made one in the derivatives, for 16 samples at a time.
//
// INSIDE    1: `train` itself forms the products over samples, of QUAD blocks of a layer
//           at most, and `slopes` is not there
// WARPS     of a group of `train`; 8 where INSIDE
// ROWS_M    blocks of 16 samples of a warp
// STAGES    0: all weights stay in local memory; else so many chunks of them, one of
//           which is multiplied
// X_PADDED, T_PADDED  1: rows of x, of t start on a vector of 4
// HIDDEN_CODE, LAST_CODE  codes of the functions of the layers but the last one, and of
//           that
// HIDDEN_BOUNDED  1 where the former stays within -1 and 1
// HIDDEN_LIMIT, LAST_LIMIT  where sums times steepness are clipped
// LOW_SLOPE  the other derivative of hidden layers, with steepness, where they have two,
//           one of which is steepness; else left out
// SLOPE_EXPONENT  hidden layers' derivatives, with steepness, are at most 2^that
// SHARE     of the outputs' errors, as in losses.h
// SLOPE_WARPS  warps of a group of `slopes`
// PARTS     of the samples, in `slopes`: a multiple of SLOPE_WARPS
// ADDERS, SHARED_BY  work-items of a group of `combine`; how many share an element
// PACKERS   work-items of a group of `pack`
// SIZE, BIASES  elements of the flat buffer, and those before the first bias
// other macros as in fused_step.h and steps.h
#define WIDTH 1
#include "steps.h"
#include "fused_step.h"
#define SAMPLES (WARPS * ROWS_M * BLOCK)  // of a group
#define ITEMS (WARPS * WARP)
#define REST (SIZE - BIASES + APART)      // of a group's sums of biases and records
#define STEP_OF_POWERS 8
#define QUAD 4                            // blocks beside and below one another, of a warp
#define ROUND_UP(a, b) (((a) + (b) - 1) / (b))

#if INSIDE
#define SPACE __local
#else
#define SPACE __global
#endif

typedef uint Words[WIDEST][PLANES][4];

#if PTX >= 80
#define EXCHANGED 1
#define STAGE_WORDS(rows, exchange)
#define ROWS(m, k, p) \
    (uint4)(rows[m][k][p][0], rows[m][k][p][1], rows[m][k][p][2], rows[m][k][p][3])
#define FEW(exchange) 0
#else
#define STAGED (ROWS_M * WIDEST * PLANES * WARP)  // of a warp; and WARP / 4 for FEW
#define EXCHANGED (WARPS * (STAGED + WARP / 4))
#define STAGE_WORDS(rows, exchange) stage_words(rows, exchange)
#define ROWS(m, k, p) FRAGMENT(exchange + (((m) * WIDEST + (k)) * PLANES + (p)) * WARP, 0)
#define FEW(exchange) ((__local uint *)((exchange) + STAGED))
inline void stage_words(Words *rows, __local uint4 *exchange)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ROWS_M * WIDEST * PLANES; ++i) {
        const uint *words = rows[i / PLANES / WIDEST][i / PLANES % WIDEST][i % PLANES];
        exchange[i * WARP + get_local_id(0) % WARP] =
            (uint4)(words[0], words[1], words[2], words[3]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#endif

// packed  [ALL * PART]
// biases  [LAYERS, WIDE], times steepness
// about   [LAYERS] = (gain of the weights' halves, exponent above their largest, exponent
//         above the largest of the biases)
// index map: work-group: a layer, forward or turned; a work-item: every PACKERS-th word
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *parameters, __global uint4 *packed,
          __global float *biases, __global int4 *about)
{
    __local uint largest[2];
    const int layer = get_group_id(0) % LAYERS, back = get_group_id(0) / LAYERS;
    const int id = get_local_id(0), stride = stride_of[layer];
    const int neurons = n_out_of[layer], terms = terms_of(layer);
    __global const float *a = parameters + weights_of[layer];
    if (back && layer == 0) return;
    if (id < 2) largest[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint most = 0;
    for (int i = id; i < neurons * stride; i += PACKERS)
        if (i % stride < terms) most = max(most, magnitude(a[i]));
    atomic_max(largest, most);
    if (!back) {
        for (int i = id; i < WIDE; i += PACKERS) {
            const float bias = i < neurons && bias_of[layer] >= 0
                ? parameters[bias_of[layer] + i] * steepness_of[layer] : 0;
            biases[layer * WIDE + i] = bias;
            atomic_max(largest + 1, magnitude(bias));
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int exponent = clamp(exponent_of(largest[0]), -MOST_SCALE, MOST_SCALE);
    const int gain = TOP - exponent;
    if (id == 0 && !back)
        about[layer] = (int4)(gain, exponent + 1, exponent_of(largest[1]) + 1, 0);
    const int across = back ? NEURONS_OF(layer) : TERMS_OF(layer);
    const int down = back ? TERMS_OF(layer) : NEURONS_OF(layer);
    const float scale = power_of_two(gain);
    packed += (back ? START_TURNED(layer) : START(layer)) * PART;
    for (int i = id; i < across * down * WARP; i += PACKERS) {
        const int lane = i % WARP, block = i / WARP, g = lane / 4, t = lane % 4;
        uint high[4], low[4];
        for (int word = 0; word < 4; ++word) {
            const int n = block / across * BLOCK + g / 2 * 4 + g % 2 + word / 2 * 2;
            const int k = block % across * BLOCK + 4 * t + word % 2 * 2;
            float v[2];
            for (int e = 0; e < 2; ++e) {
                const int row = back ? k + e : n, column = back ? n : k + e;
                v[e] = row < neurons && column < terms
                    ? a[row * stride + column] * scale : 0;
            }
            high[word] = halves(v[0], v[1]);
            const float2 rest = (float2)(v[0], v[1]) - of_halves(high[word]);
            low[word] = halves(rest.s0 * LOW, rest.s1 * LOW);
        }
        __global uint4 *to = packed + block * PART + lane;
        to[0] = (uint4)(high[0], high[1], high[2], high[3]);
        if (PLANES == 2) to[WARP] = (uint4)(low[0], low[1], low[2], low[3]);
    }
}

// Weights on their way through local memory.
typedef struct {
    __local uint4 *shared;
    __global const uint4 *weights;
    __local const uint4 *part;  // the chunk whose turn it is
    int place, next;            // its place; number of the chunk that comes next
} Feed;

inline void copy_weights(__local uint4 *to, __global const uint4 *from, const int count)
{
UNROLLED
    for (int start = 0; start < count; start += ITEMS) {
        const int i = start + get_local_id(0);
        if (count % ITEMS == 0 || i < count) copy_words(to + i, from + i);
    }
    DEPART();
}

#if STAGES > 0
inline void next_chunk(Feed *feed)
{
    ARRIVED(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the chunk before
    const int before = (feed->place == 0 ? STAGES : feed->place) - 1;
    copy_weights(feed->shared + before * CHUNK * PART,
                 feed->weights + feed->next * CHUNK * PART, CHUNK * PART);
    feed->part = feed->shared + feed->place * CHUNK * PART;
    feed->place = feed->place + 1 == STAGES ? 0 : feed->place + 1;
    feed->next = feed->next + 1 == ALL / CHUNK ? 0 : feed->next + 1;
}
#define BEGIN_WITH(feed, start)
#else
#define BEGIN_WITH(feed, start) (feed)->part = (feed)->shared + (start) * PART
#endif

// sums = this lane's of a block of 16 neurons; block: its first block's number
inline void multiply(float4 (*sums)[2], Words *rows, const int terms, const int first,
                     Feed *feed, __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
    float main[ROWS_M][2][4], rest[ROWS_M][2][4];
UNROLLED
    for (int i = 0; i < ROWS_M * 8; ++i)
        main[i / 8][i / 4 % 2][i % 4] = rest[i / 8][i / 4 % 2][i % 4] = 0;
UNROLLED
    for (int k = 0; k < terms; ++k) {
#if STAGES > 0
        const int block = (first + k) % CHUNK;
        if (block == 0) next_chunk(feed);
#else
        const int block = first + k;
#endif
        Fragment columns[PLANES];
UNROLLED
        for (int p = 0; p < PLANES; ++p)
            columns[p] = FRAGMENT(feed->part + (block * PLANES + p) * WARP, lane);
UNROLLED
        for (int m = 0; m < ROWS_M; ++m)
UNROLLED
            for (int side = 0; side < 2; ++side) {
                multiply_add(main[m][side], ROWS(m, k, 0), columns[0], side);
#if PLANES == 2
                multiply_add(rest[m][side], ROWS(m, k, 0), columns[1], side);
                multiply_add(rest[m][side], ROWS(m, k, 1), columns[0], side);
#endif
            }
    }
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const float *left = main[i / 2][0] + i % 2 * 2, *right = main[i / 2][1] + i % 2 * 2;
        float4 v = (float4)(left[0], left[1], right[0], right[1]);
#if PLANES == 2
        left = rest[i / 2][0] + i % 2 * 2;
        right = rest[i / 2][1] + i % 2 * 2;
        v += (float4)(left[0], left[1], right[0], right[1]) / LOW;
#endif
        sums[i / 2][i % 2] = v;
    }
}

// f, and f' * steepness, of a layer's four sums, with steepness
inline float2 activate(const int last, const float sum)
{
    const float limit = last ? LAST_LIMIT : HIDDEN_LIMIT;
    const float steepness = steepness_of[last ? LAYERS - 1 : 0];
    const float v = clamp(sum, -limit, limit);
    switch (last ? LAST_CODE : HIDDEN_CODE) {
#define CASE(code, function, gradient, reads)                                        \
    case code: {                                                                     \
        const float y = function(v);                                                 \
        return (float2)(y, gradient(reads(y, v), steepness) * steepness);            \
    }
        FUNCTIONS(CASE)
#undef CASE
    }
    return (float2)(v, steepness);
}

// most [m][i] = the exponent of a sample's largest half; NOTHING where all are zero
inline void look_up(int (*most)[2], Words *rows, const int blocks, __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        uint two = 0;
UNROLLED
        for (int k = 0; k < blocks; ++k) {
            const uint *words = rows[i / 2][k][0] + i % 2;
            two = larger(two, larger(words[0], words[2]));
        }
        uint one = max(two & 0xffff, two >> 16);
        one = max(one, swapped(one, 1, FEW(exchange)));
        one = max(one, swapped(one, 2, FEW(exchange)));
        most[i / 2][i % 2] = one == 0 ? NOTHING : max((int)(one >> 10), 1) - 15;
    }
}

// Pack values of samples so that the largest half of each is about 2^TOP.
inline void pack_rows(Words *rows, int (*scales)[2], float4 (*v)[2][WIDEST],
                      const int blocks, __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2;
        float largest = 0;
UNROLLED
        for (int k = 0; k < blocks; ++k) {
            const float4 four = fabs(v[m][i % 2][k]);
            largest = fmax(fmax(largest, fmax(four.s0, four.s1)), fmax(four.s2, four.s3));
        }
        uint one = as_uint(largest);
        one = max(one, swapped(one, 1, FEW(exchange)));
        one = max(one, swapped(one, 2, FEW(exchange)));
        const int scale = clamp(TOP - exponent_of(one), LEAST_SCALE, MOST_SCALE);
        scales[m][i % 2] = scale;
UNROLLED
        for (int k = 0; k < blocks; ++k)
            put_words(rows[m][k], i % 2, v[m][i % 2][k] * power_of_two(scale));
    }
}

// to [block of 16 samples, blocks, PLANES, WARP] = the words turned
//
// second: as the second operand of a product over samples, else as the first
inline void write_turned(SPACE uint4 *to, Words *rows, const int blocks, const int second,
                         const int row, __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
UNROLLED
    for (int m = 0; m < ROWS_M; ++m)
UNROLLED
        for (int k = 0; k < blocks; ++k)
UNROLLED
            for (int p = 0; p < PLANES; ++p) {
                const uint *words = rows[m][k][p];
                uint found[4];
UNROLLED
                for (int w = 0; w < 4; ++w) found[w] = turned(words[w], FEW(exchange));
                to[(((row + m) * blocks + k) * PLANES + p) * WARP + lane] = second
                    ? (uint4)(found[0], found[1], found[2], found[3])
                    : (uint4)(found[0], found[2], found[1], found[3]);
            }
}

// What lanes of a warp have written to local memory is seen by the others.
#if PTX >= 80
#define MEET_WARP() asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
#else
#define MEET_WARP() barrier(CLK_LOCAL_MEM_FENCE)
#endif

// What a step has of each layer, one after the other.
#define BLOCKS_BEFORE(layer) ((layer) == 0 ? 0 : FIRST + ((layer) - 1) * HIDDEN)
#define DERIVATIVES_BEFORE(layer) ((layer) * HIDDEN)
#define VALUE_BLOCKS (FIRST + (LAYERS - 1) * HIDDEN)

// Derivatives of a layer: written for its slopes, with the power of two that they and the
// values below have together.
inline void write_derivatives(SPACE uint4 *to, SPACE int *powers, Words *rows,
                              int (*scales)[2], __local const int *kept,
                              const int blocks, const int row,
                              __local uint4 *exchange)
{
    const int g = get_local_id(0) % WARP / 4;
    Words even[ROWS_M];
    int most[ROWS_M][2];
    look_up(most, rows, blocks, exchange);
UNROLLED
    for (int m = 0; m < ROWS_M; ++m) {
        int power = 2 * MOST_SCALE + 15, both[2];
UNROLLED
        for (int i = 0; i < 2; ++i) {
            both[i] = scales[m][i] + kept[16 * m + 8 * i + g];
            if (most[m][i] != NOTHING)
                power = min(power, min(TOP - most[m][i], 15) + both[i]);
        }
UNROLLED
        for (int mask = 4; mask < WARP; mask *= 2)
            power = min(power, (int)swapped(power, mask, FEW(exchange)));
        power &= -STEP_OF_POWERS;  // so that most blocks have the same
        if (get_local_id(0) % WARP == 0) powers[row + m] = power;
UNROLLED
        for (int i = 0; i < blocks * PLANES * 4; ++i) {
            const int w = i % 4, of = power - both[w % 2];
            even[m][i / 4 / PLANES][i / 4 % PLANES][w] =
                times_far(rows[m][i / 4 / PLANES][i / 4 % PLANES][w], of);
        }
    }
    write_turned(to, even, blocks, 0, row, exchange);
}

// Add a block's derivatives to the sums of a warp's biases.
inline void add_biases(__local float *sums, float4 (*v)[2], __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
    float4 four = (float4)(0);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) four += v[i / 2][i % 2];
    // Half of the lanes take half of the neurons each, twice; then all samples.
    const int high = lane / 16;
    float2 keep = high ? four.hi : four.lo, give = high ? four.lo : four.hi;
    keep.s0 += as_float(swapped(as_uint(give.s0), 16, FEW(exchange)));
    keep.s1 += as_float(swapped(as_uint(give.s1), 16, FEW(exchange)));
    const int odd = lane / 8 % 2;
    float one = odd ? keep.s1 : keep.s0;
    one += as_float(swapped(as_uint(odd ? keep.s0 : keep.s1), 8, FEW(exchange)));
    one += as_float(swapped(as_uint(one), 4, FEW(exchange)));
    if (lane / 4 % 2 == 0) sums[lane % 4 * 4 + 2 * high + odd] += one;
}

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
        Fragment row[PLANES], columns[MINE][PLANES];
UNROLLED
        for (int p = 0; p < PLANES; ++p) {
            row[p] = FRAGMENT(derivatives + ((k * down + m) * PLANES + p) * WARP, lane);
UNROLLED
            for (int j = 0; j < MINE; ++j) {
                const int block = min(n + j, across - 1);
                columns[j][p] =
                    FRAGMENT(values + ((k * across + block) * PLANES + p) * WARP, lane);
            }
        }
        const int less = least - powers[k];
#if PLANES == 1
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
#if PLANES == 2
            multiply_add(rest, row[0], columns[j / 2][1], j % 2);
            multiply_add(rest, row[1], columns[j / 2][0], j % 2);
#endif
UNROLLED
            for (int e = 0; e < 4; ++e)
                sums[j][e] += fma(rest[e], 1 / LOW, main[e]) * factor;
        }
    }
}
#endif

// Four values of a lane's sums of two sides of a block, in row half h.
inline float4 four_of(float (*sides)[4], const int h)
{
    return (float4)(sides[0][2 * h], sides[0][2 * h + 1], sides[1][2 * h],
                    sides[1][2 * h + 1]);
}

// Write a block of a layer's slopes, of sums times 2^power.
inline void write_slopes(__global float *to, const int layer, const int m, const int n,
                         float (*sides)[4], const int power)
{
    const int lane = get_local_id(0) % WARP, column = BLOCK * n + lane % 4 * 4;
    const float inverse = power_of_two(-(power / 2)) * power_of_two(-(power - power / 2));
    const int stride = stride_of[layer];
UNROLLED
    for (int h = 0; h < 2; ++h) {
        const int row = BLOCK * m + lane / 8 * 4 + h * 2 + lane / 4 % 2;
        if (row < n_out_of[layer] && column < stride)
            *(__global float4 *)(to + weights_of[layer] + row * stride + column) =
                four_of(sides, h) * inverse;
    }
}

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
// wanted: its targets; part: 0 where the sample is none
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
        slope = SLOPE(output, target, SHARE);
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

// What is kept of a block's slopes until the way back. Where they are one of two, a bit
// each of SPARE words, 8 blocks in a word.
#ifdef LOW_SLOPE
#define SPARE ((HIDDEN * ROWS_M * 2 + 7) / 8)
#define SLOPES_OF_LAYER (SPARE * WARP)
typedef uint Slopes;
#elif PLANES == 2
#define SLOPES_OF_LAYER (HIDDEN * ROWS_M * 2 * WARP)
typedef float4 Slopes;
#define KEEP(s) (s)
#define KEPT(s) (s)
#else
#define SLOPES_OF_LAYER (HIDDEN * ROWS_M * 2 * WARP)
typedef uint2 Slopes;
#define KEEP(s) (uint2)(halves((s).s0, (s).s1), halves((s).s2, (s).s3))
#define KEPT(s) (float4)(of_halves((s).s0), of_halves((s).s1))
#endif

// The exponent of what sums of 16 * terms products may be larger by.
inline int growth(const int terms)
{
    return 4 + (terms > 8 ? 4 : terms > 4 ? 3 : terms > 2 ? 2 : 1);
}

inline void copy_rows(Words *rows, Words *from)
{
UNROLLED
    for (int i = 0; i < ROWS_M * HIDDEN * PLANES * 4; ++i) {
        const int m = i / (HIDDEN * PLANES * 4), k = i / (PLANES * 4) % HIDDEN;
        rows[m][k][i / 4 % PLANES][i % 4] = from[m][k][i / 4 % PLANES][i % 4];
    }
}

// rows = a layer's outputs of its inputs `rows`; of the last one v = its sums
//
// terms, neurons  its blocks
// kept [LAYERS, SAMPLES]  scales of what layers read; of this warp's samples
inline void forward(const int layer, const int terms, const int neurons, const int last,
                    Words *rows, float4 (*v)[2][WIDEST], __local int *kept,
                    SPACE uint4 *values, const int row, __global Slopes *slopes,
                    Feed *feed, __local const float4 *biases, const int4 about,
                    __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP, g = lane / 4, at = lane % 4;
    const float steepness = steepness_of[layer];
    int most[ROWS_M][2];
    float up[ROWS_M][2], down[ROWS_M][2];
    Words next[ROWS_M];
    write_turned(values, rows, terms, 1, row, exchange);
    if (!last) look_up(most, rows, terms, exchange);
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, h = i % 2, scale = kept[layer * SAMPLES + 8 * i + g];
        down[m][h] = power_of_two(-scale) * power_of_two(-about.s0) * steepness;
        if (last) continue;
        const int of_sums = most[m][h] + 1 - scale + about.s1 + growth(terms)
                            + exponent_of(as_uint(steepness)) + 1;
        const int bound = max(max(of_sums, about.s2), 0) + 2;  // |f(v)| <= |v| + 1
        const int next_scale =
            clamp(HIDDEN_BOUNDED ? TOP : TOP - bound, LEAST_SCALE, MOST_SCALE);
        up[m][h] = power_of_two(next_scale);
        if (at == 0) kept[(layer + 1) * SAMPLES + 8 * i + g] = next_scale;
    }
#ifdef LOW_SLOPE
    uint bits[SPARE];
UNROLLED
    for (int i = 0; i < SPARE; ++i) bits[i] = 0;
#endif
    BEGIN_WITH(feed, START(layer));
    STAGE_WORDS(rows, exchange);
UNROLLED
    for (int j = 0; j < neurons; ++j) {
        const float4 bias = biases[(layer * WIDE + BLOCK * j) / 4 + at];
        float4 found[ROWS_M][2];
        multiply(found, rows, terms, j * terms, feed, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, h = i % 2;
            const float4 sum = found[m][h] * down[m][h] + bias;
            if (last) {
                v[m][h][j] = sum;
                continue;
            }
            const float2 a = activate(0, sum.s0), b = activate(0, sum.s1);
            const float2 c = activate(0, sum.s2), d = activate(0, sum.s3);
            put_words(next[m][j], h, (float4)(a.s0, b.s0, c.s0, d.s0) * up[m][h]);
            const int number = (j * ROWS_M + m) * 2 + h;
#ifdef LOW_SLOPE
            bits[number / 8] |= ((a.s1 != LOW_SLOPE ? 1u : 0) | (b.s1 != LOW_SLOPE ? 2u : 0)
                                 | (c.s1 != LOW_SLOPE ? 4u : 0)
                                 | (d.s1 != LOW_SLOPE ? 8u : 0)) << number % 8 * 4;
#else
            slopes[layer * SLOPES_OF_LAYER + number * WARP] =
                KEEP((float4)(a.s1, b.s1, c.s1, d.s1));
#endif
        }
    }
#ifdef LOW_SLOPE
UNROLLED
    for (int i = 0; i < SPARE; ++i)
        if (!last) slopes[layer * SLOPES_OF_LAYER + i * WARP] = bits[i];
#endif
    if (!last) copy_rows(rows, next);
}

// rows = the derivatives by the sums of the layer below, of those of `layer`
//
// terms  blocks of the layer's neurons
// scale  of rows
inline void backward(const int layer, const int terms, Words *rows, int (*scale)[2],
                     __global const Slopes *slopes, Feed *feed, const int4 about,
                     __local float *sums, __local uint4 *exchange)
{
    int most[ROWS_M][2];
    float up[ROWS_M][2], down[ROWS_M][2];
    Words next[ROWS_M];
    look_up(most, rows, terms, exchange);
    slopes += (layer - 1) * SLOPES_OF_LAYER;
#ifdef LOW_SLOPE
    uint bits[SPARE];
UNROLLED
    for (int i = 0; i < SPARE; ++i) bits[i] = slopes[i * WARP];
#endif
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        const int m = i / 2, h = i % 2;
        const int bound = most[m][h] + 1 - scale[m][h] + about.s1 + SLOPE_EXPONENT
                          + growth(terms);
        down[m][h] = power_of_two(-scale[m][h]) * power_of_two(-about.s0);
        scale[m][h] = clamp(TOP - bound, LEAST_SCALE, MOST_SCALE);
        up[m][h] = power_of_two(scale[m][h]);
    }
    BEGIN_WITH(feed, START_TURNED(layer));
    STAGE_WORDS(rows, exchange);
UNROLLED
    for (int j = 0; j < HIDDEN; ++j) {
        float4 found[ROWS_M][2];
        multiply(found, rows, terms, j * terms, feed, exchange);
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int m = i / 2, h = i % 2, number = (j * ROWS_M + m) * 2 + h;
#ifdef LOW_SLOPE
            const uint four = bits[number / 8] >> number % 8 * 4;
            const float high = steepness_of[0];
            const float4 slope =
                (float4)(four & 1 ? high : LOW_SLOPE, four & 2 ? high : LOW_SLOPE,
                         four & 4 ? high : LOW_SLOPE, four & 8 ? high : LOW_SLOPE);
#else
            const Slopes both = slopes[number * WARP];
            const float4 slope = KEPT(both);
#endif
            found[m][h] *= down[m][h] * slope;
            put_words(next[m][j], h, found[m][h] * up[m][h]);
        }
        add_biases(sums + BLOCK * j, found, exchange);
    }
    copy_rows(rows, next);
}

// x, t, weight [n, width]: the data set
// packed, biases, about: as pack wrote them
// values       [layers' blocks: sample blocks, blocks, PLANES, WARP] what layers read
// derivatives  likewise by what they sum up
// powers       [LAYERS, sample_blocks] of two, by which products of both are too large
// slopes       of each warp, of the hidden layers, as `forward` keeps them
// sums         [groups, REST] of biases' gradients, and behind them the records
// index map: work-group: every (groups)-th tile of SAMPLES; a warp: ROWS_M * 16 of them
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void train(__global const float *x, const int ldx, __global const float *t, const int ldt,
           __global const float *weight, __global const uint4 *packed,
          __global const float4 *biases, __global const int4 *about,
#if !INSIDE
           __global uint4 *values, __global uint4 *derivatives, __global int *powers,
           const int sample_blocks,
#else
           __global float *parts,
#endif
           __global Slopes *slopes, __global float *sums, const int n, const int bits, const float bit_fail_limit, const int first,
          const int samples, const uint k0, const uint k1, const uint k2, const uint k3,
          const uint k4, const uint k5, const uint k6, const uint k7)
{
    __local uint4 shared[(STAGES > 0 ? STAGES * CHUNK : ALL) * PART];
    __local uint4 exchanges[EXCHANGED];
    __local float4 near_biases[LAYERS * WIDE / 4];
    __local int4 near[LAYERS];
    __local float bias_sums[WARPS][LAYERS][WIDE];
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
    for (int i = 0; i < LAYERS * 8 * MINE; ++i) found[i / 8 / MINE][i / 4 % (2 * MINE)][i % 4] = 0;
UNROLLED
    for (int i = 0; i < LAYERS; ++i) references[i] = 2 * MOST_SCALE;
#endif
    const uint8 key = (uint8)(k0, k1, k2, k3, k4, k5, k6, k7);
    const int warp = get_local_id(0) / WARP, lane = get_local_id(0) % WARP;
    const int g = lane / 4, at = lane % 4;
    const int all = get_num_groups(0) * SAMPLES;
    __local int *own = kept + warp * ROWS_M * BLOCK;
    __local uint4 *exchange = exchanges + warp * (EXCHANGED / WARPS);
#if STAGES > 0
    Feed feed = {shared, packed, shared, 0, (STAGES - 1) % (ALL / CHUNK)};
    for (int i = 0; i < STAGES - 1; ++i)
        copy_weights(shared + i * CHUNK * PART, packed + i % (ALL / CHUNK) * CHUNK * PART,
                     CHUNK * PART);
#else
    Feed feed = {shared, packed, shared, 0, 0};
    copy_weights(shared, packed, ALL * PART);
    ARRIVED(0);
#endif
    for (int i = get_local_id(0); i < LAYERS * WIDE / 4; i += ITEMS)
        near_biases[i] = biases[i];
    for (int i = get_local_id(0); i < LAYERS; i += ITEMS) near[i] = about[i];
    for (int i = lane; i < LAYERS * WIDE; i += WARP) bias_sums[warp][0][i] = 0;
    slopes += (size_t)(get_global_id(0) / WARP) * (LAYERS - 1) * SLOPES_OF_LAYER + lane;
    float record[RECORD] = {0, 0, 0};
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int tile = get_group_id(0) * SAMPLES; tile < samples; tile += all) {
        const int start = tile + warp * ROWS_M * BLOCK;
        const int row = INSIDE ? warp * ROWS_M : start / BLOCK;
        Words rows[ROWS_M];
        size_t rows_of[ROWS_M][2];
        float4 v[ROWS_M][2][WIDEST];
UNROLLED
        for (int i = 0; i < 2 * ROWS_M; ++i) {
            const int number = min(start + 8 * i + g, samples - 1);
            rows_of[i / 2][i % 2] = row_of(first + number, n, bits, key);
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
    forward(layer, terms, neurons, last, rows, v, own, VALUES(layer), row, slopes, &feed, \
            near_biases, near[layer], exchange);                                         \
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
        for (int k = 0; k < LAST; ++k) {
            float4 four[ROWS_M][2];
UNROLLED
            for (int i = 0; i < 2 * ROWS_M; ++i) four[i / 2][i % 2] = v[i / 2][i % 2][k];
            add_biases(bias_sums[warp][LAYERS - 1] + BLOCK * k, four, exchange);
        }

        // Back.
#if INSIDE
#define DERIVATIVES(layer, terms)                                                        \
    write_derivatives(near_derivatives[(layer) % 2], near_powers[(layer) % 2], rows,     \
                      scale, own + (layer) * SAMPLES, terms, row, exchange);             \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    add_slopes(found[layer], references + (layer), terms, TERMS_OF(layer),               \
               VALUES(layer), near_derivatives[(layer) % 2], near_powers[(layer) % 2])
#define LAYER_BY_LAYER UNROLLED
#else
#define DERIVATIVES(layer, terms)                                                        \
    write_derivatives(                                                                   \
        derivatives + (size_t)DERIVATIVES_BEFORE(layer) * sample_blocks * PART,          \
        powers + (layer) * sample_blocks, rows, scale, own + (layer) * SAMPLES, terms,   \
        row, exchange)
#define LAYER_BY_LAYER _Pragma("nounroll")
#endif
#define BACKWARD_FROM(layer, terms)                                                      \
    DERIVATIVES(layer, terms);                                                           \
    backward(layer, terms, rows, scale, slopes, &feed, near[layer],                      \
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
    ARRIVED(0);
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

#if !INSIDE
// Squares of QUAD x QUAD blocks of a layer.
#define ACROSS(layer) ROUND_UP(TERMS_OF(layer), QUAD)
#define SQUARES(layer) (ROUND_UP(NEURONS_OF(layer), QUAD) * ACROSS(layer))

// parts [PARTS, BIASES]: the weights' gradients, of parts of the samples
// index map: a warp: a square of a part of a layer
__kernel __attribute__((reqd_work_group_size(SLOPE_WARPS * WARP, 1, 1)))
void slopes(__global const uint4 *values, __global const uint4 *derivatives,
            __global const int *powers, const int sample_blocks, __global float *parts,
            const int samples)
{
    const int lane = get_local_id(0) % WARP;
#if PTX < 80
    __local uint4 exchanges[SLOPE_WARPS][2][QUAD][PART];
    __local uint fews[SLOPE_WARPS][WARP];
    __local uint *few = fews[get_local_id(0) / WARP];
#else
    __local uint *few = 0;
#endif
    // A group's warps have one layer. Those of one part and several squares read the same.
    int number = get_group_id(0) * SLOPE_WARPS, layer = 0;
    for (; number >= PARTS * SQUARES(layer); ++layer) number -= PARTS * SQUARES(layer);
    number += get_local_id(0) / WARP;
    const int part = number / SQUARES(layer), square = number % SQUARES(layer);
    const int down = NEURONS_OF(layer), across = TERMS_OF(layer);
    const int m0 = square / ACROSS(layer) * QUAD, n0 = square % ACROSS(layer) * QUAD;
    const int count = ROUND_UP(samples, BLOCK), each = ROUND_UP(count, PARTS);
    const int from = min(part * each, count), to = min(from + each, count);
    powers += layer * sample_blocks;
    int power = 2 * MOST_SCALE + 15;
    for (int i = from + lane; i < to; i += WARP) power = min(power, powers[i]);
UNROLLED
    for (int mask = 1; mask < WARP; mask *= 2)
        power = min(power, (int)swapped(power, mask, few));
    const size_t a_row = down * PART, b_row = across * PART;
    derivatives += (size_t)DERIVATIVES_BEFORE(layer) * sample_blocks * PART + lane;
    values += (size_t)BLOCKS_BEFORE(layer) * sample_blocks * PART + lane;
    float sums[QUAD][2 * QUAD][4];
UNROLLED
    for (int i = 0; i < QUAD * 2 * QUAD * 4; ++i)
        sums[i / (8 * QUAD)][i / 4 % (2 * QUAD)][i % 4] = 0;
    uint4 a[QUAD][PLANES], b[QUAD][PLANES];
#define FETCH(k)                                                                         \
UNROLLED                                                                                 \
    for (int i = 0; i < QUAD * PLANES; ++i) {                                            \
        const int block = i / PLANES, p = i % PLANES;                                    \
        a[block][p] = derivatives[(k) * a_row + (min(m0 + block, down - 1) * PLANES + p) \
                                                    * WARP];                             \
        b[block][p] = values[(k) * b_row + (min(n0 + block, across - 1) * PLANES + p)    \
                                               * WARP];                                  \
    }
    if (from < to) { FETCH(from) }
    // In plain C all work-items meet as often.
    for (int k = from; k < (PTX >= 80 ? to : from + each); ++k) {
        const int less = k < to ? power - powers[k] : 0;
        uint4 rows[QUAD][PLANES], columns[QUAD][PLANES];
UNROLLED
        for (int i = 0; i < QUAD * PLANES; ++i) {
            rows[i / PLANES][i % PLANES] = a[i / PLANES][i % PLANES];
            columns[i / PLANES][i % PLANES] = b[i / PLANES][i % PLANES];
        }
        if (less != 0) {
UNROLLED
            for (int i = 0; i < QUAD * PLANES; ++i) {
                const uint4 w = rows[i / PLANES][i % PLANES];
                rows[i / PLANES][i % PLANES] =
                    (uint4)(times_far(w.s0, less), times_far(w.s1, less),
                            times_far(w.s2, less), times_far(w.s3, less));
            }
        }
        if (k + 1 < to) { FETCH(k + 1) }
#if PTX >= 80
#define A(i, p) rows[i][p]
#define B(j, p) columns[j][p]
#else
        __local uint4 (*own)[QUAD][PART] = exchanges[get_local_id(0) / WARP];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < QUAD * PLANES; ++i) {
            const uint4 zero = (uint4)(0);
            own[0][i / PLANES][i % PLANES * WARP + lane] =
                k < to ? rows[i / PLANES][i % PLANES] : zero;
            own[1][i / PLANES][i % PLANES * WARP + lane] =
                k < to ? columns[i / PLANES][i % PLANES] : zero;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#define A(i, p) FRAGMENT(own[0][i] + (p) * WARP, lane)
#define B(j, p) FRAGMENT(own[1][j] + (p) * WARP, lane)
#endif
UNROLLED
        for (int i = 0; i < QUAD; ++i)
UNROLLED
            for (int j = 0; j < 2 * QUAD; ++j) {
#if PLANES == 1
                multiply_add(sums[i][j], A(i, 0), B(j / 2, 0), j % 2);
#else
                float main[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
                multiply_add(main, A(i, 0), B(j / 2, 0), j % 2);
                multiply_add(rest, A(i, 0), B(j / 2, 1), j % 2);
                multiply_add(rest, A(i, 1), B(j / 2, 0), j % 2);
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] += fma(rest[e], 1 / LOW, main[e]);
#endif
            }
    }
    parts += (size_t)part * BIASES;
UNROLLED
    for (int i = 0; i < QUAD * QUAD; ++i) {
        const int m = m0 + i / QUAD, n = n0 + i % QUAD;
        if (m < down && n < across)
            write_slopes(parts, layer, m, n, sums[i / QUAD] + i % QUAD * 2, power);
    }
}
#endif

// The sums of what parts and groups have, and the update, or the totals.
//
// total [SIZE]  the gradients' sum, where there is no update
// index map: SHARED_BY work-items an element: a weight, a bias, a value of the record
__kernel __attribute__((reqd_work_group_size(ADDERS, 1, 1)))
void combine(__global const float *parts, __global const float *rest, const int groups,
             __global float *parameters, __global float *state, __global float *total,
             __global float *totals, __global const uchar *live, const int outputs,
             const int samples, const int seen, const int fresh, const float rate,
             const int count, const uint seed)
{
    __local float shares[ADDERS];
    const int wide = ADDERS / SHARED_BY, id = get_local_id(0), mine = id / wide;
    const int element = get_group_id(0) * wide + id % wide;
    const int weight = element < BIASES, there = min(element, SIZE + RECORD - 1);
    __global const float *from = weight ? parts + there : rest + (there - BIASES);
    const size_t pitch = weight ? BIASES : REST;
    const int rows = weight ? PARTS : groups;
    float sum = 0;
#pragma unroll 8
    for (int i = mine; i < rows; i += SHARED_BY) sum += from[i * pitch];
    shares[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (mine || element >= SIZE + RECORD) return;
    for (int i = 1; i < SHARED_BY; ++i) sum += shares[i * wide + id];
    if (element >= SIZE) {
        add_to_total(totals, element - SIZE, sum, fresh);
        return;
    }
#if UPDATE
    if (!live[element]) return;
    const Moment now = moment_of(rate, samples, 0.0f, seen, outputs, count, seed);
    float kept[SLOTS + 1];  // at least one: there are no empty arrays
    for (int k = 0; k < SLOTS; ++k) kept[k] = state[(size_t)k * SIZE + element];
    parameters[element] = stepped(parameters[element], sum, kept, now, element);
    for (int k = 0; k < SLOTS; ++k) state[(size_t)k * SIZE + element] = kept[k];
#else
    total[element] = sum;
#endif
}

// The work of a group on one tile of samples: load, forward pass, loss, backward pass.
// The macros are those of group_step.cl.
//
// SUBSETS  1: networks train on rows of the data set that a list names
// MATRIX   1: products by matrix units; members/matrix.h has the work on a tile
// VALUES   parameters before the record behind gradients
// DROPS    1: layers drop outputs, as a network's rows of Drop (member.h) say
// EXACT    1: the first layer's inputs and weights are those of members/exact_inputs.h
// DELTAS   offset from hidden layers' values to their derivatives; 0: those take the
//          values' place
#if !defined(TILE) || !defined(PITCH) || !defined(GROUP) || !defined(SIZE) \
    || !defined(PARTS) || !defined(STAGED) || !defined(LAYERS) \
    || !defined(LAYER_TABLE) || !defined(LAYER_NEURONS) || !defined(X_OFFSET) \
    || !defined(T_OFFSET) || !defined(WEIGHT_OFFSET) || !defined(RECORD_OFFSET) \
    || !defined(SUBSETS) || !defined(MATRIX) || !defined(VALUES) || !defined(DROPS) \
    || !defined(EXACT) || !defined(DELTAS)
#error "group_step_tile.h needs TILE, PITCH, GROUP, SIZE, PARTS, STAGED, LAYERS, \
LAYER_TABLE, LAYER_NEURONS, X_OFFSET, T_OFFSET, WEIGHT_OFFSET, RECORD_OFFSET, SUBSETS, \
MATRIX, VALUES, DROPS, EXACT and DELTAS"
#endif
#define LOADS 16  // loads of a work-item in flight
#if STAGED
#define SPACE __local
#else
#define SPACE __global
#endif
#include "include/neuron_functions.h"
#include "include/warp.h"
#if RESIDENT
#define HOME __local
#else
#define HOME __global
#endif
#define QUADS (TILE / 4)  // vectors of 4 samples in a tile
#define ALIGNED __attribute__((aligned(16)))

__constant Layer layers[LAYERS] = LAYER_TABLE;
__constant Neuron layer_neurons[LAYERS] = LAYER_NEURONS;

// The constants of a launch.
typedef struct {
    __global const Neuron *neurons;
    SPACE const float *parameters;
#if EXACT
    __local const ushort *pieces;  // of the first layer's weights (exact_inputs.h)
#endif
    __global const float *x, *t, *weight;
    int n;     // samples of the data set
    int bits;  // of half a sample's index, for the random order
    float bit_fail_limit;
    float weight_scale;  // of the samples' weights
#if SUBSETS
    __global const int *subset;  // rows of the data set; 0: all
#endif
#if DROPS
    __global const Drop *drops;  // of each layer
    uint seed;
    int count, start;  // of the step; of the tile's first sample in it
#endif
} Net;

// The offset of the derivatives of a layer's pre-activations.
static inline int deltas_of(const int l)
{
    return layers[l].values + (l < LAYERS - 1 ? DELTAS : 0);
}

static inline Neuron neuron_of(const Net *net, const int l, const int o)
{
    return layer_neurons[l].function < 0 ? net->neurons[layers[l].neuron + o]
                                         : layer_neurons[l];
}

// The data set's row of sample i of the epoch's order.
static inline int row_of(const Net *net, const int i, const uint8 key)
{
    int row = i;
#if GATHERED == 2
    row = permuted(row, net->n, net->bits, key);
#endif
#if SUBSETS
    if (net->subset) row = net->subset[row];
#endif
    return row;
}

// to[i][s] = value i of sample s's row; zeros from width to `padded`
static inline void transpose(__global const float *from, const int width,
                             const int padded, const int valid, __local float *to)
{
    // GROUP / TILE work-items load one row.
    const int lanes = GROUP / TILE, lane = get_local_id(0) % lanes;
    for (int begin = lane; begin < padded; begin += LOADS * lanes) {
        float row[LOADS];
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int i = begin + j * lanes;
            row[j] = from[i < width ? i : 0];
        }
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int i = begin + j * lanes;
            if (i < padded) to[i * PITCH] = valid && i < width ? row[j] : 0;
        }
    }
}

static inline void load(const Net *net, __local float *memory, const int first,
                        const int valid_samples, const uint8 key)
{
    const int s = get_local_id(0) / (GROUP / TILE);
    if (s >= TILE) return;
    const int valid = s < valid_samples;
    const size_t row = valid ? row_of(net, first + s, key) : 0;
    const int n_in = layers[0].n_in, n_out = layers[LAYERS - 1].n_out;
    transpose(net->x + row * n_in, n_in, (n_in + 3) / 4 * 4, valid,
              memory + X_OFFSET + s);
    transpose(net->t + row * n_out, n_out, n_out, valid, memory + T_OFFSET + s);
#if WEIGHTED
    if (get_local_id(0) % (GROUP / TILE) == 0)
        memory[WEIGHT_OFFSET + s] = valid ? net->weight[row] * net->weight_scale : 0;
#endif
}

// The slices of a neuron's inner dimension (slice-k): they occupy idle work-items.
static inline int slices_of(const Layer layer)
{
    int count = 1;
#if PTX >= 70
    while (2 * count * QUADS <= WARP && 2 * count * QUADS * layer.n_out <= GROUP
           && 4 * count < layer.n_in)
        count *= 2;
#endif
    return count;
}

// The sum of v over a neuron's slices, whose lanes are QUADS apart.
static inline float4 sum_of_slices(float4 v, const int slices)
{
#if PTX >= 70
    for (int mask = QUADS; mask < QUADS * slices; mask *= 2)
        v += (float4)(shuffle_xor(v.x, mask), shuffle_xor(v.y, mask),
                      shuffle_xor(v.z, mask), shuffle_xor(v.w, mask));
#endif
    return v;
}

#if DROPS
// The factor of a sample's output of neuron o: 0 where it is dropped.
static inline float drop_factor(const Net *net, const int l, const int o,
                                const int sample)
{
    if (l == LAYERS - 1) return 1;
    const Drop drop = net->drops[l];
    const uint index = (uint)((net->start + sample) * layers[l].n_out + o);
    const uint word = hash_word(index ^ drop_start(drop, net->seed, net->count));
    return (int)(word >> 8) >= drop.threshold ? drop.factor : 0;
}
#define DROP1(l, o, s) drop_factor(net, l, o, s)
#define DROP2(l, o, s) ((float2)(DROP1(l, o, s), DROP1(l, o, (s) + 1)))
#define DROP4(l, o, s) ((float4)(DROP2(l, o, s), DROP2(l, o, (s) + 2)))
#define SHARE(l) (net->drops[l].share)
#else
#define DROP1(l, o, s) 1
#define DROP2(l, o, s) 1
#define DROP4(l, o, s) 1
#define SHARE(l) 1
#endif

// Activate samples' pre-activations v of neuron o, and store them.
#define DEFINE_STORE_OUTPUTS(NAME, VECTOR, OUTPUTS)                                  \
    static inline void NAME(const Net *net, const int l, const int o, VECTOR v,      \
                            const int sample, __local float *memory)                 \
    {                                                                                \
        const Layer layer = layers[l];                                               \
        const Neuron neuron = neuron_of(net, l, o);                                  \
        const VECTOR low = -neuron.limit, high = neuron.limit;                       \
        v *= neuron.steepness;                                                       \
        v = v < low ? low : v; /* NaN stays */                                       \
        v = v > high ? high : v;                                                     \
        const int offset = o * PITCH + sample;                                       \
        if (layer.pre_activations >= 0)                                              \
            *(__local VECTOR *)(memory + layer.pre_activations + offset) = v;        \
        *(__local VECTOR *)(memory + layer.values + offset) = OUTPUTS;               \
    }

DEFINE_STORE_OUTPUTS(store_outputs, float4,
                     ((float4)(activate(neuron, v.s0), activate(neuron, v.s1),
                               activate(neuron, v.s2), activate(neuron, v.s3))
                      * DROP4(l, o, sample)))
DEFINE_STORE_OUTPUTS(store_two_outputs, float2,
                     ((float2)(activate(neuron, v.s0), activate(neuron, v.s1))
                      * DROP2(l, o, sample)))
DEFINE_STORE_OUTPUTS(store_output, float, activate(neuron, v) * DROP1(l, o, sample))

static inline void forward(const Net *net, const int l, __local const float *x,
                           __local float *memory)
{
    const Layer layer = layers[l];
    const int slices = slices_of(layer), neurons = GROUP / QUADS / slices;
    const int quad = get_local_id(0) % QUADS * 4;
    const int slice = get_local_id(0) / QUADS % slices;
    SPACE const float *parameters = net->parameters;
    for (int begin = 0; begin < layer.n_out; begin += neurons) {
        const int neuron_index = begin + get_local_id(0) / (QUADS * slices);
        const int o = neuron_index < layer.n_out ? neuron_index : 0;
        SPACE const float *w = parameters + layer.weights + o * layer.stride;
        float4 v = (float4)(layer.bias < 0 || slice ? 0 : parameters[layer.bias + o]);
#pragma unroll 4
        for (int k = 4 * slice; k < layer.n_in; k += 4 * slices) {
            const float4 a = *(SPACE const float4 *)(w + k);
            __local const float *from = x + k * PITCH + quad;
            v += a.s0 * *(__local const float4 *)from;
            v += a.s1 * *(__local const float4 *)(from + PITCH);
            v += a.s2 * *(__local const float4 *)(from + 2 * PITCH);
            v += a.s3 * *(__local const float4 *)(from + 3 * PITCH);
        }
        v = sum_of_slices(v, slices);
        if (slice || neuron_index >= layer.n_out) continue;
        store_outputs(net, l, o, v, quad, memory);
    }
}

#if MATRIX
#define WARPS (GROUP / WARP)
#define SLICE (TILE / WARPS)  // samples of a warp: a multiple of 8
// The sum, or maximum, of v over the lanes that share a sample.
#define OVER_LANES(v, total)                                                         \
    for (int mask = SLICE; mask < WARP; mask *= 2) {                                 \
        const float other = shuffle_xor(v, mask);                                    \
        v = total;                                                                   \
    }
#else
#define OVER_LANES(v, total)
#endif

// Replace a sample's outputs by the loss gradient with respect to the pre-activations,
// and store its record. Each of `lanes` lanes takes every so manieth output, from `part`
// on.
static inline void sample_loss(const Net *net, __local float *memory, const int sample,
                               const int valid_samples, const int part, const int lanes)
{
    const Layer last = layers[LAYERS - 1];
    __local float *y = memory + last.values + sample;
    __local const float *t = memory + T_OFFSET + sample;
    __local float *record = memory + RECORD_OFFSET + sample;
    const int width = last.n_out, valid = sample < valid_samples;
    float sum = 0, squares = 0, fails = 0;
    const float factor = WEIGHTED ? memory[WEIGHT_OFFSET + sample] : 1.0f;
    const int weighs = valid && factor != 0;  // 0 times an overflow would be NaN
    const float mean_factor = MEAN ? factor / width : factor;
#if SOFTMAX
    float top = y[0], total = 0, targets = 0;
    for (int j = part; j < width; j += lanes)
        top = y[j * PITCH] > top ? y[j * PITCH] : top;
    OVER_LANES(top, other > top ? other : top)
    for (int j = part; j < width; j += lanes) {
        total += exponential(y[j * PITCH] - top);
        targets += t[j * PITCH];
    }
    OVER_LANES(total, total + other)
    OVER_LANES(targets, targets + other)
    const float log_total = logarithm(total);
#endif
    for (int j = part; j < width; j += lanes) {
        const Neuron neuron = neuron_of(net, LAYERS - 1, j);
        const float z = y[j * PITCH], target = t[j * PITCH];
        const float output = LOSS_OUTPUT(z);
        const float gradient = LOSS_SLOPE(z, output, target, neuron.error_scale);
        sum += LOSS_TERM(z, target, neuron.error_scale);
        const float error = (target - output) * neuron.error_scale;
        squares += error * error;
        fails += fabs(error) >= net->bit_fail_limit ? 1 : 0;
        const int pre = last.pre_activations;
        const float v = pre < 0 ? z : memory[pre + j * PITCH + sample];
        y[j * PITCH] = weighs ? gradient * mean_factor * derivative(neuron, z, v) : 0;
    }
    OVER_LANES(sum, sum + other)
    OVER_LANES(squares, squares + other)
    OVER_LANES(fails, fails + other)
    if (part > 0) return;
    record[0] = weighs ? sum * mean_factor : 0;
    record[TILE] = weighs ? squares * factor : 0;
    record[2 * TILE] = valid ? fails : 0;
}

static inline float vector_sum(const float4 v) { return v.s0 + v.s1 + (v.s2 + v.s3); }

// gradient[o, i] (+)= sum over s of ds[o, s] * x[i, s], by blocks of ROWS adjacent rows
// and COLUMNS columns `across` apart
#define DEFINE_OUTER(NAME, ROWS, COLUMNS)                                            \
    static inline void NAME(const Layer layer, __local const float *ds,              \
                            __local const float *x, HOME float *gradient,            \
                            const int add)                                           \
    {                                                                                \
        /* in group_members.cl a stride is beyond the rows of x */                   \
        const int across = min(layer.stride, (layer.n_in + 3) / 4 * 4) / COLUMNS;    \
        const int down = (layer.n_out + ROWS - 1) / ROWS;                            \
        for (int item = get_local_id(0); item < down * across; item += GROUP) {      \
            const int o = item / across * ROWS, i = item % across;                   \
            float4 accumulators[ROWS][COLUMNS];                                      \
            _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                         \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c)                  \
                    accumulators[r][c] = (float4)(0);                                \
            for (int s = 0; s < TILE; s += 4) {                                      \
                float4 d[ROWS];                                                      \
                _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                     \
                    d[r] = *(__local const float4 *)(ds + (o + r) * PITCH + s);      \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) {                \
                    const float4 v =                                                 \
                        *(__local const float4 *)(x + (i + c * across) * PITCH + s); \
                    _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                 \
                        accumulators[r][c] += d[r] * v;                              \
                }                                                                    \
            }                                                                        \
            _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                         \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) {                \
                    HOME float *to = gradient + layer.weights                        \
                                         + (o + r) * layer.stride + i + c * across;  \
                    const float sum = vector_sum(accumulators[r][c]);                \
                    if (o + r < layer.n_out) *to = add ? *to + sum : sum;            \
                }                                                                    \
        }                                                                            \
    }

DEFINE_OUTER(outer_block, 4, 4)  // rows past the last are zeros
DEFINE_OUTER(outer_element, 1, 1)

// The gradients of a layer's weights.
static inline void outer(const Layer layer, __local const float *ds,
                         __local const float *x, HOME float *gradient, const int add)
{
#if PTX < 70
    // PoCL by loops took the branches of two layers of as many items for one, and let all
    // work-items into the loop over the second layer's items.
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    if (layer.n_out * layer.stride > 2 * GROUP)
        outer_block(layer, ds, x, gradient, add);
    else
        outer_element(layer, ds, x, gradient, add);
}

// The gradients of a layer's biases.
static inline void bias_gradient(const Layer layer, __local const float *ds,
                                 HOME float *gradient, const int add)
{
    if (layer.bias < 0) return;
    // From the last work-item on: those have less to do above.
    for (int o = GROUP - 1 - get_local_id(0); o < layer.n_out; o += GROUP) {
        float4 sum = (float4)(0);
#pragma unroll
        for (int s = 0; s < TILE; s += 4)
            sum += *(__local const float4 *)(ds + o * PITCH + s);
        HOME float *to = gradient + layer.bias + o;
        *to = add ? *to + vector_sum(sum) : vector_sum(sum);
    }
}

// The loss gradient of samples with respect to neuron i's pre-activations; `sum` is that
// with respect to its outputs.
#define DEFINE_DERIVATIVES(NAME, VECTOR, FACTORS)                                    \
    static inline VECTOR NAME(const Net *net, const int l, const int i,              \
                              const VECTOR sum, const int sample,                    \
                              __local const float *memory)                           \
    {                                                                                \
        const Layer layer = layers[l];                                               \
        const Neuron neuron = neuron_of(net, l, i);                                  \
        const int offset = i * PITCH + sample, pre = layer.pre_activations;          \
        const VECTOR y =                                                             \
            *(__local const VECTOR *)(memory + layer.values + offset) * SHARE(l);    \
        const VECTOR v = pre < 0 ? y : *(__local const VECTOR *)(memory + pre + offset); \
        return sum * FACTORS;                                                        \
    }

DEFINE_DERIVATIVES(
    four_derivatives, float4,
    ((float4)(derivative(neuron, y.s0, v.s0), derivative(neuron, y.s1, v.s1),
              derivative(neuron, y.s2, v.s2), derivative(neuron, y.s3, v.s3))
     * DROP4(l, i, sample)))
DEFINE_DERIVATIVES(
    two_derivatives, float2,
    ((float2)(derivative(neuron, y.s0, v.s0), derivative(neuron, y.s1, v.s1))
     * DROP2(l, i, sample)))

// The derivatives of the layer below.
static inline void back(const Net *net, const int l, __local float *memory)
{
    const Layer layer = layers[l];
    const int quad = get_local_id(0) % QUADS * 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *ds = memory + layer.values;
    for (int i = get_local_id(0) / QUADS; i < layer.n_in; i += GROUP / QUADS) {
        float4 sum = (float4)(0);
#pragma unroll 8
        for (int o = 0; o < layer.n_out; ++o)
            sum += w[o * layer.stride + i]
                   * *(__local const float4 *)(ds + o * PITCH + quad);
        *(__local float4 *)(memory + layers[l - 1].values + i * PITCH + quad) =
            four_derivatives(net, l - 1, i, sum, quad, memory);
    }
}

// The gradients of a layer's weights and biases.
static inline void outer_and_bias(const Layer layer, __local const float *ds,
                                  __local const float *x, HOME float *gradient,
                                  const int add)
{
    outer(layer, ds, x, gradient, add);
    bias_gradient(layer, ds, gradient, add);
}

// The sums of the samples' records, of PARTS parts of the tile.
static inline void sum_records(__local const float *memory, HOME float *records,
                               const int add)
{
    if (get_local_id(0) >= RECORD * PARTS) return;
    float4 sum = (float4)(0);
    __local const float *record =
        memory + RECORD_OFFSET + get_local_id(0) * (TILE / PARTS);
#pragma unroll
    for (int s = 0; s < TILE / PARTS; s += 4)
        sum += *(__local const float4 *)(record + s);
    HOME float *to = records + get_local_id(0);
    *to = add ? *to + vector_sum(sum) : vector_sum(sum);
}

#if MATRIX
#include "members/matrix.h"
#else
// The forward and backward pass of a tile: `valid_samples` samples from `first` on.
//
// loaded: the first sample of the tile that is in local memory
// Always inline: PoCL 3.0's compiler crashes when it does so late, for some layers.
static inline __attribute__((always_inline))
void tile(const Net *net, __local float *memory, const int first,
          const int valid_samples, const uint8 key, HOME float *gradient, const int add,
          int *loaded)
{
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (*loaded != first) load(net, memory, first, valid_samples, key);
    *loaded = first;
#pragma unroll
    for (int l = 0; l < LAYERS; ++l) {
        barrier(CLK_LOCAL_MEM_FENCE);
        forward(net, l, memory + (l ? layers[l - 1].values : X_OFFSET), memory);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) < TILE)
        sample_loss(net, memory, get_local_id(0), valid_samples, 0, 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    sum_records(memory, gradient + VALUES, add);
#if BACKWARD
#pragma unroll
    for (int l = LAYERS - 1; l >= 0; --l) {
        outer_and_bias(layers[l], memory + layers[l].values,
              memory + (l ? layers[l - 1].values : X_OFFSET), gradient, add);
#if PTX >= 70
        if (l == 0) break;
#endif  // elsewhere no barrier is under a condition, as PoCL 3.0 needs it
        barrier(CLK_LOCAL_MEM_FENCE);
        if (l > 0) back(net, l, memory);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
}
#endif

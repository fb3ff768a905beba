// Of a tile of samples what a work-group computes: from loading it, forward, to the
// loss, and back to its gradients. For group_step.cl, which says what the macros mean.
#define BATCHED 16  // values that a work-item asks for at once
#if STAGED
#define SPACE __local
#else
#define SPACE __global
#endif
#include "include/warp.h"
#define QUADS (TILE / 4)  // of samples, in a tile
#define ALIGNED __attribute__((aligned(16)))

inline float activated(const Neuron neuron, const float v)
{
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: return function(v);
        FUNCTIONS(CASE)
#undef CASE
    }
    return v;
}

// f' * steepness at y or at v.
inline float derivative(const Neuron neuron, const float y, const float v)
{
    const float steepness = neuron.steepness;
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: return gradient(reads(y, v), steepness) * steepness;
        FUNCTIONS(CASE)
#undef CASE
    }
    return steepness;
}

__constant Layer layers[LAYERS] = CHAIN;
__constant Neuron same[LAYERS] = SAME;

// What a group works with.
typedef struct {
    __global const Neuron *neurons;
    SPACE const float *parameters;
    __global const float *x, *t, *weight;
    int n;     // samples of the data set
    int bits;  // of half a sample's number, for the order
    float bit_fail_limit;
} Net;

inline Neuron neuron_of(const Net *net, const int l, const int o)
{
    return same[l].function < 0 ? net->neurons[layers[l].neuron + o] : same[l];
}

// The data set's row that is number `i` of the epoch's order.
inline int row_of(const Net *net, const int i, const uint8 key)
{
#if GATHERED == 2
    return permuted(i, net->n, net->bits, key);
#else
    return i;
#endif
}

// to[i][s] = the values of sample s's row, and zeros up to `whole`
inline void transpose(__global const float *from, const int width, const int whole,
                 const int there, __local float *to)
{
    // As many work-items as fit share a sample's row.
    const int lanes = GROUP / TILE, lane = get_local_id(0) % lanes;
    for (int begin = lane; begin < whole; begin += BATCHED * lanes) {
        float found[BATCHED];
#pragma unroll
        for (int j = 0; j < BATCHED; ++j) {
            const int i = begin + j * lanes;
            found[j] = from[i < width ? i : 0];
        }
#pragma unroll
        for (int j = 0; j < BATCHED; ++j) {
            const int i = begin + j * lanes;
            if (i < whole) to[i * PITCH] = there && i < width ? found[j] : 0;
        }
    }
}

inline void load(const Net *net, __local float *own, const int first, const int counted,
                 const uint8 key)
{
    const int s = get_local_id(0) / (GROUP / TILE);
    if (s >= TILE) return;
    const int there = s < counted;
    const size_t row = there ? row_of(net, first + s, key) : 0;
    const int n_in = layers[0].n_in, n_out = layers[LAYERS - 1].n_out;
    transpose(net->x + row * n_in, n_in, (n_in + 3) / 4 * 4, there, own + X_PLACE + s);
    transpose(net->t + row * n_out, n_out, n_out, there, own + T_PLACE + s);
#if WEIGHTED
    if (get_local_id(0) % (GROUP / TILE) == 0)
        own[WEIGHT_PLACE + s] = there ? net->weight[row] : 0;
#endif
}

// How many work-items share a neuron: those that have none otherwise.
inline int sharing(const int n_out)
{
    int found = 1;
#if PTX >= 70
    while (2 * found * QUADS <= WARP && 2 * found * QUADS * n_out <= GROUP)
        found *= 2;
#endif
    return found;
}

// The sum of what the work-items have that share a neuron, QUADS apart.
inline float4 shared_sum(float4 v, const int share)
{
#if PTX >= 70
    for (int apart = QUADS; apart < QUADS * share; apart *= 2)
        v += (float4)(shuffle_xor(v.x, apart), shuffle_xor(v.y, apart),
                      shuffle_xor(v.z, apart), shuffle_xor(v.w, apart));
#endif
    return v;
}

inline void forward(const Net *net, const int l, __local const float *x,
                    __local float *own)
{
    const Layer layer = layers[l];
    const int share = sharing(layer.n_out), at_once = GROUP / QUADS / share;
    const int quad = get_local_id(0) % QUADS * 4;
    const int part = get_local_id(0) / QUADS % share;
    SPACE const float *parameters = net->parameters;
    for (int begin = 0; begin < layer.n_out; begin += at_once) {
        const int mine = begin + get_local_id(0) / (QUADS * share);
        const int o = mine < layer.n_out ? mine : 0;
        SPACE const float *w = parameters + layer.weights + o * layer.stride;
        const Neuron neuron = neuron_of(net, l, o);
        float4 sum = (float4)(layer.bias < 0 || part ? 0 : parameters[layer.bias + o]);
#pragma unroll 4
        for (int k = 4 * part; k < layer.stride; k += 4 * share) {
            const float4 a = *(SPACE const float4 *)(w + k);
            __local const float *from = x + k * PITCH + quad;
            sum += a.s0 * *(__local const float4 *)from;
            sum += a.s1 * *(__local const float4 *)(from + PITCH);
            sum += a.s2 * *(__local const float4 *)(from + 2 * PITCH);
            sum += a.s3 * *(__local const float4 *)(from + 3 * PITCH);
        }
        sum = shared_sum(sum, share);
        if (part || mine >= layer.n_out) continue;
        sum = clamp(sum * neuron.steepness, -neuron.limit, neuron.limit);
        const int place = o * PITCH + quad;
        if (layer.sums >= 0) *(__local float4 *)(own + layer.sums + place) = sum;
        *(__local float4 *)(own + layer.values + place) =
            (float4)(activated(neuron, sum.s0), activated(neuron, sum.s1),
                     activated(neuron, sum.s2), activated(neuron, sum.s3));
    }
}

// A sample's outputs become the loss's derivatives by the outputs' sums.
inline void loss_of(const Net *net, __local float *own, const int sample,
                    const int counted)
{
    const Layer last = layers[LAYERS - 1];
    __local float *y = own + last.values + sample;
    __local const float *t = own + T_PLACE + sample;
    __local float *record = own + RECORD_PLACE + sample;
    const int width = last.n_out;
    float sum = 0, squares = 0, fails = 0;
    if (sample < counted) {
        const float factor = WEIGHTED ? own[WEIGHT_PLACE + sample] : 1.0f;
        const float part = MEAN ? factor / width : factor;
#if SOFTMAX
        float top = y[0], total = 0, targets = 0;
        for (int j = 1; j < width; ++j) top = y[j * PITCH] > top ? y[j * PITCH] : top;
        for (int j = 0; j < width; ++j) {
            total += exponential(y[j * PITCH] - top);
            targets += t[j * PITCH];
        }
        const float log_total = logarithm(total);
#endif
        for (int j = 0; j < width; ++j) {
            const Neuron neuron = neuron_of(net, LAYERS - 1, j);
            const float z = y[j * PITCH], wanted = t[j * PITCH];
            float output = z, slope;
#if SOFTMAX
            output = exponential(z - top) / total;
            sum += wanted * (log_total - (z - top));
            slope = output * targets - wanted;
#else
            sum += LOSS(z, wanted, neuron.share);
            slope = SLOPE(z, wanted, neuron.share);
#endif
#if SIGMOID
            output = act_sigmoid(output);
#endif
            const float error = (wanted - output) * neuron.share;
            squares += error * error;
            fails += fabs(error) >= net->bit_fail_limit ? 1 : 0;
            const float v = last.sums < 0 ? z : own[last.sums + j * PITCH + sample];
            y[j * PITCH] = slope * part * derivative(neuron, z, v);
        }
        sum *= part;
    } else {
        for (int j = 0; j < width; ++j) y[j * PITCH] = 0;
    }
    record[0] = sum;
    record[TILE] = squares;
    record[2 * TILE] = fails;
}

// gradient[o, i] (+)= sum over s of ds[o, s] * x[i, s], of rows o … and columns i …,
// `across` apart
#define DEFINE_OUTER(NAME, ROWS, COLUMNS)                                            \
    inline void NAME(const Layer layer, __local const float *ds,                     \
                     __local const float *x, __global float *gradient,               \
                     const int add)                                                  \
    {                                                                                \
        const int across = layer.stride / COLUMNS;                                   \
        const int down = (layer.n_out + ROWS - 1) / ROWS;                            \
        for (int item = get_local_id(0); item < down * across; item += GROUP) {      \
            const int o = item / across * ROWS, i = item % across;                   \
            float4 sums[ROWS][COLUMNS];                                              \
            _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                         \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c)                  \
                    sums[r][c] = (float4)(0);                                        \
            for (int s = 0; s < TILE; s += 4) {                                      \
                float4 d[ROWS];                                                      \
                _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                     \
                    d[r] = *(__local const float4 *)(ds + (o + r) * PITCH + s);      \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) {                \
                    const float4 v =                                                 \
                        *(__local const float4 *)(x + (i + c * across) * PITCH + s); \
                    _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                 \
                        sums[r][c] += d[r] * v;                                      \
                }                                                                    \
            }                                                                        \
            _Pragma("unroll") for (int r = 0; r < ROWS; ++r)                         \
                _Pragma("unroll") for (int c = 0; c < COLUMNS; ++c) {                \
                    __global float *to = gradient + layer.weights                    \
                                         + (o + r) * layer.stride + i + c * across;  \
                    const float sum = total_of(sums[r][c]);                          \
                    if (o + r < layer.n_out) *to = add ? *to + sum : sum;            \
                }                                                                    \
        }                                                                            \
    }

inline float total_of(const float4 v) { return v.s0 + v.s1 + (v.s2 + v.s3); }

DEFINE_OUTER(outer_block, 4, 4)  // rows behind the last are zeros
DEFINE_OUTER(outer_element, 1, 1)

// The gradients of a layer's weights and biases.
inline void outer(const Layer layer, __local const float *ds, __local const float *x,
                  __global float *gradient, const int add)
{
    if (layer.n_out * layer.stride > 2 * GROUP)
        outer_block(layer, ds, x, gradient, add);
    else
        outer_element(layer, ds, x, gradient, add);
    if (layer.bias < 0) return;
    // The last ones, who have less to do.
    for (int o = GROUP - 1 - get_local_id(0); o < layer.n_out; o += GROUP) {
        float4 sum = (float4)(0);
#pragma unroll
        for (int s = 0; s < TILE; s += 4)
            sum += *(__local const float4 *)(ds + o * PITCH + s);
        __global float *to = gradient + layer.bias + o;
        *to = add ? *to + total_of(sum) : total_of(sum);
    }
}

// The outputs of the layer below become its derivatives.
inline void back(const Net *net, const int l, __local float *own)
{
    const Layer layer = layers[l], below = layers[l - 1];
    const int quad = get_local_id(0) % QUADS * 4;
    SPACE const float *w = net->parameters + layer.weights;
    __local const float *ds = own + layer.values;
    for (int i = get_local_id(0) / QUADS; i < layer.n_in; i += GROUP / QUADS) {
        float4 sum = (float4)(0);
#pragma unroll 8
        for (int o = 0; o < layer.n_out; ++o)
            sum += w[o * layer.stride + i]
                   * *(__local const float4 *)(ds + o * PITCH + quad);
        const Neuron neuron = neuron_of(net, l - 1, i);
        __local float4 *y = (__local float4 *)(own + below.values + i * PITCH + quad);
        const float4 v = below.sums < 0
            ? *y : *(__local const float4 *)(own + below.sums + i * PITCH + quad);
        *y = sum * (float4)(derivative(neuron, (*y).s0, v.s0),
                            derivative(neuron, (*y).s1, v.s1),
                            derivative(neuron, (*y).s2, v.s2),
                            derivative(neuron, (*y).s3, v.s3));
    }
}

// The samples first … of a step, of which `counted` exist, forward and back.
//
// loaded: the first of those that are in local memory
inline void tile(const Net *net, __local float *own, const int first, const int counted,
                 const uint8 key, __global float *gradient, const int add, int *loaded)
{
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (*loaded != first) load(net, own, first, counted, key);
    *loaded = first;
#pragma unroll
    for (int l = 0; l < LAYERS; ++l) {
        barrier(CLK_LOCAL_MEM_FENCE);
        forward(net, l, own + (l ? layers[l - 1].values : X_PLACE), own);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) < TILE) loss_of(net, own, get_local_id(0), counted);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) < RECORD) {
        float4 sum = (float4)(0);
        __local const float *record = own + RECORD_PLACE + get_local_id(0) * TILE;
#pragma unroll
        for (int s = 0; s < TILE; s += 4) sum += *(__local const float4 *)(record + s);
        __global float *to = gradient + SIZE + get_local_id(0);
        *to = add ? *to + total_of(sum) : total_of(sum);
    }
#if BACKWARD
#pragma unroll
    for (int l = LAYERS - 1; l >= 0; --l) {
        outer(layers[l], own + layers[l].values,
              own + (l ? layers[l - 1].values : X_PLACE), gradient, add);
        if (l == 0) break;
        barrier(CLK_LOCAL_MEM_FENCE);
        back(net, l, own);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
}

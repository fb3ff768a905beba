// vector_members: trainings of many tiny networks in a launch, for CPU cores: a vector's
// lanes are networks.
//
// A worker takes a vector's networks, and trains them for all epochs of the launch.
// Weights, gradients and state are vectors of the networks' values, and samples are numbers
// that all of them share. A layer of any width, and any number of samples, then fill the
// vectors:
//
//   samples   s0  s1  s2  s3           four at a time: a weight is read once for them
//   weight    [n0 n1 n2 n3 n4 n5 n6 n7]
//
// The networks of a vector share samples, order and counts of epochs and steps; they have
// rates, penalties, limits and sample weights of their own. One that has reached its limit
// keeps its parameters until the others end.
//
// LAYERS, LAYER_TABLE, LAYER_NEURONS  the layers' table, where `values` and
//              `pre_activations` are rows of four vectors in a worker's memory, and one
//              neuron of each layer, whose function is -1 where its neurons differ
// WIDTH        networks of a vector: 8 or 16
// SIZE         elements of the flat buffer
// ROWS         rows of a worker's memory: of values, and of a layer's derivatives
// SAMPLES      samples at a time: 4
// and the macros of steps.h
#define REAL float
#define PER_NETWORK VAL
#define RESIDENT 0
#define DROPS 0
#include "include/atomics.h"
#include "include/steps.h"
#include "include/neuron_functions.h"
#include "members/member.h"
#if !UPDATE
#define SLOTS 0
#endif
#if !defined(LAYERS) || !defined(LAYER_TABLE) || !defined(LAYER_NEURONS) \
    || !defined(SIZE) || !defined(ROWS) || !defined(SAMPLES)
#error "vector_members.cl needs LAYERS, LAYER_TABLE, LAYER_NEURONS, SIZE, ROWS, SAMPLES"
#endif

__constant Layer layers[LAYERS] = LAYER_TABLE;
__constant Neuron layer_neurons[LAYERS] = LAYER_NEURONS;

typedef struct {
    __global const Neuron *neurons;
    __global VAL *parameters, *gradients, *values, *dx;
    __global const float *x, *t;
    float bit_fail_limit;
} Net;

static inline Neuron neuron_of(const Net *net, const int l, const int o)
{
    return layer_neurons[l].function < 0 ? net->neurons[layers[l].neuron + o]
                                         : layer_neurons[l];
}

// The input i of sample s of a layer: of the data set, or the layer's below.
#define INPUT(l, i, s)                                                               \
    (l ? from[(i) * SAMPLES + s] : (VAL)(net->x[(size_t)rows[s] * layers[0].n_in + (i)]))

static inline void forward(const Net *net, const int l, const int *rows)
{
    const Layer layer = layers[l];
    __global const VAL *from = net->values + (l ? layers[l - 1].values : 0);
    for (int o = 0; o < layer.n_out; ++o) {
        __global const VAL *w = net->parameters + layer.weights + o * layer.stride;
        const VAL bias =
            layer.bias < 0 ? (VAL)(0.0f) : net->parameters[layer.bias + o];
        VAL v0 = bias, v1 = bias, v2 = bias, v3 = bias;
        for (int i = 0; i < layer.n_in; ++i) {
            const VAL a = w[i];
            v0 += a * INPUT(l, i, 0);
            v1 += a * INPUT(l, i, 1);
            v2 += a * INPUT(l, i, 2);
            v3 += a * INPUT(l, i, 3);
        }
        const Neuron neuron = neuron_of(net, l, o);
        const VAL limit = (VAL)(neuron.limit);
        const VAL sums[SAMPLES] = {v0, v1, v2, v3};
        for (int s = 0; s < SAMPLES; ++s) {
            VAL v = sums[s] * (VAL)(neuron.steepness);
            v = v < -limit ? -limit : v;
            v = v > limit ? limit : v;
            if (layer.pre_activations >= 0)
                net->values[layer.pre_activations + o * SAMPLES + s] = v;
            net->values[layer.values + o * SAMPLES + s] = activate(neuron, v);
        }
    }
}

// Replace a sample's outputs by the loss gradient with respect to the pre-activations,
// and add to the record. factor: the sample's weights
static inline void sample_loss(const Net *net, const int s, const int row,
                               const VAL factor, const int valid, VAL *record)
{
    const Layer last = layers[LAYERS - 1];
    const int width = last.n_out;
    __global VAL *y = net->values + last.values + s;
    __global const float *t = net->t + (size_t)row * width;
    const VAL mean_factor = factor * (VAL)(MEAN ? 1.0f / width : 1.0f);
    const VAL fail_limit = (VAL)(net->bit_fail_limit);
    // 0 times an overflow would be NaN.
    const INTS weighs = (VAL)(valid) * factor != (VAL)(0.0f);
    VAL loss = (VAL)(0.0f), squares = (VAL)(0.0f), fails = (VAL)(0.0f);
#if SOFTMAX
    VAL top = y[0], total = (VAL)(0.0f), targets = (VAL)(0.0f);
    for (int j = 1; j < width; ++j)
        top = y[j * SAMPLES] > top ? y[j * SAMPLES] : top;
    for (int j = 0; j < width; ++j) {
        total += exponential(y[j * SAMPLES] - top);
        targets += (VAL)(t[j]);
    }
    const VAL log_total = logarithm(total);
#endif
    for (int j = 0; j < width; ++j) {
        const Neuron neuron = neuron_of(net, LAYERS - 1, j);
        const VAL z = y[j * SAMPLES], target = (VAL)(t[j]);
        const VAL scale = (VAL)(neuron.error_scale);
        const VAL output = LOSS_OUTPUT(z);
        const VAL dy = LOSS_SLOPE(z, output, target, scale) * mean_factor;
        loss += LOSS_TERM(z, target, scale);
        const VAL error = (target - output) * scale;
        squares += error * error;
        fails += absolute(error) >= fail_limit ? (VAL)(1.0f) : (VAL)(0.0f);
#if BACKWARD
        const int pre = last.pre_activations;
        const VAL v = pre < 0 ? z : net->values[pre + j * SAMPLES + s];
        y[j * SAMPLES] = weighs ? dy * derivative(neuron, z, v) : (VAL)(0.0f);
#endif
    }
    if (!valid) return;
    record[0] += weighs ? loss * mean_factor : (VAL)(0.0f);
    record[1] += weighs ? squares * factor : (VAL)(0.0f);
    record[2] += fails;
}

#if BACKWARD
static inline void backward(const Net *net, const int l, const int *rows, const int add)
{
    const Layer layer = layers[l];
    __global const VAL *ds = net->values + layer.values;
    __global VAL *from = net->values + (l ? layers[l - 1].values : 0);
    for (int o = 0; o < layer.n_out; ++o) {
        const VAL d0 = ds[o * SAMPLES], d1 = ds[o * SAMPLES + 1];
        const VAL d2 = ds[o * SAMPLES + 2], d3 = ds[o * SAMPLES + 3];
        __global VAL *g = net->gradients + layer.weights + o * layer.stride;
        for (int i = 0; i < layer.n_in; ++i) {
            const VAL first = d0 * INPUT(l, i, 0) + d1 * INPUT(l, i, 1);
            const VAL sum = d2 * INPUT(l, i, 2) + d3 * INPUT(l, i, 3) + first;
            g[i] = add ? g[i] + sum : sum;
        }
        if (layer.bias < 0) continue;
        g = net->gradients + layer.bias + o;
        const VAL sum = d0 + d1 + (d2 + d3);
        *g = add ? *g + sum : sum;
    }
    if (l == 0) return;
    for (int i = 0; i < layer.n_in; ++i) {
        __global const VAL *w = net->parameters + layer.weights + i;
        VAL v0 = (VAL)(0.0f), v1 = v0, v2 = v0, v3 = v0;
        for (int o = 0; o < layer.n_out; ++o) {
            const VAL a = w[o * layer.stride];
            v0 += a * ds[o * SAMPLES];
            v1 += a * ds[o * SAMPLES + 1];
            v2 += a * ds[o * SAMPLES + 2];
            v3 += a * ds[o * SAMPLES + 3];
        }
        const Neuron neuron = neuron_of(net, l - 1, i);
        const VAL sums[SAMPLES] = {v0, v1, v2, v3};
        const int pre = layers[l - 1].pre_activations;
        for (int s = 0; s < SAMPLES; ++s) {
            __global VAL *to = from + i * SAMPLES + s;
            const VAL v = pre < 0 ? *to : net->values[pre + i * SAMPLES + s];
            *to = sums[s] * derivative(neuron, *to, v);
        }
    }
}
#endif

#if UPDATE
// Update the parameters of the networks that still run.
static inline void update(const Net *net, __global VAL *state,
                          __global const uchar *live, StepInfo now, const int samples,
                          const INTS running)
{
#if HAS_CLIP_NORM
    VAL squares = (VAL)(0.0f);
    for (int i = 0; i < SIZE; ++i) {
        if (!live[i]) continue;
        const VAL g =
            add_penalties(net->parameters[i], net->gradients[i], samples,
                          now.penalties, i)
            / (VAL)(samples);
        squares += g * g;
    }
    now.norm = square_root(squares);
#endif
    for (int i = 0; i < SIZE; ++i) {
        if (!live[i]) continue;
        VAL slots[SLOTS + 1];  // C has no empty arrays
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) slots[k] = state[k * SIZE + i];
        const VAL w = net->parameters[i];
        const VAL next = stepped(w, net->gradients[i], slots, now, i);
        net->parameters[i] = running ? next : w;
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            state[k * SIZE + i] = running ? slots[k] : state[k * SIZE + i];
    }
}
#endif

// Lane k of a vector in memory.
#define LANE(vectors, k) (((__global float *)(vectors))[k])

// The flat values [count] of a vector's networks as vectors, or back.
static inline void load_lanes(__global VAL *to, __global const float *from,
                              const int *index, const int count)
{
    for (int k = 0; k < WIDTH; ++k)
        for (int i = 0; i < count; ++i)
            LANE(to + i, k) = from[(size_t)index[k] * count + i];
}

static inline void store_lanes(__global VAL *from, __global float *to,
                               const int *index, const int count, const int networks)
{
    for (int k = 0; k < networks; ++k)
        for (int i = 0; i < count; ++i)
            to[(size_t)index[k] * count + i] = LANE(from + i, k);
}

// Arguments, in the order of clnet/variants/members/members.py:
//
// x, t, weight  the data set [n, width], and the networks' weights [members, n]
// memory [workers, (2 + SLOTS) * SIZE + SAMPLES * ROWS + 2 * RECORD, WIDTH]
// sync          initially zero: [0] vectors claimed, [1] workers that have left
// live [SIZE]   0 for padding, which stays zero
// and those of member.h
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
vector_members(__global const Neuron *neurons, __global float *parameters,
               __global const float *x, __global const float *t,
               __global const float *weight, __global VAL *memory,
               volatile __global int *sync, const float bit_fail_limit,
               __global float *state, __global const uchar *live, const int outputs,
               const int batch, MEMBER_ARGUMENTS)
{
    const int size = (2 + SLOTS) * SIZE + SAMPLES * ROWS + 2 * RECORD;
    __global VAL *own = memory + get_global_id(0) * size;
    const Net net = {neurons, own, own + SIZE, own + 2 * SIZE, own + 2 * SIZE,
                     x, t, bit_fail_limit};
    __global VAL *sums = net.values + SAMPLES * ROWS, *own_state = sums + 2 * RECORD;
    const int vectors = (count_of_members + WIDTH - 1) / WIDTH;
    for (int v = atomic_inc(sync); v < vectors; v = atomic_inc(sync)) {
        const int networks = min(WIDTH, count_of_members - v * WIDTH);
        int index[WIDTH], ran[WIDTH];
        __global const Epoch *plan[WIDTH];
        VAL squares_limit, fails_limit, l1, l2;
        for (int k = 0; k < WIDTH; ++k) {  // lanes without a network repeat the last
            const Member one = members[v * WIDTH + min(k, networks - 1)];
            index[k] = one.index;
            plan[k] = schedule + (size_t)one.plan * (epochs + 1);
            ((float *)&squares_limit)[k] = one.squares_limit;
            ((float *)&fails_limit)[k] = one.fails_limit;
            ((float *)&l1)[k] = one.l1;
            ((float *)&l2)[k] = one.l2;
            ran[k] = 0;
        }
        const Member member = members[v * WIDTH];
        const int n = member.samples, full = min(batch, n);
        const int steps = (n + full - 1) / full;
        load_lanes(net.parameters, parameters, index, SIZE);
#if UPDATE
        load_lanes(own_state, state, index, SLOTS * SIZE);
#endif
        INTS running = (INTS)(-1);
        for (int e = 0; e < epochs; ++e) {
            VAL rate;
            for (int k = 0; k < WIDTH; ++k) ((float *)&rate)[k] = plan[k][e].rate;
            const uint8 key = vload8(0, plan[0][e].key);
            for (int step = 0; step < steps; ++step) {
                const int begin = step * full, samples = min(full, n - begin);
                VAL record[RECORD], weights = (VAL)(0.0f);
                for (int k = 0; k < RECORD; ++k) record[k] = (VAL)(0.0f);
                for (int start = 0; start < samples; start += SAMPLES) {
                    int rows[SAMPLES];
                    for (int s = 0; s < SAMPLES; ++s) {
                        rows[s] = begin + min(start + s, samples - 1);
#if GATHERED == 2
                        rows[s] = permuted(rows[s], n, member.bits, key);
#endif
                    }
#pragma unroll
                    for (int l = 0; l < LAYERS; ++l) forward(&net, l, rows);
                    for (int s = 0; s < SAMPLES; ++s) {
                        VAL factor = (VAL)(1.0f);
#if WEIGHTED
                        for (int k = 0; k < WIDTH; ++k)
                            ((float *)&factor)[k] =
                                weight[(size_t)index[k] * n + rows[s]];
                        if (start + s < samples) weights += factor;
#endif
                        sample_loss(&net, s, rows[s], factor, start + s < samples,
                                    record);
                    }
#if BACKWARD
#pragma unroll
                    for (int l = LAYERS - 1; l >= 0; --l)
                        backward(&net, l, rows, start > 0);
#endif
                }
#if WEIGHTED
                if (scales_weights(full, n)) {
                    const VAL scale =
                        weights > (VAL)(0.0f) ? (VAL)(samples) / weights
                                                 : (VAL)(1.0f);
                    record[0] *= scale;
                    record[1] *= scale;
#if BACKWARD
                    for (int i = 0; i < SIZE; ++i) net.gradients[i] *= scale;
#endif
                }
#endif
                for (int k = 0; k < RECORD; ++k) {
                    const VAL before = step ? sums[k] : (VAL)(0.0f);
                    const VAL rest = step ? sums[RECORD + k] : (VAL)(0.0f);
                    const VAL added = record[k] + rest, after = before + added;
                    sums[k] = after;
                    sums[RECORD + k] = added - (after - before);
                }
#if UPDATE
                StepInfo now = step_info(rate, samples, 0, 1, outputs,
                                         (member.epochs + e) * steps + step, 0);
                now.penalties.l1 = l1;
                now.penalties.l2 = l2;
                update(&net, own_state, live, now, samples, running);
#endif
            }
            int any = 0;
            for (int k = 0; k < networks; ++k) {
                if (!running[k]) continue;
                __global float *to =
                    totals
                    + ((size_t)members[v * WIDTH + k].record * epochs + e) * 2 * RECORD;
                for (int r = 0; r < 2 * RECORD; ++r) to[r] = LANE(sums + r, k);
                ran[k] = e + 1;
            }
            const VAL zero = (sums[0] - sums[0]) + (sums[1] - sums[1]);
            running &= zero == (VAL)(0.0f) && sums[1] >= squares_limit
                       && sums[2] >= fails_limit;
            for (int k = 0; k < networks; ++k) any |= running[k];
            if (!any) break;
        }
#if UPDATE
        store_lanes(net.parameters, parameters, index, SIZE, networks);
        store_lanes(own_state, state, index, SLOTS * SIZE, networks);
#endif
        for (int k = 0; k < networks; ++k) {
            const size_t place = members[v * WIDTH + k].record;
            __global float *end = ends + place * END;
            for (int r = 0; r < 2 * RECORD; ++r)
                end[r] = totals[(place * epochs + ran[k] - 1) * 2 * RECORD + r];
            end[2 * RECORD] = ran[k];
        }
    }
    if (add_seq_cst(sync + 1, 1) == (int)get_global_size(0) - 1) sync[0] = sync[1] = 0;
}

// sequential: steps of single samples, one after the other in one launch, on one core.
//
// Each step depends on the one before, and a single sample is too little work to divide
// among cores. One work-item computes all steps, with vector lanes along the rows of A:
//
//   forward   z[o]     = w[o, :] . x               4 rows side by side
//   backward  dx[:]   += ds[o] * w[o, :]           before w changes
//   update    w[o, :]  = rule(w[o, :], ds[o] * x)  the gradient is never stored
//
// Values are in `memory`, padded with zeros to whole vectors. Rows of A are padded to
// vectors of 4: half a vector at the end is loaded and stored separately.
//
// All neurons of a layer have the same activation.
//
// CONSTANT_LAYERS, CONSTANT_NEURONS  optional: the rows of both tables, {{n_in, …}, …}.
//               Of a few small layers the compiler then unrolls all loops.
// and those of steps.h
#define REAL float
#define WIDTH 8
#define PER_NETWORK REAL
#define RESIDENT 0
#include "include/steps.h"

// The tables, and the number of layers.
#ifdef CONSTANT_LAYERS
#if !defined(CONSTANT_NEURONS)
#error "sequential.cl needs CONSTANT_NEURONS"
#endif
#define TABLE __constant
TABLE Layer constant_layers[] = CONSTANT_LAYERS;
TABLE Neuron constant_neurons[] = CONSTANT_NEURONS;
#define LAYERS_OF(table) constant_layers
#define NEURONS_OF(table) constant_neurons
#define COUNT_OF(count) (int)(sizeof(constant_layers) / sizeof(Layer))
#define UNROLL_LAYERS _Pragma("unroll")
#else
#define TABLE __global const
#define LAYERS_OF(table) (table)
#define NEURONS_OF(table) (table)
#define COUNT_OF(count) (count)
#define UNROLL_LAYERS
#endif

// w[i … i + 7] of a row of `stride` values, zero past its end.
static inline float8 load_row(__global const float *w, const int i, const int stride)
{
    if (i + 8 <= stride) return *(__global const float8_unaligned *)(w + i);
    return (float8)(*(__global const float4_unaligned *)(w + i), (float4)(0.0f));
}

static inline void store_row(__global float *w, const int i, const int stride,
                             const float8 v)
{
    if (i + 8 <= stride)
        *(__global float8_unaligned *)(w + i) = v;
    else
        *(__global float4_unaligned *)(w + i) = v.lo;
}

// to[i] = from[i] for i < n, zeros up to a whole vector.
static inline void copy_row(__global const float *from, const int n, __global float *to)
{
    for (int i = 0; i < n; i += 8) {
        float8 row = (float8)(0.0f);
        float *lanes = (float *)&row;
        for (int k = 0; k < 8 && i + k < n; ++k) lanes[k] = from[i + k];
        *(__global float8 *)(to + i) = row;
    }
}

// z[o] = w[o, :] . x for o < n_out. Up to 7 values past these are copies of others.
static inline void gemv(TABLE Layer *layer, __global const float *w,
                        __global const float *x, __global float *z)
{
    const int stride = layer->stride, last = layer->n_out - 1;
    for (int o = 0; o <= last; o += 4) {
        __global const float *w0 = w + o * stride, *w1 = w + min(o + 1, last) * stride;
        __global const float *w2 = w + min(o + 2, last) * stride;
        __global const float *w3 = w + min(o + 3, last) * stride;
        float8 s0 = (float8)(0.0f), s1 = s0, s2 = s0, s3 = s0;
        int i = 0;
        for (; i + 8 <= stride; i += 8) {
            const float8 v = *(__global const float8 *)(x + i);
            s0 += *(__global const float8_unaligned *)(w0 + i) * v;
            s1 += *(__global const float8_unaligned *)(w1 + i) * v;
            s2 += *(__global const float8_unaligned *)(w2 + i) * v;
            s3 += *(__global const float8_unaligned *)(w3 + i) * v;
        }
        if (i < stride) {
            const float8 v = *(__global const float8 *)(x + i);
            s0 += load_row(w0, i, stride) * v;
            s1 += load_row(w1, i, stride) * v;
            s2 += load_row(w2, i, stride) * v;
            s3 += load_row(w3, i, stride) * v;
        }
        // A vector is loaded faster after a store of the whole.
        const float4 sums = stride == 4
                                ? half_lane_sums(s0.lo, s1.lo, s2.lo, s3.lo)
                                : lane_sums(s0, s1, s2, s3);
        if (o % 8)
            *(__global float4_unaligned *)(z + o) = sums;
        else
            *(__global float8 *)(z + o) = (float8)(sums, sums);
    }
}

// dx[i] = sum over o of ds[o] * w[o, i]
static inline void gemv_transposed(TABLE Layer *layer, __global const float *w,
                                   __global const float *ds, __global float *dx)
{
    const int stride = layer->stride;
    int i = 0;
    for (; i + 32 <= stride; i += 32) {
        float8 s0 = (float8)(0.0f), s1 = s0, s2 = s0, s3 = s0;
        for (int o = 0; o < layer->n_out; ++o) {
            __global const float *row = w + o * stride + i;
            const float8 d = (float8)(ds[o]);
            s0 += ((__global const float8_unaligned *)row)[0] * d;
            s1 += ((__global const float8_unaligned *)row)[1] * d;
            s2 += ((__global const float8_unaligned *)row)[2] * d;
            s3 += ((__global const float8_unaligned *)row)[3] * d;
        }
        ((__global float8 *)(dx + i))[0] = s0;
        ((__global float8 *)(dx + i))[1] = s1;
        ((__global float8 *)(dx + i))[2] = s2;
        ((__global float8 *)(dx + i))[3] = s3;
    }
    for (; i < stride; i += 8) {
        float8 sum = (float8)(0.0f);
        for (int o = 0; o < layer->n_out; ++o)
            sum += load_row(w + o * stride, i, stride) * (float8)(ds[o]);
        *(__global float8 *)(dx + i) = sum;
    }
}

// The mask of lanes whose index, i + lane, is below n.
static inline int8 lanes_below(const int i, const int n)
{
    return (int8)(i) + (int8)(0, 1, 2, 3, 4, 5, 6, 7) < (int8)(n);
}

// y = f(clip(steepness * (y + bias))) for a layer's neurons, zeros past them; v, if not
// null, receives f's argument.
static inline void activate_layer(TABLE Layer *layer, const Neuron neuron,
                                  __global const float *bias, __global float *y,
                                  __global float *v)
{
    const float8 limit = (float8)(neuron.limit);
    for (int o = 0; o < layer->n_out; o += 8) {
        float8 z = *(__global float8 *)(y + o);
        if (bias) z += load_row(bias, o, (layer->n_out + 3) / 4 * 4);
        z *= (float8)(neuron.steepness);
        z = z < -limit ? -limit : z;
        z = z > limit ? limit : z;
        if (v) *(__global float8 *)(v + o) = z;
        switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
        case code: z = function(z); break;
            FUNCTIONS(CASE)
#undef CASE
        }
        *(__global float8 *)(y + o) = lanes_below(o, layer->n_out) ? z : (float8)(0.0f);
    }
}

// y = dy * f' * steepness for a layer's neurons, with f' at the output y or at v; zeros
// past them.
static inline void differentiate_layer(TABLE Layer *layer, const Neuron neuron,
                                       __global const float *dy, __global float *y,
                                       __global const float *v)
{
    const float8 steepness = (float8)(neuron.steepness);
    for (int o = 0; o < layer->n_out; o += 8) {
        const float8 output = *(__global const float8 *)(y + o);
        const float8 z = *(__global const float8 *)(v + o);
        float8 ds = *(__global const float8 *)(dy + o) * steepness;
        switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
        case code: ds *= gradient(reads(output, z), steepness); break;
            FUNCTIONS(CASE)
#undef CASE
        }
        ds = lanes_below(o, layer->n_out) ? ds : (float8)(0.0f);
        *(__global float8 *)(y + o) = ds;
    }
}

// The loss gradient dy with respect to the outputs y [width], and the sample's record.
static inline void loss(const int width, __global const float *y,
                        __global const float *t, TABLE Neuron *neurons,
                        const float factor, const float bit_fail_limit,
                        __global float *dy, float *record)
{
    const float8 mean_factor = (float8)(MEAN ? factor / width : factor);
    // 0 times an overflow would be NaN.
    const int8 weighs = (float8)(factor) != (float8)(0.0f);
    float8 sum = (float8)(0.0f), squares = sum, fails = sum;
#if SOFTMAX
    float top = y[0], targets = 0;
    for (int j = 0; j < width; ++j) {
        top = y[j] > top ? y[j] : top;
        targets += t[j];
    }
    float8 exponentials = (float8)(0.0f);
    for (int j = 0; j < width; j += 8) {
        const float8 e = exponential(*(__global const float8 *)(y + j) - (float8)(top));
        exponentials += lanes_below(j, width) ? e : (float8)(0.0f);
    }
    const float8 total = (float8)(lane_sum(exponentials));
    const float8 log_total = logarithm(total);
#endif
    for (int j = 0; j < width; j += 8) {
        const int8 valid = lanes_below(j, width);
        const float8 z = *(__global const float8 *)(y + j);
        float8 target = (float8)(0.0f), scale = (float8)(1.0f);
        float *lane_targets = (float *)&target, *lane_scales = (float *)&scale;
        for (int k = 0; k < 8 && j + k < width; ++k) {
            lane_targets[k] = t[j + k];
            lane_scales[k] = neurons[j + k].error_scale;
        }
        const float8 output = LOSS_OUTPUT(z), term = LOSS_TERM(z, target, scale);
        const float8 gradient = LOSS_SLOPE(z, output, target, scale);
        const float8 error = (target - output) * scale;
        sum += weighs && valid ? term : (float8)(0.0f);
        squares += weighs && valid ? error * error : (float8)(0.0f);
        const int8 failed = valid & (absolute(error) >= (float8)(bit_fail_limit));
        fails += failed ? (float8)(1.0f) : (float8)(0.0f);
        *(__global float8 *)(dy + j) =
            weighs && valid ? gradient * mean_factor : (float8)(0.0f);
    }
    record[0] = lane_sum(sum) * (MEAN ? factor / width : factor);
    record[1] = lane_sum(squares) * factor;
    record[2] = lane_sum(fails);
}

#if UPDATE
// Update a row of n parameters from index `element` on, padded to `stride`, by the
// gradients d * x.
static inline void update_row(__global float *parameters, __global float *state,
                              const int size, const int element, const float d,
                              __global const float *x, const int n, const int stride,
                              const StepInfo now)
{
    __global float *w = parameters + element, *s = state + element;
    float8 slots[SLOTS + 1];  // C has no empty arrays
    int i = 0;
    for (; i + 8 <= n; i += 8) {
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            slots[k] = *(__global const float8_unaligned *)(s + (size_t)k * size + i);
        const float8 g = (float8)(d) * *(__global const float8 *)(x + i);
        __global float8_unaligned *to = (__global float8_unaligned *)(w + i);
        *to = stepped(*to, g, slots, now, element + i);
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            *(__global float8_unaligned *)(s + (size_t)k * size + i) = slots[k];
    }
    if (i == n) return;
    const int8 live = lanes_below(i, n);
#pragma unroll
    for (int k = 0; k < SLOTS; ++k)
        slots[k] = load_row(s + (size_t)k * size, i, stride);
    const float8 g = (float8)(d) * *(__global const float8 *)(x + i);
    const float8 next = stepped(load_row(w, i, stride), g, slots, now, element + i);
    store_row(w, i, stride, live ? next : (float8)(0.0f));
#pragma unroll
    for (int k = 0; k < SLOTS; ++k)
        store_row(s + (size_t)k * size, i, stride, live ? slots[k] : (float8)(0.0f));
}
#endif

// layers, neurons        the tables
// parameters [size]      changed, as is `state` [SLOTS, size]
// x, t, weight [n, width]  the data set
// memory                 of one worker; initially zero
// x_offset, dx_offset    offsets in it of a sample and of a layer's value gradients
// totals [6]             of the epoch so far
// steps: how many, starting with the one that the others describe; samples: of all of
// them, or of one epoch of several
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
sequential(__global const Layer *layer_table, __global const Neuron *neuron_table,
           __global float *restrict parameters, __global const float *x, __global const float *t,
           __global const float *weight, __global float *restrict memory, __global float *restrict state,
           __global float *restrict totals, const int layer_count, const int size,
           const int n, const int bits, const int x_offset, const int dx_offset,
           const float bit_fail_limit, const int outputs, const int steps,
           const int first, const int samples, RUN_ARGUMENTS, const int seen,
           const int fresh, const float rate, const int count, const uint seed, const uint k0, const uint k1,
           const uint k2, const uint k3, const uint k4, const uint k5, const uint k6,
           const uint k7)
{
    TABLE Layer *layers = LAYERS_OF(layer_table);
    TABLE Neuron *neurons = NEURONS_OF(neuron_table);
    const int count_of_layers = COUNT_OF(layer_count);
    const int batch = 1;
    SET_RUN
    TABLE Layer *last = layers + count_of_layers - 1;
    for (int number = 0; number < steps; ++number) {
        int row = first + run.begin;
#if GATHERED == 2
        row = permuted(row, n, bits, run.key);
#endif
        __global float *in = memory + x_offset;
        copy_row(x + (size_t)row * layers->n_in, layers->n_in, in);
        UNROLL_LAYERS
        for (int l = 0; l < count_of_layers; ++l) {
            TABLE Layer *layer = layers + l;
            __global float *y = memory + layer->values;
            gemv(layer, parameters + layer->weights, in, y);
            activate_layer(layer, neurons[layer->neuron],
                           layer->bias < 0 ? 0 : parameters + layer->bias, y,
                           layer->pre_activations < 0
                               ? 0 : memory + layer->pre_activations);
            in = y;
        }
        float record[RECORD];
        __global float *dy = memory + dx_offset;
        loss(last->n_out, in, t + (size_t)row * last->n_out, neurons + last->neuron,
             WEIGHTED ? weight[row] : 1.0f, bit_fail_limit, dy, record);
        for (int k = 0; k < RECORD; ++k)
            add_to_total(run.totals, k, record[k], starts_epoch(&run));
#if UPDATE
        const StepInfo now =
            step_info(run.rate, 1, run.totals[1] + run.totals[4], seen_samples(&run),
                      outputs, count + number, seed);
        UNROLL_LAYERS
        for (int l = count_of_layers - 1; l >= 0; --l) {
            TABLE Layer *layer = layers + l;
            __global float *ds = memory + layer->values;
            differentiate_layer(layer, neurons[layer->neuron], dy, ds,
                                memory + (layer->pre_activations < 0
                                              ? layer->values
                                              : layer->pre_activations));
            if (l) gemv_transposed(layer, parameters + layer->weights, ds, dy);
            in = memory + (l ? layer[-1].values : x_offset);
            for (int o = 0; o < layer->n_out; ++o)
                update_row(parameters, state, size, layer->weights + o * layer->stride,
                           ds[o], in, layer->n_in, layer->stride, now);
            if (layer->bias >= 0)
                update_row(parameters, state, size, layer->bias, 1.0f, ds, layer->n_out,
                           (layer->n_out + 3) / 4 * 4, now);
        }
#endif
        if (!next_step(&run)) break;
    }
    store_epochs(&run);
}

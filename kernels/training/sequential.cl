// sequential: steps of single samples, one after the other in one launch, on one core.
//
// A step ends before the next one begins: there is nothing to share among cores that
// would be worth the hand-over. So one work-item does all steps, with lanes of vectors
// along the rows of A:
//
//   forward   sums[o]  = w[o, :] . x               4 rows side by side
//   back      dx[:]   += ds[o] * w[o, :]           before w changes
//   update    w[o, :]  = rule(w[o, :], ds[o] * x)  the gradient is never stored
//
// Values are kept in `memory`, padded with zeros to whole vectors; rows of A are whole
// vectors of 4, and the last half of an odd one is read and written by itself.
//
// The macros are those of steps.h; the functions of a layer's neurons are one.
#define REAL float
#define WIDTH 8
#include "training/steps.h"

// w[i … i + 7] of a row of `stride` values, zero beyond.
inline float8 row_part(__global const float *w, const int i, const int stride)
{
    if (i + 8 <= stride) return *(__global const float8_unaligned *)(w + i);
    return (float8)(*(__global const float4_unaligned *)(w + i), (float4)(0.0f));
}

inline void set_row_part(__global float *w, const int i, const int stride,
                         const float8 v)
{
    if (i + 8 <= stride)
        *(__global float8_unaligned *)(w + i) = v;
    else
        *(__global float4_unaligned *)(w + i) = v.lo;
}

// sums[o] = w[o, :] . x for o < n_out, and up to 3 beyond that do not matter: their
// rows are those of the last one.
inline void multiply(__global const Layer *layer, __global const float *w,
                     __global const float *x, __global float *sums)
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
            s0 += row_part(w0, i, stride) * v;
            s1 += row_part(w1, i, stride) * v;
            s2 += row_part(w2, i, stride) * v;
            s3 += row_part(w3, i, stride) * v;
        }
        *(__global float4_unaligned *)(sums + o) = lane_sums(s0, s1, s2, s3);
    }
}

// dx[i] = sum over o of ds[o] * w[o, i]
inline void multiply_back(__global const Layer *layer, __global const float *w,
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
            sum += row_part(w + o * stride, i, stride) * (float8)(ds[o]);
        *(__global float8 *)(dx + i) = sum;
    }
}

// Which lanes of a vector from number i on are below n.
inline int8 below(const int i, const int n)
{
    return (int8)(i) + (int8)(0, 1, 2, 3, 4, 5, 6, 7) < (int8)(n);
}

// y = f(sums + bias) for a layer's neurons, and zeros beyond; `kept` takes what the
// derivative reads, if it is no output.
inline void activate_layer(__global const Layer *layer, const Neuron neuron,
                           __global const float *bias, __global float *y,
                           __global float *kept)
{
    const float8 limit = (float8)(neuron.limit);
    for (int o = 0; o < layer->n_out; o += 8) {
        float8 v = *(__global float8 *)(y + o);
        if (bias) v += row_part(bias, o, (layer->n_out + 3) / 4 * 4);
        v *= (float8)(neuron.steepness);
        v = v < -limit ? -limit : v;
        v = v > limit ? limit : v;
        if (kept) *(__global float8 *)(kept + o) = v;
        switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
        case code: v = function(v); break;
            FUNCTIONS(CASE)
#undef CASE
        }
        *(__global float8 *)(y + o) = below(o, layer->n_out) ? v : (float8)(0.0f);
    }
}

// ds = dy * f' * steepness for a layer's neurons, in the place of y; zeros beyond.
inline void differentiate_layer(__global const Layer *layer, const Neuron neuron,
                                __global const float *dy, __global float *y,
                                __global const float *sums)
{
    const float8 steepness = (float8)(neuron.steepness);
    for (int o = 0; o < layer->n_out; o += 8) {
        const float8 output = *(__global const float8 *)(y + o);
        const float8 sum = *(__global const float8 *)(sums + o);
        float8 slope = *(__global const float8 *)(dy + o) * steepness;
        switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
        case code: slope *= gradient(reads(output, sum), steepness); break;
            FUNCTIONS(CASE)
#undef CASE
        }
        *(__global float8 *)(y + o) = below(o, layer->n_out) ? slope : (float8)(0.0f);
    }
}

// dy of the outputs y [width], and the sample's record.
inline void loss_of(const int width, __global const float *y, __global const float *t,
                    __global const Neuron *neurons, const float factor,
                    const float bit_fail_limit, __global float *dy, float *record)
{
    const float8 part = (float8)(MEAN ? factor / width : factor);
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
        exponentials += below(j, width) ? e : (float8)(0.0f);
    }
    const float8 total = (float8)(lane_sum(exponentials));
    const float8 log_total = logarithm(total);
#endif
    for (int j = 0; j < width; j += 8) {
        const int8 counts = below(j, width);
        const float8 z = *(__global const float8 *)(y + j);
        float8 target = (float8)(0.0f), share = (float8)(1.0f);
        float *lanes = (float *)&target, *shares = (float *)&share;
        for (int k = 0; k < 8 && j + k < width; ++k) {
            lanes[k] = t[j + k];
            shares[k] = neurons[j + k].share;
        }
        float8 output = z, here, slope;
#if SOFTMAX
        output = exponential(z - (float8)(top)) / total;
        here = target * (log_total - (z - (float8)(top)));
        slope = output * (float8)(targets) - target;
#else
        here = LOSS(z, target, share);
        slope = SLOPE(z, target, share);
#endif
#if SIGMOID
        output = act_sigmoid(output);
#endif
        const float8 error = (target - output) * share;
        sum += counts ? here : (float8)(0.0f);
        squares += counts ? error * error : (float8)(0.0f);
        const int8 failed = counts & (absolute(error) >= (float8)(bit_fail_limit));
        fails += failed ? (float8)(1.0f) : (float8)(0.0f);
        *(__global float8 *)(dy + j) = counts ? slope * part : (float8)(0.0f);
    }
    record[0] = lane_sum(sum) * (MEAN ? factor / width : factor);
    record[1] = lane_sum(squares);
    record[2] = lane_sum(fails);
}

#if UPDATE
// A row of n parameters from number `element` on, padded to `stride`, takes a step by
// the gradients d * x.
inline void step_row(__global float *parameters, __global float *state, const int size,
                     const int element, const float d, __global const float *x,
                     const int n, const int stride, const Moment now)
{
    __global float *w = parameters + element, *s = state + element;
    float8 kept[SLOTS + 1];  // at least one: there are no empty arrays
    int i = 0;
    for (; i + 8 <= n; i += 8) {
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            kept[k] = *(__global const float8_unaligned *)(s + (size_t)k * size + i);
        const float8 g = (float8)(d) * *(__global const float8 *)(x + i);
        __global float8_unaligned *to = (__global float8_unaligned *)(w + i);
        *to = stepped(*to, g, kept, now, element + i);
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            *(__global float8_unaligned *)(s + (size_t)k * size + i) = kept[k];
    }
    if (i == n) return;
    const int8 live = below(i, n);
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) kept[k] = row_part(s + (size_t)k * size, i, stride);
    const float8 g = (float8)(d) * *(__global const float8 *)(x + i);
    const float8 next = stepped(row_part(w, i, stride), g, kept, now, element + i);
    set_row_part(w, i, stride, live ? next : (float8)(0.0f));
#pragma unroll
    for (int k = 0; k < SLOTS; ++k)
        set_row_part(s + (size_t)k * size, i, stride, live ? kept[k] : (float8)(0.0f));
}
#endif

// layers, neurons        the tables
// parameters [size]      changed, as is `state` [SLOTS, size]
// x, t, weight [n, width]  the data set
// memory                 of one worker; zero at first
// x_place, dx_place      where a sample and derivatives by a layer's values are in it
// totals [6]             of the epoch so far
// steps: to do, from the one described by the others on
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
sequential(__global const Layer *layers, __global const Neuron *neurons,
           __global float *parameters, __global const float *x, __global const float *t,
           __global const float *weight, __global float *memory, __global float *state,
           __global float *totals, const int count_of_layers, const int size,
           const int n, const int bits, const int x_place, const int dx_place,
           const float bit_fail_limit, const int outputs, const int steps,
           const int first, const int seen, const int fresh, const float rate,
           const int count, const uint seed, const uint k0, const uint k1,
           const uint k2, const uint k3, const uint k4, const uint k5, const uint k6,
           const uint k7)
{
    const uint8 key = (uint8)(k0, k1, k2, k3, k4, k5, k6, k7);
    __global const Layer *last = layers + count_of_layers - 1;
    for (int number = 0; number < steps; ++number) {
        int row = first + number;
#if GATHERED == 2
        row = permuted(row, n, bits, key);
#endif
        __global float *in = memory + x_place;
        for (int i = 0; i < layers->n_in; ++i)
            in[i] = x[(size_t)row * layers->n_in + i];
        for (int l = 0; l < count_of_layers; ++l) {
            __global const Layer *layer = layers + l;
            __global float *y = memory + layer->values;
            multiply(layer, parameters + layer->weights, in, y);
            activate_layer(layer, neurons[layer->neuron],
                           layer->bias < 0 ? 0 : parameters + layer->bias, y,
                           layer->sums < 0 ? 0 : memory + layer->sums);
            in = y;
        }
        float record[RECORD];
        __global float *dy = memory + dx_place;
        loss_of(last->n_out, in, t + (size_t)row * last->n_out, neurons + last->neuron,
                WEIGHTED ? weight[row] : 1.0f, bit_fail_limit, dy, record);
        for (int k = 0; k < RECORD; ++k)
            add_to_total(totals, k, record[k], fresh && number == 0);
#if UPDATE
        const Moment now = moment_of(rate, 1, totals[1] + totals[4], seen + number,
                                     outputs, count + number, seed);
        for (int l = count_of_layers - 1; l >= 0; --l) {
            __global const Layer *layer = layers + l;
            __global float *ds = memory + layer->values;
            differentiate_layer(layer, neurons[layer->neuron], dy, ds,
                                memory + (layer->sums < 0 ? layer->values
                                                          : layer->sums));
            if (l) multiply_back(layer, parameters + layer->weights, ds, dy);
            in = memory + (l ? layer[-1].values : x_place);
            for (int o = 0; o < layer->n_out; ++o)
                step_row(parameters, state, size, layer->weights + o * layer->stride,
                         ds[o], in, layer->n_in, layer->stride, now);
            if (layer->bias >= 0)
                step_row(parameters, state, size, layer->bias, 1.0f, ds, layer->n_out,
                         (layer->n_out + 3) / 4 * 4, now);
        }
#endif
    }
}

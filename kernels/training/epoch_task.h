// Of a task what a worker computes: its samples forward, to the loss, and back to their
// gradients. For epoch.cl, which draws it; over steps.h and tiles.h.

// What all tasks of a launch know.
typedef struct {
    __global const Layer *layers;
    __global const Neuron *neurons;
    __global float *parameters;
    __global const float *x, *t, *weight;
    int count;       // layers
    int size;        // of the parameters
    int n, batch;    // samples of the data set, and of a step
    int bits;        // of half a sample's number, for the order
    int tile;        // samples of a tile at most: a multiple of 8
    int pitch;       // from a value to the next one of a sample, an odd multiple of 8:
                     // at powers of two they would all fall on a few lines of the cache
    int tiles;       // tiles of a task at most
    // Where things start in a worker's memory (of transposed data: the rows of a tile), and
    // how large that is.
    int x_place, t_place, weight_place, dx_place, gradient_place, worker_size;
    float bit_fail_limit;
} Net;

// Which samples a step takes.
typedef struct {
    int first, samples;  // of the epoch's order
    uint8 key;           // of that order
} Step;

inline int round_up_8(const int n) { return (n + 7) / 8 * 8; }

// One row of `samples` sums becomes outputs; `kept` takes what the derivative reads.
inline void activate_row(const Neuron neuron, const float bias, __global float *y,
                         __global float *kept, const int samples)
{
    const float8 limit = (float8)(neuron.limit);
#define EACH(function)                                                               \
    for (int s = 0; s < samples; s += 8) {                                           \
        float8 v = *(__global float8 *)(y + s) + (float8)(bias);                     \
        v *= (float8)(neuron.steepness);                                             \
        v = v < -limit ? -limit : v;                                                 \
        v = v > limit ? limit : v;                                                   \
        if (kept) *(__global float8 *)(kept + s) = v;                                \
        *(__global float8 *)(y + s) = function(v);                                   \
    }
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: EACH(function) break;
        FUNCTIONS(CASE)
#undef CASE
#undef EACH
    }
}

// y[s] becomes dy[s] * f' * steepness, f' at y[s] or at sum[s].
inline void differentiate_row(const Neuron neuron, __global const float *dy,
                              __global float *y, __global const float *sum,
                              const int samples)
{
    const float8 steepness = (float8)(neuron.steepness);
#define EACH(gradient, reads)                                                        \
    for (int s = 0; s < samples; s += 8) {                                           \
        const float8 at = *(__global const float8 *)(reads(y, sum) + s);             \
        const float8 slope = gradient(at, steepness) * steepness;                    \
        *(__global float8 *)(y + s) = *(__global const float8 *)(dy + s) * slope;    \
    }
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: EACH(gradient, reads) break;
        FUNCTIONS(CASE)
#undef CASE
#undef EACH
    }
}

// to[i, s] = the samples' row s, value i, for i < width; rows[s] of the data set
inline void transpose_rows(__global const float *data, const int width, const int *rows,
                      __global float *to, const int pitch)
{
    __global const float *r0 = data + (size_t)rows[0] * width;
    __global const float *r1 = data + (size_t)rows[1] * width;
    __global const float *r2 = data + (size_t)rows[2] * width;
    __global const float *r3 = data + (size_t)rows[3] * width;
    __global const float *r4 = data + (size_t)rows[4] * width;
    __global const float *r5 = data + (size_t)rows[5] * width;
    __global const float *r6 = data + (size_t)rows[6] * width;
    __global const float *r7 = data + (size_t)rows[7] * width;
    for (int i = 0; i < width; ++i)
        *(__global float8 *)(to + (size_t)i * pitch) =
            (float8)(r0[i], r1[i], r2[i], r3[i], r4[i], r5[i], r6[i], r7[i]);
}

// The data set's row that is number `i` of a step; past the step's samples any row.
inline int row_of(const Net *net, const Step *step, const int i)
{
    int row = i < step->samples ? step->first + i : step->first;
#if GATHERED == 2
    row = permuted(row, net->n, net->bits, step->key);
#endif
    return row;
}

// Bring 8 * n samples, from number `start` of a step on, into a worker's memory.
inline void gather(const Net *net, const Step *step, const int start, const int samples,
                   __global float *own)
{
    for (int s = 0; s < samples; s += 8) {
        int rows[8];
        for (int k = 0; k < 8; ++k) rows[k] = row_of(net, step, start + s + k);
        transpose_rows(net->x, net->layers[0].n_in, rows, own + net->x_place + s,
                  net->pitch);
        transpose_rows(net->t, net->layers[net->count - 1].n_out, rows,
                  own + net->t_place + s, net->pitch);
#if WEIGHTED
        transpose_rows(net->weight, 1, rows, own + net->weight_place + s, net->pitch);
#endif
    }
}

// The outputs of a tile become the loss's derivatives by the outputs' sums. Samples
// beyond `counted` count for nothing.
inline void losses(const Net *net, __global float *own, __global const float *t,
                   __global const float *weight, const int samples, const int counted,
                   float *record)
{
    const int pitch = net->pitch;
    __global const Layer *last = net->layers + net->count - 1;
    const int width = last->n_out;
    __global float *y = own + last->values;
    const float8 part = (float8)(MEAN ? 1.0f / width : 1.0f);
    const float8 fail_limit = (float8)(net->bit_fail_limit);
    float8 sum = (float8)(0.0f), squares = (float8)(0.0f), fails = (float8)(0.0f);
    for (int s = 0; s < samples; s += 8) {
        const int8 number = (int8)(s) + (int8)(0, 1, 2, 3, 4, 5, 6, 7);
        const int8 counts = number < (int8)(counted);
        float8 factor = (float8)(1.0f);
#if WEIGHTED
        factor = *(__global const float8 *)(weight + s);
#endif
        float8 here = (float8)(0.0f), square = (float8)(0.0f), fail = (float8)(0.0f);
#if SOFTMAX
        float8 top = *(__global const float8 *)(y + s);
        float8 total = (float8)(0.0f), targets = (float8)(0.0f);
        for (int j = 1; j < width; ++j) {
            const float8 z = *(__global const float8 *)(y + j * pitch + s);
            top = z > top ? z : top;
        }
        for (int j = 0; j < width; ++j) {
            total += exponential(*(__global const float8 *)(y + j * pitch + s) - top);
            targets += *(__global const float8 *)(t + j * pitch + s);
        }
        const float8 log_total = logarithm(total);
#endif
        for (int j = 0; j < width; ++j) {
            const float8 z = *(__global const float8 *)(y + j * pitch + s);
            const float8 target = *(__global const float8 *)(t + j * pitch + s);
            const float8 share = (float8)(net->neurons[last->neuron + j].share);
            float8 output = z, slope;
#if SOFTMAX
            output = exponential(z - top) / total;
            here += target * (log_total - (z - top));
            slope = output * targets - target;
#else
            here += LOSS(z, target, share);
            slope = SLOPE(z, target, share);
#endif
#if SIGMOID
            output = act_sigmoid(output);
#endif
            const float8 error = (target - output) * share;
            square += error * error;
            fail += absolute(error) >= fail_limit ? (float8)(1.0f) : (float8)(0.0f);
#if BACKWARD
            slope *= factor * part;
            slope = counts ? slope : (float8)(0.0f);
            __global const Neuron *neuron = net->neurons + last->neuron + j;
            const float8 steepness = (float8)(neuron->steepness);
            __global const float *kept = last->sums < 0 ? y : own + last->sums;
            const float8 v = *(__global const float8 *)(kept + j * pitch + s);
            switch (neuron->function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: slope *= gradient(reads(z, v), steepness) * steepness; break;
                FUNCTIONS(CASE)
#undef CASE
            }
            *(__global float8 *)(y + j * pitch + s) = slope;
#endif
        }
        sum += counts ? here * factor * part : (float8)(0.0f);
        squares += counts ? square : (float8)(0.0f);
        fails += counts ? fail : (float8)(0.0f);
    }
    record[0] += lane_sum(sum);
    record[1] += lane_sum(squares);
    record[2] += lane_sum(fails);
}

// The samples of one tile, forward and back; their gradients are added to `gradient`,
// or start it anew.
inline void tile(const Net *net, __global float *own, __global const float *x,
                 __global const float *t, __global const float *weight,
                 const int samples, const int counted, __global float *gradient,
                 const int add, float *record)
{
    const int pitch = net->pitch;
    __global const float *in = x;
    for (int l = 0; l < net->count; ++l) {
        __global const Layer *layer = net->layers + l;
        __global float *y = own + layer->values;
        product(net->parameters + layer->weights, layer->stride, 1, in, layer->n_in, y,
                layer->n_out, samples, pitch);
        for (int j = 0; j < layer->n_out; ++j)
            activate_row(net->neurons[layer->neuron + j],
                         layer->bias < 0 ? 0.0f : net->parameters[layer->bias + j],
                         y + j * pitch,
                         layer->sums < 0 ? 0 : own + layer->sums + j * pitch, samples);
        in = y;
    }
    losses(net, own, t, weight, samples, counted, record);
#if BACKWARD
    for (int l = net->count - 1; l >= 0; --l) {
        __global const Layer *layer = net->layers + l;
        __global const float *ds = own + layer->values;
        __global const float *y = l ? own + layer[-1].values : x;
        outer(ds, y, layer->n_out, samples, pitch, gradient + layer->weights,
              layer->stride, add);
        if (layer->bias >= 0) {
            for (int j = 0; j < layer->n_out; ++j) {
                float8 sum = (float8)(0.0f);
                for (int s = 0; s < samples; s += 8)
                    sum += *(__global const float8 *)(ds + j * pitch + s);
                __global float *g = gradient + layer->bias + j;
                *g = add ? *g + lane_sum(sum) : lane_sum(sum);
            }
        }
        if (l) {
            __global float *dx = own + net->dx_place;
            product(net->parameters + layer->weights, 1, layer->stride, ds,
                    layer->n_out, dx, layer->n_in, samples, pitch);
            __global const Layer *below = layer - 1;
            __global const float *sums = own + (below->sums < 0 ? 0 : below->sums);
            for (int j = 0; j < layer->n_in; ++j)
                differentiate_row(net->neurons[below->neuron + j], dx + j * pitch,
                                  own + below->values + j * pitch, sums + j * pitch,
                                  samples);
        }
    }
#endif
}

// One task of a step. `sum` takes its gradients as they grow, `found` what they are in
// the end, and the record behind them: two workers that do one task write the same.
inline void task(const Net *net, const Step *step, __global float *own,
                 const int number, __global float *sum, __global float *found)
{
    const int begin = number * net->tiles * net->tile;
    const int end = min(begin + net->tiles * net->tile, net->batch);
    float record[RECORD];
    for (int k = 0; k < RECORD; ++k) record[k] = 0;
    for (int start = begin; start < end; start += net->tile) {
        const int samples = min(net->tile, round_up_8(end - start));
#if GATHERED
        gather(net, step, start, samples, own);
        __global const float *x = own + net->x_place, *t = own + net->t_place;
        __global const float *weight = own + net->weight_place;
#else
        // The tiles that `transpose` has made: the places are their rows.
        const size_t transposed = (size_t)(start / net->tile) * net->pitch;
        __global const float *x = net->x + transposed * net->x_place;
        __global const float *t = net->t + transposed * net->t_place;
        __global const float *weight = net->weight + transposed * net->weight_place;
#endif
        tile(net, own, x, t, weight, samples, step->samples - start, sum, start > begin,
             record);
    }
#if BACKWARD
    if (sum != found)
        for (int i = 0; i < net->size; i += 8)
            *(__global float8 *)(found + i) = *(__global const float8 *)(sum + i);
#endif
    for (int k = 0; k < RECORD; ++k) found[net->size + k] = record[k];
}

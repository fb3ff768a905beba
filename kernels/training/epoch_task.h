// One task of a worker of epoch.cl and members.cl: the forward pass, loss and backward
// pass of some samples. Include steps.h and tiles.h first.
//
// SUBSETS  1: networks train on rows of the data set that a list names
// SCALED   1: a step's weights have a factor
// ORDERED  1: a table has the epoch's random order
// DROPS    1: layers drop outputs, as a network's rows of Drop (member.h) say
#if !defined(SUBSETS) || !defined(SCALED) || !defined(ORDERED) || !defined(DROPS)
#error "epoch_task.h needs SUBSETS, SCALED, ORDERED and DROPS"
#endif

// The constants of a network's steps.
typedef struct {
    __global const Layer *layers;
    __global const Neuron *neurons;
    __global float *parameters;
    __global const float *x, *t, *weight;
    int count;       // layers
    int size;        // elements of the flat parameter buffer
    int n, batch;    // samples of the data set, and of a mini-batch
    int bits;        // of half a sample's index, for the random order
    int tile;        // samples of a tile at most: a multiple of LANES
    int pitch;       // distance of a sample's values, an odd multiple of LANES: powers
                     // of two would map them all to few cache sets
    int tiles;       // tiles of a task at most
    // Offsets in a worker's memory, and its size. Of transposed data, x_offset,
    // t_offset and weight_offset are the rows of a tile instead.
    int x_offset, t_offset, weight_offset, dx_offset, gradient_offset, memory_size;
    float bit_fail_limit;
#if SCALED
    float weight_scale;
#endif
#if SUBSETS
    __global const int *subset;  // the data set's rows of the n samples; null: all
#endif
#if ORDERED
    __global const int *order;   // of the epoch's n samples
#endif
#if DROPS
    __global const Drop *drops;  // of each layer
    uint seed;
    int step;                    // of the training
#endif
} Net;

// The samples of a step.
typedef struct {
    int first, samples;  // positions in the epoch's order
    uint8 key;           // of that order
} Step;

static inline int round_up(const int n) { return (n + LANES - 1) / LANES * LANES; }

// y[s] = f(clip(steepness * (y[s] + bias))); v, if not null, receives f's argument.
static inline void activate_row(const Neuron neuron, const float bias,
                                __global float *y, __global float *v, const int samples)
{
    const float8 limit = (float8)(neuron.limit);
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code:                                                                       \
        for (int s = 0; s < samples; s += 8) {                                       \
            float8 z = *(__global float8 *)(y + s) + (float8)(bias);                 \
            z *= (float8)(neuron.steepness);                                         \
            z = z < -limit ? -limit : z;                                             \
            z = z > limit ? limit : z;                                               \
            if (v) *(__global float8 *)(v + s) = z;                                  \
            *(__global float8 *)(y + s) = function(z);                               \
        }                                                                            \
        break;
        FUNCTIONS(CASE)
#undef CASE
    }
}

// y[s] = dy[s] * f' * steepness, with f' at the output y[s] or at v[s].
static inline void differentiate_row(const Neuron neuron, __global const float *dy,
                                     __global float *y, __global const float *v,
                                     const int samples)
{
    const float8 steepness = (float8)(neuron.steepness);
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code:                                                                       \
        for (int s = 0; s < samples; s += 8) {                                       \
            const float8 at = *(__global const float8 *)(reads(y, v) + s);           \
            const float8 d = gradient(at, steepness) * steepness;                    \
            *(__global float8 *)(y + s) = *(__global const float8 *)(dy + s) * d;    \
        }                                                                            \
        break;
        FUNCTIONS(CASE)
#undef CASE
    }
}

// to[i, s] = data[rows[s], i] for i < width and 8 samples s
static inline void transpose_rows(__global const float *data, const int width,
                                  const int8 rows, __global float *to, const int pitch)
{
    __global const float *r0 = data + (size_t)rows.s0 * width;
    __global const float *r1 = data + (size_t)rows.s1 * width;
    __global const float *r2 = data + (size_t)rows.s2 * width;
    __global const float *r3 = data + (size_t)rows.s3 * width;
    __global const float *r4 = data + (size_t)rows.s4 * width;
    __global const float *r5 = data + (size_t)rows.s5 * width;
    __global const float *r6 = data + (size_t)rows.s6 * width;
    __global const float *r7 = data + (size_t)rows.s7 * width;
    for (int i = 0; i < width; ++i)
        *(__global float8 *)(to + (size_t)i * pitch) =
            (float8)(r0[i], r1[i], r2[i], r3[i], r4[i], r5[i], r6[i], r7[i]);
}

#if GATHERED == 2 || DROPS
DEFINE_HASH(hash_lanes, uint8)
#endif

#if DROPS
// to[j, s] = from[j, s], scaled, or 0 where outputs of layer l are dropped. start: index
// in the step of the tile's first sample
static inline void drop_outputs(const Net *net, const int l, const int start,
                                __global const float *from, __global float *to,
                                const int samples)
{
    const Drop drop = net->drops[l];
    const uint8 word = (uint8)(drop_start(drop, net->seed, net->step));
    const uint8 lanes = (uint8)(0, 1, 2, 3, 4, 5, 6, 7);
    const int width = net->layers[l].n_out;
    for (int j = 0; j < width; ++j)
        for (int s = 0; s < samples; s += 8) {
            const uint8 sample = lanes + (uint8)(start + s);
            const uint8 index = sample * (uint8)(width) + (uint8)(j);
            const int8 hashes = as_int8(hash_lanes(index ^ word) >> (uint8)(8));
            const float8 v = *(__global const float8 *)(from + j * net->pitch + s);
            *(__global float8 *)(to + j * net->pitch + s) =
                hashes >= (int8)(drop.threshold) ? v * (float8)(drop.factor)
                                                 : (float8)(0.0f);
        }
}
#endif

#if GATHERED == 2
// `permuted` of 8 indices side by side.
static inline uint8 permuted_lanes(const uint8 i, const uint n, const uint bits,
                                   const uint8 key)
{
    const uint8 mask = (uint8)((1u << bits) - 1), last = (uint8)(n - 1);
    uint8 found = i > last ? last : i;
    int8 walks = (int8)(-1);
    int4 any;
    do {
        uint8 left = found >> (uint8)(bits), right = found & mask, next;
#define ROUND(word)                                                                  \
    next = left ^ (hash_lanes(right ^ (uint8)(word)) & mask); left = right; right = next;
        ROUND(key.s0) ROUND(key.s1) ROUND(key.s2) ROUND(key.s3)
        ROUND(key.s4) ROUND(key.s5) ROUND(key.s6) ROUND(key.s7)
#undef ROUND
        next = (left << (uint8)(bits)) | right;
        found = walks ? next : found;
        walks &= next > last;
        any = walks.lo | walks.hi;
    } while (any.s0 | any.s1 | any.s2 | any.s3);
    return found;
}
#endif

// The data set's row of a position in the order of a table, or in that of the subset.
static inline int row_of(const Net *net, int position)
{
#if ORDERED
    position = net->order[position];
#endif
#if SUBSETS
    if (net->subset) position = net->subset[position];
#endif
    return position;
}

// The data set's rows of samples i … i + 7 of a step; any row past the step's samples.
static inline int8 rows_of(const Net *net, const Step *step, const int i)
{
    const int8 number = (int8)(i) + (int8)(0, 1, 2, 3, 4, 5, 6, 7);
    int8 rows = number < (int8)(step->samples) ? number : (int8)(0);
    rows += (int8)(step->first);
#if GATHERED == 2 && !ORDERED
    rows = as_int8(permuted_lanes(as_uint8(rows), net->n, net->bits, step->key));
#endif
    return (int8)(row_of(net, rows.s0), row_of(net, rows.s1), row_of(net, rows.s2),
                  row_of(net, rows.s3), row_of(net, rows.s4), row_of(net, rows.s5),
                  row_of(net, rows.s6), row_of(net, rows.s7));
}

// Gather samples start … start + samples - 1 of a step into a worker's memory.
static inline void gather(const Net *net, const Step *step, const int start,
                          const int samples, __global float *memory)
{
    for (int s = 0; s < samples; s += 8) {
        const int8 rows = rows_of(net, step, start + s);
        transpose_rows(net->x, net->layers[0].n_in, rows, memory + net->x_offset + s,
                       net->pitch);
        transpose_rows(net->t, net->layers[net->count - 1].n_out, rows,
                       memory + net->t_offset + s, net->pitch);
#if WEIGHTED
        transpose_rows(net->weight, 1, rows, memory + net->weight_offset + s,
                       net->pitch);
#endif
    }
}

// Replace a tile's outputs by the loss gradient with respect to the pre-activations,
// and add to the record. Samples from `valid_samples` on contribute nothing.
static inline void losses(const Net *net, __global float *memory,
                          __global const float *t, __global const float *weight,
                          const int samples, const int valid_samples, float *record)
{
    const int pitch = net->pitch;
    __global const Layer *last = net->layers + net->count - 1;
    const int width = last->n_out;
    __global float *y = memory + last->values;
    const float8 mean_factor = (float8)(MEAN ? 1.0f / width : 1.0f);
    const float8 fail_limit = (float8)(net->bit_fail_limit);
    float8 sum = (float8)(0.0f), squares = (float8)(0.0f), fails = (float8)(0.0f);
    for (int s = 0; s < samples; s += 8) {
        const int8 number = (int8)(s) + (int8)(0, 1, 2, 3, 4, 5, 6, 7);
        const int8 valid = number < (int8)(valid_samples);
        float8 factor = (float8)(1.0f);
#if WEIGHTED
        factor = *(__global const float8 *)(weight + s);
#endif
#if SCALED
        factor *= (float8)(net->weight_scale);
#endif
        // 0 times an overflow would be NaN.
        const int8 weighs = valid && factor != (float8)(0.0f);
        float8 loss = (float8)(0.0f), square = (float8)(0.0f), fail = (float8)(0.0f);
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
            const float8 scale = (float8)(net->neurons[last->neuron + j].error_scale);
            const float8 output = LOSS_OUTPUT(z);
            float8 dy = LOSS_SLOPE(z, output, target, scale);
            loss += LOSS_TERM(z, target, scale);
            const float8 error = (target - output) * scale;
            square += error * error;
            fail += absolute(error) >= fail_limit ? (float8)(1.0f) : (float8)(0.0f);
#if BACKWARD
            dy *= factor * mean_factor;
            dy = weighs ? dy : (float8)(0.0f);
            __global const Neuron *neuron = net->neurons + last->neuron + j;
            const float8 steepness = (float8)(neuron->steepness);
            const int pre = last->pre_activations;
            const float8 v = *(__global const float8 *)(
                (pre < 0 ? y : memory + pre) + j * pitch + s);
            switch (neuron->function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: dy *= gradient(reads(z, v), steepness) * steepness; break;
                FUNCTIONS(CASE)
#undef CASE
            }
            *(__global float8 *)(y + j * pitch + s) = dy;
#endif
        }
        sum += weighs ? loss * factor * mean_factor : (float8)(0.0f);
        squares += weighs ? square * factor : (float8)(0.0f);
        fails += valid ? fail : (float8)(0.0f);
    }
    record[0] += lane_sum(sum);
    record[1] += lane_sum(squares);
    record[2] += lane_sum(fails);
}

// The forward and backward pass of one tile, from sample `start` of the step on. Its
// gradients are added to `gradient`, or overwrite it without `add`.
static inline void tile(const Net *net, __global float *memory, __global const float *x,
                        __global const float *t, __global const float *weight,
                        const int start, const int samples, const int valid_samples,
                        __global float *gradient, const int add, float *record)
{
    const int pitch = net->pitch;
    __global const float *in = x;
    for (int l = 0; l < net->count; ++l) {
        __global const Layer *layer = net->layers + l;
        __global float *y = memory + layer->values;
        product(net->parameters + layer->weights, layer->stride, 1, in, layer->n_in, y,
                layer->n_out, samples, pitch);
        for (int j = 0; j < layer->n_out; ++j)
            activate_row(net->neurons[layer->neuron + j],
                         layer->bias < 0 ? 0.0f : net->parameters[layer->bias + j],
                         y + j * pitch,
                         layer->pre_activations < 0
                             ? 0 : memory + layer->pre_activations + j * pitch,
                         samples);
        in = y;
#if DROPS
        if (l < net->count - 1) {
            drop_outputs(net, l, start, y, memory + net->dx_offset, samples);
            in = memory + net->dx_offset;
        }
#endif
    }
    losses(net, memory, t, weight, samples, valid_samples, record);
#if BACKWARD
    for (int l = net->count - 1; l >= 0; --l) {
        __global const Layer *layer = net->layers + l;
        __global const float *ds = memory + layer->values;
        __global const float *y = l ? memory + layer[-1].values : x;
#if DROPS
        if (l) {
            drop_outputs(net, l - 1, start, y, memory + net->dx_offset, samples);
            y = memory + net->dx_offset;
        }
#endif
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
            __global float *dx = memory + net->dx_offset;
            product(net->parameters + layer->weights, 1, layer->stride, ds,
                    layer->n_out, dx, layer->n_in, samples, pitch);
#if DROPS
            drop_outputs(net, l - 1, start, dx, dx, samples);
#endif
            __global const Layer *below = layer - 1;
            __global const float *v =
                memory + (below->pre_activations < 0 ? 0 : below->pre_activations);
            for (int j = 0; j < layer->n_in; ++j)
                differentiate_row(net->neurons[below->neuron + j], dx + j * pitch,
                                  memory + below->values + j * pitch, v + j * pitch,
                                  samples);
        }
    }
#endif
}

// One task of a step. Gradients are accumulated in `sum` and stored to `result`, the
// record behind them: two workers that compute one task store the same values.
static inline void task(const Net *net, const Step *step, __global float *memory,
                        const int number, __global float *sum, __global float *result)
{
    const int begin = number * net->tiles * net->tile;
    const int end = min(begin + net->tiles * net->tile, net->batch);
    float record[RECORD];
    for (int k = 0; k < RECORD; ++k) record[k] = 0;
    for (int start = begin; start < end; start += net->tile) {
        const int samples = min(net->tile, round_up(end - start));
#if GATHERED
        gather(net, step, start, samples, memory);
        __global const float *x = memory + net->x_offset, *t = memory + net->t_offset;
        __global const float *weight = memory + net->weight_offset;
#else
        // Tiles of `transpose`.
        const size_t tile_values = (size_t)(start / net->tile) * net->pitch;
        __global const float *x = net->x + tile_values * net->x_offset;
        __global const float *t = net->t + tile_values * net->t_offset;
        __global const float *weight = net->weight + tile_values * net->weight_offset;
#endif
        tile(net, memory, x, t, weight, start, samples, step->samples - start, sum,
             start > begin, record);
    }
#if BACKWARD
    if (sum != result)
        for (int i = 0; i < net->size; i += 8)
            *(__global float8 *)(result + i) = *(__global const float8 *)(sum + i);
#endif
    for (int k = 0; k < RECORD; ++k) result[net->size + k] = record[k];
}

// Layers of few neurons behind the first, as the outputs of most networks: plain products.
// Matrix units take 16 neurons, and factors that are split.
//
// MOST_FEW  neurons of such a layer, at most
#if !defined(MOST_FEW)
#error "few_outputs.h needs MOST_FEW"
#endif
#define FEW(l) ((l) > 0 && layers[l].n_out <= MOST_FEW)

// The outputs of a layer for a warp's samples: a lane has a sample, and every so manieth
// neuron.
static inline void few_forward(const Net *net, const int l, const int slice,
                               __local float *memory)
{
    const Layer layer = layers[l];
    const int lane = own_id() % WARP, sample = slice + lane % SLICE;
    __local const float *x = memory + layers[l - 1].values + sample;
#pragma unroll
    for (int j = 0; j < layer.n_out; j += WARP / SLICE) {
        const int o = j + lane / SLICE;
        if (o >= layer.n_out) continue;
        SPACE const float *w = net->parameters + layer.weights + o * layer.stride;
        float4 sums = (float4)(0);
#pragma unroll
        for (int k = 0; k < layer.n_in; k += 4)  // those past the last are zeros
            sums += *(SPACE const float4 *)(w + k)
                    * (float4)(x[k * PITCH], x[(k + 1) * PITCH], x[(k + 2) * PITCH],
                               x[(k + 3) * PITCH]);
        const float bias = layer.bias < 0 ? 0 : net->parameters[layer.bias + o];
        store_output(net, l, o, vector_sum(sums) + bias, sample, memory);
    }
}

// The derivatives of the layer below for a warp's samples, a lane's as those of back_mma.
static inline void few_back(const Net *net, const int l, const int slice,
                            __local float *memory)
{
    const Layer layer = layers[l];
    const int lane = own_id() % WARP, b = lane / 4, first = slice + lane % 4 * 2;
    float2 ds[MOST_FEW][SIDES];
#pragma unroll
    for (int o = 0; o < layer.n_out; ++o)
#pragma unroll
        for (int n = 0; n < SIDES; ++n)
            ds[o][n] = *(__local const float2 *)(memory + deltas_of(l) + o * PITCH
                                                 + first + 8 * n);
#pragma unroll
    for (int i = 0; i < layer.n_in; i += 8) {
        const int row = i + b;
        if (row >= layer.n_in) continue;
        float2 sums[SIDES];
#pragma unroll
        for (int n = 0; n < SIDES; ++n) sums[n] = (float2)(0);
#pragma unroll
        for (int o = 0; o < layer.n_out; ++o) {
            const float w = net->parameters[layer.weights + o * layer.stride + row];
#pragma unroll
            for (int n = 0; n < SIDES; ++n) sums[n] += w * ds[o][n];
        }
#pragma unroll
        for (int n = 0; n < SIDES; ++n) {
            const int sample = first + 8 * n;
            store_deltas(l - 1, row,
                         two_derivatives(net, l - 1, row, sums[n], sample, memory),
                         sample, memory);
        }
    }
}

// The gradients of neuron o: a lane's, of a weight, and its share of the bias's.
static inline float2 few_outer(const int l, const int o, const int i,
                               const int first_sample, const int samples,
                               __local const float *memory)
{
    const int lane = own_id() % WARP, row = min(i + lane, layers[l].n_in - 1);
    __local const float *x =
        memory + layers[l - 1].values + row * PITCH + first_sample;
    __local const float *ds = memory + deltas_of(l) + o * PITCH + first_sample;
    float4 sums = (float4)(0);
    float bias = 0;
#pragma unroll 4
    for (int s = 0; s < samples; s += 4)
        sums += *(__local const float4 *)(x + s) * *(__local const float4 *)(ds + s);
#pragma unroll
    for (int s = 0; s < samples; s += WARP)
        bias += s + lane < samples ? ds[s + lane] : 0;
    return (float2)(vector_sum(sums), bias);
}

// Store them, or add them.
static inline void store_few(const int l, const int o, const int i, const float2 sums,
                             HOME float *gradient, const int add)
{
    const Layer layer = layers[l];
    const int lane = own_id() % WARP;
    HOME float *to = gradient + layer.weights + o * layer.stride + i + lane;
    if (i + lane < layer.n_in) *to = add ? *to + sums.s0 : sums.s0;
    float bias = sums.s1;
#pragma unroll
    for (int mask = 1; mask < WARP; mask *= 2) bias += shuffle_xor(bias, mask);
    if (i || lane || layer.bias < 0) return;
    to = gradient + layer.bias + o;
    *to = add ? *to + bias : bias;
}

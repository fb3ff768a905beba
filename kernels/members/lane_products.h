// Products of samples and a lane's neurons, of which it has all weights.
//
//   neuron  k LANES + lane
//   sample  each lane has all TILE values
#define SAME 1      // lanes that have the same biases and outputs' weights
#define OWN TILE    // samples of which a lane has its neurons' values
#define EXCHANGED 1 // values of a lane in `exchange`

static inline int neuron_at(const int k, const int lane) { return k * LANES + lane; }

static inline int column_at(const int i, const int lane) { return i; }

static inline void load_inputs(__local const float4 *from, float *inputs)
{
    ALL for (int i = 0; i < IN_PITCH; i += 4) {
        const float4 four = from[i / 4];
        inputs[i] = four.s0;
        inputs[i + 1] = four.s1;
        inputs[i + 2] = four.s2;
        inputs[i + 3] = four.s3;
    }
}

// h, v = outputs and scaled pre-activations of the hidden layer
static inline void forward(__local const float4 *xs, const int row, const float *values,
                           float (*h)[OWN], float (*v)[OWN], __local float *exchange)
{
    ALL for (int s = 0; s < TILE; ++s) {
        float inputs[IN_PITCH];
        load_inputs(xs + row_at(row, s, exchange) * (IN_PITCH / 4), inputs);
        ALL for (int k = 0; k < EACH; ++k) {
            const float *w = values + k * NEURON_VALUES;
            float sum = w[IN];
            ALL for (int i = 0; i < IN; ++i) sum += w[i] * inputs[i];
            v[k][s] = scaled(hidden_neuron, sum);
            h[k][s] = activate(hidden_neuron, v[k][s]);
        }
    }
}

// gradients += those of the tile; y [OUT]: loss gradients of the lane's sample
static inline void backward(__local const float4 *xs, const int row,
                            const float *values, const float *y, float (*h)[OWN],
                            float (*v)[OWN], float *gradients, __local float *exchange)
{
    const int id = get_local_id(0), lane = id % LANES;
    ALL for (int s = 0; s < TILE; ++s) {
        float inputs[IN_PITCH], deltas[OUT];
        load_inputs(xs + row_at(row, s, exchange) * (IN_PITCH / 4), inputs);
        ALL for (int o = 0; o < OUT; ++o)
            deltas[o] = from_item(y[o], id - lane + s, exchange);
        ALL for (int k = 0; k < EACH; ++k) {
            const float *w = values + k * NEURON_VALUES;
            float *g = gradients + k * NEURON_VALUES, delta = 0;
            ALL for (int o = 0; o < OUT; ++o) {
                delta += w[IN + 1 + o] * deltas[o];
                g[IN + 1 + o] += deltas[o] * h[k][s];
            }
            delta *= derivative(hidden_neuron, h[k][s], v[k][s]);
            g[IN] += delta;
            ALL for (int i = 0; i < IN; ++i) g[i] += delta * inputs[i];
        }
    }
}

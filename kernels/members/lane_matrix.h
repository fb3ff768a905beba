// Products of samples and a warp's neurons by matrix units (split_factors.h): rows are 16
// neurons, columns 8 samples or 8 inputs. With lane = 4 b + a, a lane has
//
//   neurons  b, b + 8, b + 16 ...                    of each a part of the inputs' weights:
//   inputs   2 a, 2 a + 1, 8 + 2 a, 8 + 2 a + 1 ...
//   samples  a, a + 4, a + 8 ...                     the values of its neurons
//
// A product of the forward pass leaves values where the next one, of deltas and inputs,
// takes its first factor, and that leaves gradients where their weights are.
#include "members/split_factors.h"
#define SAME 4          // lanes that have the same biases and outputs' weights
#define OWN (TILE / 4)  // samples of which a lane has its neurons' values
#define EXCHANGED 6     // values of a lane in `exchange`

static inline int neuron_at(const int k, const int lane) { return 8 * k + lane / 4; }

static inline int column_at(const int i, const int lane)
{
    return i / 2 * 8 + lane % 4 * 2 + i % 2;
}

// Without matrix units: c += a b by the layout of the elements.
#if PTX < 80
static inline void mma_by_exchange(float *c, const uint *a, const uint *b,
                                   __local float *exchange)
{
    const int id = get_local_id(0), lane = id % WARP;
    __local float *first = exchange + (id - lane) * EXCHANGED;
    ALL for (int j = 0; j < 4; ++j) first[lane * EXCHANGED + j] = as_float(a[j]);
    ALL for (int j = 0; j < 2; ++j) first[lane * EXCHANGED + 4 + j] = as_float(b[j]);
    barrier(CLK_LOCAL_MEM_FENCE);
    ALL for (int j = 0; j < 4; ++j) {
        const int column = lane % 4 * 2 + j % 2;
        for (int k = 0; k < 8; ++k)
            c[j] += first[(lane / 4 * 4 + k % 4) * EXCHANGED + j / 2 + k / 4 * 2]
                    * first[(4 * column + k % 4) * EXCHANGED + 4 + k / 4];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
#define mma(c, a, b) mma_by_exchange(c, a, b, exchange)
#endif

// sums [4] += first second, small products first
static inline void multiply(float *sums, const FirstFactor *first,
                            const SecondFactor *second, __local float *exchange)
{
    mma(sums, first->small, second->big);
#if !EXACT
    mma(sums, first->big, second->small);
#endif
    mma(sums, first->big, second->big);
}

static inline void split_input(const float v, uint *big, uint *small)
{
#if EXACT
    *big = as_uint(v);
#else
    split(v, big, small);
#endif
}

// As in lane_products.h.
static inline void forward(__local const float4 *xs, const int row, const float *values,
                           float (*h)[OWN], float (*v)[OWN], __local float *exchange)
{
    const int lane = get_local_id(0) % LANES, a = lane % 4, b = lane / 4;
    ALL for (int tile = 0; tile < TILE / 8; ++tile) {
        // Columns 2 a and 2 a + 1 of a product are the samples a and a + 4.
        const int sample = 8 * tile + b / 2 + b % 2 * 4;
        __local const float *from = (__local const float *)xs
                                    + row_at(row, sample, exchange) * IN_PITCH + 2 * a;
        SecondFactor inputs[IN_PITCH / 8];
        ALL for (int i = 0; i < IN_PITCH / 8; ++i) {
            const float2 two = *(__local const float2 *)(from + 8 * i);
            split_input(two.s0, &inputs[i].big[0], &inputs[i].small[0]);
            split_input(two.s1, &inputs[i].big[1], &inputs[i].small[1]);
        }
        ALL for (int k = 0; k < EACH; k += 2) {
            const float *w = values + k * NEURON_VALUES;
            float sums[4] = {0, 0, 0, 0};
            ALL for (int i = 0; i < IN_PITCH / 8; ++i) {
                FirstFactor weights;
                ALL for (int j = 0; j < 4; ++j)
                    split(w[j % 2 * NEURON_VALUES + 2 * i + j / 2], &weights.big[j],
                          &weights.small[j]);
                multiply(sums, &weights, &inputs[i], exchange);
            }
            ALL for (int j = 0; j < 4; ++j) {
                const int neuron = k + j / 2, s = 2 * tile + j % 2;
                const float bias = w[j / 2 * NEURON_VALUES + COLUMNS];
                v[neuron][s] = scaled(hidden_neuron, sums[j] + bias);
                h[neuron][s] = activate(hidden_neuron, v[neuron][s]);
            }
        }
    }
}

// As in lane_products.h. Sums of a tile are added at once: matrix units round sums down.
static inline void backward(__local const float4 *xs, const int row,
                            const float *values, const float *y, float (*h)[OWN],
                            float (*v)[OWN], float *gradients, __local float *exchange)
{
    const int id = get_local_id(0), lane = id % LANES, a = lane % 4, b = lane / 4;
    float sums[EACH / 2][IN_PITCH / 8][4];
    ALL for (int m = 0; m < EACH / 2; ++m)
        ALL for (int i = 0; i < IN_PITCH / 8; ++i)
            ALL for (int j = 0; j < 4; ++j) sums[m][i][j] = 0;
    ALL for (int tile = 0; tile < TILE / 8; ++tile) {
        SecondFactor inputs[IN_PITCH / 8];
        float deltas[2][OUT];
        ALL for (int c = 0; c < 2; ++c) {
            const int sample = 8 * tile + 4 * c + a;
            __local const float *from = (__local const float *)xs
                                        + row_at(row, sample, exchange) * IN_PITCH + b;
            ALL for (int i = 0; i < IN_PITCH / 8; ++i)
                split_input(from[8 * i], &inputs[i].big[c], &inputs[i].small[c]);
            ALL for (int o = 0; o < OUT; ++o)
                deltas[c][o] = from_item(y[o], id - lane + sample, exchange);
        }
        ALL for (int m = 0; m < EACH / 2; ++m) {
            FirstFactor first;
            ALL for (int j = 0; j < 4; ++j) {
                const int k = 2 * m + j % 2, c = j / 2, s = 2 * tile + c;
                const float *w = values + k * NEURON_VALUES + COLUMNS;
                float *g = gradients + k * NEURON_VALUES + COLUMNS, delta = 0;
                ALL for (int o = 0; o < OUT; ++o) {
                    delta += w[1 + o] * deltas[c][o];
                    g[1 + o] += deltas[c][o] * h[k][s];
                }
                delta *= derivative(hidden_neuron, h[k][s], v[k][s]);
                g[0] += delta;
                split(delta, &first.big[j], &first.small[j]);
            }
            ALL for (int i = 0; i < IN_PITCH / 8; ++i)
                multiply(sums[m][i], &first, &inputs[i], exchange);
        }
    }
    ALL for (int m = 0; m < EACH / 2; ++m)
        ALL for (int i = 0; i < IN_PITCH / 8; ++i)
            ALL for (int j = 0; j < 4; ++j)
                gradients[(2 * m + j / 2) * NEURON_VALUES + 2 * i + j % 2] +=
                    sums[m][i][j];
}

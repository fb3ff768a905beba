// fused_pack: the weights and biases of fused_mma.cl, packed and scaled (fused_mma.h).
//
// PACKERS    work-items of the one group, usually 1024
// STEEPNESS  {s, …} each layer's steepness
// FIRST, HIDDEN, LAST, CHUNK, N_IN, LAYERS, …  as in fused_mma.h
#include "dense/fused_mma.h"
#if !defined(PACKERS) || !defined(STEEPNESS)
#error "fused_mma_pack.cl needs PACKERS and STEEPNESS"
#endif
#define MAX_GAIN 100      // exponent of any scale, at most: 2^MAX_GAIN stays a float
#define MIN_GAIN -126     // at least: 2^MIN_GAIN is no zero
#define MAX_BIAS 40       // exponent of the last layer's biases, scaled as their rows
__constant float steepness_of[LAYERS] = STEEPNESS;

#define MAX_SHIFT 126     // exponent of a hidden row beside its layer, at most
#define APART 10          // of a hidden row that has a scale of its own, at least
#define INPUT_BIAS 4      // exponent of such a row's bias beside its weights, at most

// The exponent by which the weights of a row, or of a layer by its largest row, are scaled.
static inline int gain_of(const uint norm)
{
    return clamp(1 - exponent_of(norm), MIN_GAIN, MAX_GAIN);
}

// The exponent by which a row is scaled beside its layer's gain: of the last layer, whose
// sums stay floats, all; of others, that of rows far below the largest, and of biases far
// above it, which would limit the samples' scale.
static inline int shift_of(const int last, const int gain, const uint norm, const uint bias)
{
    if (last)
        return max(min(gain_of(norm), MAX_BIAS - exponent_of(bias)), MIN_GAIN);
    const int shift =
        gain_of(max(norm, magnitude(as_float(bias) * power_of_two(-INPUT_BIAS)))) - gain;
    if (abs(shift) < APART || (norm == 0 && shift > 0)) return 0;
    return clamp(shift, -MAX_SHIFT, min(MAX_SHIFT, MAX_SHIFT - exponent_of(bias)));
}

// Whether the bits of a magnitude are a number's, neither infinity's nor NaN's.
static inline bool is_number(const uint bits) { return bits < as_uint(INFINITY); }

// weights [ALL * BLOCK_VECTORS], biases [LAYERS, MAX_NEURONS]: times steepness and the
//         rows' scales
// factors [LAYERS, MAX_NEURONS]: the inverse of the rows' scales
// steps   [LAYERS] = (2 * gain, limit), 2 * gain + 1 of a hidden layer with rows that are
//         scaled apart; so a row of large weights, or of infinity or NaN, leaves the
//         others as they are
// index map: one work-group; a work-item: of each layer, every PACKERS-th row, then word
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void fused_pack(__global const float *parameters, __global uint4 *weights,
                __global float *biases, __global float *factors, __global int2 *steps)
{
    __local uint norms[MAX_NEURONS];    // of rows: the sum of magnitudes, as bits
    __local int shifts[MAX_NEURONS];
    __local uint largest[2];            // norm, and bias
    __local int apart;                  // whether rows are scaled apart
    __local int gains[LAYERS], limits[LAYERS];
    const int id = get_local_id(0);
    for (int layer = 0; layer < LAYERS; ++layer) {
        const int terms = layer == 0 ? N_IN : n_out_of[max(layer, 1) - 1];
        const int neurons = n_out_of[layer], last = layer == LAYERS - 1;
        const float steepness = steepness_of[layer];
        __global const float *a = parameters + weights_of[layer];
        __global const float *b = parameters + bias_of[layer];
        if (id < 2) largest[id] = 0;
        if (id == 0) apart = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int row = id; row < neurons; row += PACKERS) {
            float sum = 0;
            for (int k = 0; k < terms; ++k) sum += fabs(a[row * stride_of[layer] + k]);
            norms[row] = magnitude(sum * steepness);
            if (is_number(norms[row])) atomic_max(largest, norms[row]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const int gain = last ? 0 : gain_of(largest[0]);
        for (int row = id; row < neurons; row += PACKERS) {
            const uint bias = bias_of[layer] < 0 ? 0 : magnitude(b[row] * steepness);
            const int shift = shift_of(last, gain, norms[row], bias);
            const uint scaled_bias = magnitude(as_float(bias) * power_of_two(shift));
            shifts[row] = shift;
            if (!last && shift) atomic_max(&apart, 1);
            if (is_number(scaled_bias)) atomic_max(largest + 1, scaled_bias);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id == 0) {
            gains[layer] = 2 * gain + apart;
            const int room = last ? MAX_GAIN : BOUND(layer) + GROWTH - 2;
            limits[layer] = min(room - exponent_of(largest[1]), MAX_GAIN);
        }
        for (int row = id; row < MAX_NEURONS; row += PACKERS) {
            const int shift = row < neurons ? shifts[row] : 0;
            biases[layer * MAX_NEURONS + row] = row < neurons && bias_of[layer] >= 0
                ? b[row] * steepness * power_of_two(shift) : 0;
            factors[layer * MAX_NEURONS + row] = power_of_two(-shift);
        }
        const int across = TERMS_OF(layer);
        for (int i = id; i < NEURONS_OF(layer) * across * WARP; i += PACKERS) {
            const int lane = i % WARP, block = i / WARP, g = lane / 4, t = lane % 4;
            uint high[4], low[4];
            for (int word = 0; word < 4; ++word) {
                const int of_block = g / 2 * 4 + g % 2 + word / 2 * 2;
                const int row = block / across * BLOCK + of_block;
                const int k = block % across * BLOCK + 4 * t + word % 2 * 2;
                float2 v = (float2)(0);
                if (row < neurons) {
                    __global const float *from = a + row * stride_of[layer] + k;
                    v = (float2)(k < terms ? from[0] : 0, k + 1 < terms ? from[1] : 0);
                    v *= steepness * power_of_two(gain + shifts[row]);
                }
                high[word] = pack_half2(v.s0, v.s1);
                v = (v - unpack_half2(high[word])) * LOW_SCALE;
                low[word] = pack_half2(v.s0, v.s1);
            }
            __global uint4 *to =
                weights + (FORWARD_START(layer) + block) * BLOCK_VECTORS + lane;
            to[0] = (uint4)(high[0], high[1], high[2], high[3]);
            if (SPLITS == 2) to[WARP] = (uint4)(low[0], low[1], low[2], low[3]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (id > 0) return;
    for (int layer = LAYERS - 1; layer >= 0; --layer) {
        // A layer's limit holds for those before it too, back to the last rescaling.
        int limit = limits[layer];
        if ((layer + 1) % PERIOD > 0 && layer + 1 < LAYERS)
            limit = min(limit, limits[layer + 1]);
        limits[layer] = min(limit - (gains[layer] >> 1), MAX_GAIN);  // also of zeros
        steps[layer] = (int2)(gains[layer], limits[layer]);
    }
}

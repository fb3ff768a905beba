// fused_pack: the weights and biases of fused_mma.cl, packed and scaled (fused_mma.h).
//
// PACKERS    work-items of the one group, usually 1024
// STEEPNESS  {s, …} each layer's steepness
// FIRST, HIDDEN, LAST, CHUNK, N_IN, LAYERS, …  as in fused_mma.h
#include "dense/fused_mma.h"
#if !defined(PACKERS) || !defined(STEEPNESS)
#error "fused_mma_pack.cl needs PACKERS and STEEPNESS"
#endif
#define MAX_ROW_SHIFT 24  // exponent of the last layer's row scales, at most
#define MAX_GAIN 100      // exponent: 2^MAX_GAIN stays a float
__constant float steepness_of[LAYERS] = STEEPNESS;

// weights [ALL * BLOCK_VECTORS], biases [LAYERS, MAX_NEURONS]: times steepness and, of the
//         last layer, its rows' scales
// factors [BLOCK * LAST]: the inverse of the last layer's row scales
// steps   [LAYERS] = (gain, limit)
// index map: one work-group; a work-item: of each layer, every PACKERS-th row, then word
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void fused_pack(__global const float *parameters, __global uint4 *weights,
                __global float *biases, __global float *factors, __global int2 *steps)
{
    __local uint norms[MAX_NEURONS];    // of rows: the sum of magnitudes, as bits
    __local uint largest[2];            // norm, and bias
    __local int gains[LAYERS], limits[LAYERS];
    const int id = get_local_id(0);
    for (int layer = 0; layer < LAYERS; ++layer) {
        const int terms = layer == 0 ? N_IN : n_out_of[max(layer, 1) - 1];
        const int neurons = n_out_of[layer], last = layer == LAYERS - 1;
        const float steepness = steepness_of[layer];
        __global const float *a = parameters + weights_of[layer];
        __global const float *b = parameters + bias_of[layer];
        if (id < 2) largest[id] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int row = id; row < neurons; row += PACKERS) {
            float sum = 0;
            for (int k = 0; k < terms; ++k) sum += fabs(a[row * stride_of[layer] + k]);
            norms[row] = magnitude(sum * steepness);
            atomic_max(largest, norms[row]);
            if (bias_of[layer] >= 0)
                atomic_max(largest + 1, magnitude(b[row] * steepness));
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const int norm = exponent_of(largest[0]), gain = min(1 - norm, MAX_GAIN);
        if (id == 0) {
            gains[layer] = gain;
            const int room = last ? MAX_GAIN - MAX_ROW_SHIFT : BOUND(layer) + GROWTH - 2;
            limits[layer] = min(room - exponent_of(largest[1]), MAX_GAIN);
        }
        for (int row = id; row < MAX_NEURONS; row += PACKERS) {
            const int exponents_below = row < neurons ? norm - exponent_of(norms[row]) : 0;
            const int row_shift = last ? min(exponents_below, MAX_ROW_SHIFT) : 0;
            biases[layer * MAX_NEURONS + row] = row < neurons && bias_of[layer] >= 0
                ? b[row] * steepness * power_of_two(row_shift) : 0;
            if (last && row < BLOCK * LAST) factors[row] = power_of_two(-row_shift);
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
                    const int row_shift =
                        last ? min(norm - exponent_of(norms[row]), MAX_ROW_SHIFT) : 0;
                    v = (float2)(k < terms ? from[0] : 0, k + 1 < terms ? from[1] : 0);
                    v *= steepness * power_of_two(gain) * power_of_two(row_shift);
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
        limits[layer] = limit - gains[layer];
        steps[layer] = (int2)(gains[layer], limits[layer]);
    }
}

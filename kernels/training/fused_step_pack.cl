// fused_step_pack: the weights and biases of fused_step.cl, packed and scaled, forward and
// transposed (fused_step.h).
//
// PACKERS   work-items of a group, usually 1024
// others    as in fused_step.h
#include "training/fused_step.h"
#ifndef PACKERS
#error "fused_step_pack.cl needs PACKERS"
#endif

// packed  [ALL * BLOCK_VECTORS]
// biases  [LAYERS, MAX_NEURONS], times steepness
// exponents [LAYERS] = (gain of the weights, exponent above the largest weight, exponent
//         above the largest bias)
// index map: work-group: a layer, forward or transposed; work-item: every PACKERS-th word
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *parameters, __global uint4 *packed,
          __global float *biases, __global int4 *exponents)
{
    __local uint largest[2];
    const int layer = get_group_id(0) % LAYERS, backward = get_group_id(0) / LAYERS;
    const int id = get_local_id(0), stride = stride_of[layer];
    const int neurons = n_out_of[layer], terms = terms_of(layer);
    __global const float *a = parameters + weights_of[layer];
    if (backward && layer == 0) return;
    if (id < 2) largest[id] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint most = 0;
    for (int i = id; i < neurons * stride; i += PACKERS)
        if (i % stride < terms) most = max(most, magnitude(a[i]));
    atomic_max(largest, most);
    if (!backward) {
        for (int i = id; i < MAX_NEURONS; i += PACKERS) {
            const float bias = i < neurons && bias_of[layer] >= 0
                ? parameters[bias_of[layer] + i] * steepness_of[layer] : 0;
            biases[layer * MAX_NEURONS + i] = bias;
            atomic_max(largest + 1, magnitude(bias));
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int exponent = clamp(exponent_of(largest[0]), -MAX_SCALE, MAX_SCALE);
    const int gain = MAX_EXPONENT - exponent;
    if (id == 0 && !backward)
        exponents[layer] = (int4)(gain, exponent + 1, exponent_of(largest[1]) + 1, 0);
    const int across = backward ? NEURONS_OF(layer) : TERMS_OF(layer);
    const int down = backward ? TERMS_OF(layer) : NEURONS_OF(layer);
    const float scale = power_of_two(gain);
    packed += (backward ? TRANSPOSED_START(layer) : FORWARD_START(layer)) * BLOCK_VECTORS;
    for (int i = id; i < across * down * WARP; i += PACKERS) {
        const int lane = i % WARP, block = i / WARP, g = lane / 4, t = lane % 4;
        uint high[4], low[4];
        for (int word = 0; word < 4; ++word) {
            const int n = block / across * BLOCK + g / 2 * 4 + g % 2 + word / 2 * 2;
            const int k = block % across * BLOCK + 4 * t + word % 2 * 2;
            float v[2];
            for (int e = 0; e < 2; ++e) {
                const int row = backward ? k + e : n, column = backward ? n : k + e;
                v[e] = row < neurons && column < terms
                    ? a[row * stride + column] * scale : 0;
            }
            high[word] = pack_half2(v[0], v[1]);
            const float2 error = (float2)(v[0], v[1]) - unpack_half2(high[word]);
            low[word] = pack_half2(error.s0 * LOW_SCALE, error.s1 * LOW_SCALE);
        }
        __global uint4 *to = packed + block * BLOCK_VECTORS + lane;
        to[0] = (uint4)(high[0], high[1], high[2], high[3]);
        if (SPLITS == 2) to[WARP] = (uint4)(low[0], low[1], low[2], low[3]);
    }
}

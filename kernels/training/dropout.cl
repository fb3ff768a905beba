// dropout: a random mask on a layer's outputs in training, another in every step.
//
// The mask is not stored: counter-based random numbers, a hash of seed, step, layer,
// sample and neuron, give the same mask in the forward and backward pass
// (clnet/nn/random.py).
#include "include/random.h"
#ifndef REAL
#error "dropout.cl needs REAL"
#endif

// y[b, j] = x[b, j] * factor, or 0 where dropped; in the backward pass x and y are
// gradients
//
// threshold: the hashes, of 2^24, that drop; factor: 1 / (1 - fraction), for the mean
// stream: of the layer; seed: of the training; count: of the step
// index map: work-item b * across + j, in one dimension: others may be limited to 65535
__kernel void dropout(__global const REAL *x, const int ldx, __global REAL *y,
                      const int ldy, const int width, const int across,
                      const int threshold, const REAL factor, const int stream,
                      const uint seed, const int count)
{
    const int j = get_global_id(0) % across;
    const size_t b = get_global_id(0) / across;
    if (j >= width) return;
    const uint start = hash_word(hash_word(seed ^ (uint)stream) ^ (uint)count);
    const uint word = hash_word((uint)(b * width + j) ^ start);
    const bool kept = (word >> 8) >= (uint)threshold;
    y[b * ldy + j] = kept ? x[b * ldx + j] * factor : (REAL)0;
}

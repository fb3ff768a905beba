// dropout: outputs of a layer that training leaves out, drawn anew in every step.
//
// Nothing is stored: who is dropped is a hash of seed, step, layer, sample and neuron,
// computed on the way forward and again on the way back (clnet/nn/random.py).
#include "include/random.h"
#ifndef REAL
#error "dropout.cl needs REAL"
#endif

// y[b, j] = x[b, j] * factor, or 0 where dropped; on the way back x and y are
// derivatives
//
// threshold: of 2^24, how many hashes drop; factor: what keeps the mean
// stream: of the layer; seed, count: of the training, and of the step
// index map: work-item (j, b)
__kernel void dropout(__global const REAL *x, const int ldx, __global REAL *y,
                      const int ldy, const int width, const int threshold,
                      const REAL factor, const int stream, const uint seed,
                      const int count)
{
    const int j = get_global_id(0);
    const size_t b = get_global_id(1);
    if (j >= width) return;
    const uint start = mixed(mixed(seed ^ (uint)stream) ^ (uint)count);
    const uint word = mixed((uint)(b * width + j) ^ start);
    const bool kept = (word >> 8) >= (uint)threshold;
    y[b * ldy + j] = kept ? x[b * ldx + j] * factor : (REAL)0;
}

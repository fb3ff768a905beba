// Scales of fused_mma.cl and fused_mma_pack.cl, beside narrow_layers.h.
//
// Scales.  Halves end at 2^16. A sample's values are scaled by 2^scale, from its largest
// value, so that all lie below 2^LEVEL; a layer's weights by 2^gain, so that the
// magnitudes of the largest row sum to less than 4. A layer thus multiplies the bound by
// 4; its biases at most double it, as scales stay below the layer's `limit`: together
// 2^GROWTH. After PERIOD layers the bound is 2^15, and samples are rescaled by their
// largest values. The last layer's sums stay floats; each of its rows has a gain of its own.
// So have hidden rows far below their layer's largest, and those of far larger biases; a
// layer without such rows, as nearly all are, needs no factors. Weights that are not finite
// make their neurons not finite and leave the others' as they are.
//
// N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// FIRST, HIDDEN, LAST, CHUNK, …  as in narrow_layers.h; REAL (float) as in activations.h
#define WIDTH 1
#include "include/activations.h"
#include "dense/chain.h"
#include "tensor_core/narrow_layers.h"
#define LEVEL 3
#define GROWTH 3
#define PERIOD 4
#define BOUND(layer) (LEVEL + GROWTH * ((layer) % PERIOD))  // exponent, before a layer
#define ALL FORWARD_BLOCKS

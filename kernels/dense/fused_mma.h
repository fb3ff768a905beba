// What fused_mma.cl and fused_mma_pack.cl share: scales, beside what narrow_layers.h says.
//
// Scales.  Halves end at 2^16. A sample's values are held times 2^scale, by its largest
// value, so that all lie below 2^LEVEL; a layer's weights times 2^gain, so that
// the magnitudes of the largest row add up to less than 4. A layer thus multiplies the
// bound by 4; its biases at most double it, as scales stay below the layer's `limit`:
// together 2^GROWTH. PERIOD layers later the bound is 2^15, and the largest value is
// looked up again. The last layer's sums stay floats; its rows have a power of two
// each.
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
#define BOUND(layer) (LEVEL + GROWTH * ((layer) % PERIOD))  // 2^ that: before a layer
#define ALL FORWARD_BLOCKS

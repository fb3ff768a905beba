// What fused_mma.cl and fused_pack.cl share: sizes, the order of packed weights, and
// scales.
//
// Blocks.  Weights are packed in blocks of 16 neurons x 16 terms, as in halves.h, but
// for the order of both: what a lane g, t = lane / 4, lane % 4 holds of the sums of a
// block of neurons are then four in a row, and so are the terms that it multiplies
// next:
//
//     a lane's sums of a block of neurons        the next layer's fragment of them
//     sample g      4t 4t+1   4t+2 4t+3          word 0    word 2
//     sample g + 8  4t 4t+1   4t+2 4t+3          word 1    word 3
//
// Outputs packed as halves *are* the next layer's fragments: no value changes lanes.
// And x and y are read and written 16 bytes at a time.
//
// Scales.  Halves end at 2^16. A sample's values are held times 2^scale, by its largest
// value, so that all lie below 2^LEVEL; a layer's weights times 2^gain, so that
// the magnitudes of the largest row add up to less than 4. A layer thus multiplies the
// bound by 4; its biases at most double it, as scales stay below the layer's `limit`:
// together 2^GROWTH. PERIOD layers later the bound is 2^15, and the largest value is
// looked up again. The last layer's sums stay floats; its rows have a power of two
// each.
//
// FIRST, LAST  blocks of the first layer's terms, and of the last layer's neurons
// HIDDEN       blocks of the widest layer between; 0 where there is one layer only
// CHUNK        blocks of which each layer's number is filled up to a multiple
// N_IN         inputs of the first layer
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// REAL (float)  as in activations.h; PLANES, PTX as in halves.h
#define WIDTH 1
#include "activations.h"
#include "chain.h"
#include "fragments.h"
#if !defined(FIRST) || !defined(HIDDEN) || !defined(LAST) || !defined(CHUNK) \
    || !defined(N_IN)
#error "fused_mma.h needs FIRST, HIDDEN, LAST, CHUNK and N_IN"
#endif
#define LEVEL 3
#define GROWTH 3
#define PERIOD 4
#define BOUND(layer) (LEVEL + GROWTH * ((layer) % PERIOD))  // 2^ that: before a layer
#define TERMS_OF(layer) ((layer) == 0 ? FIRST : HIDDEN)               // in blocks
#define NEURONS_OF(layer) ((layer) == LAYERS - 1 ? LAST : HIDDEN)     // in blocks
#define FILLED(blocks) (((blocks) + CHUNK - 1) / CHUNK * CHUNK)
// Blocks before a layer's, and of all.
#define START(layer)                                                                   \
    ((layer) == 0 ? 0 : FILLED(FIRST * NEURONS_OF(0))                                  \
                            + ((layer) - 1) * FILLED(HIDDEN * HIDDEN))
#define ALL (START(LAYERS - 1) + FILLED(TERMS_OF(LAYERS - 1) * LAST))
#define PART (PLANES * WARP)                            // words of a block
#define WIDE (BLOCK * (LAST > HIDDEN ? LAST : HIDDEN))  // biases of a layer

// Of a positive float's bits: the exponent.
inline int exponent_of(const uint bits) { return (int)(bits >> 23) - 127; }

// 2^e; 0 from -127 on, and infinity from 128 on.
inline float power_of_two(const int e)
{
    return as_float(min(max(e + 127, 0), 255) << 23);
}

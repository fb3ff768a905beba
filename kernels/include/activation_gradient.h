// The derivative of a layer's function, one value at a time.
//
// GRADIENT    as grad_tanh in gradients.h
// READS_SUMS  1 where it is by the sums, 0 where it is by the outputs
// STEEPNESS, LIMIT  as in activations.h, which comes first
#if !defined(GRADIENT) || !defined(READS_SUMS)
#error "activation_gradient.h needs GRADIENT and READS_SUMS"
#endif
#include "include/gradients.h"

// f'(v) * STEEPNESS of a layer, by its output, or by its sum with the bias
inline REAL slope(REAL at)
{
#if READS_SUMS
    at *= (REAL)STEEPNESS;
#ifdef LIMIT
    at = clipped(at, -LIMIT, LIMIT);
#endif
#endif
    return GRADIENT(at, (REAL)STEEPNESS) * (REAL)STEEPNESS;
}

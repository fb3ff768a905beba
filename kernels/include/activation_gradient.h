// The derivative of a layer's activation.
//
// GRADIENT    a function of gradients.h, such as grad_tanh
// READS_Z  1: its argument is the pre-activation; 0: the output
// STEEPNESS, HAS_LIMIT, LIMIT  as in activations.h, which is included first
#if !defined(GRADIENT) || !defined(READS_Z) || !defined(STEEPNESS)                     \
    || !defined(HAS_LIMIT) || (HAS_LIMIT && !defined(LIMIT))
#error "activation_gradient.h needs GRADIENT, READS_Z, STEEPNESS, HAS_LIMIT and LIMIT"
#endif
#include "include/gradients.h"

// f'(v) * STEEPNESS, at the output or at the pre-activation with its bias
static inline VAL activation_gradient(VAL at)
{
#if READS_Z
    at *= CONST(STEEPNESS);
#if HAS_LIMIT
    at = clipped(at, CONST(-LIMIT), CONST(LIMIT));
#endif
#endif
    return GRADIENT(at, CONST(STEEPNESS)) * CONST(STEEPNESS);
}

// The derivative of a layer's activation.
//
// GRADIENT    a function of gradients.h, such as grad_tanh
// READS_Z  1: its argument is the pre-activation; 0: the output
// STEEPNESS, LIMIT  as in activations.h, which is included first
#if !defined(GRADIENT) || !defined(READS_Z)
#error "activation_gradient.h needs GRADIENT and READS_Z"
#endif
#include "include/gradients.h"

// f'(v) * STEEPNESS, at the output or at the pre-activation with its bias
static inline VAL activation_gradient(VAL at)
{
#if READS_Z
    at *= CONST(STEEPNESS);
#ifdef LIMIT
    at = clipped(at, CONST(-LIMIT), CONST(LIMIT));
#endif
#endif
    return GRADIENT(at, CONST(STEEPNESS)) * CONST(STEEPNESS);
}

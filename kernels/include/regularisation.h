// L1 and L2 penalties and gradient clipping, as in clnet/nn/regularisation.py. Include
// activations.h first, for VAL.
//
// WEIGHTS     elements of the flat buffer before the first bias, a multiple of 8;
//             undefined: no penalties
// L1, L2      with WEIGHTS: factors of the sums of |w| and of w^2; undefined: those of
//             the argument
// CLIP_VALUE  bound of the mean gradient's elements; undefined: none
// CLIP_NORM   bound of the mean gradient's norm; undefined: none
// PER_NETWORK  type of the numbers that networks in the lanes of a VAL differ in;
//              undefined: REAL
#ifndef PER_NETWORK
#define PER_NETWORK REAL
#endif

// Factors of penalties.
typedef struct {
    PER_NETWORK l1, l2;
} Penalties;

#ifndef L1
#define L1 0
#define L2 0
#endif
#define PENALTIES ((Penalties){(PER_NETWORK)((REAL)L1), (PER_NETWORK)((REAL)L2)})

// Gradients g of the sum over samples, plus those of the penalties.
// element: index of the first in the flat buffer
static inline VAL add_penalties(const VAL w, const VAL g, const REAL samples,
                                const Penalties penalties, const uint element)
{
#ifdef WEIGHTS
    const VAL sign_of_w = w > CONST(0) ? CONST(1) : w < CONST(0) ? CONST(-1) : CONST(0);
    if (element < WEIGHTS)
        return g + CONST(samples) * ((VAL)(penalties.l1) * sign_of_w
                                     + (VAL)(2 * penalties.l2) * w);
#endif
    return g;
}

// Gradients g, clipped. norm: of the mean gradient; not read without CLIP_NORM
static inline VAL clip_gradient(const VAL g, const REAL samples,
                                const PER_NETWORK norm)
{
#ifdef CLIP_VALUE
    const VAL bound = CONST((REAL)CLIP_VALUE * samples);
    return g > bound ? bound : g < -bound ? -bound : g;
#endif
#ifdef CLIP_NORM
    // A norm that overflows makes the gradient NaN: zero would be no step, untold.
    const PER_NETWORK scale = (REAL)CLIP_NORM / norm + (norm - norm);
    return norm > (REAL)CLIP_NORM ? g * (VAL)(scale) : g;
#endif
    return g;
}

// L1 and L2 penalties and gradient clipping, as in clnet/nn/regularisation.py. Include
// activations.h first, for VAL.
//
// HAS_PENALTIES   1: with WEIGHTS, elements of the flat buffer before the first bias, a
//                 multiple of 8, and L1, L2, factors of the sums of |w| and of w^2;
//                 0: none
// HAS_CLIP_VALUE  1: with CLIP_VALUE, the bound of the mean gradient's elements; 0: none
// HAS_CLIP_NORM   1: with CLIP_NORM, the bound of the mean gradient's norm; 0: none
// PER_NETWORK     type of the numbers that networks in the lanes of a VAL differ in; REAL
//                 where they are of one network
#if !defined(HAS_PENALTIES) || !defined(HAS_CLIP_VALUE) || !defined(HAS_CLIP_NORM)     \
    || !defined(PER_NETWORK)                                                           \
    || (HAS_PENALTIES && (!defined(WEIGHTS) || !defined(L1) || !defined(L2)))          \
    || (HAS_CLIP_VALUE && !defined(CLIP_VALUE))                                        \
    || (HAS_CLIP_NORM && !defined(CLIP_NORM))
#error "regularisation.h needs HAS_PENALTIES, HAS_CLIP_VALUE, HAS_CLIP_NORM, the numbers \
of those that are 1, and PER_NETWORK"
#endif

// Factors of penalties.
typedef struct {
    PER_NETWORK l1, l2;
} Penalties;

#if HAS_PENALTIES
#define PENALTIES ((Penalties){(PER_NETWORK)((REAL)L1), (PER_NETWORK)((REAL)L2)})
#else
#define PENALTIES ((Penalties){(PER_NETWORK)((REAL)0), (PER_NETWORK)((REAL)0)})
#endif

// Gradients g of the sum over samples, plus those of the penalties.
// element: index of the first in the flat buffer
static inline VAL add_penalties(const VAL w, const VAL g, const REAL samples,
                                const Penalties penalties, const uint element)
{
#if HAS_PENALTIES
    const VAL sign_of_w = w > CONST(0) ? CONST(1) : w < CONST(0) ? CONST(-1) : CONST(0);
    if (element < WEIGHTS)
        return g + CONST(samples) * ((VAL)(penalties.l1) * sign_of_w
                                     + (VAL)(2 * penalties.l2) * w);
#endif
    return g;
}

// Gradients g, clipped. norm: of the mean gradient; not read without HAS_CLIP_NORM
static inline VAL clip_gradient(const VAL g, const REAL samples,
                                const PER_NETWORK norm)
{
#if HAS_CLIP_VALUE
    const VAL bound = CONST((REAL)CLIP_VALUE * samples);
    return g > bound ? bound : g < -bound ? -bound : g;
#endif
#if HAS_CLIP_NORM
    // A norm that overflows makes the gradient NaN: zero would be no step, untold.
    const PER_NETWORK scale = (REAL)CLIP_NORM / norm + (norm - norm);
    return norm > (REAL)CLIP_NORM ? g * (VAL)(scale) : g;
#endif
    return g;
}

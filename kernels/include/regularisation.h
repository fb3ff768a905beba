// What is done to gradients before an optimiser sees them, as clnet/nn/regularisation.py.
// Written over VAL, as activations.h, which must be included before.
//
// WEIGHTS     elements of the flat buffer before the first bias, a multiple of 8;
//             without it there are no penalties
// L1, L2      with WEIGHTS: factors of the sums of |w| and of w^2
// CLIP_VALUE  bound of the mean gradient's elements; without it there is none
// CLIP_NORM   bound of its norm; without it there is none
#if defined(WEIGHTS) && (!defined(L1) || !defined(L2))
#error "regularisation.h needs L1 and L2 with WEIGHTS"
#endif

// Gradients g of the sum over samples, with the penalties' own.
// element: number of the first in the flat buffer
inline VAL penalised(const VAL w, const VAL g, const REAL samples, const uint element)
{
#ifdef WEIGHTS
    const VAL side = w > CONST(0) ? CONST(1) : w < CONST(0) ? CONST(-1) : CONST(0);
    if (element < WEIGHTS)
        return g + CONST(samples) * (CONST(L1) * side + CONST(2 * (REAL)L2) * w);
#endif
    return g;
}

// The same, shortened. norm: of the mean gradient; anything without CLIP_NORM
inline VAL shortened(const VAL g, const REAL samples, const REAL norm)
{
#ifdef CLIP_VALUE
    const VAL most = CONST((REAL)CLIP_VALUE * samples);
    return g > most ? most : g < -most ? -most : g;
#endif
#ifdef CLIP_NORM
    return norm > (REAL)CLIP_NORM ? g * CONST((REAL)CLIP_NORM / norm) : g;
#endif
    return g;
}

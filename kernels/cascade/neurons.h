// The neurons of cascade training: each reads the same values of all earlier neurons.
// Include activations.h and gradients.h first.
//
// FUNCTIONS(X)  the activations: X(code, FUNCTION, GRADIENT, READS); READS, the argument
//               of the derivative: AT_Y, AT_PRE_ACTIVATION, or AT_SUM, as FANN's elliot
//               of candidates
// TILE          samples of a tile, a multiple of 8: usually 64
#if !defined(FUNCTIONS) || !defined(TILE)
#error "neurons.h needs FUNCTIONS and TILE"
#endif

#define AT_Y(y, v, x) (y)
#define AT_PRE_ACTIVATION(y, v, x) (v)
#define AT_SUM(y, v, x) (x)

// A row of the table of neurons (NEURON of clnet/variants/training/whole_step.py).
typedef struct {
    int function;
    float steepness;
    float limit;        // of the sum's magnitude
    float error_scale;  // of an output's error: 0.5 where FANN halves it
} CascadeNeuron;

#if OPERATOR_MATH
// sin(v + quarters pi / 2) for |v| <= 1000, to about 2e-7: v = n pi / 2 + r, with pi / 2 as
// a sum of three numbers; Taylor's series of |r| <= pi / 4.
static inline VAL sine_after(const VAL v, const int quarters)
{
    const VAL rounder = CONST(12582912.0f);  // 1.5 * 2^23
    const VAL shifted = v * CONST(0.636619772f) + rounder;
    const VAL n = shifted - rounder;
    const INTS quadrant = AS_INTS(shifted) + (INTS)(quarters);
    VAL r = v - n * CONST(1.5703125f);
    r = r - n * CONST(4.83751297e-4f);
    r = r - n * CONST(7.54978942e-8f);
    const VAL u = r * r;
    VAL odd = CONST(2.7557319e-6f);
    odd = odd * u + CONST(-1.9841270e-4f);
    odd = odd * u + CONST(8.3333333e-3f);
    odd = odd * u + CONST(-0.16666667f);
    odd = r + r * u * odd;
    VAL even = CONST(-2.7557319e-7f);
    even = even * u + CONST(2.4801587e-5f);
    even = even * u + CONST(-1.3888889e-3f);
    even = even * u + CONST(4.1666667e-2f);
    even = CONST(1) - CONST(0.5f) * u + u * u * even;
    const VAL found = (quadrant & (INTS)(1)) == (INTS)(0) ? odd : even;
    return (quadrant & (INTS)(2)) == (INTS)(0) ? found : -found;
}
#else
#define sine_after(v, quarters) ((quarters) ? cos(v) : sin(v))
#endif

// Sines and cosines of candidates, whose sums are bounded.
static inline VAL bounded_sin_symmetric(VAL v) { return sine_after(v, 0); }
static inline VAL bounded_cos_symmetric(VAL v) { return sine_after(v, 1); }
static inline VAL bounded_sin(VAL v)
{
    return sine_after(v, 0) * CONST(0.5f) + CONST(0.5f);
}
static inline VAL bounded_cos(VAL v)
{
    return sine_after(v, 1) * CONST(0.5f) + CONST(0.5f);
}
static inline VAL bounded_grad_sin_symmetric(VAL v, VAL s) { return sine_after(v, 1); }
static inline VAL bounded_grad_cos_symmetric(VAL v, VAL s) { return -sine_after(v, 0); }
static inline VAL bounded_grad_sin(VAL v, VAL s)
{
    return sine_after(v, 1) * CONST(0.5f);
}
static inline VAL bounded_grad_cos(VAL v, VAL s)
{
    return sine_after(v, 0) * CONST(-0.5f);
}

// A neuron's output y of a sum, and its derivative dy by the sum.
static inline void respond(const CascadeNeuron neuron, VAL x, VAL *y, VAL *dy)
{
    const VAL limit = CONST(neuron.limit), s = CONST(neuron.steepness);
    x = x < -limit ? -limit : x;
    x = x > limit ? limit : x;
    const VAL v = s * x;
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code:                                                                       \
        *y = function(v);                                                            \
        *dy = gradient(reads(*y, v, x), s) * s;                                      \
        break;
        FUNCTIONS(CASE)
#undef CASE
    default:  // there is no other
        *y = *dy = CONST(0);
    }
}

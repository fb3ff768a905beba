// AdaGrad: the step of own_optimiser.py, of whole vectors. Included by
// kernels/include/optimisers.h, which says what RULE, now and s are.
//
// EPS  the field of the row
#if !defined(EPS)
#error "adagrad.h needs EPS"
#endif
RULE
{
    const VAL mean = g / CONST(now.samples);
    s[0] += mean * mean;
    return w - (VAL)(now.rate) * (mean / (square_root(s[0]) + CONST(EPS)));
}

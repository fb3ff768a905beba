// Losses: loss_NAME(y, t, share), what one output adds, and slope_NAME(y, t, share), its
// derivative by y, for every row NAME of clnet/losses.py but the one fused with softmax,
// which is no function of one output. share is 0.5 where FANN halves the error, else 1.
//
// HUBER_DELTA      error at which huber turns from a square into a straight line
// FANN_TANH_LIMIT  halved error beyond which FANN's tanh error is constant
// FANN_TANH_ERROR  that constant
#if !defined(HUBER_DELTA) || !defined(FANN_TANH_LIMIT) || !defined(FANN_TANH_ERROR)
#error "losses.h needs HUBER_DELTA, FANN_TANH_LIMIT and FANN_TANH_ERROR"
#endif

inline REAL loss_mse(REAL y, REAL t, REAL share) { return (y - t) * (y - t); }
inline REAL slope_mse(REAL y, REAL t, REAL share) { return 2 * (y - t); }

inline REAL loss_mae(REAL y, REAL t, REAL share) { return fabs(y - t); }
inline REAL slope_mae(REAL y, REAL t, REAL share) { return sign(y - t); }

inline REAL loss_huber(REAL y, REAL t, REAL share)
{
    const REAL d = fabs(y - t), delta = HUBER_DELTA;
    return d <= delta ? d * d / 2 : delta * (d - delta / 2);
}
inline REAL slope_huber(REAL y, REAL t, REAL share)
{
    const REAL d = y - t, delta = HUBER_DELTA;
    return d < -delta ? -delta : d > delta ? delta : d;
}

// y is what goes into the sigmoid.
inline REAL loss_binary_cross_entropy(REAL y, REAL t, REAL share)
{
    return (y < 0 ? 0 : y) - y * t + log1p(exp(-fabs(y)));
}
inline REAL slope_binary_cross_entropy(REAL y, REAL t, REAL share)
{
    return 1 / (1 + exp(-y)) - t;
}

inline REAL loss_fann_linear(REAL y, REAL t, REAL share)
{
    return share * (t - y) * (t - y) / 2;
}
inline REAL slope_fann_linear(REAL y, REAL t, REAL share) { return -share * (t - y); }

inline REAL loss_fann_tanh(REAL y, REAL t, REAL share)
{
    const REAL d = fabs((t - y) * share), limit = FANN_TANH_LIMIT;
    const REAL inside = d > limit ? limit : d;
    const REAL value = (1 + inside) * log1p(inside) + (1 - inside) * log1p(-inside);
    return (value + (REAL)FANN_TANH_ERROR * (d - inside)) / share;
}
inline REAL slope_fann_tanh(REAL y, REAL t, REAL share)
{
    const REAL d = (t - y) * share, limit = FANN_TANH_LIMIT, end = FANN_TANH_ERROR;
    if (d > limit) return -end;
    if (d < -limit) return end;
    return -log((1 + d) / (1 - d));
}

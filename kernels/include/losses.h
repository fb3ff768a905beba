// Losses: loss_NAME(y, t, share), what one output adds, and slope_NAME(y, t, share),
// its derivative by y, for every row NAME of clnet/nn/losses.py but the one fused with
// softmax, which is no function of one output. share is 0.5 where FANN halves the
// error, else 1. Written over VAL, as activations.h, which must be included before.
//
// HUBER_DELTA      error at which huber turns from a square into a straight line
// FANN_TANH_LIMIT  halved error beyond which FANN's tanh error is constant
// FANN_TANH_ERROR  that constant
#if !defined(HUBER_DELTA) || !defined(FANN_TANH_LIMIT) || !defined(FANN_TANH_ERROR)
#error "losses.h needs HUBER_DELTA, FANN_TANH_LIMIT and FANN_TANH_ERROR"
#endif

inline VAL loss_mse(VAL y, VAL t, VAL share) { return (y - t) * (y - t); }
inline VAL slope_mse(VAL y, VAL t, VAL share) { return CONST(2) * (y - t); }

inline VAL loss_mae(VAL y, VAL t, VAL share) { return absolute(y - t); }
inline VAL slope_mae(VAL y, VAL t, VAL share)
{
    const VAL d = y - t;
    return d > CONST(0) ? CONST(1) : d < CONST(0) ? CONST(-1) : d;
}

inline VAL loss_huber(VAL y, VAL t, VAL share)
{
    const VAL d = absolute(y - t), delta = CONST(HUBER_DELTA);
    return d <= delta ? d * d * CONST(0.5) : delta * (d - delta * CONST(0.5));
}
inline VAL slope_huber(VAL y, VAL t, VAL share)
{
    const VAL d = y - t, delta = CONST(HUBER_DELTA);
    return d < -delta ? -delta : d > delta ? delta : d;
}

// y is what goes into the sigmoid.
inline VAL loss_binary_cross_entropy(VAL y, VAL t, VAL share)
{
    const VAL above = y < CONST(0) ? CONST(0) : y;
    return above - y * t + log_one_plus(exponential(-absolute(y)));
}
inline VAL slope_binary_cross_entropy(VAL y, VAL t, VAL share)
{
    return act_sigmoid(y) - t;
}

inline VAL loss_fann_linear(VAL y, VAL t, VAL share)
{
    return share * (t - y) * (t - y) * CONST(0.5);
}
inline VAL slope_fann_linear(VAL y, VAL t, VAL share) { return share * (y - t); }

// (1 + d) ln(1 + d) + (1 - d) ln(1 - d) up to the limit, then a straight line.
inline VAL loss_fann_tanh(VAL y, VAL t, VAL share)
{
    const VAL d = absolute((t - y) * share), limit = CONST(FANN_TANH_LIMIT);
    const VAL inside = d > limit ? limit : d;
    const VAL up = CONST(1) + inside, down = CONST(1) - inside;
#if OPERATOR_MATH
    // For small d, where that is a difference of near equals, its series.
    const VAL square = inside * inside;
    const VAL series = square + square * square * CONST(1.0f / 6);
    const VAL far = up * logarithm(up) + down * logarithm(down);
    const VAL value = inside < CONST(0.03f) ? series : far;
#else
    const VAL value = up * log1p(inside) + down * log1p(-inside);
#endif
    return (value + CONST(FANN_TANH_ERROR) * (d - inside)) / share;
}
// -2 artanh of the error.
inline VAL slope_fann_tanh(VAL y, VAL t, VAL share)
{
    const VAL d = (t - y) * share, limit = CONST(FANN_TANH_LIMIT);
    const VAL end = CONST(FANN_TANH_ERROR);
    VAL inside = d > limit ? limit : d;
    inside = inside < -limit ? -limit : inside;
    VAL error = logarithm((CONST(1) + inside) / (CONST(1) - inside));
#if OPERATOR_MATH
    error = absolute(inside) < CONST(0.3f) ? twice_artanh(inside) : error;
#endif
    error = d > limit ? end : error;
    return d < -limit ? end : -error;
}

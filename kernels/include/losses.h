// Losses: for every row NAME of clnet/nn/losses.py
//
//   loss_NAME(y, t, scale)           the term of one output
//   loss_gradient_NAME(y, t, scale)  its derivative with respect to y
//
// scale: 0.5 where FANN halves the error, else 1. Include activations.h first, for VAL.
//
// HUBER_DELTA      error at which huber changes from quadratic to linear
// POISSON_EPS      added to an output before its logarithm
// FANN_TANH_LIMIT  halved error beyond which FANN's tanh error is constant
// FANN_TANH_ERROR  that constant
// LOSS, LOSS_GRADIENT  the functions of the kernel's loss, without SOFTMAX
// SIGMOID, SOFTMAX  1: the loss is fused with that activation
#if !defined(HUBER_DELTA) || !defined(POISSON_EPS) || !defined(FANN_TANH_LIMIT) \
    || !defined(FANN_TANH_ERROR) \
    || !defined(SIGMOID) || !defined(SOFTMAX)                                          \
    || (!SOFTMAX && (!defined(LOSS) || !defined(LOSS_GRADIENT)))
#error "losses.h needs the constants of its losses, SIGMOID, SOFTMAX, and without the \
latter LOSS and LOSS_GRADIENT"
#endif

// Of an output y of the last layer: the network's output, the term of the loss, and the
// derivative of the term by y. The loss fused with softmax is no function of a single y:
// it also reads the variables `top`, the sample's largest y; `total`, the sum of
// e^(y - top); `log_total`; and `targets`, the sum of the targets.
#if SOFTMAX
#define LOSS_OUTPUT(y) (exponential((y) - top) / total)
#define LOSS_TERM(y, t, scale) ((t) * (log_total - ((y) - top)))
#define LOSS_SLOPE(y, output, t, scale) ((output) * targets - (t))
#else
#define LOSS_OUTPUT(y) (SIGMOID ? act_sigmoid(y) : (y))
#define LOSS_TERM(y, t, scale) LOSS(y, t, scale)
#define LOSS_SLOPE(y, output, t, scale) LOSS_GRADIENT(y, t, scale)
#endif

static inline VAL loss_mse(VAL y, VAL t, VAL scale) { return (y - t) * (y - t); }
static inline VAL loss_gradient_mse(VAL y, VAL t, VAL scale)
{
    return CONST(2) * (y - t);
}

static inline VAL loss_mae(VAL y, VAL t, VAL scale) { return absolute(y - t); }
static inline VAL loss_gradient_mae(VAL y, VAL t, VAL scale)
{
    const VAL d = y - t;
    return d > CONST(0) ? CONST(1) : d < CONST(0) ? CONST(-1) : d;
}

static inline VAL loss_huber(VAL y, VAL t, VAL scale)
{
    const VAL d = absolute(y - t), delta = CONST(HUBER_DELTA);
    return d <= delta ? d * d * CONST(0.5f) : delta * (d - delta * CONST(0.5f));
}
static inline VAL loss_gradient_huber(VAL y, VAL t, VAL scale)
{
    const VAL d = y - t, delta = CONST(HUBER_DELTA);
    return d < -delta ? -delta : d > delta ? delta : d;
}

// y is the input of the sigmoid.
static inline VAL loss_binary_cross_entropy(VAL y, VAL t, VAL scale)
{
    const VAL positive = y < CONST(0) ? CONST(0) : y;
    return positive - y * t + log_one_plus(exponential(-absolute(y)));
}
static inline VAL loss_gradient_binary_cross_entropy(VAL y, VAL t, VAL scale)
{
    return act_sigmoid(y) - t;
}

// y is at least 0, but where a kernel is tried.
static inline VAL loss_poisson(VAL y, VAL t, VAL scale)
{
    const VAL rate = (y < CONST(0) ? CONST(0) : y) + CONST(POISSON_EPS);
    return y - t * logarithm(rate);
}
static inline VAL loss_gradient_poisson(VAL y, VAL t, VAL scale)
{
    const VAL slope = CONST(1) - t / ((y < CONST(0) ? CONST(0) : y) + CONST(POISSON_EPS));
    return y < CONST(0) ? CONST(1) : slope;
}

static inline VAL loss_fann_linear(VAL y, VAL t, VAL scale)
{
    return scale * (t - y) * (t - y) * CONST(0.5f);
}
static inline VAL loss_gradient_fann_linear(VAL y, VAL t, VAL scale)
{
    return scale * (y - t);
}

// (1 + d) ln(1 + d) + (1 - d) ln(1 - d) up to the limit, then linear.
static inline VAL loss_fann_tanh(VAL y, VAL t, VAL scale)
{
    const VAL d = absolute((t - y) * scale), limit = CONST(FANN_TANH_LIMIT);
    const VAL clamped = d > limit ? limit : d;
    const VAL one_plus = CONST(1) + clamped, one_minus = CONST(1) - clamped;
#if OPERATOR_MATH
    // A series for small d, where the formula subtracts nearly equal terms.
    const VAL square = clamped * clamped;
    const VAL series = square + square * square * CONST(1.0f / 6);
    const VAL exact = one_plus * logarithm(one_plus) + one_minus * logarithm(one_minus);
    const VAL value = clamped < CONST(0.03f) ? series : exact;
#else
    const VAL value = one_plus * log1p(clamped) + one_minus * log1p(-clamped);
#endif
    return (value + CONST(FANN_TANH_ERROR) * (d - clamped)) / scale;
}
// -2 artanh of the error.
static inline VAL loss_gradient_fann_tanh(VAL y, VAL t, VAL scale)
{
    const VAL d = (t - y) * scale, limit = CONST(FANN_TANH_LIMIT);
    const VAL end = CONST(FANN_TANH_ERROR);
    VAL clamped = d > limit ? limit : d;
    clamped = clamped < -limit ? -limit : clamped;
    VAL error = logarithm((CONST(1) + clamped) / (CONST(1) - clamped));
#if OPERATOR_MATH
    error = absolute(clamped) < CONST(0.3f) ? twice_artanh(clamped) : error;
#endif
    error = d > limit ? end : error;
    return d < -limit ? end : -error;
}

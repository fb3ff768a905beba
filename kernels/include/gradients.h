// Derivatives of the activation functions: grad_NAME(at, s) for every row NAME of
// clnet/nn/activations.py, and fann_grad_NAME where FANN's derivative differs. `at` is
// the scaled pre-activation v = steepness * (A x + b) or the output y = f(v): the row
// says which. s is the steepness: only some of FANN's derivatives read it. Include
// activations.h first, for VAL.
//
// FANN clips outputs before it takes a sigmoid's derivative:
// FANN_SIGMOID_LOW, FANN_SIGMOID_HIGH  bounds of sigmoid's y
// FANN_TANH_END                        bound of |y| of tanh
#if !defined(FANN_SIGMOID_LOW) || !defined(FANN_SIGMOID_HIGH) || !defined(FANN_TANH_END)
#error "gradients.h needs FANN_SIGMOID_LOW, FANN_SIGMOID_HIGH and FANN_TANH_END"
#endif

static inline VAL clipped(VAL x, VAL low, VAL high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

// Derivatives by the output y.
static inline VAL grad_identity(VAL y, VAL s) { return CONST(1); }
static inline VAL grad_threshold(VAL y, VAL s) { return CONST(0); }
static inline VAL grad_threshold_symmetric(VAL y, VAL s) { return CONST(0); }
static inline VAL grad_gaussian_stepwise(VAL y, VAL s) { return CONST(0); }
static inline VAL grad_sigmoid(VAL y, VAL s) { return y * (CONST(1) - y); }
static inline VAL grad_sigmoid_stepwise(VAL y, VAL s) { return y * (CONST(1) - y); }
static inline VAL grad_tanh(VAL y, VAL s) { return CONST(1) - y * y; }
static inline VAL grad_tanh_stepwise(VAL y, VAL s) { return CONST(1) - y * y; }
static inline VAL grad_relu(VAL y, VAL s) { return y > CONST(0) ? CONST(1) : CONST(0); }
static inline VAL grad_leaky_relu(VAL y, VAL s)
{
    return y < CONST(0) ? CONST(LEAK) : CONST(1);
}
static inline VAL grad_elu(VAL y, VAL s)
{
    return y < CONST(0) ? y + CONST(1) : CONST(1);
}
static inline VAL grad_selu(VAL y, VAL s)
{
    return y < CONST(0) ? y + CONST(LITERAL(1.7580993408473768))
                        : CONST(LITERAL(1.0507009873554805));
}

// Derivatives by the scaled pre-activation v.
static inline VAL grad_gaussian(VAL v, VAL s)
{
    return CONST(-2) * v * exponential(-v * v);
}
static inline VAL grad_gaussian_symmetric(VAL v, VAL s)
{
    return CONST(-4) * v * exponential(-v * v);
}
static inline VAL grad_elliot(VAL v, VAL s)
{
    VAL d = CONST(1) + absolute(v);
    return CONST(0.5f) / (d * d);
}
static inline VAL grad_elliot_symmetric(VAL v, VAL s)
{
    VAL d = CONST(1) + absolute(v);
    return CONST(1) / (d * d);
}
static inline VAL grad_linear_piece(VAL v, VAL s)
{
    return v > CONST(0) && v < CONST(1) ? CONST(1) : CONST(0);
}
static inline VAL grad_linear_piece_symmetric(VAL v, VAL s)
{
    return v > CONST(-1) && v < CONST(1) ? CONST(1) : CONST(0);
}
static inline VAL grad_sin_symmetric(VAL v, VAL s) { return cosine(v); }
static inline VAL grad_cos_symmetric(VAL v, VAL s) { return -sine(v); }
static inline VAL grad_sin(VAL v, VAL s) { return cosine(v) * CONST(0.5f); }
static inline VAL grad_cos(VAL v, VAL s) { return sine(v) * CONST(-0.5f); }
static inline VAL grad_gelu(VAL v, VAL s)
{
    VAL cdf = CONST(0.5f) * (CONST(1) + error_function(v * SQRT_HALF));
    return cdf
           + v * exponential(v * v * CONST(-0.5f)) * CONST(LITERAL(0.39894228040143268));
}
static inline VAL grad_silu(VAL v, VAL s)
{
    VAL y = CONST(1) / (CONST(1) + exponential(-v));
    return y * (CONST(1) + v * (CONST(1) - y));
}
static inline VAL grad_gelu_tanh(VAL v, VAL s)
{
    v = clipped(v, CONST(-20), CONST(20));  // beyond, it is 0 or 1
    VAL y = CONST(1) / (CONST(1) + exponential(-twice_gelu_argument(v)));
    VAL slope = CONST(LITERAL(1.5957691216057308))
                * (CONST(1) + CONST(LITERAL(0.134145)) * v * v);
    return y + v * y * (CONST(1) - y) * slope;
}
static inline VAL grad_mish(VAL v, VAL s)
{
    v = clipped(v, CONST(-80), CONST(20));  // beyond, it is 0 or 1
    VAL n = mish_numerator(v), d = CONST(1) / (n + CONST(2));
    VAL y = CONST(1) / (CONST(1) + exponential(-v));
    return n * d + v * CONST(4) * (n + CONST(1)) * d * d * y;
}
static inline VAL grad_hardswish(VAL v, VAL s)
{
    VAL slope = v / CONST(3) + CONST(0.5f);
    slope = v < CONST(-3) ? CONST(0) : slope;
    return v > CONST(3) ? CONST(1) : slope;
}
static inline VAL grad_softplus(VAL v, VAL s)
{
    return CONST(1) / (CONST(1) + exponential(-v));
}

// Functions with parameters, as in activations.h.
#define GRAD_WITH(family, a, b) grad_##family##_of(CONST(a), CONST(b), CLOSED_GRAD
#define CLOSED_GRAD(at, s) at)

static inline VAL grad_clip_of(const VAL low, const VAL high, VAL y)
{
    return y > low && y < high ? CONST(1) : CONST(0);
}
static inline VAL grad_leaky_relu_of(const VAL slope, const VAL unused, VAL at)
{
    return at < CONST(0) ? slope : CONST(1);  // by y too where the slope is positive
}
static inline VAL grad_elu_of(const VAL alpha, const VAL unused, VAL v)
{
    return v < CONST(0) ? alpha * exponential(v < CONST(0) ? v : CONST(0)) : CONST(1);
}

// FANN's derivatives.
static inline VAL fann_grad_sigmoid(VAL y, VAL s)
{
    y = clipped(y, CONST(FANN_SIGMOID_LOW), CONST(FANN_SIGMOID_HIGH));
    return y * (CONST(1) - y);
}
static inline VAL fann_grad_sigmoid_stepwise(VAL y, VAL s)
{
    return fann_grad_sigmoid(y, s);
}
static inline VAL fann_grad_tanh(VAL y, VAL s)
{
    y = clipped(y, CONST(-FANN_TANH_END), CONST(FANN_TANH_END));
    return CONST(1) - y * y;
}
static inline VAL fann_grad_tanh_stepwise(VAL y, VAL s) { return fann_grad_tanh(y, s); }
static inline VAL fann_grad_gaussian(VAL v, VAL s) { return grad_gaussian(v, s) * s; }
static inline VAL fann_grad_gaussian_symmetric(VAL v, VAL s)
{
    return grad_gaussian_symmetric(v, s) * s;
}
static inline VAL fann_grad_linear_piece(VAL v, VAL s) { return CONST(1); }
static inline VAL fann_grad_linear_piece_symmetric(VAL v, VAL s) { return CONST(1); }
static inline VAL fann_grad_sin_symmetric(VAL v, VAL s) { return cosine(s * v); }
static inline VAL fann_grad_cos_symmetric(VAL v, VAL s) { return -sine(s * v); }
static inline VAL fann_grad_sin(VAL v, VAL s) { return cosine(s * v) * CONST(0.5f); }
static inline VAL fann_grad_cos(VAL v, VAL s) { return sine(s * v) * CONST(-0.5f); }
static inline VAL fann_grad_relu(VAL y, VAL s) { return CONST(1); }

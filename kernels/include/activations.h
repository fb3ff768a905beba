// Activation functions: act_NAME(v) for every row NAME of clnet/nn/activations.py. v is
// the scaled pre-activation, steepness * (A x + b), clipped.
//
// The type VAL is a scalar on GPUs and a vector on CPUs: one text serves both. Each
// function propagates NaN where NumPy does.
//
// REAL           float or double: the network's type
// WIDTH          1, 4, 8 or 16: values in a VAL; set before including this
// OPERATOR_MATH  1 where the builtins are out-of-line calls that stop vectorisation:
//                exp, tanh and erf then use operators only (float32)
// RATIONAL_TANH  1: tanh is a quotient of polynomials with inlined PTX too, in float32,
//                where it is much of a kernel's work
// LEAK           slope of leaky_relu below zero
// PTX            as given by the device: 0 without inlined PTX
#if !defined(REAL) || !defined(WIDTH) || !defined(OPERATOR_MATH)                       \
    || !defined(RATIONAL_TANH) || !defined(LEAK) || !defined(PTX)
#error "activations.h needs REAL, WIDTH, OPERATOR_MATH, RATIONAL_TANH, LEAK and PTX"
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#if WIDTH == 1
#define VAL REAL
#define INTS int
#define UINTS uint
#else
#define VAL JOIN(REAL, WIDTH)
#define INTS JOIN(int, WIDTH)
#define UINTS JOIN(uint, WIDTH)
#endif
#define AS_VAL JOIN(as_, VAL)
#define AS_INTS JOIN(as_, INTS)
#define CONVERT_VAL JOIN(convert_, VAL)
#define CONST(x) ((VAL)(REAL)(x))
// A decimal literal of type REAL: devices without double refuse or round others.
#define float_LITERAL(x) x##f
#define double_LITERAL(x) x
#define LITERAL(x) JOIN(REAL, _LITERAL)(x)
#define SQRT_HALF CONST(LITERAL(0.70710678118654752))

static inline VAL absolute(VAL v) { return v < CONST(0) ? -v : v; }
#if WIDTH == 16  // whose builtins end the process on PoCL 3.0
static inline VAL square_root(VAL v) { return (VAL)(sqrt(v.lo), sqrt(v.hi)); }
#else
#define square_root sqrt
#endif

#if OPERATOR_MATH || (RATIONAL_TANH && PTX >= 70)
#if OPERATOR_MATH
#define QUOTIENT(a, b) ((a) / (b))
#elif PTX >= 80 && WIDTH == 1
// By the approximate reciprocal: to 2 roundings. b is a normal number.
static inline float approximate_quotient(const float a, const float b)
{
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
    return a * reciprocal;
}
#define QUOTIENT approximate_quotient
#else
#define QUOTIENT(a, b) native_divide(a, b)  // to 2 roundings on GPUs
#endif

// v within bounds; NaN stays.
#if PTX >= 80 && WIDTH == 1 && !OPERATOR_MATH
static inline float bounded_value(float v, const float low, const float high)
{
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(v), "f"(low));
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(v), "f"(high));
    return v;
}
#else
static inline VAL bounded_value(VAL v, const VAL low, const VAL high)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}
#endif
// tanh v to about 3e-7 of its value: v P(v^2) / Q(v^2), fitted on [-9, 9].
static inline VAL hyperbolic_tangent(VAL v)
{
    v = bounded_value(v, CONST(-9.0f), CONST(9.0f));
    VAL u = v * v;
    VAL p = CONST(1.33366234e-8f);
    p = p * u + CONST(2.05961140e-5f);
    p = p * u + CONST(3.49480140e-3f);
    p = p * u + CONST(0.133803635f);
    p = p * u + CONST(0.999999979f);
    VAL q = CONST(7.76919175e-7f);
    q = q * u + CONST(3.28434741e-4f);
    q = q * u + CONST(2.58739901e-2f);
    q = q * u + CONST(0.467136789f);
    q = q * u + CONST(1.0f);
    return bounded_value(QUOTIENT(v * p, q), CONST(-1.0f), CONST(1.0f));
}
#else
#define hyperbolic_tangent tanh
#endif

#if OPERATOR_MATH
// e^v to about 1e-7: v = n ln 2 + r with |r| <= ln 2 / 2. n is rounded by adding and
// subtracting 1.5 * 2^23; e^r is a minimax polynomial; 2^n is built from exponent bits.
// v is clamped to results that are normal numbers.
static inline VAL exponential(VAL v)
{
    v = v < CONST(-87.3f) ? CONST(-87.3f) : v;
    v = v > CONST(88.0f) ? CONST(88.0f) : v;
    const VAL rounder = CONST(12582912.0f);  // 1.5 * 2^23
    VAL shifted = v * CONST(1.44269504f) + rounder;
    VAL n = shifted - rounder;
    VAL r = v - n * CONST(0.693359375f);
    r = r + n * CONST(2.12194440e-4f);
    VAL p = CONST(1.3814598e-3f);
    p = p * r + CONST(8.3687169e-3f);
    p = p * r + CONST(4.1668388e-2f);
    p = p * r + CONST(0.16666521f);
    p = p * r + CONST(0.49999993f);
    p = p * r + CONST(1.0f);
    p = p * r + CONST(1.0f);
    INTS power = AS_INTS(shifted) - AS_INTS(rounder) + (INTS)127;
    return p * AS_VAL(power << (INTS)23);
}

// 2 artanh s for |s| <= 1/3, by its series.
static inline VAL twice_artanh(VAL s)
{
    VAL u = s * s;
    VAL p = CONST(1.0f / 15);
    p = p * u + CONST(1.0f / 13);
    p = p * u + CONST(1.0f / 11);
    p = p * u + CONST(1.0f / 9);
    p = p * u + CONST(1.0f / 7);
    p = p * u + CONST(1.0f / 5);
    p = p * u + CONST(1.0f / 3);
    p = p * u + CONST(1.0f);
    return CONST(2.0f) * s * p;
}

// ln(1 + t) for -1/2 <= t <= 1.
static inline VAL log_one_plus(VAL t) { return twice_artanh(t / (CONST(2.0f) + t)); }

// ln v for normal v > 0, to about 1e-7: v = 2^n m with m from about sqrt(1/2) to sqrt
// 2, and ln m = 2 artanh((m - 1) / (m + 1)).
static inline VAL logarithm(VAL v)
{
    const INTS root = (INTS)0x3F3504F3;  // sqrt(1/2) as bits
    INTS n = (AS_INTS(v) - root) >> (INTS)23;
    VAL m = AS_VAL(AS_INTS(v) - (n << (INTS)23));
    VAL count = CONVERT_VAL(n);
    VAL log_m = twice_artanh((m - CONST(1.0f)) / (m + CONST(1.0f)));
    return count * CONST(0.693359375f) + (log_m - count * CONST(2.12194440e-4f));
}

// erf v to 2e-7: Abramowitz and Stegun, formula 7.1.26.
static inline VAL error_function(VAL v)
{
    VAL a = absolute(v);
    VAL t = CONST(1.0f) / (CONST(1.0f) + CONST(0.3275911f) * a);
    VAL p = CONST(1.061405429f);
    p = p * t + CONST(-1.453152027f);
    p = p * t + CONST(1.421413741f);
    p = p * t + CONST(-0.284496736f);
    p = p * t + CONST(0.254829592f);
    VAL y = CONST(1.0f) - p * t * exponential(-a * a);
    return v < CONST(0.0f) ? -y : y;
}

// e^v - 1 for v <= 0, exact near 0: by the half-angle identity of tanh.
static inline VAL exponential_minus_one(VAL v)
{
    VAL t = hyperbolic_tangent(v * CONST(0.5f));
    return CONST(2.0f) * t / (CONST(1.0f) - t);
}
#else
#define exponential exp
#define log_one_plus log1p
#define logarithm log
#define error_function erf
#define exponential_minus_one expm1
#endif

#if WIDTH == 1
#define sine sin
#define cosine cos
#else
// One lane at a time: one argument above 1e7 makes PoCL 3.0's vector sin and cos wrong
// by 0.01 in all other lanes.
#define OF_4(f, v) f(v.s0), f(v.s1), f(v.s2), f(v.s3)
#define OF_8(f, v) OF_4(f, v.lo), OF_4(f, v.hi)
#if WIDTH == 4
#define BY_ONE(f, v) ((VAL)(OF_4(f, v)))
#elif WIDTH == 8
#define BY_ONE(f, v) ((VAL)(OF_8(f, v)))
#else
#define BY_ONE(f, v) ((VAL)(OF_8(f, v.lo), OF_8(f, v.hi)))
#endif
static inline VAL sine(VAL v) { return BY_ONE(sin, v); }
static inline VAL cosine(VAL v) { return BY_ONE(cos, v); }
#endif

static inline VAL act_identity(VAL v) { return v; }
static inline VAL act_threshold(VAL v) { return v < CONST(0) ? CONST(0) : CONST(1); }
static inline VAL act_threshold_symmetric(VAL v)
{
    return v < CONST(0) ? CONST(-1) : CONST(1);
}
static inline VAL act_sigmoid(VAL v) { return CONST(1) / (CONST(1) + exponential(-v)); }
static inline VAL act_tanh(VAL v) { return hyperbolic_tangent(v); }
static inline VAL act_gaussian(VAL v) { return exponential(-v * v); }
static inline VAL act_gaussian_symmetric(VAL v)
{
    return CONST(2) * exponential(-v * v) - CONST(1);
}
static inline VAL act_gaussian_stepwise(VAL v) { return CONST(0); }  // as in FANN
static inline VAL act_elliot(VAL v)
{
    return v / (CONST(2) * (CONST(1) + absolute(v))) + CONST(0.5f);
}
static inline VAL act_elliot_symmetric(VAL v) { return v / (CONST(1) + absolute(v)); }
static inline VAL act_linear_piece(VAL v)
{
    v = v < CONST(0) ? CONST(0) : v;
    return v > CONST(1) ? CONST(1) : v;
}
static inline VAL act_linear_piece_symmetric(VAL v)
{
    v = v < CONST(-1) ? CONST(-1) : v;
    return v > CONST(1) ? CONST(1) : v;
}
static inline VAL act_sin_symmetric(VAL v) { return sine(v); }
static inline VAL act_cos_symmetric(VAL v) { return cosine(v); }
static inline VAL act_sin(VAL v) { return sine(v) * CONST(0.5f) + CONST(0.5f); }
static inline VAL act_cos(VAL v) { return cosine(v) * CONST(0.5f) + CONST(0.5f); }
static inline VAL act_relu(VAL v) { return v < CONST(0) ? CONST(0) : v; }
static inline VAL act_leaky_relu(VAL v) { return v < CONST(0) ? v * CONST(LEAK) : v; }
static inline VAL act_elu(VAL v)
{
    return v < CONST(0) ? exponential_minus_one(v < CONST(0) ? v : CONST(0)) : v;
}
static inline VAL act_selu(VAL v)
{
    VAL below = exponential_minus_one(v < CONST(0) ? v : CONST(0));
    return v < CONST(0) ? below * CONST(LITERAL(1.7580993408473768))
                        : v * CONST(LITERAL(1.0507009873554805));
}
static inline VAL act_gelu(VAL v)
{
    return v * CONST(0.5f) * (CONST(1) + error_function(v * SQRT_HALF));
}
static inline VAL act_silu(VAL v)
{
#if OPERATOR_MATH
    // Below this the exponential is clamped, and |v / exponential| would grow again.
    v = v < CONST(-87.3f) ? CONST(-87.3f) : v;
#endif
    return v / (CONST(1) + exponential(-v));
}
// Twice the argument of the tanh that approximates gelu's distribution function:
// (1 + tanh u) / 2 = 1 / (1 + e^-2u), without a cancellation.
static inline VAL twice_gelu_argument(VAL v)
{
    const VAL factor = CONST(LITERAL(1.5957691216057308));  // sqrt(8 / pi)
    return factor * v * (CONST(1) + CONST(LITERAL(0.044715)) * v * v);
}
static inline VAL act_gelu_tanh(VAL v)
{
#if OPERATOR_MATH
    v = v < CONST(-12) ? CONST(-12) : v;  // as in act_silu
#endif
    return v / (CONST(1) + exponential(-twice_gelu_argument(v)));
}

// n of tanh(ln(1 + e^v)) = n / (n + 2), which is 1 above v = 20.
static inline VAL mish_numerator(VAL v)
{
    VAL e = exponential(v > CONST(20) ? CONST(20) : v);
    return e * (e + CONST(2));
}
static inline VAL act_mish(VAL v)
{
#if OPERATOR_MATH
    v = v < CONST(-87.3f) ? CONST(-87.3f) : v;  // as in act_silu
#endif
    VAL n = mish_numerator(v);
    return v * (n / (n + CONST(2)));
}
static inline VAL act_hardswish(VAL v)
{
    return v * act_linear_piece(v / CONST(6) + CONST(0.5f));
}
static inline VAL act_softplus(VAL v)
{
    return (v < CONST(0) ? CONST(0) : v) + log_one_plus(exponential(-absolute(v)));
}

// The line through (x0, y0) and (x1, y1).
static inline VAL segment(VAL v, REAL x0, REAL y0, REAL x1, REAL y1)
{
    return (v - CONST(x0)) * CONST((y1 - y0) / (x1 - x0)) + CONST(y0);
}

// FANN's piecewise linear functions: the last piece whose left end is not above v. They
// jump to their limits below the first abscissa and from the last one on.
static inline VAL act_sigmoid_stepwise(VAL v)
{
    const REAL x0 = LITERAL(-5.2933049201965332), x1 = LITERAL(-2.94443893432617188);
    const REAL x2 = LITERAL(-1.098612308502197266), x3 = LITERAL(1.098612308502197266);
    const REAL x4 = LITERAL(2.94443869590759278), x5 = LITERAL(5.2933058738708496);
    const REAL y0 = LITERAL(0.00499999988824129), y1 = LITERAL(0.0500000007450581);
    const REAL y2 = 0.25f, y3 = 0.75f;
    const REAL y4 = LITERAL(0.949999988079071), y5 = LITERAL(0.995000004768372);
    VAL y = v < CONST(x0) ? CONST(0) : segment(v, x0, y0, x1, y1);
    y = v < CONST(x1) ? y : segment(v, x1, y1, x2, y2);
    y = v < CONST(x2) ? y : segment(v, x2, y2, x3, y3);
    y = v < CONST(x3) ? y : segment(v, x3, y3, x4, y4);
    y = v < CONST(x4) ? y : segment(v, x4, y4, x5, y5);
    return v >= CONST(x5) ? CONST(1) : y;
}
static inline VAL act_tanh_stepwise(VAL v)
{
    const REAL x0 = LITERAL(2.64665293693542480), x1 = LITERAL(1.47221934795379639);
    const REAL x2 = LITERAL(0.549306154251098633), y2 = 0.5f;
    const REAL y0 = LITERAL(0.990000009536743), y1 = LITERAL(0.899999976158142);
    VAL y = v < CONST(-x0) ? CONST(-1) : segment(v, -x0, -y0, -x1, -y1);
    y = v < CONST(-x1) ? y : segment(v, -x1, -y1, -x2, -y2);
    y = v < CONST(-x2) ? y : segment(v, -x2, -y2, x2, y2);
    y = v < CONST(x2) ? y : segment(v, x2, y2, x1, y1);
    y = v < CONST(x1) ? y : segment(v, x1, y1, x0, y0);
    return v >= CONST(x0) ? CONST(1) : y;
}

// Functions with parameters: ACT_WITH(clip, a, b)(v) becomes clip_of(a, b, v). The name
// leaves its call open, and the (v) behind it is a macro's argument, which closes it.
#define ACT_WITH(family, a, b) family##_of(CONST(a), CONST(b), CLOSED
#define CLOSED(v) v)

static inline VAL clip_of(const VAL low, const VAL high, VAL v)
{
    v = v < low ? low : v;
    return v > high ? high : v;
}
static inline VAL leaky_relu_of(const VAL slope, const VAL unused, VAL v)
{
    return v < CONST(0) ? v * slope : v;
}
static inline VAL elu_of(const VAL alpha, const VAL unused, VAL v)
{
    return v < CONST(0) ? alpha * exponential_minus_one(v < CONST(0) ? v : CONST(0)) : v;
}

// The activation of a whole layer: y = f(clip(STEEPNESS * z)), z being a pre-activation
// with its bias. Kernels of layers with one activation define
// ACTIVATION  the function, such as act_tanh (a bare tanh may be a compiler's macro)
// STEEPNESS   factor of z, a number
// HAS_LIMIT   1: with LIMIT, FANN's bound of |STEEPNESS * z|; 0: without
#ifdef ACTIVATION
#if !defined(STEEPNESS) || !defined(HAS_LIMIT) || (HAS_LIMIT && !defined(LIMIT))
#error "an ACTIVATION needs STEEPNESS and HAS_LIMIT, and where this is 1, LIMIT"
#endif
static inline VAL activate(VAL z)
{
    VAL v = z * CONST(STEEPNESS);
#if HAS_LIMIT
    v = v < CONST(-LIMIT) ? CONST(-LIMIT) : v;
    v = v > CONST(LIMIT) ? CONST(LIMIT) : v;
#endif
    return ACTIVATION(v);
}
#endif

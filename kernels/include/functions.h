// The activations of several layers, by code.
//
// FUNCTIONS(X)  those that occur: X(code, act_NAME, steepness, limit) …, the limit
//               INFINITY where sums are not clipped
// REAL          as in activations.h, which comes first
#if !defined(FUNCTIONS)
#error "functions.h needs FUNCTIONS"
#endif

// f(clip(steepness * sum))
inline VAL activate_as(const int code, const VAL sum)
{
    VAL v = sum;
    switch (code) {
#define CASE(code, function, steepness, limit)         \
    case code:                                         \
        v = sum * CONST(steepness);                    \
        v = v < CONST(-(limit)) ? CONST(-(limit)) : v; \
        v = v > CONST(limit) ? CONST(limit) : v;       \
        v = function(v);                               \
        break;
        FUNCTIONS(CASE)
    }
    return v;
}

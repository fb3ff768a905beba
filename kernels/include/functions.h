// The activations of several layers, selected by code.
//
// FUNCTIONS(X)  the list X(code, act_NAME, steepness, limit) …; limit is INFINITY where
//               pre-activations are not clipped
// REAL          as in activations.h, which is included first
#if !defined(FUNCTIONS)
#error "functions.h needs FUNCTIONS"
#endif

// f(clip(steepness * z)) of a pre-activation z, bias included
static inline VAL activate_as(const int code, const VAL z)
{
    VAL v = z;
    switch (code) {
#define CASE(code, function, steepness, limit)                                       \
    case code:                                                                       \
        v = z * CONST(steepness);                                                    \
        v = v < CONST(-(limit)) ? CONST(-(limit)) : v;                               \
        v = v > CONST(limit) ? CONST(limit) : v;                                     \
        v = function(v);                                                             \
        break;
        FUNCTIONS(CASE)
    }
    return v;
}

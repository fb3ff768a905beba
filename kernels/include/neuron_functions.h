// The activation and its derivative by a neuron's own code, of WIDTH values at once.
// FUNCTIONS, Neuron  as in steps.h
static inline VAL activate(const Neuron neuron, const VAL v)
{
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: return function(v);
        FUNCTIONS(CASE)
#undef CASE
    }
    return v;
}

// f' * steepness at the output y or at the scaled pre-activation v.
static inline VAL derivative(const Neuron neuron, const VAL y, const VAL v)
{
    const VAL steepness = CONST(neuron.steepness);
    switch (neuron.function) {
#define CASE(code, function, gradient, reads)                                        \
    case code: return gradient(reads(y, v), steepness) * steepness;
        FUNCTIONS(CASE)
#undef CASE
    }
    return steepness;
}

// Epochs of cascade training's neurons, for cascade.cl and group_cascade.cl. Include
// losses.h, optimisers.h and neurons.h first.
//
// Candidates try to cancel the network's residuals r_j, by an output weight u_j for each:
//
//   values of all earlier neurons -- w --> y -- u_j --> y u_j - r_j    squares summed
//
// Outputs try to reach their targets, by the network's loss.
//
// CANDIDATES  1: candidates; 0: outputs
// RECORD      values of a neuron's record: loss, squared error, bit fails
// MEAN        as in steps.h
//
// inputs  [tiles, rows, TILE]     values of earlier neurons; row 0 is the first input's
// targets [tiles, outputs, TILE]  targets of outputs, residuals of candidates
// Both are zero beyond the last sample.
#if !defined(CANDIDATES) || !defined(RECORD) || !defined(MEAN)
#error "epochs.h needs CANDIDATES, RECORD and MEAN"
#endif

#if !CANDIDATES
// The derivative of the loss by an output y, and the record of the sample.
static inline VAL output_loss(const VAL y, const VAL t, const float error_scale,
                              const int outputs, const float bit_fail_limit, VAL *record)
{
    const VAL scale = CONST(error_scale), error = (t - y) * scale;
    const VAL factor = CONST(MEAN ? 1.0f / outputs : 1.0f);
    record[0] = LOSS(y, t, scale) * factor;
    record[1] = error * error;
    record[2] = absolute(error) >= CONST(bit_fail_limit) ? CONST(1) : CONST(0);
    return LOSS_GRADIENT(y, t, scale) * factor;
}
#endif

// A launch of epochs of one population.
//
// parameters [2, count, 1 + SLOTS, stride]  of each neuron its weights, those to the
//            outputs last if it is a candidate, and the optimiser's state. A launch reads
//            one half, from `from`, and writes the other, from `to`: it can be repeated
//            with fewer epochs.
// records    [epochs, count, RECORD]  of a candidate the squared error alone
// per_unit   neurons whose joint error the rule reads: all outputs, or one candidate
// n_in       values that a neuron reads
// steps      of the rule before; of outputs one more in each epoch
// error      joint squared error by value for candidates' rule
#define CASCADE_ARGUMENTS                                                            \
    __global const float *inputs, __global const float *targets,                     \
        __global const CascadeNeuron *neurons, __global float *parameters,           \
        __global float *records, __global float *memory, const int from,             \
        const int to, const int count, const int per_unit, const int outputs,        \
        const int n_in, const int rows, const int stride, const int samples,         \
        const int epochs, const float rate, const float error, const int steps,      \
        const uint seed, const float bit_fail_limit

// The scalars of an epoch's step; squares: of the unit. The temperature of SARPROP falls
// with the steps of outputs alone, as in FANN; candidates have other random numbers in
// each epoch.
static inline StepInfo cascade_step(const float rate, const int samples,
                                    const float squares, const int outputs,
                                    const float error, const int steps, const uint seed,
                                    const int epoch)
{
    return CANDIDATES ? step_info(rate, samples, error, 1, 1, steps, seed + epoch)
                      : step_info(rate, samples, squares, samples, outputs,
                                  steps + epoch, seed);
}

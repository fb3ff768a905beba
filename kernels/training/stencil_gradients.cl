// stencil_gradients: the backward pass of a locally connected layer, fused: the loss
// gradient of its pre-activations (ds), the weight gradient, and the bias gradient.
//
// Row i of the layer's matrix reads the inputs i … i + WINDOW - 1; value r of the row
// is at weights + r * pitch + i (storage/local.py). A work-item takes VECTORS vectors
// of rows, and all samples of each; WINDOW accumulators stay in registers. The gradient
// of a shared bias is reduced in two stages, in an order that depends on the sizes
// alone.
//
// REAL       float or double
// WIDTH      rows of a vector: 4 or 8
// TEAM       work-items of a group, a power of two; 1 on CPU cores
// VECTORS    of a work-item; neighbours have neighbouring vectors
// WINDOW     inputs of a row, at least 1
// BLOCK      samples of a partial sum; usually 64
// GRADIENT, READS_Z, STEEPNESS, HAS_LIMIT, LIMIT  as in activation_gradient.h
// HAS_BIAS, BIAS_STEP  1: v has a bias; each neuron has its own
// STORES_DS  1: ds is stored, for other ops
// SUMS_BIAS  1: the bias gradient too
// ALIGNED    1: every sample of every array is aligned to vectors
#include "include/activations.h"
#if !defined(TEAM) || !defined(VECTORS) || !defined(WINDOW) || !defined(BLOCK)   \
    || !defined(GRADIENT) || !defined(READS_Z) || !defined(HAS_BIAS)          \
    || !defined(BIAS_STEP) || !defined(STORES_DS) || !defined(SUMS_BIAS)      \
    || !defined(ALIGNED)
#error "stencil_gradients.cl needs the derivative, the bias and the shape of its tiles"
#endif
#include "include/activation_gradient.h"
#include "training/wide.h"

// The inputs from in + r on; v: those from in + r - 1 on. GPUs shift v, where a vector
// load would repeat the neighbours' loads; CPU cores reload from cache.
#if TEAM == 1
#define NEXT_INPUTS(v, in, r, n) load(in + r, n, false)
#else
#define NEXT_INPUTS(v, in, r, n) \
    (n < WIDTH ? load(in + r, n, false) : (VAL)(v.s123, in[WIDTH + r - 1]))
#endif

// ds[b, i] = dy[b, i] f'(v) STEEPNESS
// gradients[weights + r * pitch + i] = sum over b:  ds[b, i] x[b, i + r]
// bias per neuron: gradients[bias + i] = sum over b:  ds[b, i]
// shared bias: target[offset + g] = the partial sum of group g (see reduce_parts)
//
// parameters, gradients: of one layout
// dy [batch, lddy], saved [batch, ldsaved], x [batch, ldx], ds [batch, ldds] (anything
// without STORES_DS); saved: pre-activations with READS_Z, else outputs
// index map: work-item = VECTORS vectors of rows, TEAM vectors apart
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void stencil_gradients(__global const REAL *parameters, const int bias,
                       __global REAL *gradients, const int weights, const int pitch,
                       __global const REAL *dy, const int lddy,
                       __global const REAL *saved, const int ldsaved,
                       __global const REAL *x, const int ldx, __global REAL *ds,
                       const int ldds, __global REAL *target, const int offset,
                       const int n_out, const int batch)
{
    __local REAL scratch[TEAM];
    VAL bias_sum = CONST(0), bias_lost = CONST(0);
    EACH_VECTOR((int)get_group_id(0), TEAM * VECTORS * WIDTH, n_out)
    {
#if READS_Z && HAS_BIAS
        const VAL biases =
            BIAS_STEP ? load(parameters + bias + j, n, true) : CONST(parameters[bias]);
#endif
        VAL total[WINDOW + 1];  // the last is the bias gradient
#pragma unroll
        for (int r = 0; r <= WINDOW; ++r) total[r] = CONST(0);
        for (int from = 0; from < batch; from += BLOCK) {
            VAL sum[WINDOW + 1];
#pragma unroll
            for (int r = 0; r <= WINDOW; ++r) sum[r] = CONST(0);
            for (size_t b = from; b < min(from + BLOCK, batch); ++b) {
                VAL at = load(saved + b * ldsaved + j, n, ALIGNED);
#if READS_Z && HAS_BIAS
                at += biases;
#endif
                const VAL derivative = activation_gradient(at);
                const VAL d = load(dy + b * lddy + j, n, ALIGNED) * derivative;
#if STORES_DS
                store(ds + b * ldds + j, d, n, ALIGNED);
#endif
                __global const REAL *in = x + b * ldx + j;
                VAL inputs = load(in, n, ALIGNED);
#pragma unroll
                for (int r = 0; r < WINDOW; ++r) {
                    sum[r] += d * inputs;
                    if (r + 1 < WINDOW) inputs = NEXT_INPUTS(inputs, in, r + 1, n);
                }
                sum[WINDOW] += d;
            }
#pragma unroll
            for (int r = 0; r <= WINDOW; ++r) total[r] += sum[r];
        }
#pragma unroll
        for (int r = 0; r < WINDOW; ++r)
            store(gradients + weights + (size_t)r * pitch + j, total[r], n, true);
#if SUMS_BIAS && BIAS_STEP
        store(gradients + bias + j, total[WINDOW], n, true);
#elif SUMS_BIAS
        KAHAN_ADD(bias_sum, bias_lost, masked(total[WINDOW], CONST(0), n))
#endif
    }
#if SUMS_BIAS && !BIAS_STEP
    REAL sum = REDUCE_LANES(plus, bias_sum);
    REDUCE_TEAM(plus, sum, scratch)
    if (get_local_id(0) == 0) target[offset + get_group_id(0)] = sum;
#endif
}

// stencil_gradients: a locally connected layer's way back as far as its gradients, in
// one pass: the derivatives by its sums, the weights' gradient, and the bias's.
//
// Row i of the layer's matrix reads the inputs i … i + WINDOW - 1; value r of the row
// is at weights + r * pitch + i (storage/local.py). A work-item has some vectors of
// rows, and goes through all samples of each; the sums of WINDOW bands stay in
// registers. A bias that all rows share is summed in two stages, in an order that
// depends on the sizes alone.
//
// REAL       float or double
// WIDTH      rows of a vector: 4 or 8
// TEAM       work-items of a group, a power of two: 1 where each is a core's task
// VECTORS    of a work-item; neighbours have neighbouring vectors
// WINDOW     inputs of a row, at least 1
// BLOCK      samples of a partial sum; usually 64
// GRADIENT, READS_SUMS, STEEPNESS, LIMIT, HAS_BIAS, BIAS_STEP  as in wide.cl
// KEEPS      1: ds is needed by others
// SUMS_BIAS  1: the bias's gradient too
// ALIGNED    1: every sample of every array starts on a whole vector
#include "include/activations.h"
#if !defined(TEAM) || !defined(VECTORS) || !defined(WINDOW) || !defined(BLOCK)   \
    || !defined(GRADIENT) || !defined(READS_SUMS) || !defined(HAS_BIAS)          \
    || !defined(BIAS_STEP) || !defined(KEEPS) || !defined(SUMS_BIAS)
#error "stencil_gradients.cl needs the derivative, the bias and the macros of its shape"
#endif
#include "include/gradients.h"
#include "training/wide.h"

// The inputs one further on than v, which is from in + r - 1 on: neighbours load what
// this work-item has, and cores load again what is in their cache.
#if TEAM == 1
#define FURTHER(v, in, r, n) load(in + r, n, false)
#else
#define FURTHER(v, in, r, n) \
    (n < WIDTH ? load(in + r, n, false) : (VAL)(v.s123, in[WIDTH + r - 1]))
#endif

// ds[b, i] = dy[b, i] f'(v) STEEPNESS
// gradients[weights + r * pitch + i] = sum over b:  ds[b, i] x[b, i + r]
// a neuron's bias: gradients[bias + i] = sum over b:  ds[b, i]
// a shared one: target[offset + g] = the sum of group g's, which `join` of wide.cl adds
//
// parameters, gradients: of one layout
// dy [batch, lddy], at [batch, ldat], x [batch, ldx], ds [batch, ldds] (anything
// without KEEPS); at: the layer's sums with READS_SUMS, else its outputs
// index map: work-item = VECTORS vectors of rows, TEAM vectors apart
__kernel __attribute__((reqd_work_group_size(TEAM, 1, 1)))
void stencil_gradients(__global const REAL *parameters, const int bias,
                       __global REAL *gradients, const int weights, const int pitch,
                       __global const REAL *dy, const int lddy,
                       __global const REAL *at, const int ldat,
                       __global const REAL *x, const int ldx, __global REAL *ds,
                       const int ldds, __global REAL *target, const int offset,
                       const int n_out, const int batch)
{
    __local REAL held[TEAM];
    VAL shared = CONST(0), shared_lost = CONST(0);
    EACH_VECTOR((int)get_group_id(0), TEAM * VECTORS * WIDTH, n_out)
    {
#if READS_SUMS && HAS_BIAS
        const VAL start =
            BIAS_STEP ? load(parameters + bias + j, n, true) : CONST(parameters[bias]);
#endif
        VAL total[WINDOW + 1];  // the last one is the bias's
#pragma unroll
        for (int r = 0; r <= WINDOW; ++r) total[r] = CONST(0);
        for (int from = 0; from < batch; from += BLOCK) {
            VAL sum[WINDOW + 1];
#pragma unroll
            for (int r = 0; r <= WINDOW; ++r) sum[r] = CONST(0);
            for (size_t b = from; b < min(from + BLOCK, batch); ++b) {
                VAL v = load(at + b * ldat + j, n, ALIGNED);
#if READS_SUMS
#if HAS_BIAS
                v += start;
#endif
                v *= CONST(STEEPNESS);
#ifdef LIMIT
                v = clipped(v, CONST(-LIMIT), CONST(LIMIT));
#endif
#endif
                const VAL slope = GRADIENT(v, CONST(STEEPNESS)) * CONST(STEEPNESS);
                const VAL d = load(dy + b * lddy + j, n, ALIGNED) * slope;
#if KEEPS
                store(ds + b * ldds + j, d, n, ALIGNED);
#endif
                __global const REAL *in = x + b * ldx + j;
                VAL inputs = load(in, n, ALIGNED);
#pragma unroll
                for (int r = 0; r < WINDOW; ++r) {
                    sum[r] += d * inputs;
                    if (r + 1 < WINDOW) inputs = FURTHER(inputs, in, r + 1, n);
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
        ADD(shared, shared_lost, among(total[WINDOW], CONST(0), n))
#endif
    }
#if SUMS_BIAS && !BIAS_STEP
    REAL one = FOLD(plus, shared);
    IN_TEAM(plus, one, held)
    if (get_local_id(0) == 0) target[offset + get_group_id(0)] = one;
#endif
}

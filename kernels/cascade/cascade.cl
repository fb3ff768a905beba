// cascade: epochs of the neurons of cascade training in a launch, for CPU cores.
//
// A worker trains BLOCK neurons together, for all epochs of the launch, and then takes
// the next ones; vector lanes are samples. A tile of samples passes twice: forward, for
// the sums, and backward, for the gradients.
//
//   forward   sum[c][8 samples]  += w[c][h] * inputs[h][8 samples]
//   backward  gradient[h][c][8]  += slope[c][8 samples] * inputs[h][8 samples]
//
// The lanes of a gradient are added up at the epoch's end. Workers do not wait for each
// other: neurons share the inputs and the targets alone.
//
// BLOCK  neurons together: 1 to 4
// and the macros of neurons.h, epochs.h and of the headers before them
//
// S. Fahlman and C. Lebiere, "The cascade-correlation learning architecture", 1990; the
// rules are those of FANN's cascade2.
#define REAL float
#define WIDTH 8
#define PER_NETWORK REAL
#include "include/activations.h"
#include "include/gradients.h"
#include "include/losses.h"
#include "include/optimisers.h"
#include "include/atomics.h"
#include "cascade/neurons.h"
#include "cascade/epochs.h"
#if !defined(BLOCK)
#error "cascade.cl needs BLOCK"
#endif
#define VECTORS (TILE / 8)

typedef float4 __attribute__((aligned(4))) float4_unaligned;

static inline float lane_sum(const float8 v)
{
    const float4 a = v.lo + v.hi;
    const float2 b = a.lo + a.hi;
    return b.lo + b.hi;
}

static inline int8 lanes_below(const int i, const int n)
{
    return (int8)(i) + (int8)(0, 1, 2, 3, 4, 5, 6, 7) < (int8)(n);
}

// The gradients [stride, BLOCK] and records [BLOCK, RECORD] of a block: lanes of both.
// weights [BLOCK]: of each neuron, of which the last ones may be the same
static inline void pass(__global const float *inputs, __global const float *targets,
                        const CascadeNeuron *neurons, __global const float **weights,
                        const int first, const int outputs, const int n_in,
                        const int rows, const int stride, const int samples,
                        const float bit_fail_limit, __global float8 *gradients,
                        float8 *records)
{
    const int tiles = (samples + TILE - 1) / TILE;
    for (int i = 0; i < stride * BLOCK; ++i) gradients[i] = (float8)(0.0f);
    for (int i = 0; i < BLOCK * RECORD; ++i) records[i] = (float8)(0.0f);
    for (int tile = 0; tile < tiles; ++tile) {
        __global const float8 *x = (__global const float8 *)inputs
                                   + (size_t)tile * rows * VECTORS;
        __global const float8 *t = (__global const float8 *)targets
                                   + (size_t)tile * outputs * VECTORS;
        float8 slopes[BLOCK * VECTORS];
        for (int pair = 0; pair < VECTORS; pair += 2) {
            float8 sums[BLOCK * 2];
#pragma unroll
            for (int i = 0; i < BLOCK * 2; ++i) sums[i] = (float8)(0.0f);
            for (int h = 0; h < n_in; ++h) {
                const float8 a = x[h * VECTORS + pair], b = x[h * VECTORS + pair + 1];
#pragma unroll
                for (int c = 0; c < BLOCK; ++c) {
                    const float8 w = (float8)(weights[c][h]);
                    sums[2 * c] += w * a;
                    sums[2 * c + 1] += w * b;
                }
            }
            for (int i = 0; i < BLOCK * 2; ++i) {
                const int c = i / 2, vector = pair + i % 2;
                const int8 valid = lanes_below(tile * TILE + vector * 8, samples);
                float8 y, dy, slope = (float8)(0.0f);
                respond(neurons[c], sums[i], &y, &dy);
#if CANDIDATES
                __global const float *u = weights[c] + n_in;
                for (int j = 0; j < outputs; ++j) {
                    const float8 left = y * (float8)(u[j]) - t[j * VECTORS + vector];
                    const float8 difference = valid ? left : (float8)(0.0f);
                    gradients[(n_in + j) * BLOCK + c] += (float8)(2.0f) * difference * y;
                    records[c * RECORD + 1] += difference * difference;
                    slope += difference * (float8)(u[j]);
                }
#else
                float8 record[RECORD];
                const int j = min(first + c, outputs - 1);
                slope = output_loss(y, t[j * VECTORS + vector], neurons[c].error_scale,
                                    outputs, bit_fail_limit, record);
                slope = valid ? slope : (float8)(0.0f);
                for (int k = 0; k < RECORD; ++k)
                    records[c * RECORD + k] += valid ? record[k] : (float8)(0.0f);
#endif
                slopes[c * VECTORS + vector] = slope * dy;
            }
        }
        for (int h = 0; h < n_in; ++h) {
            float8 g[BLOCK];
#pragma unroll
            for (int c = 0; c < BLOCK; ++c) g[c] = gradients[h * BLOCK + c];
#pragma unroll
            for (int vector = 0; vector < VECTORS; ++vector) {
                const float8 a = x[h * VECTORS + vector];
#pragma unroll
                for (int c = 0; c < BLOCK; ++c) g[c] += slopes[c * VECTORS + vector] * a;
            }
#pragma unroll
            for (int c = 0; c < BLOCK; ++c) gradients[h * BLOCK + c] = g[c];
        }
    }
}

// Update a neuron's `live` weights and state [1 + SLOTS, stride] by the gradients.
static inline void update(__global float *own, __global const float8 *gradients,
                          const int live, const int stride, const int element,
                          const StepInfo now)
{
    for (int i = 0; i < live; i += 8) {
        float8 g, slots[SLOTS + 1];  // C has no empty arrays
        float *lanes = (float *)&g;
        for (int k = 0; k < 8; ++k) lanes[k] = lane_sum(gradients[(i + k) * BLOCK]);
        __global float8 *at = (__global float8 *)(own + i);
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) slots[k] = at[(k + 1) * stride / 8];
        const float8 next = stepped(*at, g, slots, now, element + i);
        const int8 kept = lanes_below(i, live);
        *at = kept ? next : (float8)(0.0f);
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            at[(k + 1) * stride / 8] = kept ? slots[k] : (float8)(0.0f);
    }
}

// The arguments are those of epochs.h, and
//
// memory [workers, memory_size]  gradients of the blocks of a unit
// sync    initially zero: [0] units claimed, [1] workers that have left
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
cascade(CASCADE_ARGUMENTS, const int memory_size, volatile __global int *sync)
{
    const int own_size = (1 + SLOTS) * stride;
    const int live = n_in + (CANDIDATES ? outputs : 0);
    __global float8 *own_memory =
        (__global float8 *)(memory + get_global_id(0) * memory_size);
    const int unit_size = per_unit == 1 ? min(BLOCK, count) : per_unit;
    const int units = (count + unit_size - 1) / unit_size;
    for (int unit = atomic_inc(sync); unit < units; unit = atomic_inc(sync)) {
        const int begin = unit * unit_size, end = min(begin + unit_size, count);
        __global float *own = parameters + to;
        for (int i = begin * own_size; i < end * own_size; ++i)
            own[i] = parameters[from + i];
        for (int epoch = 0; epoch < epochs; ++epoch) {
            float squares = 0;
            for (int first = begin; first < end; first += BLOCK) {
                CascadeNeuron block[BLOCK];
                __global const float *weights[BLOCK];
                float8 sums[BLOCK * RECORD];
                for (int c = 0; c < BLOCK; ++c) {
                    const int neuron = min(first + c, end - 1);
                    block[c] = neurons[neuron];
                    weights[c] = own + neuron * own_size;
                }
                pass(inputs, targets, block, weights, first, outputs, n_in, rows, stride,
                     samples, bit_fail_limit, own_memory + (first - begin) * stride, sums);
                for (int c = 0; c < min(BLOCK, end - first); ++c) {
                    __global float *record =
                        records + ((size_t)epoch * count + first + c) * RECORD;
                    for (int k = 0; k < RECORD; ++k)
                        record[k] = lane_sum(sums[c * RECORD + k]);
                    squares += record[1];
                }
            }
            const StepInfo now = cascade_step(rate, samples, squares, outputs, error,
                                              steps, seed, epoch);
            for (int neuron = begin; neuron < end; ++neuron) {
                const int c = neuron - begin;
                update(own + neuron * own_size,
                       own_memory + c / BLOCK * BLOCK * stride + c % BLOCK, live, stride,
                       neuron * stride, now);
            }
        }
    }
    if (add_seq_cst(sync + 1, 1) == (int)get_global_size(0) - 1) sync[0] = sync[1] = 0;
}

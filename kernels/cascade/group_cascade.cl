// group_cascade: epochs of the neurons of cascade training in a launch, for GPUs.
//
// A work-group trains one candidate, or all outputs one after the other, for all epochs
// of the launch; groups wait for nobody. Its work-items pass over the samples twice:
//
//   forward   a work-item computes a sample's sum, y and slope        reads inputs[0 …][s]
//   backward  a team of TEAM work-items computes a weight's gradient  reads inputs[h][0 …]
//
// Both read consecutive samples by consecutive work-items.
//
// GROUP  work-items of a group, a multiple of TEAM: usually 256
// TEAM   work-items of a team, a power of two: usually 32
// and the macros of neurons.h, epochs.h and of the headers before them
//
// The source of the idea is that of cascade.cl.
#define REAL float
#define WIDTH 1
#define PER_NETWORK REAL
#include "include/activations.h"
#include "include/gradients.h"
#include "include/losses.h"
#include "include/optimisers.h"
#include "cascade/neurons.h"
#include "cascade/epochs.h"
#if !defined(GROUP) || !defined(TEAM)
#error "group_cascade.cl needs GROUP and TEAM"
#endif

// The sum of v over each `size` neighbouring work-items, a power of two: the first one's
// result. Every work-item of the group must call this. partial [GROUP]: local memory
static inline float reduce(float v, const int size, __local float *partial)
{
    const int id = get_local_id(0);
    // The previous partial sums have been read, and so have weights that change next.
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    partial[id] = v;
    for (int stride = size / 2; stride > 0; stride /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id % size < stride) {
            v += partial[id + stride];
            partial[id] = v;
        }
    }
    return v;
}

// The arguments are those of epochs.h; memory [count, 2, tiles TILE]: y and slopes
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
group_cascade(CASCADE_ARGUMENTS)
{
    __local float partial[GROUP], joint[1];
    const int id = get_local_id(0), team = id / TEAM, item = id % TEAM;
    const int own_size = (1 + SLOTS) * stride;
    const int live = n_in + (CANDIDATES ? outputs : 0);
    const int padded = (samples + TILE - 1) / TILE * TILE;
    const int begin = get_group_id(0) * per_unit, end = min(begin + per_unit, count);
    __global float *own = parameters + to;
    for (int i = begin * own_size + id; i < end * own_size; i += GROUP)
        own[i] = parameters[from + i];
    for (int epoch = 0; epoch < epochs; ++epoch) {
        if (id == 0) joint[0] = 0;
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);  // weights have been written
        for (int number = begin; number < end; ++number) {
            const CascadeNeuron neuron = neurons[number];
            __global const float *w = own + number * own_size;
            __global float *ys = memory + (size_t)number * 2 * padded;
            __global float *slopes = ys + padded;
            float sums[RECORD];
            for (int k = 0; k < RECORD; ++k) sums[k] = 0;
            for (int s = id; s < samples; s += GROUP) {
                __global const float *x =
                    inputs + (size_t)(s / TILE) * rows * TILE + s % TILE;
                __global const float *t =
                    targets + (size_t)(s / TILE) * outputs * TILE + s % TILE;
                float sum = 0, y, dy, slope = 0;
                for (int h = 0; h < n_in; ++h) sum += w[h] * x[h * TILE];
                respond(neuron, sum, &y, &dy);
#if CANDIDATES
                for (int j = 0; j < outputs; ++j) {
                    const float u = w[n_in + j], difference = y * u - t[j * TILE];
                    sums[1] += difference * difference;
                    slope += difference * u;
                }
#else
                float record[RECORD];
                slope = output_loss(y, t[number * TILE], neuron.error_scale, outputs,
                                    bit_fail_limit, record);
                for (int k = 0; k < RECORD; ++k) sums[k] += record[k];
#endif
                ys[s] = y;
                slopes[s] = slope * dy;
            }
            for (int k = 0; k < RECORD; ++k) {
                const float sum = reduce(sums[k], GROUP, partial);
                if (id == 0) {
                    records[((size_t)epoch * count + number) * RECORD + k] = sum;
                    if (k == 1) joint[0] += sum;
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);  // slopes are written
        }
        const StepInfo now = cascade_step(rate, samples, joint[0], outputs, error, steps,
                                          seed, epoch);
        for (int number = begin; number < end; ++number) {
            __global float *weights = own + number * own_size;
            __global const float *ys = memory + (size_t)number * 2 * padded;
            __global const float *slopes = ys + padded;
            for (int first = 0; first < live; first += GROUP / TEAM) {
                const int h = first + team;
                float g = 0;
                if (h < n_in) {
                    for (int s = item; s < samples; s += TEAM)
                        g += slopes[s]
                             * inputs[((size_t)(s / TILE) * rows + h) * TILE + s % TILE];
                } else if (h < live) {
                    const int j = h - n_in;
                    for (int s = item; s < samples; s += TEAM) {
                        const float t =
                            targets[((size_t)(s / TILE) * outputs + j) * TILE + s % TILE];
                        g += 2.0f * (ys[s] * weights[h] - t) * ys[s];
                    }
                }
                g = reduce(g, TEAM, partial);
                if (item == 0 && h < live) {
                    float slots[SLOTS + 1];  // C has no empty arrays
                    for (int k = 0; k < SLOTS; ++k)
                        slots[k] = weights[(k + 1) * stride + h];
                    weights[h] = stepped(weights[h], g, slots, now, number * stride + h);
                    for (int k = 0; k < SLOTS; ++k)
                        weights[(k + 1) * stride + h] = slots[k];
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);  // the joint error has been read
    }
}

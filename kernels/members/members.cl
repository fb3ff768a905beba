// members: trainings of many networks of one shape in a launch, for CPU cores.
//
// A worker takes one member after the other, and trains each for all epochs of the
// launch, as `single_worker` of epoch.cl does: parameters, state and gradients of a
// small network stay in the core's cache, and workers do not wait for each other.
//
//   worker 0   member 0: epochs ...   member 2: epochs ...   member 5 ...
//   worker 1   member 1: epochs ...........   member 3 ...   member 4 ...
//
// Members share the data set, the order of layers and the rule. Each has its own
// parameters, state, random numbers, rates, penalties, samples and limits.
//
// The macros are those of steps.h, epoch_task.h and tiles.h.
#define REAL float
#define WIDTH 8
#define PER_NETWORK REAL
#define RESIDENT 0
#define SCALED WEIGHTED
#define ORDERED (GATHERED == 2)
#include "include/atomics.h"
#include "include/steps.h"
#include "include/tiles.h"
#include "members/member.h"
#include "training/epoch_task.h"
#include "training/epoch_update.h"
#if !UPDATE
#define SLOTS 0
#endif

#if ORDERED
static inline int alike(const uint8 a, const uint8 b)
{
    const int8 differing = a != b;
    const int4 any = differing.lo | differing.hi;
    return !(any.s0 | any.s1 | any.s2 | any.s3);
}

// order[i]: the number of sample i of an epoch of n
static inline void order_epoch(const int n, const int bits, const uint8 key,
                               __global int *order)
{
    const uint8 lanes = (uint8)(0, 1, 2, 3, 4, 5, 6, 7);
    for (int i = 0; i < n; i += 8)
        *(__global uint8 *)(order + i) =
            permuted_lanes((uint8)(i) + lanes, n, bits, key);
}
#endif

// Arguments, in the order of clnet/variants/members/members.py:
//
// x, t          the data set [data, width]; not GATHERED: from `transpose` of epoch.cl
// weight        [members, data]
// memory [workers, memory_size], gradients [workers, 2, size + APART]
// orders [workers, data, to a multiple of 8]  the random order of a worker's epoch, for
//               all members that have it one after the other
// sync          initially zero: [0] members claimed, [1] workers that have left
// state [members, SLOTS, size]
// and those of member.h
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
members(__global const Layer *layers, __global const Neuron *neurons,
        __global float *parameters, __global const float *x, __global const float *t,
        __global const float *weight, const int data, __global float *memory,
        __global float *gradients, __global int *orders, volatile __global int *sync,
        const int count_of_layers, const int size, const int batch,
        const int tile_size, const int pitch, const int tiles, const int x_offset,
        const int t_offset, const int weight_offset, const int dx_offset,
        const int gradient_offset, const int memory_size, const float bit_fail_limit,
        __global float *state, __global const uchar *live, const int outputs,
        MEMBER_ARGUMENTS)
{
    const size_t worker = get_global_id(0);
    __global float *own = memory + worker * memory_size;
    __global float *gradient = gradients + worker * 2 * (size + APART);
    __global float *sum = gradient + size + APART;
#if ORDERED
    __global int *order = orders + worker * round_up(data);
    uint8 order_key = (uint8)(0);
    int order_of = 0;  // how many samples
#endif
    for (int i = atomic_inc(sync); i < count_of_members; i = atomic_inc(sync)) {
        const Member member = members[i];
        const size_t index = member.index;
        const int samples = member.samples, full = min(batch, samples);
        const int steps = (samples + full - 1) / full;
        Net net = {
            layers, neurons, parameters + index * size, x, t, weight + index * data,
            count_of_layers, size, samples, full, member.bits, tile_size, pitch, tiles,
            x_offset, t_offset, weight_offset, dx_offset, gradient_offset, memory_size,
            bit_fail_limit,
#if SCALED
            1,
#endif
#if SUBSETS
            member.first < 0 ? 0 : subsets + member.first,
#endif
#if ORDERED
            order,
#endif
#if DROPS
            drops + index * count_of_layers, member.seed, 0,
#endif
        };
        const UpdateArguments update = {
            sum, state + index * SLOTS * size, live, outputs, member.seed,
            {member.l1, member.l2},
        };
        __global const Epoch *plan = schedule + (size_t)member.plan * (epochs + 1);
        __global float *first_totals =
            totals + (size_t)member.record * epochs * 2 * RECORD;
        Run run = {full, samples, 0, 1, 2 * RECORD, 1, plan, member.squares_limit,
                   member.fails_limit, first_totals, 0, 0, full, vload8(0, plan->key),
                   plan->rate, first_totals};
        for (int s = 0; s < epochs * steps; ++s) {
            const Step step = {run.begin, run.size, run.key};
#if ORDERED
            if (run.begin == 0 && !(order_of == samples && alike(order_key, run.key))) {
                order_epoch(samples, member.bits, run.key, order);
                order_of = samples;
                order_key = run.key;
            }
#endif
#if SCALED
            if (scales_weights(full, samples)) {
                float sum = 0;
                for (int i = 0; i < step.samples; ++i)
                    sum += net.weight[row_of(&net, step.first + i)];
                net.weight_scale = weight_scale(sum, step.samples);
            }
#endif
#if DROPS
            net.step = member.epochs * steps + s;
#endif
            task(&net, &step, own, 0, gradient, gradient);
            finish_step(&net, &update, &run, 1, gradient, member.epochs * steps + s);
            if (!next_step(&run)) break;
        }
        __global float *end = ends + (size_t)member.record * END;
        for (int k = 0; k < 2 * RECORD; ++k)
            end[k] = first_totals[(run.epoch - 1) * 2 * RECORD + k];
        end[2 * RECORD] = run.epoch;
    }
    if (add_seq_cst(sync + 1, 1) == (int)get_global_size(0) - 1) sync[0] = sync[1] = 0;
}

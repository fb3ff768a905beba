// epoch: whole steps of training in one launch, in the shape that CPU cores like.
//
// A step is cut into tasks, a few tiles of samples each. A task takes its samples
// forward, to the loss, and back, all in the worker's own memory, and leaves the sum of
// their gradients. One worker then adds the tasks' gradients, in the order of the
// tasks, and updates the parameters: so the result does not depend on who computed
// what.
//
//   task 0   x --> values --> loss --> ds --> gradient 0 --+
//   task 1   x --> values --> loss --> ds --> gradient 1 --+--> sum --> update
//   task 2   x --> values --> loss --> ds --> gradient 2 --+
//
// A work-group is one work-item, and one worker. Lanes of vectors are samples
// (tiles.h).
//
// Sizes are arguments, so that one program serves every network of a kind.
//
// SYNC          words of `sync` before those that say which tasks are done: at least 16
// and those of steps.h
#define REAL float
#define WIDTH 8
#include "include/atomics.h"
#include "training/steps.h"
#include "training/tiles.h"
#ifndef SYNC
#error "epoch.cl needs SYNC"
#endif

#include "training/epoch_task.h"

// The end of a step.
typedef struct {
    __global float *total;   // [size] the gradients of the whole step
    __global float *state;   // [SLOTS, size] the optimiser's
    __global float *totals;  // [6] of the epoch so far, and what rounding took
    __global const uchar *live;  // [size] 0 for padding, which stays zero
    int outputs;
    float rate;
    uint seed;
} Ending;

// The sum of a vector of gradients over the tasks, in their order.
inline float8 gradient_of(__global const float *part, const int tasks, const int apart)
{
    float8 sum = *(__global const float8 *)part;
    for (int t = 1; t < tasks; ++t)
        sum += *(__global const float8 *)(part + (size_t)t * apart);
    return sum;
}

inline int8 live_part(__global const uchar *live)
{
    return convert_int8(vload8(0, live)) != (int8)(0);
}

// Add the tasks' records and gradients [tasks, size + APART], and update the
// parameters.
inline void finish(const Net *net, const Ending *ending, const int tasks,
                   __global const float *gradients, const int samples, const int seen,
                   const int fresh, const int count)
{
    for (int k = 0; k < RECORD; ++k) {
        float sum = 0;
        for (int t = 0; t < tasks; ++t)
            sum += gradients[(size_t)t * (net->size + APART) + net->size + k];
        add_to_total(ending->totals, k, sum, fresh);
    }
#if UPDATE
    Moment now =
        moment_of(ending->rate, samples, ending->totals[1] + ending->totals[4], seen,
                  ending->outputs, count, ending->seed);
#endif
#if BACKWARD && (!UPDATE || defined(CLIP_NORM))
    // The whole gradient must be there before its norm is, or is asked for.
    float8 squares = (float8)(0.0f);
    for (int i = 0; i < net->size; i += 8) {
        const float8 sum = gradient_of(gradients + i, tasks, net->size + APART);
        *(__global float8 *)(ending->total + i) = sum;
#if UPDATE
        const float8 w = *(__global const float8 *)(net->parameters + i);
        const float8 g = penalised(w, sum, samples, i) / (float8)(samples);
        squares += live_part(ending->live + i) ? g * g : (float8)(0.0f);
#endif
    }
#if UPDATE
    now.norm = sqrt(lane_sum(squares));
#endif
#endif
#if UPDATE
    for (int i = 0; i < net->size; i += 8) {
#ifdef CLIP_NORM
        const float8 sum = *(__global const float8 *)(ending->total + i);
#else
        const float8 sum = gradient_of(gradients + i, tasks, net->size + APART);
#endif
        __global float8 *w = (__global float8 *)(net->parameters + i);
        const int8 live = live_part(ending->live + i);
        __global float *state = ending->state + i;
        float8 kept[SLOTS + 1];  // at least one: there are no empty arrays
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            kept[k] = *(__global const float8 *)(state + (size_t)k * net->size);
        const float8 next = stepped(*w, sum, kept, now, i);
        *w = live ? next : *w;
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) {
            __global float8 *at = (__global float8 *)(state + (size_t)k * net->size);
            *at = live ? kept[k] : *at;
        }
    }
#endif
}

// Arguments, in the order of clnet/variants/training/epoch.py:
//
// layers, neurons             the tables
// x, t, weight                the data set [n, width]; not GATHERED: as `transpose` left it
// memory [workers, worker_size]
// gradients [2 * tasks, size + APART]  room for each task, and for each done again
// sync   zero at first: [0] the step before, [1] the open one or 0, [2] helpers inside,
//        [3] tasks claimed, [4] workers that have left, [5, 6] Step, [8 … 15] its key,
//        [SYNC …] for each task the step that has done it
#define SHARED_ARGUMENTS                                                             \
    __global const Layer *layers, __global const Neuron *neurons,                    \
        __global float *parameters, __global const float *x,                         \
        __global const float *t, __global const float *weight,                       \
        __global float *memory, __global float *gradients,                           \
        volatile __global int *sync, const int count_of_layers, const int size,      \
        const int n, const int batch, const int bits, const int tile_size,           \
        const int pitch, const int tiles, const int tasks, const int x_place,        \
        const int t_place, const int weight_place, const int dx_place,               \
        const int gradient_place,                                                    \
        const int worker_size, const float bit_fail_limit
// steps: to do, from the one described by the others on; samples: of all of them; seen:
// of the epoch so far, with the first step's
#define STEP_ARGUMENTS                                                               \
    __global float *total, __global float *state, __global float *totals,            \
        __global const uchar *live, const int outputs, const int patience,           \
        const int steps, const int first, const int samples, const int seen,         \
        const int fresh, const float rate, const int count, const uint seed,         \
        const uint k0, const uint k1, const uint k2, const uint k3, const uint k4,   \
        const uint k5, const uint k6, const uint k7
#define SET_NET                                                                      \
    const Net net = {layers, neurons, parameters, x, t, weight, count_of_layers,     \
                     size, n, batch, bits, tile_size, pitch, tiles, x_place,         \
                     t_place, weight_place, dx_place, gradient_place, worker_size,   \
                     bit_fail_limit};
#define SET_ENDING                                                                   \
    const Ending ending = {total, state, totals, live, outputs, rate, seed};         \
    const uint8 key = (uint8)(k0, k1, k2, k3, k4, k5, k6, k7);
// Number i of the launch's steps.
#define SAMPLES(i) min(batch, samples - (i) * batch)
#define STEP(i) {first + (i) * batch, SAMPLES(i), key}
#define FINISH(i, gradients)                                                         \
    finish(&net, &ending, tasks, gradients, SAMPLES(i),                              \
           seen - SAMPLES(0) + (i) * batch + SAMPLES(i), fresh && (i) == 0, count + (i))

// All steps by one worker.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
alone(SHARED_ARGUMENTS, STEP_ARGUMENTS)
{
    SET_NET
    SET_ENDING
    for (int i = 0; i < steps; ++i) {
        const Step step = STEP(i);
        for (int number = 0; number < tasks; ++number) {
            __global float *found = gradients + (size_t)number * (size + APART);
            task(&net, &step, memory, number, found, found);
        }
        FINISH(i, gradients);
    }
}

// Claim and do tasks until none is left.
inline void work(const Net *net, const Step *step, __global float *own, const int tasks,
                 __global float *gradients, volatile __global int *sync, const int id)
{
    for (int t = atomic_inc(sync + 3); t < tasks; t = atomic_inc(sync + 3)) {
        __global float *found = gradients + (size_t)t * (net->size + APART);
        task(net, step, own, t, net->tiles == 1 ? found : own + net->gradient_place,
             found);
        store_release(sync + SYNC + t, id);
    }
}

// One step by all workers of a launch: the last one out finishes it.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
workers(SHARED_ARGUMENTS, STEP_ARGUMENTS)
{
    SET_NET
    SET_ENDING
    const Step step = STEP(0);
    work(&net, &step, memory + get_global_id(0) * (size_t)worker_size, tasks, gradients,
         sync, 1);
    if (add_seq_cst(sync + 4, 1) == (int)get_global_size(0) - 1) {
        FINISH(0, gradients);
        sync[3] = sync[4] = 0;
    }
}

// All steps by the calling thread as the first worker, while `helpers` stand by on
// other threads (the protocol of cpu.cl).
//
//   lead     open step n ---- work ---- close, finish, wait until none is inside
//   helper      ...see n, enter ---- work ---- leave, stay for the next step...
//
// A helper enters before it looks again whether the step is still open, and the lead
// closes before it looks whether one is inside: so none is left inside unseen. A task
// that a helper does not finish in time (its thread was put aside) is done again; the
// helper then may still write to its place among the gradients, so that the lead works
// elsewhere, and alone, until the host has waited for it.
//
// patience  looks at a task that another worker holds before it is done again
// timeout [1] set when a helper did not leave in time: the host then waits for it
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
lead(SHARED_ARGUMENTS, STEP_ARGUMENTS, volatile __global int *timeout)
{
    SET_NET
    SET_ENDING
    __global float *again = gradients + (size_t)tasks * (size + APART);
    __global float *sum = memory + gradient_place;
    int alone = 0;
    for (int i = 0; i < steps; ++i) {
        const Step step = STEP(i);
        const int next = sync[0] + 1, id = next ? next : 1;
        int late = alone;
        if (!alone) {
            sync[0] = id;
            sync[3] = 0;
            sync[5] = step.first;
            sync[6] = step.samples;
            vstore8(as_int8(key), 1, (__global int *)sync);
            store_seq_cst(sync + 1, id);
            work(&net, &step, memory, tasks, gradients, sync, id);
            store_seq_cst(sync + 1, 0);
            for (int number = 0; number < tasks; ++number) {
                volatile __global int *done = sync + SYNC + number;
                int looks = 0;
                while (load_acquire(done) != id && looks < patience) ++looks;
                late |= load_acquire(done) != id;
            }
        }
        if (late) {
            for (int number = 0; number < tasks; ++number)
                task(&net, &step, memory, number, sum,
                     again + (size_t)number * (size + APART));
        }
        FINISH(i, late ? again : gradients);
        int looks = 0;
        while (!alone && load_seq_cst(sync + 2) && looks < patience) ++looks;
        if (looks == patience) *timeout = alone = 1;
    }
}

// Workers that join the open step, and stay for `linger` looks after it for the next.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
helpers(SHARED_ARGUMENTS, const int linger)
{
    SET_NET
    __global float *own = memory + (1 + get_global_id(0)) * (size_t)worker_size;
    int last = 0;
    for (int looks = 0; looks < linger; ++looks) {
        const int id = load_acquire(sync + 1);
        if (id == 0 || id == last) continue;
        add_seq_cst(sync + 2, 1);
        if (load_seq_cst(sync + 1) == id) {
            const Step step = {sync[5], sync[6],
                               as_uint8(vload8(1, (__global const int *)sync))};
            work(&net, &step, own, tasks, gradients, sync, id);
            last = id;
        }
        add_seq_cst(sync + 2, -1);
        looks = 0;
    }
}

// transposed = tiles of all samples, [tile][rows][pitch]; zero where there is no sample.
//
// data [n, width]  rows: width, rounded up to a multiple of 4; tile: samples of one
// index map: work-item = 8 samples
__kernel void transpose(__global const float *data, const int width, const int n,
                   __global float *transposed, const int rows, const int tile,
                   const int pitch)
{
    const int first = get_global_id(0) * 8;
    __global float *to = transposed + (size_t)(first / tile) * rows * pitch + first % tile;
    for (int k = 0; k < 8; ++k)
        for (int i = 0; i < rows; ++i)
            to[(size_t)i * pitch + k] =
                i < width && first + k < n ? data[(size_t)(first + k) * width + i] : 0;
}

// epoch: whole training steps in one launch, for CPU cores.
//
// A step is divided into tasks, a few tiles of samples each. A task computes the
// forward pass, the loss and the backward pass of its samples in the worker's private
// memory, and stores the sum of their gradients. One worker then adds the tasks'
// gradients in the order of the tasks, and updates the parameters: the result does not
// depend on which worker computed a task.
//
//   task 0   x --> values --> loss --> ds --> gradient 0 --+
//   task 1   x --> values --> loss --> ds --> gradient 1 --+--> sum --> update
//   task 2   x --> values --> loss --> ds --> gradient 2 --+
//
// A worker is a work-group of one work-item. Vector lanes are samples (tiles.h). Sizes
// are arguments: one program serves all networks with the same activations and loss.
//
// SYNC_WORDS  words of `sync` before the tasks' completion flags: at least 16
// SHARED      1: of the kernels of several workers, 0: of one worker; a compiler for
//             CPUs takes half a second for the others
// and those of steps.h and tiles.h
#define REAL float
#define WIDTH 8
#define PER_NETWORK REAL
#define RESIDENT 0
// Of epoch_task.h, what networks of a population have.
#define SUBSETS 0
#define SCALED 0
#define ORDERED 0
#define DROPS 0
#include "include/atomics.h"
#include "include/steps.h"
#include "include/tiles.h"
#if !defined(SYNC_WORDS) || !defined(SHARED)
#error "epoch.cl needs SYNC_WORDS and SHARED"
#endif

#include "training/epoch_task.h"
#include "training/epoch_update.h"

// Arguments, in the order of clnet/variants/training/epoch.py:
//
// layers, neurons             the tables
// x, t, weight                the data set [n, width]; not GATHERED: from `transpose`
// memory [workers, memory_size]
// gradients [2 * tasks, size + APART]  of each task, and of each recomputed task
// sync   initially zero: [0] id of the last step, [1] id of the open step or 0,
//        [2] helpers inside, [3] tasks claimed, [4] workers that have left,
//        [5, 6] Step, [8 … 15] its key, [SYNC_WORDS …] completion flags: of each task
//        the id of the last step that computed it
#define SHARED_ARGUMENTS                                                             \
    __global const Layer *layers, __global const Neuron *neurons,                    \
        __global float *parameters, __global const float *x,                         \
        __global const float *t, __global const float *weight,                       \
        __global float *memory, __global float *gradients,                           \
        volatile __global int *sync, const int count_of_layers, const int size,      \
        const int n, const int batch, const int bits, const int tile_size,           \
        const int pitch, const int tiles, const int tasks, const int x_offset,       \
        const int t_offset, const int weight_offset, const int dx_offset,            \
        const int gradient_offset, const int memory_size, const float bit_fail_limit
// steps: how many, starting with the one that the others describe; samples: of all of
// them, or of one epoch of several; seen: samples of the epoch so far, those of the
// first step included
#define STEP_ARGUMENTS                                                               \
    __global float *total, __global float *state, __global float *totals,            \
        __global const uchar *live, const int outputs, const int max_polls,          \
        const int steps, const int first, const int samples, RUN_ARGUMENTS,          \
        const int seen, const int fresh, const float rate, const int count,          \
        const uint seed, const uint k0, const uint k1, const uint k2, const uint k3, \
        const uint k4, const uint k5, const uint k6, const uint k7
#define SET_NET                                                                      \
    const Net net = {layers, neurons, parameters, x, t, weight, count_of_layers,     \
                     size, n, batch, bits, tile_size, pitch, tiles, x_offset,        \
                     t_offset, weight_offset, dx_offset, gradient_offset,            \
                     memory_size, bit_fail_limit};
#define SET_UPDATE                                                                   \
    const UpdateArguments update = {total, state, live, outputs, seed, PENALTIES};
#define STEP {first + run.begin, run.size, run.key}

#if !SHARED
// All steps by one worker.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
single_worker(SHARED_ARGUMENTS, STEP_ARGUMENTS)
{
    SET_NET
    SET_UPDATE
    SET_RUN
    for (int i = 0; i < steps; ++i) {
        const Step step = STEP;
        for (int number = 0; number < tasks; ++number) {
            __global float *gradient = gradients + (size_t)number * (size + APART);
            task(&net, &step, memory, number, gradient, gradient);
        }
        finish_step(&net, &update, &run, tasks, gradients, count + i);
        if (!next_step(&run)) break;
    }
    store_epochs(&run);
}
#else
// Claim and compute tasks until none is left.
static inline void work(const Net *net, const Step *step, __global float *memory,
                        const int tasks, __global float *gradients,
                        volatile __global int *sync, const int id)
{
    for (int t = atomic_inc(sync + 3); t < tasks; t = atomic_inc(sync + 3)) {
        __global float *gradient = gradients + (size_t)t * (net->size + APART);
        task(net, step, memory, t,
             net->tiles == 1 ? gradient : memory + net->gradient_offset, gradient);
        store_release(sync + SYNC_WORDS + t, id);
    }
}

// One step by all workers of a launch: the last one to leave finishes it.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
workers(SHARED_ARGUMENTS, STEP_ARGUMENTS)
{
    SET_NET
    SET_UPDATE
    SET_RUN
    const Step step = STEP;
    work(&net, &step, memory + get_global_id(0) * (size_t)memory_size, tasks, gradients,
         sync, 1);
    if (add_seq_cst(sync + 4, 1) == (int)get_global_size(0) - 1) {
        finish_step(&net, &update, &run, tasks, gradients, count);
        sync[3] = sync[4] = 0;
    }
}

// All steps by the calling thread as the first worker, with `helpers` standing by on
// other threads (the protocol of cpu.cl).
//
//   lead     open step n ---- work ---- close, finish, wait until no helper is inside
//   helper      ...poll n, enter ---- work ---- leave, poll for the next step...
//
// A helper enters before it polls again whether the step is still open, and the lead
// closes before it polls whether a helper is inside: the lead misses none. A task that
// a helper does not finish in time (its thread was preempted) is computed again. The
// helper may still store to that task's gradients: the lead then uses other memory, and
// works without helpers until the host has waited for them.
//
// max_polls     polls of a task of another worker before it is computed again
// timeout [1]  set when a helper did not leave in time: the host then waits for it
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
lead(SHARED_ARGUMENTS, STEP_ARGUMENTS, volatile __global int *timeout)
{
    SET_NET
    SET_UPDATE
    SET_RUN
    __global float *recomputed = gradients + (size_t)tasks * (size + APART);
    __global float *sum = memory + gradient_offset;
    int without_helpers = 0;
    for (int i = 0; i < steps; ++i) {
        const Step step = STEP;
        const int next = sync[0] + 1, id = next ? next : 1;
        int timed_out = without_helpers;
        if (!without_helpers) {
            sync[0] = id;
            sync[3] = 0;
            sync[5] = step.first;
            sync[6] = step.samples;
            vstore8(as_int8(step.key), 1, (__global int *)sync);
            store_seq_cst(sync + 1, id);
            work(&net, &step, memory, tasks, gradients, sync, id);
            store_seq_cst(sync + 1, 0);
            for (int number = 0; number < tasks; ++number) {
                volatile __global int *done = sync + SYNC_WORDS + number;
                int polls = 0;
                while (load_acquire(done) != id && polls < max_polls) ++polls;
                timed_out |= load_acquire(done) != id;
            }
        }
        if (timed_out) {
            for (int number = 0; number < tasks; ++number)
                task(&net, &step, memory, number, sum,
                     recomputed + (size_t)number * (size + APART));
        }
        finish_step(&net, &update, &run, tasks, timed_out ? recomputed : gradients,
                    count + i);
        int polls = 0;
        while (!without_helpers && load_seq_cst(sync + 2) && polls < max_polls) ++polls;
        if (polls == max_polls) *timeout = without_helpers = 1;
        if (!next_step(&run)) break;
    }
    store_epochs(&run);
}

// Workers that join the open step, and poll `spin_polls` times for the next one.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
helpers(SHARED_ARGUMENTS, const int spin_polls)
{
    SET_NET
    __global float *worker_memory =
        memory + (1 + get_global_id(0)) * (size_t)memory_size;
    int last = 0;
    for (int polls = 0; polls < spin_polls; ++polls) {
        const int id = load_acquire(sync + 1);
        if (id == 0 || id == last) continue;
        add_seq_cst(sync + 2, 1);
        if (load_seq_cst(sync + 1) == id) {
            const Step step = {sync[5], sync[6],
                               as_uint8(vload8(1, (__global const int *)sync))};
            work(&net, &step, worker_memory, tasks, gradients, sync, id);
            last = id;
        }
        add_seq_cst(sync + 2, -1);
        polls = 0;
    }
}
#endif

// transposed: tiles of all samples, [tile][rows][pitch]; zero past the samples.
//
// data [n, width]  rows: width, rounded up to a multiple of 4; tile: samples of one
// index map: work-item = 8 samples
__kernel void transpose(__global const float *data, const int width, const int n,
                        __global float *transposed, const int rows, const int tile,
                        const int pitch)
{
    const int first = get_global_id(0) * 8;
    __global float *to =
        transposed + (size_t)(first / tile) * rows * pitch + first % tile;
    for (int k = 0; k < 8; ++k)
        for (int i = 0; i < rows; ++i)
            to[(size_t)i * pitch + k] =
                i < width && first + k < n ? data[(size_t)(first + k) * width + i] : 0;
}

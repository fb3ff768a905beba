// group_step: training steps by tiles of samples, a tile a work-group, with all its
// values in local memory.
//
//   gradients, then combine   many groups: each sums the gradients of its tiles; the
//                             next launch adds these in the groups' order and updates
//   steps                     any number of whole steps in one launch: by one group, or
//                             by many with a grid barrier before and after each update
//
// Values are transposed, [feature][PITCH]: a work-item computes 4 samples at once.
//
//   forward   4 samples x 1 neuron    reads 4 weights and 4 x 4 values for 16 products;
//                                     slice-k where neurons are few
//   backward  4 samples x 1 input     reads 1 weight and 4 values for 4 products
//   outer     4 rows x 4 columns      reads 8 x 4 values for 64 products, or 1 x 1
//                                     where that leaves too few work-items; columns are
//                                     a quarter of a row apart: neighbours then read
//                                     neighbouring rows of x, which PITCH puts in
//                                     different banks
//
// Derivatives overwrite the outputs that they belong to. The order of sums over the
// mini-batch depends on the sizes alone. A tile is bound by latency more than by
// throughput: all sizes are constants, loops over layers are unrolled, loads from
// global memory are batched, and a tile in local memory is not loaded again.
//
// TILE      samples of a tile: a multiple of 4; usually 32
// PITCH     distance of a sample's values: TILE and one vector of 4
// GROUP     work-items of a group: a power of two, at least TILE; usually 256
// REDUCERS  work-items that reduce one element in `combine`: a power of two; usually 8
// LOCAL_VALUES  values of local memory for a tile
// SIZE      elements of the flat buffer
// RESIDENT  1: `steps` by one group keeps parameters, gradients, state and totals in local
//           memory for the whole launch; else 0
// PARTS     a tile's samples are summed to its record by so many work-items: 1 unless
//           RESIDENT
// STAGED    1: parameters are copied to local memory. All groups read the same few L2
//           cache lines, which would serve them one after the other.
// LAYERS    their number
// LAYER_TABLE    {{n_in, …}, …} the Layer of each; offsets are in local memory
// LAYER_NEURONS  {{function, …}, …} one Neuron for each layer whose neurons are equal;
//           a function of -1 says that they differ, and are in the table `neurons`
// X_OFFSET, T_OFFSET, WEIGHT_OFFSET, RECORD_OFFSET  local memory of a tile's inputs,
//           targets, weights and records
// GRID      a power of two, at least the number of groups, where `steps` has several;
//           else 0
// MAX_POLLS  polls of a grid barrier before its timeout
// and those of steps.h
#define REAL float
#define WIDTH 1
#define PER_NETWORK REAL
// Of group_step_tile.h, what networks of a population have.
#define SUBSETS 0
#define DROPS 0
#define MATRIX 0
#define EXACT 0
#define DELTAS 0
#define VALUES SIZE
#include "include/steps.h"
#if !defined(REDUCERS) || !defined(LOCAL_VALUES) || !defined(GRID)                     \
    || (GRID && !defined(MAX_POLLS))
#error "group_step.cl needs REDUCERS, LOCAL_VALUES, GRID, and with this MAX_POLLS"
#endif
#include "training/group_step_tile.h"

#if UPDATE
// An element of the flat buffer with its optimiser state.
typedef struct {
    float value, slots[SLOTS + 1];  // C has no empty arrays
} Element;

static inline Element load_element(HOME const float *parameters, HOME const float *state,
                                   const int i)
{
    Element element;
    element.value = parameters[i];
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) element.slots[k] = state[(size_t)k * SIZE + i];
    return element;
}

// Update element i by its gradient g.
static inline void update_element(Element element, HOME float *parameters,
                                  HOME float *state, const int i, const float g,
                                  const StepInfo now)
{
    parameters[i] = stepped(element.value, g, element.slots, now, i);
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) state[(size_t)k * SIZE + i] = element.slots[k];
}
#else
typedef int StepInfo;  // there are no updates
#endif

// neurons                  the table
// parameters [SIZE]        x, t, weight [n, width]: the data set
// gradients [groups, SIZE + APART]  of each group, its record behind them
#define SHARED_ARGUMENTS                                                             \
    __global const Neuron *neurons, __global float *parameters,                      \
        __global const float *x, __global const float *t,                            \
        __global const float *weight, __global float *gradients, const int n,        \
        const int bits, const float bit_fail_limit, const int first,                 \
        const int samples, const uint k0, const uint k1, const uint k2,              \
        const uint k3, const uint k4, const uint k5, const uint k6, const uint k7
#if STAGED
#define STAGE_PARAMETERS __local float staged[SIZE] ALIGNED;
#else
#define STAGE_PARAMETERS __global const float *staged = parameters;
#endif
#define SET_NET                                                                      \
    STAGE_PARAMETERS                                                                 \
    const Net net = {neurons, staged, x, t, weight, n, bits, bit_fail_limit, 1};     \
    const uint8 key = (uint8)(k0, k1, k2, k3, k4, k5, k6, k7);

#if !RESIDENT
// Copy the parameters to local memory; each group starts at another offset.
#if STAGED
static inline void stage_parameters(__global const float *parameters,
                                    __local float *staged)
{
    const int vectors = SIZE / 4, shift = get_group_id(0) * WARP % vectors;
    for (int begin = get_local_id(0); begin < vectors; begin += LOADS / 4 * GROUP) {
        float4 values[LOADS / 4];
#pragma unroll
        for (int j = 0; j < LOADS / 4; ++j) {
            const int i = min(begin + j * GROUP, vectors - 1) + shift;
            values[j] = ((__global const float4 *)parameters)[i % vectors];
        }
#pragma unroll
        for (int j = 0; j < LOADS / 4; ++j) {
            const int i = min(begin + j * GROUP, vectors - 1) + shift;
            ((__local float4 *)staged)[i % vectors] = values[j];
        }
    }
}
#else
static inline void stage_parameters(__global const float *parameters,
                                    __global const float *staged)
{
}
#endif

// index map: group g takes tiles g, g + groups, … of the step
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gradients(SHARED_ARGUMENTS)
{
    __local float memory[LOCAL_VALUES] ALIGNED;
    SET_NET
    __global float *sums = gradients + get_group_id(0) * (size_t)(SIZE + APART);
    for (int i = get_local_id(0); i < LOCAL_VALUES; i += GROUP) memory[i] = 0;
    stage_parameters(parameters, staged);
    int loaded = -1;
    if (get_group_id(0) * TILE >= samples)  // no tile of a last, smaller mini-batch
        for (int i = get_local_id(0); i < SIZE + APART; i += GROUP) sums[i] = 0;
    for (int start = get_group_id(0) * TILE; start < samples;
         start += get_num_groups(0) * TILE)
        tile(&net, memory, first + start, min(TILE, samples - start), key, sums,
             start >= (int)get_num_groups(0) * TILE, &loaded);
}

// Reduce the groups' gradients and records; update the parameters, and the totals. A
// group reduces GROUP / REDUCERS elements at once.
//
// total [SIZE]  the gradients' sum, where there is no update
static inline void combine_groups(__global const float *gradients, const int groups,
                                  __global float *parameters, __global float *state,
                                  __global float *total, __global float *totals,
                                  __global const uchar *live, const int fresh,
                                  const StepInfo now, __local float *sums)
{
    const int id = get_local_id(0), width = GROUP / REDUCERS;
    // Records are behind the gradients.
    for (int begin = (BACKWARD ? 0 : SIZE) + get_group_id(0) * width;
         begin < SIZE + RECORD; begin += get_num_groups(0) * width) {
        const int element = begin + id % width;
        const int source = element < SIZE + RECORD ? element : 0;
#if UPDATE
        Element current;
        uchar is_live = 0;
        if (id < width && element < SIZE) {  // no other is read: its group may update it
            current = load_element(parameters, state, element);
            is_live = live[element];
        }
#endif
        float sum = 0;
        for (int first = id / width; first < groups; first += LOADS * REDUCERS) {
            float values[LOADS];
#pragma unroll
            for (int j = 0; j < LOADS; ++j) {
                const int g = min(first + j * REDUCERS, groups - 1);
                values[j] = gradients[(size_t)g * (SIZE + APART) + source];
            }
#pragma unroll
            for (int j = 0; j < LOADS; ++j)
                sum += first + j * REDUCERS < groups ? values[j] : 0;
        }
        sums[id] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < width && element < SIZE + RECORD) {
#pragma unroll
            for (int i = 1; i < REDUCERS; ++i) sum += sums[i * width + id];
            if (element >= SIZE) {
                add_to_total(totals, element - SIZE, sum, fresh);
            } else {
#if UPDATE
                if (is_live)
                    update_element(current, parameters, state, element, sum, now);
#elif BACKWARD
                total[element] = sum;
#endif
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
combine(__global const float *gradients, const int groups,
        __global float *parameters, __global float *state, __global float *total,
        __global float *totals, __global const uchar *live, const int outputs,
        const int samples, const int seen, const int fresh, const float rate,
        const int count, const uint seed)
{
    __local float sums[GROUP];
#if UPDATE
    const StepInfo now = step_info(rate, samples, 0.0f, seen, outputs, count, seed);
#else
    const StepInfo now = 0;
#endif
    combine_groups(gradients, groups, parameters, state, total, totals, live, fresh,
                   now, sums);
}
#endif

#if GRID
// A device-wide fence: earlier stores become visible to other groups, and their stores
// to later loads.
static inline void fence_device(void)
{
#if PTX >= 70
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
    mem_fence(CLK_GLOBAL_MEM_FENCE);
#endif
}

static inline uint poll(volatile __global uint *word)
{
#if PTX >= 70
    uint value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word)
                 : "memory");
    return value;
#else
    return atomic_or(word, 0);
#endif
}

// Wait until all groups have arrived, that is until `arrivals` reaches `target`. False
// after a timeout; the epoch's totals are then NaN, which the host reads.
static inline int grid_barrier(volatile __global uint *arrivals, const uint target,
                               volatile __global int *timeout, __local int *timed_out,
                               Run *run)
{
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0) {
        fence_device();
        // The groups of a barrier add GRID together: the count may wrap.
        atomic_add(arrivals, get_group_id(0) ? 1u : GRID + 1u - get_num_groups(0));
        int left = MAX_POLLS;
        while ((int)(poll(arrivals) - target) < 0 && --left > 0)
            if (left % 64 == 0 && *timeout) left = 1;
        fence_device();
        *timed_out = left <= 0;
        if (*timed_out) {
            *timeout = 1;
            for (int k = 0; k < RECORD; ++k) run->totals[k] = NAN;
            ++run->epoch;
            if (get_group_id(0) == 0) store_epochs(run);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    return !*timed_out;
}
#define GRID_ARGUMENTS                                                               \
    , volatile __global uint *arrivals, volatile __global int *timeout
#else
#define GRID_ARGUMENTS
#endif

// steps: how many, starting with the one that the others describe
// samples: of all of them, or of one epoch of several
// seen: samples of the epoch so far, those of the first step included
// arrivals: count of the groups' arrivals at barriers; after a timeout, totals are NaN
// index map: group g takes tiles g, g + groups, … of each step
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
steps(SHARED_ARGUMENTS, __global float *state, __global float *total,
      __global float *totals, __global const uchar *live, const int batch,
      const int outputs, const int steps, RUN_ARGUMENTS, const int seen,
      const int fresh, const float rate, const int count, const uint seed GRID_ARGUMENTS)
{
    __local float memory[LOCAL_VALUES] ALIGNED;
    SET_NET
    for (int i = get_local_id(0); i < LOCAL_VALUES; i += GROUP) memory[i] = 0;
    int loaded = -1;
#if RESIDENT
    const int groups = 1;
    __local float sums[SIZE + RECORD * PARTS] ALIGNED, records[2 * RECORD];
#if UPDATE
    __local float slots[SLOTS * SIZE + 1];  // C has no empty arrays
    __local int live_elements[SIZE], lives;  // those to update, in any order; their number
    if (get_local_id(0) == 0) lives = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (int i = get_local_id(0); i < SIZE; i += GROUP) {
        staged[i] = parameters[i];
        sums[i] = 0;  // as padding stays
#if UPDATE
        if (live[i]) live_elements[atomic_inc(&lives)] = i;
        for (int k = 0; k < SLOTS; ++k) slots[k * SIZE + i] = state[(size_t)k * SIZE + i];
#endif
    }
    if (get_local_id(0) < 2 * RECORD)
        records[get_local_id(0)] = totals[record_offset + get_local_id(0)];
#define GRADIENTS sums
#else
    const int groups = get_num_groups(0);
    __global float *group_gradients =
        gradients + get_group_id(0) * (size_t)(SIZE + APART);
#define GRADIENTS group_gradients
#endif
#if GRID
    __local float sums[GROUP];
    __local int timed_out;
    // Arrivals beyond a multiple of GRID are of this launch: no barrier has ended yet.
    uint target = poll(arrivals) / GRID * GRID;
#endif
    SET_RUN
    for (int step = 0; step < steps; ++step) {
        const int begin = run.begin, size = run.size, reset = starts_epoch(&run);
#if !RESIDENT
        stage_parameters(parameters, staged);
#endif
        for (int start = get_group_id(0) * TILE; start < size; start += groups * TILE)
            tile(&net, memory, first + begin + start, min(TILE, size - start), run.key,
                 GRADIENTS, start >= groups * TILE, &loaded);
#if GRID
        target += GRID;
        if (!grid_barrier(arrivals, target, timeout, &timed_out, &run)) break;
        const StepInfo now =
            step_info(run.rate, size, 0.0f, seen, outputs, count + step, seed);
        combine_groups(gradients, min(groups, (size + TILE - 1) / TILE), parameters,
                       state, total, run.totals, live, reset, now, sums);
        target += GRID;
        if (!grid_barrier(arrivals, target, timeout, &timed_out, &run)) break;
#else
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (get_local_id(0) < RECORD) {
            HOME const float *parts = GRADIENTS + SIZE + get_local_id(0) * PARTS;
            float sum = parts[0];
#pragma unroll
            for (int p = 1; p < PARTS; ++p) sum += parts[p];
            add_to_total(run.totals, get_local_id(0), sum, reset);
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#if UPDATE
        const StepInfo now =
            step_info(run.rate, size, run.totals[1] + run.totals[4],
                      seen_samples(&run), outputs, count + step, seed);
#if RESIDENT
        for (int j = get_local_id(0); j < lives; j += GROUP) {
            const int i = live_elements[j];
            update_element(load_element(staged, slots, i), staged, slots, i, sums[i], now);
        }
#else
        for (int i = get_local_id(0); i < SIZE; i += GROUP) {
            const Element element = load_element(parameters, state, i);
            if (live[i])
                update_element(element, parameters, state, i, GRADIENTS[i], now);
        }
#endif
#elif BACKWARD
        for (int i = get_local_id(0); i < SIZE; i += GROUP) total[i] = GRADIENTS[i];
#endif
#if RESIDENT
        if ((begin + size >= samples || step + 1 == steps) && get_local_id(0) < 2 * RECORD)
            run.first_totals[run.epoch * run.stride + get_local_id(0)] =
                records[get_local_id(0)];
#elif UPDATE
        barrier(CLK_GLOBAL_MEM_FENCE);
#endif
#endif
        if (!next_step(&run)) break;
        if (run.scheduled && run.begin == 0) loaded = -1;  // another order
    }
    if (get_global_id(0) == 0) store_epochs(&run);
#if RESIDENT && UPDATE
    for (int j = get_local_id(0); j < lives; j += GROUP) {
        const int i = live_elements[j];
        parameters[i] = staged[i];
        for (int k = 0; k < SLOTS; ++k) state[(size_t)k * SIZE + i] = slots[k * SIZE + i];
    }
#endif
}

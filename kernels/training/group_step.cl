// group_step: steps of training by tiles of samples, a tile a work-group, all its
// values in local memory.
//
//   gradients, then combine   many groups: each adds up the gradients of its tiles, the
//                             next launch adds those, in the groups' order, and updates
//   steps                     any number of whole steps in one launch: by one group, or
//                             by many that meet before and after each update
//
// Values are kept transposed, [feature][PITCH], so that a work-item takes 4 samples at
// once:
//
//   forward   4 samples x 1 neuron    reads 4 weights and 4 x 4 values for 16 products;
//                                     where there are few neurons, work-items share one
//   back      4 samples x 1 input     reads 1 weight and 4 values for 4 products
//   outer     4 rows x 4 columns      reads 8 x 4 values for 64 products, or 1 x 1
//                                     where that leaves too few work-items; columns are
//                                     a quarter of a row apart: neighbours then read
//                                     neighbouring rows of x, which PITCH puts in
//                                     different banks
//
// Derivatives take the place of the outputs that they belong to. Sums over the batch
// are taken in an order that depends on the sizes alone. What a tile takes is time
// until the first value is there, more than work: so all sizes are constants, loops
// over layers are unrolled, what is read from global memory is asked for at once, and a
// tile that a group has already is not loaded again.
//
// TILE    samples of a tile: a multiple of 4; usually 32
// PITCH   from a value to the next one of a sample: TILE and one vector of 4
// GROUP   work-items of a group: a power of two, at least TILE; usually 256
// PARTS   work-items that share an element in `combine`: a power of two; usually 8
// LOCAL   values of local memory for a tile
// SIZE    elements of the flat buffer
// STAGED  1 where local memory holds the parameters too: all groups read the same ones,
//         and a few lines of the last cache would serve them one after the other
// LAYERS  how many there are
// CHAIN   {{n_in, …}, …} each one's Layer; its places are those in local memory
// SAME    {{function, …}, …} its neurons, where all are the same; else their function
//         is -1, and they are in a table
// X_PLACE, T_PLACE, WEIGHT_PLACE, RECORD_PLACE  of a tile's inputs, targets, weights
//         and records
// MEET    where the groups of `steps` meet, a power of two, no less than they are;
//         else 0
// MAX_POLLS  looks at who has come before the timeout
// and those of steps.h
#define REAL float
#define WIDTH 1
#include "training/steps.h"
#if !defined(TILE) || !defined(PITCH) || !defined(GROUP) || !defined(PARTS)          \
    || !defined(LOCAL) || !defined(LAYERS) || !defined(CHAIN) || !defined(SAME)       \
    || !defined(X_PLACE) || !defined(T_PLACE) || !defined(WEIGHT_PLACE)              \
    || !defined(RECORD_PLACE) || !defined(SIZE) || !defined(STAGED)                  \
    || !defined(MEET) || (MEET && !defined(MAX_POLLS))
#error "group_step.cl needs TILE, PITCH, GROUP, PARTS, LOCAL, LAYERS, CHAIN, SAME, \
X_PLACE, T_PLACE, WEIGHT_PLACE, RECORD_PLACE, SIZE, STAGED, MEET and MAX_POLLS"
#endif
#include "training/group_step_tile.h"

#if UPDATE
// What belongs to an element.
typedef struct {
    float value, kept[SLOTS + 1];  // at least one: there are no empty arrays
    uchar live;
} Element;

inline Element element_of(__global const float *parameters, __global const float *state,
                          __global const uchar *live, const int i)
{
    Element found;
    found.value = parameters[i];
    found.live = live[i];
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) found.kept[k] = state[(size_t)k * SIZE + i];
    return found;
}

// Element i takes a step by its gradient.
inline void step_element(Element element, __global float *parameters,
                         __global float *state, const int i, const float g,
                         const Moment now)
{
    if (!element.live) return;
    parameters[i] = stepped(element.value, g, element.kept, now, i);
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) state[(size_t)k * SIZE + i] = element.kept[k];
}
#else
typedef int Moment;  // there are no updates
#endif

// neurons                  the table
// parameters [SIZE]        x, t, weight [n, width]: the data set
// gradients [groups, SIZE + APART]  each group's, and behind them its record
#define SHARED_ARGUMENTS                                                             \
    __global const Neuron *neurons, __global float *parameters,                      \
        __global const float *x, __global const float *t,                            \
        __global const float *weight, __global float *gradients, const int n,        \
        const int bits, const float bit_fail_limit, const int first,                 \
        const int samples, const uint k0, const uint k1, const uint k2,              \
        const uint k3, const uint k4, const uint k5, const uint k6, const uint k7
#if STAGED
#define PLACE_PARAMETERS __local float placed[SIZE] ALIGNED;
#else
#define PLACE_PARAMETERS __global const float *placed = parameters;
#endif
#define SET_NET                                                                      \
    PLACE_PARAMETERS                                                                 \
    const Net net = {neurons, placed, x, t, weight, n, bits, bit_fail_limit};        \
    const uint8 key = (uint8)(k0, k1, k2, k3, k4, k5, k6, k7);

// Copy the parameters to local memory, each group from another place on.
inline void stage(__global const float *parameters, SPACE float *placed)
{
#if STAGED
    const int vectors = SIZE / 4, shift = get_group_id(0) * WARP % vectors;
    for (int begin = get_local_id(0); begin < vectors; begin += BATCHED / 4 * GROUP) {
        float4 found[BATCHED / 4];
#pragma unroll
        for (int j = 0; j < BATCHED / 4; ++j) {
            const int i = min(begin + j * GROUP, vectors - 1) + shift;
            found[j] = ((__global const float4 *)parameters)[i % vectors];
        }
#pragma unroll
        for (int j = 0; j < BATCHED / 4; ++j) {
            const int i = min(begin + j * GROUP, vectors - 1) + shift;
            ((__local float4 *)placed)[i % vectors] = found[j];
        }
    }
#endif
}

// index map: group g takes tiles g, g + groups, … of the step
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
gradients(SHARED_ARGUMENTS)
{
    __local float own[LOCAL] ALIGNED;
    SET_NET
    __global float *sums = gradients + get_group_id(0) * (size_t)(SIZE + APART);
    for (int i = get_local_id(0); i < LOCAL; i += GROUP) own[i] = 0;
    stage(parameters, placed);
    int loaded = -1;
    if (get_group_id(0) * TILE >= samples)  // its tile is of a larger batch
        for (int i = get_local_id(0); i < SIZE + APART; i += GROUP) sums[i] = 0;
    for (int start = get_group_id(0) * TILE; start < samples;
         start += get_num_groups(0) * TILE)
        tile(&net, own, first + start, min(TILE, samples - start), key, sums,
             start >= (int)get_num_groups(0) * TILE, &loaded);
}

// The sums of the gradients of some groups, and of their records: the update, or the
// totals. A group takes GROUP / PARTS elements at once, PARTS work-items each.
//
// total [SIZE]  the gradients' sum, where there is no update
inline void combined(__global const float *gradients, const int groups,
                     __global float *parameters, __global float *state,
                     __global float *total, __global float *totals,
                     __global const uchar *live, const int fresh, const Moment now,
                     __local float *sums)
{
    const int id = get_local_id(0), wide = GROUP / PARTS;
    // Records lie behind the gradients.
    for (int begin = (BACKWARD ? 0 : SIZE) + get_group_id(0) * wide;
         begin < SIZE + RECORD; begin += get_num_groups(0) * wide) {
        const int element = begin + id % wide;
        const int there = element < SIZE + RECORD ? element : 0;
#if UPDATE
        const int stepping = id < wide && element < SIZE ? element : 0;
        const Element mine = element_of(parameters, state, live, stepping);
#endif
        float sum = 0;
        for (int first = id / wide; first < groups; first += BATCHED * PARTS) {
            float found[BATCHED];
#pragma unroll
            for (int j = 0; j < BATCHED; ++j) {
                const int g = min(first + j * PARTS, groups - 1);
                found[j] = gradients[(size_t)g * (SIZE + APART) + there];
            }
#pragma unroll
            for (int j = 0; j < BATCHED; ++j)
                sum += first + j * PARTS < groups ? found[j] : 0;
        }
        sums[id] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (id < wide && element < SIZE + RECORD) {
#pragma unroll
            for (int part = 1; part < PARTS; ++part) sum += sums[part * wide + id];
            if (element >= SIZE) {
                add_to_total(totals, element - SIZE, sum, fresh);
            } else {
#if UPDATE
                step_element(mine, parameters, state, element, sum, now);
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
    const Moment now = moment_of(rate, samples, 0.0f, seen, outputs, count, seed);
#else
    const Moment now = 0;
#endif
    combined(gradients, groups, parameters, state, total, totals, live, fresh, now,
             sums);
}

#if MEET
// What was written before is seen by other groups, and what they wrote is seen after.
inline void order(void)
{
#if PTX >= 70
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
    mem_fence(CLK_GLOBAL_MEM_FENCE);
#endif
}

inline uint poll(volatile __global uint *word)
{
#if PTX >= 70
    uint found;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(word)
                 : "memory");
    return found;
#else
    return atomic_or(word, 0);
#endif
}

// Wait until all groups have come, and then come `round` of all times; false: in vain.
inline int meet(volatile __global uint *came, const uint round,
                volatile __global int *distress, __local int *vain)
{
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0) {
        order();
        // Each time MEET are added, so that the count may run over.
        atomic_add(came, get_group_id(0) ? 1u : MEET + 1u - get_num_groups(0));
        int left = MAX_POLLS;
        while ((int)(poll(came) - round) < 0 && --left > 0)
            if (left % 64 == 0 && *distress) left = 1;
        order();
        *vain = left <= 0;
        if (*vain) *distress = 1;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    return !*vain;
}
#define MEETING , volatile __global uint *came, volatile __global int *distress
#else
#define MEETING
#endif

// steps: to do, from the one described by the others on; samples: of all of them, or of
// one epoch of several; seen: of the epoch so far, with the first step's; place, apart:
// of the epochs' totals
// came: how often groups came to meet; if they did in vain, the totals are NaN
// index map: group g takes tiles g, g + groups, … of each step
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
steps(SHARED_ARGUMENTS, __global float *state, __global float *total,
      __global float *totals, __global const uchar *live, const int batch,
      const int outputs, const int steps, const int place, const int apart,
      const int seen, const int fresh, const float rate, const int count,
      const uint seed MEETING)
{
    __local float own[LOCAL] ALIGNED;
    SET_NET
    for (int i = get_local_id(0); i < LOCAL; i += GROUP) own[i] = 0;
    const int groups = get_num_groups(0);
    int loaded = -1;
    __global float *mine = gradients + get_group_id(0) * (size_t)(SIZE + APART);
#if MEET
    __local float sums[GROUP];
    __local int vain;
    // None meets before all have come: whoever came already is of this launch.
    uint round = poll(came) / MEET * MEET;
#endif
    const int epoch = (samples + batch - 1) / batch;  // steps
    totals += place;
    for (int step = 0; step < steps; ++step) {
        const int begin = step % epoch * batch, here = min(batch, samples - begin);
        const int anew = begin == 0 && (fresh || step > 0);
        if (begin == 0 && step > 0) totals += apart;
        stage(parameters, placed);
        for (int start = get_group_id(0) * TILE; start < here; start += groups * TILE)
            tile(&net, own, first + begin + start, min(TILE, here - start), key, mine,
                 start >= groups * TILE, &loaded);
#if MEET
        round += MEET;
        if (!meet(came, round, distress, &vain)) break;
        const Moment now =
            moment_of(rate, here, 0.0f, seen, outputs, count + step, seed);
        combined(gradients, min(groups, (here + TILE - 1) / TILE), parameters, state,
                 total, totals, live, anew, now, sums);
        round += MEET;
        if (!meet(came, round, distress, &vain)) break;
#else
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (get_local_id(0) == 0) {
            for (int k = 0; k < RECORD; ++k)
                add_to_total(totals, k, gradients[SIZE + k], anew);
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
#if UPDATE
        const Moment now = moment_of(rate, here, totals[1] + totals[4],
                                     seen - min(batch, samples) + begin + here, outputs,
                                     count + step, seed);
        for (int i = get_local_id(0); i < SIZE; i += GROUP)
            step_element(element_of(parameters, state, live, i), parameters, state, i,
                         gradients[i], now);
        barrier(CLK_GLOBAL_MEM_FENCE);
#elif BACKWARD
        for (int i = get_local_id(0); i < SIZE; i += GROUP) total[i] = gradients[i];
#endif
#endif
    }
#if MEET
    if (vain && get_local_id(0) == 0) {
        for (int k = 0; k < RECORD; ++k) totals[k] = NAN;
    }
#endif
}

// group_members: trainings of many networks of one shape in a launch, for GPUs.
//
// A work-group trains one member for all epochs of the launch. Its parameters and
// gradients stay in local memory, and its samples pass by in tiles, as those of a
// resident group of group_step.cl. Groups wait for nobody: as many as fit share a
// compute unit, and hide each other's latency.
//
//   compute unit 0   member 0: epochs ...   member 5: epochs ...
//                    member 1: epochs ........   member 6 ...
//   compute unit 1   member 2: epochs ...   member 4 ...
//
// Members share the data set, the order of layers and the rule. Each has its own
// parameters, state, random numbers, rates, penalties, samples and limits.
//
// OWN_STATE   1: the optimiser's state stays in local memory too
// MATRIX      1: products are computed by matrix units (matrix.h)
// VALUES      values of local memory for parameters, whose rows are apart so that a
//             warp's are in different banks; the layers' table has these offsets
// SPLIT       of the first layer's weights, in pieces, with places behind the VALUES; 0:
//             they are among these
// KEPT        gradients of a lane that stay in registers for a step; 0: all are in local
//             memory
// STEPS, BLOCK_TABLE, MOST_PARTS, EXACT  as in matrix.h
// and the macros of steps.h and of group_step_tile.h, with LOCAL_VALUES, PARTS and SIZE as
// in group_step.cl
#define REAL float
#define WIDTH 1
#define PER_NETWORK REAL
#define UPDATES 8  // of a work-item at once
#define RESIDENT 1
#define STAGED 1
#include "include/steps.h"
#include "members/member.h"
#include "training/group_step_tile.h"
#if !UPDATE
#define SLOTS 0
#endif
#if !defined(OWN_STATE) || !defined(LOCAL_VALUES) || !defined(SPLIT) || !defined(KEPT)
#error "group_members.cl needs OWN_STATE, LOCAL_VALUES, SPLIT and KEPT"
#endif
#define PLACES (VALUES + SPLIT)

// The parameter of a place; and set it.
static inline float parameter_of(const Net *net, const int place)
{
#if EXACT
    if (place >= VALUES) return joined_pieces(net->pieces + place - VALUES);
#endif
    return net->parameters[place];
}

static inline void set_parameter(__local float *values, __local ushort *pieces,
                                 const int place, const float v)
{
#if EXACT
    if (place >= VALUES) store_pieces(pieces + place - VALUES, v);
    else
#endif
        values[place] = v;
}

#if HAS_CLIP_NORM
// The norm of the mean gradient. squares [GROUP]: of local memory
static inline float norm_of(const Net *net, __local const float *sums,
                            __global const int *places, const int samples,
                            const Penalties penalties, __local float *squares)
{
    float sum = 0;
    for (int i = get_local_id(0); i < SIZE; i += GROUP) {
        const int at = max(places[i], 0);
        const float g =
            add_penalties(parameter_of(net, at), sums[at], samples, penalties, i) / samples;
        sum += places[i] < 0 ? 0 : g * g;
    }
    squares[get_local_id(0)] = sum;
    for (int left = GROUP / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (get_local_id(0) < left)
            squares[get_local_id(0)] += squares[get_local_id(0) + left];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return sqrt(squares[0]);
}
#endif

#if WEIGHTED
// The factor of the weights of a step. parts [GROUP]: of local memory
static inline float scale_of(const Net *net, const Run *run, const int full,
                             __local float *parts)
{
    if (!scales_weights(full, run->samples)) return 1;
    float sum = 0;
    for (int i = get_local_id(0); i < run->size; i += GROUP)
        sum += net->weight[row_of(net, run->begin + i, run->key)];
    parts[get_local_id(0)] = sum;
    for (int left = GROUP / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (get_local_id(0) < left)
            parts[get_local_id(0)] += parts[get_local_id(0) + left];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return weight_scale(parts[0], run->size);
}
#endif

// Arguments, in the order of clnet/variants/members/group_members.py:
//
// parameters [members, SIZE], x, t [data, width]: the data set
// weight [members, data], state [members, SLOTS, SIZE]
// places [SIZE]  where each element of the flat buffer is in local memory; -1: padding
// and those of member.h
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
group_members(__global const Neuron *neurons, __global float *parameters,
              __global const float *x, __global const float *t,
              __global const float *weight, const int data, const float bit_fail_limit, __global float *state,
              __global const int *places, const int outputs, const int batch,
              MEMBER_ARGUMENTS)
{
    __local float memory[LOCAL_VALUES] ALIGNED, values[VALUES] ALIGNED;
    __local float own_totals[2 * RECORD];
#if EXACT
    __local ushort pieces[PIECES * SPLIT] ALIGNED;
    for (int i = get_local_id(0); i < PIECES * SPLIT; i += GROUP) pieces[i] = 0;
#else
    __local ushort *pieces = 0;
#endif
#if MATRIX
    float kept[KEPT + 1];  // C has no empty arrays
#endif
#if KEPT
    __local float records[RECORD * PARTS];
    __local float *sums = memory;  // at the end of a step
#else
    __local float sums[PLACES + RECORD * PARTS] ALIGNED, *records = sums + PLACES;
#endif
#if OWN_STATE
    __local float slots[SLOTS * SIZE + 1];  // C has no empty arrays
#endif
#if HAS_CLIP_NORM
    __local float squares[GROUP];
#endif
#if WEIGHTED
    __local float weight_parts[GROUP];
#endif
    if ((int)get_group_id(0) >= count_of_members) return;
    const Member member = members[get_group_id(0)];
    const int id = get_local_id(0), samples = member.samples;
    const int full = min(batch, samples), steps = (samples + full - 1) / full;
    __global float *own = parameters + (size_t)member.index * SIZE;
    __global float *own_state = state + (size_t)member.index * SLOTS * SIZE;
    __global float *first_totals =
        totals + (size_t)member.record * epochs * 2 * RECORD;
    for (int i = id; i < LOCAL_VALUES; i += GROUP) memory[i] = 0;
    for (int i = id; i < VALUES; i += GROUP) values[i] = 0;  // as padding stays
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < SIZE; i += GROUP) {
        const int at = places[i];
        if (at >= 0) set_parameter(values, pieces, at, own[i]);
    }
#if OWN_STATE
    for (int i = id; i < SLOTS * SIZE; i += GROUP) slots[i] = own_state[i];
#else
    __global float *slots = own_state;
#endif
    Net net = {
        neurons, values,
#if EXACT
        pieces,
#endif
        x, t, weight + (size_t)member.index * data, samples,
        member.bits, bit_fail_limit, 1,
#if SUBSETS
        member.first < 0 ? 0 : subsets + member.first,
#endif
#if DROPS
        drops + member.index * LAYERS, member.seed,
#endif
    };
    __global const Epoch *plan = schedule + (size_t)member.plan * (epochs + 1);
    Run run = {full, samples, 0, 1, 2 * RECORD, 1, plan, member.squares_limit,
               member.fails_limit, first_totals, 0, 0, full, vload8(0, plan->key),
               plan->rate, own_totals};
    int loaded = -1;
    for (int step = 0; step < epochs * steps; ++step) {
        const int begin = run.begin, size = run.size, reset = starts_epoch(&run);
#if WEIGHTED
        net.weight_scale = scale_of(&net, &run, full, weight_parts);
#endif
#if KEPT
#pragma unroll
        for (int i = 0; i < KEPT; ++i) kept[i] = 0;
#endif
#if DROPS
        net.count = member.epochs * steps + step;
#endif
        for (int start = 0; start < size; start += TILE) {
#if DROPS
            net.start = start;
#endif
#if MATRIX
            tile(&net, memory, begin + start, min(TILE, size - start), run.key, sums,
                 records, start > 0, &loaded, kept);
#else
            tile(&net, memory, begin + start, min(TILE, size - start), run.key, sums,
                 start > 0, &loaded);
#endif
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#if KEPT
        store_kept(kept, sums);
#endif
        if (id < RECORD) {
            float sum = 0;
            for (int p = 0; p < PARTS; ++p) sum += records[id * PARTS + p];
            add_to_total(own_totals, id, sum, reset);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#if UPDATE
        StepInfo now =
            step_info(run.rate, size, own_totals[1] + own_totals[4], seen_samples(&run),
                      outputs, member.epochs * steps + step, member.seed);
        now.penalties = (Penalties){member.l1, member.l2};
#if HAS_CLIP_NORM
        now.norm = norm_of(&net, sums, places, size, now.penalties, squares);
#endif
        for (int first = id; first < SIZE; first += UPDATES * GROUP) {
            int at[UPDATES];
            float s[UPDATES][SLOTS + 1];
#pragma unroll
            for (int j = 0; j < UPDATES; ++j) {  // loads in flight
                const int i = min(first + j * GROUP, SIZE - 1);
                at[j] = first + j * GROUP < SIZE ? places[i] : -1;
#pragma unroll
                for (int k = 0; k < SLOTS; ++k) s[j][k] = slots[k * SIZE + i];
            }
#pragma unroll
            for (int j = 0; j < UPDATES; ++j) {
                const int i = first + j * GROUP;
                if (at[j] < 0) continue;
                const float v = parameter_of(&net, at[j]);
                set_parameter(values, pieces, at[j],
                              stepped(v, sums[at[j]], s[j], now, i));
#pragma unroll
                for (int k = 0; k < SLOTS; ++k) slots[k * SIZE + i] = s[j][k];
            }
        }
#endif
        if (begin + size >= samples && id < 2 * RECORD)
            run.first_totals[run.epoch * run.stride + id] = own_totals[id];
        const int goes_on = next_step(&run);
        barrier(CLK_LOCAL_MEM_FENCE);  // all have read the totals
        if (!goes_on) break;
        if (GATHERED == 2 && run.begin == 0) loaded = -1;  // another order
#if KEPT
        for (int i = id; i < LOCAL_VALUES; i += GROUP) memory[i] = 0;  // as padding is
        loaded = -1;
#endif
    }
    __global float *end = ends + (size_t)member.record * END;
    if (id < 2 * RECORD) end[id] = own_totals[id];
    if (id == 0) end[2 * RECORD] = run.epoch;
#if UPDATE
    for (int i = id; i < SIZE; i += GROUP) {
        const int at = places[i];
        if (at >= 0) own[i] = parameter_of(&net, at);
    }
#if OWN_STATE
    for (int i = id; i < SLOTS * SIZE; i += GROUP) own_state[i] = slots[i];
#endif
#endif
}

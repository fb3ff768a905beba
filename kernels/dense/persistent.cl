// persistent: a chain of dense layers in one launch over all compute units, one sample.
//
// One sample is bound by loading weights and by the latency between layers: a launch per
// layer costs microseconds in which no weight moves. Here one group stays resident on
// every compute unit from the first layer to the last. Row j of a layer belongs to group
// j % groups and, within it, to team (j / groups) % TEAMS of work-items:
//
//   group 0: rows 0, G, 2G …      a team's weights are one stream through all layers:
//   group 1: rows 1, G + 1 …      DEPTH vectors per work-item are prefetched while the
//     :                           team waits for the layer's inputs
//
// Groups publish values as words (ll_protocol.h). Each group gathers a layer's inputs in
// local memory, double-buffered, so that one barrier per layer suffices.
//
// GROUP     work-items of a group
// TEAM      work-items per row: 32 with PTX, else 1
// DEPTH     vectors of weights that a work-item keeps in flight
// ROOM      values of the widest layer's input, in whole steps
// WORDS     {n, …} offsets of the words of each layer's inputs; the first layer has none
// IN_ALL    words of a set
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// MAX_POLLS, BACKOFF_NS, PTX  as in ll_protocol.h
// REAL      float
#define WIDTH 1
#include "include/activations.h"
#include "dense/chain.h"
#include "sync/by_value_input.h"
#include "sync/zero_copy_output.h"
#include "sync/ll_protocol.h"
#include "sync/gather.h"
#if !defined(GROUP) || !defined(TEAM) || !defined(DEPTH) || !defined(ROOM) \
    || !defined(WORDS) || !defined(IN_ALL)
#error "persistent.cl needs GROUP, TEAM, DEPTH, ROOM, WORDS and IN_ALL"
#endif
#define TEAMS (GROUP / TEAM)
#define STEP (DEPTH * TEAM)  // vectors

__constant int words_of[] = WORDS;

// A step of a team's stream of weights: DEPTH * TEAM vectors of one row. All teams have
// the same number of rows of a layer, so that they enter the next layer together; rows
// past the last one are empty, and layer LAYERS has none.
typedef struct {
    int layer, row, step;
} Step;

// The step after one; `first_row` is a team's first row of every layer.
static inline Step next_step(Step at, const int first_row, const int teams)
{
    ++at.step;
    if (at.step * STEP < stride_of[at.layer] / 4) return at;
    at.step = 0;
    if (at.row - first_row + teams < n_out_of[at.layer]) {
        at.row += teams;
    } else {
        at.row = first_row;
        ++at.layer;
    }
    return at;
}

// Vectors left of a row, from a step on.
static inline int vectors_left(const Step at)
{
    if (at.layer >= LAYERS || at.row >= n_out_of[at.layer]) return 0;
    return stride_of[at.layer] / 4 - at.step * STEP;
}

// Their address.
static inline __global const float4 *vectors_of(__global const float *parameters,
                                                const Step at)
{
    return (__global const float4 *)(parameters + weights_of[at.layer]
                                     + (size_t)at.row * stride_of[at.layer])
           + at.step * STEP;
}

static inline float bias_at(__global const float *parameters, const Step at)
{
    return bias_of[at.layer] < 0 ? 0.0f : parameters[bias_of[at.layer] + at.row];
}

// y = the last layer's output for x
//
// parameters [..]      the flat buffer
// x [n_in]  y [n_out]  one sample
// words [2][IN_ALL]    all values between layers, double-buffered; initially 0
// launches [groups]    number of each group's launches so far; initially 0
// timeout              set when a wait reaches its bound
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void persistent(__global const float *parameters, __global const float *x,
                const int n_in, __global float *y, __global uint *words,
                __global uint *launches, __global int *timeout ZERO_COPY_PARAMETER
                BY_VALUE_PARAMETER)
{
    __local float4 values[2 * ROOM / 4] __attribute__((aligned(16)));
    __local int timed_out;
    const int id = get_local_id(0), lane = id % TEAM;
    const int groups = get_num_groups(0), group = get_group_id(0);
    const int first_row = id / TEAM * groups + group, teams = TEAMS * groups;
    const uint launch = launches[group];
    // The words of this launch, and those of the next one, which this one clears.
    __global uint *now = words + (launch & 1) * IN_ALL;
    __global uint *then = words + (~launch & 1) * IN_ALL;
    if (id == 0) timed_out = 0;
    Step current = {0, first_row, 0}, next = current;
    float4 prefetched[DEPTH];
    float bias = 0, next_bias = 0;
    __global const float4 *from = 0;
    int left = 0;
    // Locate the next step off the critical path, then prefetch its weights.
#define LOCATE                                                                       \
    left = vectors_left(next);                                                       \
    if (left > 0) {                                                                  \
        from = vectors_of(parameters, next) + lane;                                  \
        if (next.step == 0) next_bias = bias_at(parameters, next);                   \
    }
#define PREFETCH                                                                     \
    for (int i = 0; i < DEPTH; ++i)                                                  \
        prefetched[i] = weights_at(from + i * TEAM, i * TEAM + lane < left);
    LOCATE
#pragma unroll
    PREFETCH
    bias = next_bias;
    next = next_step(current, first_row, teams);
    LOCATE
    for (int layer = 0; layer < LAYERS; ++layer) {
        const int n_out = n_out_of[layer];
        const int steps = (stride_of[layer] / 4 + STEP - 1) / STEP;
        const int outputs = layer < LAYERS - 1 ? words_of[layer + 1] : 0;
        __local float4 *source = values + (layer & 1) * (ROOM / 4);
        if (layer == 0)
            for (int i = id; i < 4 * STEP * steps; i += GROUP)
                ((__local float *)source)[i] = i < n_in ? INPUT(i) : 0.0f;
        await_own_words();
        if (layer > 0)
            gather(source, now + words_of[layer], stride_of[layer] / 4, STEP * steps,
                   &timed_out, timeout);
        barrier(CLK_LOCAL_MEM_FENCE);
        float4 sums = (float4)0;
        while (current.layer == layer) {
#pragma unroll
            for (int i = 0; i < DEPTH; ++i)
                sums += prefetched[i] * source[current.step * STEP + i * TEAM + lane];
            if (next.step == 0) {
                const float sum = team_sum((sums.x + sums.y) + (sums.z + sums.w), TEAM);
                sums = (float4)0;
                if (lane == 0 && current.row < n_out) {
                    const float v = chain_activate(layer, sum + bias);
                    if (layer == LAYERS - 1) {
                        y[current.row] = v;
                        ZERO_COPY_STORE(current.row, v);
                    } else {
                        publish(now + outputs + current.row,
                                then + outputs + current.row, v);
                        // The last row's team pads the last vector with zeros.
                        if (current.row == n_out - 1)
                            for (int i = n_out; i < written_by(layer); ++i)
                                publish(now + outputs + i, then + outputs + i, 0);
                    }
                }
                bias = next_bias;
            }
#pragma unroll
            PREFETCH
            current = next;
            if (current.layer < LAYERS) next = next_step(current, first_row, teams);
            LOCATE
        }
    }
    barrier(CLK_GLOBAL_MEM_FENCE);  // all work-items have read it
    if (id == 0) launches[group] = launch + 1;
}

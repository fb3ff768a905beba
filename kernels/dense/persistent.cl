// persistent: a chain of dense layers in one launch over all compute units, one sample.
//
// One sample is bound by reading weights, and by waiting between layers: a launch a
// layer costs microseconds each, in which no weight moves. Here every compute unit keeps
// one group from the first layer to the last. Row j of a layer belongs to group
// j % groups, and in it to team (j / groups) % TEAMS, work-items that read it together;
//
//   group 0: rows 0, G, 2G …      a team's weights are one stream through all layers:
//   group 1: rows 1, G + 1 …      DEPTH vectors a work-item are on their way while the
//     :                           team waits for what they are to be multiplied by
//
// Values pass from group to group as words (ll_protocol.h). What a layer reads is gathered
// once a group into local memory, into two places in turn, so that one barrier a layer
// suffices.
//
// GROUP     work-items of a group
// TEAM      work-items a row: 32 where there is PTX, else 1
// DEPTH     vectors of weights that a work-item keeps on their way
// ROOM      values of the widest layer's input, in whole steps
// WORDS     {n, …} where the words of each layer's inputs start; the first has none
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

__constant int words_of[LAYERS] = WORDS;

// A team's place in its stream of weights: a step is DEPTH * TEAM vectors of one row.
// All teams take as many rows of a layer, so that they go on to the next one together;
// rows past the last one are empty, and layer LAYERS has none.
typedef struct {
    int layer, row, step;
} Place;

// The place after one; `own` is a team's first row of every layer.
inline Place after(Place place, const int own, const int teams)
{
    ++place.step;
    if (place.step * STEP < stride_of[place.layer] / 4) return place;
    place.step = 0;
    if (place.row - own + teams < n_out_of[place.layer]) {
        place.row += teams;
    } else {
        place.row = own;
        ++place.layer;
    }
    return place;
}

// Vectors of a row from a place on.
inline int vectors_left(const Place place)
{
    if (place.layer >= LAYERS || place.row >= n_out_of[place.layer]) return 0;
    return stride_of[place.layer] / 4 - place.step * STEP;
}

// Where they are.
inline __global const float4 *vectors_of(__global const float *parameters,
                                         const Place place)
{
    return (__global const float4 *)(parameters + weights_of[place.layer]
                                     + (size_t)place.row * stride_of[place.layer])
           + place.step * STEP;
}

inline float bias_at(__global const float *parameters, const Place place)
{
    return bias_of[place.layer] < 0 ? 0.0f : parameters[bias_of[place.layer] + place.row];
}

// y = the last layer's output for x
//
// parameters [..]      the flat buffer
// x [n_in]  y [n_out]  one sample
// words [2][IN_ALL]    of all values between layers, 0 at first
// launches [groups]    the number of each group's launches so far, 0 at first
// timeout                set where a wait hit its bound
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
    const int own = id / TEAM * groups + group, teams = TEAMS * groups;
    const uint launch = launches[group];
    // Words of this launch, and those of the next one, which are to be empty then.
    __global uint *now = words + (launch & 1) * IN_ALL;
    __global uint *then = words + (~launch & 1) * IN_ALL;
    if (id == 0) timed_out = 0;
    Place here = {0, own, 0}, next = here;
    float4 ahead[DEPTH];
    float bias = 0, next_bias = 0;
    __global const float4 *from = 0;
    int left = 0;
    // What is to be found out of the next step, while nobody waits for it.
#define LOOK_UP                                                                      \
    left = vectors_left(next);                                                       \
    if (left > 0) {                                                                  \
        from = vectors_of(parameters, next) + lane;                                  \
        if (next.step == 0) next_bias = bias_at(parameters, next);                   \
    }
    // And its weights.
#define FETCH                                                                        \
    for (int i = 0; i < DEPTH; ++i)                                                  \
        ahead[i] = weights_at(from + i * TEAM, i * TEAM + lane < left);
    LOOK_UP
#pragma unroll
    FETCH
    bias = next_bias;
    next = after(here, own, teams);
    LOOK_UP
    for (int layer = 0; layer < LAYERS; ++layer) {
        const int n_out = n_out_of[layer];
        const int steps = (stride_of[layer] / 4 + STEP - 1) / STEP;
        const int told = layer < LAYERS - 1 ? words_of[layer + 1] : 0;
        __local float4 *source = values + (layer & 1) * (ROOM / 4);
        if (layer == 0)
            for (int i = id; i < 4 * STEP * steps; i += GROUP)
                ((__local float *)source)[i] = i < n_in ? INPUT(i) : 0.0f;
        else
            gather(source, now + words_of[layer], stride_of[layer] / 4, STEP * steps,
                   &timed_out, timeout);
        barrier(CLK_LOCAL_MEM_FENCE);
        float4 sums = (float4)0;
        while (here.layer == layer) {
#pragma unroll
            for (int i = 0; i < DEPTH; ++i)
                sums += ahead[i] * source[here.step * STEP + i * TEAM + lane];
            if (next.step == 0) {
                const float sum = team_sum((sums.x + sums.y) + (sums.z + sums.w), TEAM);
                sums = (float4)0;
                if (lane == 0 && here.row < n_out) {
                    const float v = chain_activate(layer, sum + bias);
                    if (layer == LAYERS - 1) {
                        y[here.row] = v;
                        ZERO_COPY_STORE(here.row, v);
                    } else {
                        publish(now + told + here.row, then + told + here.row, v);
                        // The last row's team fills up the last vector.
                        if (here.row == n_out - 1)
                            for (int i = n_out; i < written_by(layer); ++i)
                                publish(now + told + i, then + told + i, 0);
                    }
                }
                bias = next_bias;
            }
#pragma unroll
            FETCH
            here = next;
            if (here.layer < LAYERS) next = after(here, own, teams);
            LOOK_UP
        }
    }
    if (id == 0) launches[group] = launch + 1;
}

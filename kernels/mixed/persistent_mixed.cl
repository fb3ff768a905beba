// persistent_mixed: a chain of dense, sparse and local layers in one launch over all
// compute units, one sample.
//
// As in persistent.cl, every compute unit keeps one group from the first layer to the
// last, and values pass from group to group as words (ll_protocol.h). But a group's rows of a
// layer are neighbours, and it waits for those values alone that they read:
//
//   layer      |  group 0  |  group 1  |  group 2  | …       a share of rows each
//                   \      /         \      /
//   inputs     | 0 … past the window | … |                   a range of values each
//
// which of a dense layer are all, of a local one those of the share and its window's
// end, of a sparse one those from the first to the last column in the share. A group
// has a task for each layer of which it has rows; all that it must know of it is in a
// table (variants/persistent_mixed.py), and read two tasks ahead.
//
// Rows of dense layers are read as they lie. All others are lists: a row's values side
// by side, padded to whole vectors, and each value's column, counted from the vector
// before the group's range. A row is read by 2^shift work-items, more where rows are
// few and long. DEPTH vectors of each are on their way while a group waits for values.
//
// GROUP     work-items of a group; all groups run at the same time
// DEPTH     vectors of weights that a work-item keeps on their way
// ROOM      values of the widest range, in whole steps
// TASKS     of a group, three empty ones at the end among them
// IN_ALL    words of a set
// MAX_POLLS, BACKOFF_NS, PTX  as in ll_protocol.h
// FUNCTIONS as in functions.h
// REAL      float
#define WIDTH 1
#include "include/activations.h"
#include "include/functions.h"
#include "sync/by_value_input.h"
#include "sync/zero_copy_output.h"
#include "sync/ll_protocol.h"
#include "sync/gather.h"
#if !defined(GROUP) || !defined(DEPTH) || !defined(ROOM) || !defined(TASKS) \
    || !defined(IN_ALL)
#error "persistent_mixed.cl needs GROUP, DEPTH, ROOM, TASKS and IN_ALL"
#endif
#define BUFFER (1 + ROOM / 4)  // vectors; the first is zero: places that are none

// What a group does in a layer; places are in values, words and vectors.
typedef struct __attribute__((aligned(16))) {
    int words, held, padded;  // its range: the first word, vectors, the same in whole
                              // steps; of the first layer, where it starts in x
    int listed, shift;        // 1: its rows are lists; 2^shift work-items read a row
    int rows;                 // of its share; none: the group has finished
    int vectors;              // of the longest row
    int weights;              // dense: vectors before the first row; else its `starts`
    int told, pads;           // the first word of its outputs; those to fill up with 0
    int inner;                // 0: inputs are x; 2: outputs are y; 1: neither
    int bias, bias_step;      // of the first row, -1: none; 0 where all share one
    int function;             // its activation's code
    int spare[2];
} Task;

// The columns of a vector of a list.
inline ushort4 columns_at(__global const ushort4 *from, const bool there)
{
    const ushort4 nowhere = (ushort4)0;
#if PTX >= 70
    uint2 c = as_uint2(nowhere);
    asm volatile("{.reg .pred there; setp.ne.s32 there, %3, 0;"
                 "@there ld.global.nc.v2.u32 {%0, %1}, [%2];}"
                 : "+r"(c.x), "+r"(c.y) : "l"(from), "r"((int)there));
    return as_ushort4(c);
#else
    return there ? *from : nowhere;
#endif
}

// A work-item's vectors of a step: of a row of its task, or of the following one. All
// take as many rows of a task, and steps of a row, so that they go on to the next one
// together; rows past the share are empty.
typedef struct {
    int row, step;
    bool further;        // of the following task
    int listed, shift;   // as its task says
    int first, past;     // its row's vectors
    float bias;
} Step;

// What is to be found out of a step, while nobody waits for it: no result is used here.
inline void look_up(Step *step, const Task *task, __global const int *starts,
                    __global const float *parameters)
{
    step->listed = task->listed;
    step->shift = task->shift;
    if (step->step > 0) return;
    step->first = step->past = 0;
    if (step->row >= task->rows) return;
    if (task->listed) {
        step->first = starts[task->weights + step->row];
        step->past = starts[task->weights + step->row + 1];
    } else {
        step->first = task->weights + step->row * task->vectors;
        step->past = step->first + task->vectors;
    }
    step->bias = task->bias < 0
                     ? 0 : parameters[task->bias + step->row * task->bias_step];
}

// Ask for a step's weights, and the places of what they are multiplied by.
inline void fetch(float4 *ahead, ushort4 *places, const Step step,
                  __global const float *parameters, __global const float4 *lists,
                  __global const ushort4 *columns)
{
    const int between = 1 << step.shift;
    const int at = step.first + (step.step * DEPTH << step.shift)
                   + ((int)get_local_id(0) & (between - 1));
    const int left = step.past - at;
    __global const float4 *from =
        (step.listed ? lists : (__global const float4 *)parameters) + at;
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
        const bool there = i * between < left;
        ahead[i] = weights_at(from + i * between, there);
        // Not in a branch of its own: that was slower.
        places[i] = columns_at(columns + at + i * between, there && step.listed);
    }
}

// Go on to the next step, and look it up.
inline void advance(Step *step, const Task *task, const Task *following,
                    __global const int *starts, __global const float *parameters)
{
    const int team = (int)get_local_id(0) >> task->shift;
    if ((++step->step * DEPTH << task->shift) >= task->vectors) {
        step->step = 0;
        step->row += GROUP >> task->shift;
        step->further = step->row - team >= task->rows;
        if (step->further) {
            step->row = (int)get_local_id(0) >> following->shift;
            look_up(step, following, starts, parameters);
            return;
        }
    }
    look_up(step, task, starts, parameters);
}

// y = the last layer's output for x
//
// parameters [..]      the flat buffer
// lists [vectors]      values of all lists
// starts [..]          of each list: where its rows' vectors start, and the end
// columns [vectors]    of each value of the lists
// tasks [groups, TASKS]
// x [n_in]  y [n_out]  one sample
// words [2][IN_ALL]    of all values between layers, 0 at first
// launches [groups]    the number of each group's launches so far, 0 at first
// timeout                set where a wait hit its bound
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void persistent_mixed(__global const float *parameters, __global const float4 *lists,
                      __global const int *starts, __global const ushort4 *columns,
                      __global const Task *tasks, __global const float *x,
                      const int n_in, __global float *y, __global uint *words,
                      __global uint *launches, __global int *timeout ZERO_COPY_PARAMETER
                      BY_VALUE_PARAMETER)
{
    __local float4 values[2 * BUFFER] __attribute__((aligned(16)));
    __local int timed_out;
    const int id = get_local_id(0), group = get_group_id(0);
    tasks += (size_t)group * TASKS;
    Task task = tasks[0], following = tasks[1], later = tasks[2];
    const uint launch = launches[group];
    // Words of this launch, and those of the next one, which are to be empty then.
    __global uint *now = words + (launch & 1) * IN_ALL;
    __global uint *then = words + (~launch & 1) * IN_ALL;
    __local float4 *source = values + 1, *other = values + BUFFER + 1;
    if (id == 0) {
        timed_out = 0;
        values[0] = values[BUFFER] = (float4)0;
    }
    Step next = {id >> task.shift, 0, false, 0, 0, 0, 0, 0.0f};
    float4 ahead[DEPTH];
    ushort4 places[DEPTH];
    look_up(&next, &task, starts, parameters);
    fetch(ahead, places, next, parameters, lists, columns);
    float bias = next.bias;
    advance(&next, &task, &following, starts, parameters);
    for (int number = 3; task.rows > 0; ++number) {
        if (task.inner == 0)
            for (int i = id; i < 4 * task.padded; i += GROUP) {
                const int at = task.words + i;
                ((__local float *)source)[i] = at < n_in ? INPUT(at) : 0.0f;
            }
        else
            gather(source, now + task.words, task.held, task.padded, &timed_out, timeout);
        barrier(CLK_LOCAL_MEM_FENCE);
        __local const float *single = (__local const float *)(source - 1);
        const int shift = task.shift, lane = id & ((1 << shift) - 1);
        float4 sums = (float4)0;
        int row = id >> shift, step = 0;
        for (bool last = false; !last;) {
            last = next.further;
            if (task.listed) {
#pragma unroll
                for (int i = 0; i < DEPTH; ++i)
                    sums += ahead[i] * (float4)(single[places[i].s0],
                                                single[places[i].s1],
                                                single[places[i].s2],
                                                single[places[i].s3]);
            } else {
                const int at = (step * DEPTH << shift) + lane;
#pragma unroll
                for (int i = 0; i < DEPTH; ++i)
                    sums += ahead[i] * source[at + (i << shift)];
            }
            if (next.step == 0) {
                const float sum =
                    team_sum((sums.x + sums.y) + (sums.z + sums.w), 1 << shift);
                sums = (float4)0;
                if (lane == 0 && row < task.rows) {
                    const float v = activate_as(task.function, sum + bias);
                    const int at = task.told + row;
                    if (task.inner == 2) {
                        y[at] = v;
                        ZERO_COPY_STORE(at, v);
                    } else {
                        publish(now + at, then + at, v);
                        if (row == task.rows - 1)
                            for (int i = 1; i <= task.pads; ++i)
                                publish(now + at + i, then + at + i, 0);
                    }
                }
            }
            fetch(ahead, places, next, parameters, lists, columns);
            bias = next.bias;
            row = next.row;
            step = next.step;
            if (last) {
                task = following;
                following = later;
                later = tasks[number];
                next.further = false;
            }
            advance(&next, &task, &following, starts, parameters);
        }
        __local float4 *read = source;
        source = other;
        other = read;
    }
    if (id == 0) launches[group] = launch + 1;
}

// lists [size]    the parameters that `sources` [size] names; 0 where that is below 0
// index map: work-item = value
__kernel void take(__global const float *parameters, __global const int *sources,
                   __global float *lists, const int size)
{
    const int i = get_global_id(0);
    if (i < size) lists[i] = sources[i] < 0 ? 0.0f : parameters[sources[i]];
}

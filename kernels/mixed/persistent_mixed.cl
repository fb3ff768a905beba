// persistent_mixed: a chain of dense, sparse and local layers in one launch over all
// compute units, one sample.
//
// As in persistent.cl, one group stays resident on each compute unit from the first
// layer to the last, and groups publish values as words (ll_protocol.h). But a group's
// rows of a layer are contiguous, and it waits only for the values that they read:
//
//   layer      |  group 0  |  group 1  |  group 2  | …       a share of rows each
//                   \      /         \      /
//   inputs     | 0 … past the window | … |                   a range of values each
//
// The range of a dense layer is all inputs; of a local one, the share and the end of its
// last window; of a sparse one, the first to the last column in the share. A group has a
// task for each layer of which it has rows, described in a table
// (`Tasks` in variants/mixed/fused_sparse.py) that is read two tasks ahead.
//
// Rows of dense layers are read in place. Other layers are lists: a row's values side by
// side, padded to whole vectors, and each value's column, relative to the vector before
// the group's range. 2^shift work-items read a row, more where rows are few and long.
// Each prefetches DEPTH vectors while the group waits for values.
//
// GROUP     work-items of a group; all groups run concurrently
// DEPTH     vectors of weights that a work-item keeps in flight
// ROOM      values of the widest range, in whole steps
// TASKS     tasks of a group, with three empty ones at the end
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
#define BUFFER (1 + ROOM / 4)  // vectors; the first is zero, for padding of lists

// A group's work in a layer.
typedef struct __attribute__((aligned(16))) {
    int words;                // the first word of its range; of the first layer: of x
    int inputs, padded;       // vectors of its range; the same in whole steps
    int is_list, shift;       // 1: its rows are lists; 2^shift work-items read a row
    int rows;                 // of its share; 0: the group has finished
    int vectors;              // of the longest row
    int weights;              // dense: vectors before the first row; else its `starts`
    int outputs, pads;        // the first word of its outputs; words to pad with 0
    int position;              // 0: inputs are x; 2: outputs are y; 1: neither
    int bias, bias_step;      // of the first row, -1: none; 0: shared by all rows
    int function;             // its activation's code
    int spare[2];
} Task;

// The columns of a vector of a list.
static inline ushort4 columns_at(__global const ushort4 *from, const bool valid)
{
#if PTX >= 70
    uint2 c = (uint2)0;
    asm volatile("{.reg .pred valid; setp.ne.s32 valid, %3, 0;"
                 "@valid ld.global.nc.v2.u32 {%0, %1}, [%2];}"
                 : "+r"(c.x), "+r"(c.y) : "l"(from), "r"((int)valid));
    return as_ushort4(c);
#else
    return valid ? *from : (ushort4)0;
#endif
}

// A work-item's vectors of a step: of a row of its task, or of the following task. All
// work-items have the same number of rows of a task, and of steps of a row, so that they
// enter the next task together; rows past the share are empty.
typedef struct {
    int row, step;
    bool in_following;    // the step is of the following task
    int is_list, shift;   // of its task
    int first, past;      // its row's vectors
    float bias;
} Step;

// Load the bounds and the bias of a step's row, off the critical path.
static inline void locate(Step *step, const Task *task, __global const int *starts,
                          __global const float *parameters)
{
    step->is_list = task->is_list;
    step->shift = task->shift;
    if (step->step > 0) return;
    step->first = step->past = 0;
    if (step->row >= task->rows) return;
    if (task->is_list) {
        step->first = starts[task->weights + step->row];
        step->past = starts[task->weights + step->row + 1];
    } else {
        step->first = task->weights + step->row * task->vectors;
        step->past = step->first + task->vectors;
    }
    step->bias = task->bias < 0
                     ? 0 : parameters[task->bias + step->row * task->bias_step];
}

// Prefetch a step's weights and their columns.
static inline void load_step(float4 *prefetched, ushort4 *prefetched_columns,
                             const Step step, __global const float *parameters,
                             __global const float4 *lists,
                             __global const ushort4 *columns)
{
    const int stride = 1 << step.shift;
    const int at = step.first + (step.step * DEPTH << step.shift)
                   + ((int)get_local_id(0) & (stride - 1));
    const int left = step.past - at;
    __global const float4 *from =
        (step.is_list ? lists : (__global const float4 *)parameters) + at;
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
        const bool valid = i * stride < left;
        prefetched[i] = weights_at(from + i * stride, valid);
        // A separate branch was slower.
        prefetched_columns[i] =
            columns_at(columns + at + i * stride, valid && step.is_list);
    }
}

// Advance to the next step, and locate it.
static inline void advance(Step *step, const Task *task, const Task *following,
                           __global const int *starts, __global const float *parameters)
{
    const int team = (int)get_local_id(0) >> task->shift;
    if ((++step->step * DEPTH << task->shift) >= task->vectors) {
        step->step = 0;
        step->row += GROUP >> task->shift;
        step->in_following = step->row - team >= task->rows;
        if (step->in_following) {
            step->row = (int)get_local_id(0) >> following->shift;
            locate(step, following, starts, parameters);
            return;
        }
    }
    locate(step, task, starts, parameters);
}

// y = the last layer's output for x
//
// parameters [..]      the flat buffer
// lists [vectors]      values of all lists
// starts [..]          of each list: offsets of its rows' vectors, and the end; 0 first,
//                      sorted, the number of vectors last
// columns [vectors]    of each value of the lists, below 4 * BUFFER
// tasks [groups, TASKS] the last three of a group have no rows; ranges of words end
//                      within x or a set, on vectors and in ROOM; dense rows within the
//                      parameters, lists within `starts`; outputs within y or a set;
//                      padded has the whole steps of a dense row
// x [n_in]  y [n_out]  one sample
// words [2][IN_ALL]    all values between layers, double-buffered; initially 0
// launches [groups]    number of each group's launches so far; initially 0
// timeout              set when a wait reaches its bound
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
    // The words of this launch, and those of the next one, which this one clears.
    __global uint *now = words + (launch & 1) * IN_ALL;
    __global uint *then = words + (~launch & 1) * IN_ALL;
    if (id == 0) {
        timed_out = 0;
        values[0] = values[BUFFER] = (float4)0;
    }
    Step next = {id >> task.shift, 0, false, 0, 0, 0, 0, 0.0f};
    float4 prefetched[DEPTH];
    ushort4 prefetched_columns[DEPTH];
    locate(&next, &task, starts, parameters);
    load_step(prefetched, prefetched_columns, next, parameters, lists, columns);
    float bias = next.bias;
    advance(&next, &task, &following, starts, parameters);
    for (int number = 3; task.rows > 0; ++number) {
        // By parity: some compilers for CPUs miscompile pointers that are swapped.
        __local float4 *source = values + 1 + (number & 1) * BUFFER;
        if (task.position == 0)
            for (int i = id; i < 4 * task.padded; i += GROUP) {
                const int at = task.words + i;
                ((__local float *)source)[i] = at < n_in ? INPUT(at) : 0.0f;
            }
        await_own_words();
        if (task.position != 0)
            gather(source, now + task.words, task.inputs, task.padded, &timed_out,
                   timeout);
        barrier(CLK_LOCAL_MEM_FENCE);
        __local const float *single = (__local const float *)(source - 1);
        const int shift = task.shift, lane = id & ((1 << shift) - 1);
        float4 sums = (float4)0;
        int row = id >> shift, step = 0;
        for (bool last = false; !last;) {
            last = next.in_following;
            if (task.is_list) {
#pragma unroll
                for (int i = 0; i < DEPTH; ++i)
                    sums += prefetched[i]
                            * (float4)(single[prefetched_columns[i].s0],
                                       single[prefetched_columns[i].s1],
                                       single[prefetched_columns[i].s2],
                                       single[prefetched_columns[i].s3]);
            } else {
                const int at = (step * DEPTH << shift) + lane;
#pragma unroll
                for (int i = 0; i < DEPTH; ++i)
                    sums += prefetched[i] * source[at + (i << shift)];
            }
            if (next.step == 0) {
                const float sum =
                    team_sum((sums.x + sums.y) + (sums.z + sums.w), 1 << shift);
                sums = (float4)0;
                if (lane == 0 && row < task.rows) {
                    const float v = activate_as(task.function, sum + bias);
                    const int at = task.outputs + row;
                    if (task.position == 2) {
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
            load_step(prefetched, prefetched_columns, next, parameters, lists, columns);
            bias = next.bias;
            row = next.row;
            step = next.step;
            if (last) {
                task = following;
                following = later;
                later = tasks[number];
                next.in_following = false;
            }
            advance(&next, &task, &following, starts, parameters);
        }
    }
    barrier(CLK_GLOBAL_MEM_FENCE);  // all work-items have read it
    if (id == 0) launches[group] = launch + 1;
}

// lists [size]    parameters at the offsets `sources` [size], within the flat buffer; 0
//                 where these are -1
// index map: work-item = value
__kernel void gather_lists(__global const float *parameters,
                           __global const int *sources, __global float *lists,
                           const int size)
{
    const int i = get_global_id(0);
    if (i < size) lists[i] = sources[i] < 0 ? 0.0f : parameters[sources[i]];
}

// persistent_mixed: a chain of dense, sparse and local layers in one launch over all
// compute units, one sample.
//
// As in persistent.cl, every compute unit keeps one group from the first layer to the
// last, and values pass from group to group as words (words.h). But a group's rows of a
// layer are neighbours, and it waits for those values alone that they read:
//
//   layer      |  group 0  |  group 1  |  group 2  | …       a share of rows each
//                   \      /         \      /
//   inputs     | 0 … past the window | … |                   a range of values each
//
// which of a dense layer are all, of a local one those of the share and its window's
// end, of a sparse one those from the first to the last column in the share. A group
// without a row in a layer goes on to the next.
//
// Rows of dense layers are read as they lie. All others are lists: a row's values side
// by side, padded to whole vectors, and each value's column, counted from where the
// group's range starts. A row is read by 2^parts work-items, more where rows are few and
// long. DEPTH vectors of each are on their way while its group waits for values.
//
// GROUP     work-items of a group; GROUPS of them, all running at the same time
// DEPTH     vectors of weights that a work-item keeps on their way
// ROOM      values of the widest range, in whole steps
// INPUTS    {n, …} vectors of each layer's inputs
// WORDS     {n, …} where the words of each layer's inputs start; the first has none
// IN_ALL    words of a set
// LISTS     {n, …} number of each layer among those with lists; dense: -1
// STARTS    {n, …} where the starts of each list's rows are
// WEIGHTS   {n, …} vectors before each dense layer's weights in the parameters
// LONGEST   {n, …} vectors of each layer's longest row
// SHIFTS    {n, …} 2^n work-items read a row of the layer: 1 unless there is PTX
// LAYERS, N_OUT, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// BIAS_STEP {n, …} 1; 0 where a layer's neurons share a bias
// PATIENCE, NAP, PTX  as in words.h
// REAL      float
#define WIDTH 1
#include "activations.h"
#include "functions.h"
#include "given.h"
#include "words.h"
#if !defined(GROUP) || !defined(GROUPS) || !defined(DEPTH) || !defined(ROOM) \
    || !defined(INPUTS) || !defined(WORDS) || !defined(IN_ALL) || !defined(LISTS) \
    || !defined(STARTS) || !defined(WEIGHTS) || !defined(LONGEST) || !defined(SHIFTS) \
    || !defined(LAYERS) || !defined(N_OUT) || !defined(BIAS) || !defined(BIAS_STEP) \
    || !defined(FUNCTION)
#error "persistent_mixed.cl needs the macros that its head names"
#endif
#define BUFFER (1 + ROOM / 4)  // vectors; the first is zero: places that are none

__constant int inputs_of[LAYERS] = INPUTS;
__constant int words_of[LAYERS] = WORDS;
__constant int list_of[LAYERS] = LISTS;
__constant int starts_of[LAYERS] = STARTS;
__constant int weights_of[LAYERS] = WEIGHTS;
__constant int longest_of[LAYERS] = LONGEST;
__constant int shift_of[LAYERS] = SHIFTS;
__constant int n_out_of[LAYERS] = N_OUT;
__constant int bias_of[LAYERS] = BIAS;
__constant int bias_step_of[LAYERS] = BIAS_STEP;
__constant int function_of[LAYERS] = FUNCTION;

// A vector of weights, 0 unless it is `there`.
inline float4 weights_at(__global const float4 *from, const bool there)
{
#if PTX >= 70
    float4 w = (float4)0;
    // Predicated: a branch would keep loads from being issued together.
    asm volatile("{.reg .pred there; setp.ne.s32 there, %5, 0;"
                 "@there ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];}"
                 : "+f"(w.x), "+f"(w.y), "+f"(w.z), "+f"(w.w)
                 : "l"(from), "r"((int)there));
    return w;
#else
    return there ? *from : (float4)0;
#endif
}

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

// Gather vectors of words, and zeros up to whole steps.
inline void gather(__local float4 *source, __global const uint *words,
                   const int vectors, const int padded, __local int *stuck,
                   __global int *alarm)
{
    __global const uint4 *from = (__global const uint4 *)words;
    for (int v = get_local_id(0); v < padded; v += GROUP) {
        if (v >= vectors) {
            source[v] = (float4)0;
            continue;
        }
        uint4 found = look(from + v);
        int left = *stuck ? 0 : PATIENCE;
        while (!complete(found) && --left >= 0) {
            rest();
            found = look(from + v);
        }
        if (left < 0) *stuck = *alarm = 1;
        source[v] = values_of(found);
    }
}

// The sum of the values of 2^shift work-items, for each of them.
inline float row_sum(float v, const int shift)
{
#if PTX >= 70
    for (int distance = 1 << shift >> 1; distance > 0; distance >>= 1) {
        float other;
        asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                     : "=f"(other) : "f"(v), "r"(distance));
        v += other;
    }
#endif
    return v;
}

// Rows of a layer.
typedef struct {
    int first, count;
} Share;

inline Share share_of(const int layer, const int group)
{
    const int each = n_out_of[layer] / GROUPS, more = n_out_of[layer] % GROUPS;
    const Share share = {group * each + min(group, more), each + (group < more)};
    return share;
}

// The first layer from one on that a group has rows of.
inline int layer_from(int layer, const int group)
{
    while (layer < LAYERS && share_of(layer, group).count == 0) ++layer;
    return layer;
}

// From which vector of its inputs to which a group's rows of a layer read.
inline int2 range_of(const int layer, const int group, __global const int2 *ranges)
{
    if (layer >= LAYERS) return (int2)(0);
    if (list_of[layer] < 0) return (int2)(0, inputs_of[layer]);
    return ranges[list_of[layer] * GROUPS + group];
}

// A place in a work-item's weights: a layer, a row of the group's share, a step of DEPTH
// vectors of each that reads the row. All take as many rows of a layer, and steps of a
// row, so that they go on to the next one together; rows past the share are empty.
typedef struct {
    int layer, row, step;
} Place;

inline Place entered(const int layer)
{
    const Place place = {layer, layer < LAYERS ? get_local_id(0) >> shift_of[layer] : 0,
                         0};
    return place;
}

// The place after one.
inline Place after(Place place, const int group)
{
    const int shift = shift_of[place.layer];
    ++place.step;
    if ((place.step * DEPTH << shift) < longest_of[place.layer]) return place;
    place.step = 0;
    place.row += GROUP >> shift;
    if (place.row - ((int)get_local_id(0) >> shift)
        < share_of(place.layer, group).count)
        return place;
    return entered(layer_from(place.layer + 1, group));
}

// y = the last layer's output for x
//
// parameters [..]      the flat buffer
// lists [vectors]      values of all lists
// starts [..]          of each list: where its rows' vectors start, and the end
// ranges [.., GROUPS]  of each list: from which vector of its inputs to which
// columns [vectors]    of each value of the lists
// x [n_in]  y [n_out]  one sample
// words [2][IN_ALL]    of all values between layers, 0 at first
// launches [GROUPS]    the number of each group's launches so far, 0 at first
// alarm                set where a wait hit its bound
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void persistent_mixed(__global const float *parameters, __global const float4 *lists,
                      __global const int *starts, __global const int2 *ranges,
                      __global const ushort4 *columns, __global const float *x,
                      const int n_in, __global float *y, __global uint *words,
                      __global uint *launches, __global int *alarm GIVEN_ARGUMENT)
{
    __local float4 values[2 * BUFFER] __attribute__((aligned(16)));
    __local int stuck;
    const int id = get_local_id(0), group = get_group_id(0);
    const uint launch = launches[group];
    // Words of this launch, and those of the next one, which are to be empty then.
    __global uint *now = words + (launch & 1) * IN_ALL;
    __global uint *then = words + (~launch & 1) * IN_ALL;
    __local float4 *source = values + 1, *other = values + BUFFER + 1;
    if (id == 0) {
        stuck = 0;
        values[0] = values[BUFFER] = (float4)0;
    }
    int layer = layer_from(0, group);
    Place here = entered(layer), next = here;
    float4 ahead[DEPTH];
    ushort4 places[DEPTH];
    float bias = 0, next_bias = 0;
    __global const float4 *from = 0;
    __global const ushort4 *columns_from = columns;
    int first = 0, vectors = 0, left = 0, between = 1;
    // What is to be found out of the next step, while nobody waits for it.
#define LOOK_UP                                                                      \
    left = 0;                                                                        \
    if (next.layer < LAYERS) {                                                       \
        const Share share = share_of(next.layer, group);                             \
        const int row = share.first + next.row, shift = shift_of[next.layer];        \
        const bool listed = list_of[next.layer] >= 0;                                \
        between = 1 << shift;                                                        \
        if (next.row < share.count) {                                                \
            if (next.step == 0) {                                                    \
                vectors = longest_of[next.layer];                                    \
                first = weights_of[next.layer] + row * vectors;                      \
                if (listed) {                                                        \
                    first = starts[starts_of[next.layer] + row];                     \
                    vectors = starts[starts_of[next.layer] + row + 1] - first;       \
                }                                                                    \
                next_bias = bias_of[next.layer] < 0 ? 0.0f                           \
                    : parameters[bias_of[next.layer]                                 \
                                 + row * bias_step_of[next.layer]];                  \
            }                                                                        \
            const int at = (next.step * DEPTH << shift) + (id & (between - 1));      \
            left = vectors - at;                                                     \
            columns_from = listed ? columns + first + at : 0;                        \
            from = (listed ? lists : (__global const float4 *)parameters)            \
                   + first + at;                                                     \
        }                                                                            \
    }
    // And its weights.
#define FETCH                                                                        \
    for (int i = 0; i < DEPTH; ++i) {                                                \
        const bool there = i * between < left;                                       \
        ahead[i] = weights_at(from + i * between, there);                            \
        places[i] = columns_at(columns_from + i * between, there && columns_from);   \
    }
    LOOK_UP
#pragma unroll
    FETCH
    bias = next_bias;
    int2 next_range = range_of(layer, group, ranges);
    if (layer < LAYERS) next = after(here, group);
    LOOK_UP
    while (layer < LAYERS) {
        const int following = layer_from(layer + 1, group), shift = shift_of[layer];
        const int2 range = next_range;
        next_range = range_of(following, group, ranges);
        const int n_out = n_out_of[layer], held = range.s1 - range.s0;
        const Share share = share_of(layer, group);
        const bool listed = list_of[layer] >= 0;
        const int step = DEPTH << shift;
        const int padded = listed ? held : (held + step - 1) / step * step;
        const int told = layer < LAYERS - 1 ? words_of[layer + 1] : 0;
        if (layer == 0)
            for (int i = id; i < 4 * padded; i += GROUP) {
                const int at = 4 * range.s0 + i;
                ((__local float *)source)[i] = at < n_in ? INPUT(at) : 0.0f;
            }
        else
            gather(source, now + words_of[layer] + 4 * range.s0, held, padded, &stuck,
                   alarm);
        barrier(CLK_LOCAL_MEM_FENCE);
        __local const float *single = (__local const float *)(source - 1);
        float4 sums = (float4)0;
        while (here.layer == layer) {
            if (listed) {
#pragma unroll
                for (int i = 0; i < DEPTH; ++i)
                    sums += ahead[i] * (float4)(single[places[i].s0],
                                                single[places[i].s1],
                                                single[places[i].s2],
                                                single[places[i].s3]);
            } else {
                const int at = here.step * step + (id & ((1 << shift) - 1));
#pragma unroll
                for (int i = 0; i < DEPTH; ++i)
                    sums += ahead[i] * source[at + (i << shift)];
            }
            if (next.step == 0) {
                const float sum = row_sum((sums.x + sums.y) + (sums.z + sums.w), shift);
                const int row = share.first + here.row;
                sums = (float4)0;
                if ((id & ((1 << shift) - 1)) == 0 && here.row < share.count) {
                    const float v = activate_as(function_of[layer], sum + bias);
                    if (layer == LAYERS - 1) {
                        y[row] = v;
                    } else {
                        tell(now + told + row, then + told + row, v);
                        // Who has the last row fills up the last vector.
                        if (row == n_out - 1)
                            for (int i = n_out; i < 4 * inputs_of[layer + 1]; ++i)
                                tell(now + told + i, then + told + i, 0);
                    }
                }
                bias = next_bias;
            }
#pragma unroll
            FETCH
            here = next;
            if (here.layer < LAYERS) next = after(here, group);
            LOOK_UP
        }
        __local float4 *read = source;
        source = other;
        other = read;
        layer = following;
    }
    if (id == 0) launches[group] = launch + 1;
}

// lists [size]    the parameters that `sources` [size] names, and 0 where that is below 0
// index map: work-item = value
__kernel void take(__global const float *parameters, __global const int *sources,
                   __global float *lists, const int size)
{
    const int i = get_global_id(0);
    if (i < size) lists[i] = sources[i] < 0 ? 0.0f : parameters[sources[i]];
}

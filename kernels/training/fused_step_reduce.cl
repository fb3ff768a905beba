// fused_combine: the sums of what the groups of fused_step.cl and the parts of
// fused_step_gradients.cl have, and the update.
//
// PARTS     of the weights' gradients
// ADDERS    work-items of a group
// SHARED_BY of them that share an element
// SIZE, BIASES  elements of the flat buffer, and those before the first bias
// others    as in steps.h
#define WIDTH 1
#include "training/steps.h"
#if !defined(PARTS) || !defined(ADDERS) || !defined(SHARED_BY) || !defined(SIZE) \
    || !defined(BIASES)
#error "fused_step_reduce.cl needs PARTS, ADDERS, SHARED_BY, SIZE and BIASES"
#endif
#define REST (SIZE - BIASES + APART)  // of a group's sums of biases and records

// The sums of what parts and groups have, and the update, or the totals.
//
// total [SIZE]  the gradients' sum, where there is no update
// index map: SHARED_BY work-items an element: a weight, a bias, a value of the record
__kernel __attribute__((reqd_work_group_size(ADDERS, 1, 1)))
void combine(__global const float *parts, __global const float *rest, const int groups,
             __global float *parameters, __global float *state, __global float *total,
             __global float *totals, __global const uchar *live, const int outputs,
             const int samples, const int seen, const int fresh, const float rate,
             const int count, const uint seed)
{
    __local float shares[ADDERS];
    const int wide = ADDERS / SHARED_BY, id = get_local_id(0), mine = id / wide;
    const int element = get_group_id(0) * wide + id % wide;
    const int weight = element < BIASES, there = min(element, SIZE + RECORD - 1);
    __global const float *from = weight ? parts + there : rest + (there - BIASES);
    const size_t pitch = weight ? BIASES : REST;
    const int rows = weight ? PARTS : groups;
    float sum = 0;
#pragma unroll 8
    for (int i = mine; i < rows; i += SHARED_BY) sum += from[i * pitch];
    shares[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (mine || element >= SIZE + RECORD) return;
    for (int i = 1; i < SHARED_BY; ++i) sum += shares[i * wide + id];
    if (element >= SIZE) {
        add_to_total(totals, element - SIZE, sum, fresh);
        return;
    }
#if UPDATE
    if (!live[element]) return;
    const Moment now = moment_of(rate, samples, 0.0f, seen, outputs, count, seed);
    float kept[SLOTS + 1];  // at least one: there are no empty arrays
    for (int k = 0; k < SLOTS; ++k) kept[k] = state[(size_t)k * SIZE + element];
    parameters[element] = stepped(parameters[element], sum, kept, now, element);
    for (int k = 0; k < SLOTS; ++k) state[(size_t)k * SIZE + element] = kept[k];
#else
    total[element] = sum;
#endif
}

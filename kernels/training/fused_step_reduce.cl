// fused_step_reduce: the sums over groups of fused_step.cl and splits of
// fused_step_gradients.cl, and the update.
//
// SPLIT_K   partial sums of a weight's gradient
// ADDERS    work-items of a group
// SHARED_BY work-items that share an element
// SIZE, BIASES  elements of the flat buffer, and those before the first bias
// others    as in steps.h
#define WIDTH 1
#define PER_NETWORK REAL
#define RESIDENT 0
#include "include/steps.h"
#if !defined(SPLIT_K) || !defined(ADDERS) || !defined(SHARED_BY) || !defined(SIZE) \
    || !defined(BIASES)
#error "fused_step_reduce.cl needs SPLIT_K, ADDERS, SHARED_BY, SIZE and BIASES"
#endif
#define GROUP_SUMS (SIZE - BIASES + APART)  // of a group: biases' gradients, its record

// The reduction of partial sums, then the update, or the gradients.
//
// partial_gradients [SPLIT_K, BIASES], group_sums [groups, GROUP_SUMS]
// total [SIZE]  the gradients, without an update
// index map: SHARED_BY work-items an element: a weight, a bias, a value of the record
__kernel __attribute__((reqd_work_group_size(ADDERS, 1, 1)))
void reduce(__global const float *partial_gradients, __global const float *group_sums,
            const int groups, __global float *parameters, __global float *state,
            __global float *total, __global float *totals, __global const uchar *live,
            const int outputs, const int samples, const int seen, const int fresh,
            const float rate, const int count, const uint seed)
{
    __local float shares[ADDERS];
    const int elements = ADDERS / SHARED_BY, id = get_local_id(0), share = id / elements;
    const int element = get_group_id(0) * elements + id % elements;
    const int weight = element < BIASES, index = min(element, SIZE + RECORD - 1);
    __global const float *from =
        weight ? partial_gradients + index : group_sums + (index - BIASES);
    const size_t pitch = weight ? BIASES : GROUP_SUMS;
    const int rows = weight ? SPLIT_K : groups;
    float sum = 0;
#pragma unroll 8
    for (int i = share; i < rows; i += SHARED_BY) sum += from[i * pitch];
    shares[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (share || element >= SIZE + RECORD) return;
    for (int i = 1; i < SHARED_BY; ++i) sum += shares[i * elements + id];
    if (element >= SIZE) {
        add_to_total(totals, element - SIZE, sum, fresh);
        return;
    }
#if UPDATE
    if (!live[element]) return;
    const StepInfo moment = step_info(rate, samples, 0.0f, seen, outputs, count, seed);
    float slots[SLOTS + 1];  // no array is empty
    for (int k = 0; k < SLOTS; ++k) slots[k] = state[(size_t)k * SIZE + element];
    parameters[element] = stepped(parameters[element], sum, slots, moment, element);
    for (int k = 0; k < SLOTS; ++k) state[(size_t)k * SIZE + element] = slots[k];
#else
    total[element] = sum;
#endif
}

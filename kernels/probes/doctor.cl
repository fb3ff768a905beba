// doctor: the test kernel of `clnet doctor`, a reduction in local memory and one
// activation.
//
//   x [groups * SIZE], y [groups]
//
// Group g copies its SIZE values of x to local memory and adds them as a tree; its
// first work-item stores y[g] = tanh(sum).
//
//   stride 4:  0 1 2 3 | 4 5 6 7     item i adds entry i + stride
//   stride 2:  0 1 | 2 3
//   stride 1:  0 | 1
//
// SIZE  work-items of a group: a power of two
#ifndef SIZE
#error "doctor.cl needs SIZE"
#endif
#define REAL float
#define WIDTH 1
#include "include/activations.h"

__kernel __attribute__((reqd_work_group_size(SIZE, 1, 1)))
void probe(__global const float *x, __global float *y)
{
    __local float sums[SIZE];
    const int item = get_local_id(0);
    sums[item] = x[get_global_id(0)];
    for (int stride = SIZE / 2; stride > 0; stride /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < stride)
            sums[item] += sums[item + stride];
    }
    if (item == 0)
        y[get_group_id(0)] = act_tanh(sums[0]);
}

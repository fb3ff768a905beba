// gradient_norm: the Euclidean norm of the mean gradient, penalties included.
//
//   elements      | ... | ... | ... |     GROUPS groups, each strides over all elements
//   squares          p0    p1    p2       thread-private sums, then a tree in the group
//   norm             sqrt(p0 + p1 + p2)   one group
//
// The order of all sums depends on the sizes alone: a device repeats its results bit
// for bit.
//
// GROUP   work-items of a group: a power of two; usually 256
// GROUPS  groups of the first kernel, 1 to GROUP; usually 64
// REAL, HAS_PENALTIES, WEIGHTS, L1, L2  as in activations.h and regularisation.h
#define WIDTH 1
#define PER_NETWORK REAL
#include "include/activations.h"
#include "include/regularisation.h"
#if !defined(GROUP) || !defined(GROUPS)
#error "gradient_norm.cl needs GROUP and GROUPS"
#endif

// The sum of a group's values, in work-item 0. All work-items must call it.
static inline REAL group_sum(const REAL value, __local REAL *partial)
{
    const int i = get_local_id(0);
    partial[i] = value;
    for (int step = GROUP / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < step) partial[i] += partial[i + step];
    }
    return partial[i];  // partial[0] may still be written
}

// parameters, gradients, live [size]  as in optimisers.cl
// squares [GROUPS]
// samples: of the gradients' sum
// index map: work-item i takes elements i, i + GROUPS * GROUP, …
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void squares(__global const REAL *parameters, __global const REAL *gradients,
             __global const uchar *live, __global REAL *squares, const int size,
             const int samples)
{
    __local REAL partial[GROUP];
    REAL sum = 0;
    for (int i = get_global_id(0); i < size; i += GROUPS * GROUP) {
        const REAL total =
            add_penalties(parameters[i], gradients[i], samples, PENALTIES, i);
        const REAL g = total / samples;
        sum += live[i] ? g * g : (REAL)0;
    }
    const REAL total = group_sum(sum, partial);
    if (get_local_id(0) == 0) squares[get_group_id(0)] = total;
}

// norm [1]
// index map: one group
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void root(__global const REAL *squares, __global REAL *norm)
{
    __local REAL partial[GROUP];
    const int i = get_local_id(0);
    const REAL total = group_sum(i < GROUPS ? squares[i] : (REAL)0, partial);
    if (i == 0) norm[0] = sqrt(total);
}

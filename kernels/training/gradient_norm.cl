// gradient_norm: the Euclidean norm of the mean gradient, penalties included.
//
//   elements      | ... | ... | ... |      PARTS groups, each strides over all elements
//   squares          p0    p1    p2        a work-item's sum, then a tree in the group
//   norm             sqrt(p0 + p1 + p2)    one group
//
// The order of all sums depends on the sizes alone: the same device gives the same
// bits.
//
// GROUP   work-items of a group: a power of two; usually 256
// PARTS   groups of the first kernel, 1 to GROUP; usually 64
// REAL, WEIGHTS, L1, L2  as in activations.h and regularisation.h
#define WIDTH 1
#include "include/activations.h"
#include "include/regularisation.h"
#if !defined(GROUP) || !defined(PARTS)
#error "gradient_norm.cl needs GROUP and PARTS"
#endif

// The sum of a group's values in work-item 0. Every work-item must come here.
inline REAL added_up(const REAL value, __local REAL *parts)
{
    const int i = get_local_id(0);
    parts[i] = value;
    for (int step = GROUP / 2; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < step) parts[i] += parts[i + step];
    }
    return parts[0];
}

// parameters, gradients, live [size]  as in optimisers.cl
// squares [PARTS]
// samples: whose gradients were summed
// index map: work-item i takes elements i, i + PARTS * GROUP, …
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void squares(__global const REAL *parameters, __global const REAL *gradients,
             __global const uchar *live, __global REAL *squares, const int size,
             const int samples)
{
    __local REAL parts[GROUP];
    REAL sum = 0;
    for (int i = get_global_id(0); i < size; i += PARTS * GROUP) {
        const REAL g = penalised(parameters[i], gradients[i], samples, i) / samples;
        sum += live[i] ? g * g : (REAL)0;
    }
    const REAL total = added_up(sum, parts);
    if (get_local_id(0) == 0) squares[get_group_id(0)] = total;
}

// norm [1]
// index map: one group
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void root(__global const REAL *squares, __global REAL *norm)
{
    __local REAL parts[GROUP];
    const int i = get_local_id(0);
    const REAL total = added_up(i < PARTS ? squares[i] : (REAL)0, parts);
    if (i == 0) norm[0] = sqrt(total);
}

// stencil_reduction: a locally connected layer, a team of work-items per row.
//
// The fifth study parallelised either the loop over rows (stencil, stencil_cpu) or, as
// here, the loop over a row's window: a team's work-items multiply an input each, and a
// tree reduction in local memory adds the products.
//
//   inputs    | x0 | x1 | x2 | x3 | x4 |     WINDOW 5, ITEMS 4
//   work-item    0    1    2    3    0
//   partial     p0   p1   p2   p3
//   stride 2    p0 + p2   p1 + p3
//   stride 1    p0 + p1 -> work-item 0
//
// REAL       float or double
// WINDOW     inputs of a row, at least 1
// ITEMS      work-items of a row: a power of two, 1 to GROUP
// GROUP      work-items of a group: a multiple of ITEMS; usually 256
// BIAS_STEP  stride of the biases: 1, or 0 where all rows share one
// HAS_BIAS   1 or 0
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  the layer's activation (activations.h)
#define WIDTH 1
#include "include/activations.h"
#if !defined(ACTIVATION) || !defined(WINDOW) || !defined(ITEMS) || !defined(GROUP) \
    || !defined(HAS_BIAS) || !defined(BIAS_STEP)
#error "stencil_reduction.cl needs activation, bias, WINDOW, ITEMS and GROUP"
#endif

// y[b, i] = f(sum over r:  w[r, i] x[b, i + r]  + bias[i])
//
// parameters [..]          value r of row i at weights + r * pitch + i
// x          [batch, ldx]  y [batch, ldy]
// index map: group sample * across + g: rows GROUP / ITEMS g …, ITEMS work-items each
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void stencil_reduction(__global const REAL *parameters, const int weights,
                       const int pitch, const int bias, __global const REAL *x,
                       const int ldx, __global REAL *y, const int ldy,
                       const int n_out, const int across)
{
    __local REAL partial[GROUP];
    const int id = get_local_id(0), item = id % ITEMS;
    const int i = get_group_id(0) % across * (GROUP / ITEMS) + id / ITEMS;
    const size_t sample = get_group_id(0) / across;
    REAL sum = 0;
    if (i < n_out)
        for (int r = item; r < WINDOW; r += ITEMS)
            sum += parameters[weights + (size_t)r * pitch + i]
                   * x[sample * ldx + i + r];
    partial[id] = sum;
    for (int stride = ITEMS / 2; stride > 0; stride /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < stride) partial[id] += partial[id + stride];
    }
    if (item > 0 || i >= n_out) return;
    sum = partial[id];
#if HAS_BIAS
    sum += parameters[bias + BIAS_STEP * i];
#endif
    y[sample * ldy + i] = activate(sum);
}

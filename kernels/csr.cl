// csr: one layer in compressed sparse rows, for CPU cores.
//
// A work-item takes a run of rows with about as many entries as the other runs have.
// Each row's products go to eight sums, so that additions need not wait for each other
// and the loads of x, from all over the place, overlap.
//
//   run 0   run 1     run 2          bounds: where each run starts, in rows
//   |--|----|--------|-|-|--|-- …    rows, as long as they have entries
//
// REAL                          float or double
// COLUMN                        type of the column indices: ushort where they fit, or int
// ACTIVATION, STEEPNESS, LIMIT  the layer's function (activations.h)
// HAS_BIAS                      1 or 0
#define WIDTH 1
#include "activations.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS) || !defined(COLUMN)
#error "csr.cl needs ACTIVATION, HAS_BIAS and COLUMN"
#endif

// Add entry i after e to sum i.
#define ADD(i) s##i += values[e + i] * x[columns[e + i]]

inline REAL dot(__global const REAL *values, __global const COLUMN *columns, int e,
                const int end, __global const REAL *x)
{
    REAL s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    for (; e + 8 <= end; e += 8) {
        ADD(0); ADD(1); ADD(2); ADD(3); ADD(4); ADD(5); ADD(6); ADD(7);
    }
    for (; e < end; ++e) ADD(0);
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
}

// y[b, r] = f(sum over the entries of row r:  value * x[b, column]  + bias[r])
//
// parameters [..]       values of the entries at `weights`, bias [n_out] at `bias`
// starts     [n_out+1]  row r owns entries starts[r] … starts[r + 1] - 1
// columns    [entries]  bounds [runs + 1]
// x          [batch, ldx]   y [batch, ldy]
// index map: work-item = run; a row's entries stay in cache from sample to sample
__kernel void csr(__global const REAL *parameters, const int weights, const int bias,
                  __global const int *starts, __global const COLUMN *columns,
                  __global const int *bounds, __global const REAL *x, const int ldx,
                  __global REAL *y, const int ldy, const int batch)
{
    const int run = get_global_id(0);
    __global const REAL *values = parameters + weights;
    for (int row = bounds[run]; row < bounds[run + 1]; ++row) {
        const REAL start = HAS_BIAS ? parameters[bias + row] : (REAL)0;
        for (size_t b = 0; b < batch; ++b)
            y[b * ldy + row] = activate(
                start + dot(values, columns, starts[row], starts[row + 1], x + b * ldx));
    }
}

// sparse_input: a dense matrix times sparse samples, and the gradient of its weights.
//
//   z[b, i] = sum over entries e of sample b of  A[i, columns[e]] * numbers[e]
//   gradient[i, j] = sum over samples b that have an entry e in column j of
//                    dz[b, i] * numbers[e],   0 where no sample has one
//
// The data set is in CSR form. `rows` looks up where the samples of a batch are, once for
// all rows of A. Both products keep to one row of A for as long as they can: its
// entries lie side by side, so a row of some 100,000 stays in a core's cache, whatever
// columns the samples have.
//
//   A, gradient   row i  | . x . . x x . . x . |   entries of sample 0, then of sample 1 …
//
// A sample's columns differ, so that a work-group adds its entries at the same time;
// samples follow each other in the batch's order. No sum depends on the timing.
//
// REAL      float or double
// SHUFFLED  rows only: 1 where the order is random
// SAMPLES   apply only: consecutive samples of a work-item; on CPUs the batch, else 1
// LINE      apply only: numbers of a cache line, one of which is read of each line of a
//           row before its entries, in order: 16 of float, 8 of double; 0: none is
// GROUP     outer only: work-items of a group; 1 on CPUs
#ifndef REAL
#error "sparse_input.cl needs REAL"
#endif

#ifdef SHUFFLED
#include "include/order.h"
// bounds[b] = first entry of the batch's sample b, and that of the next one
//
// starts [samples + 1]   0 first, sorted, the number of entries last
// bounds [batch]         index map: work-item b
__kernel void rows(__global const int *starts, __global int2 *bounds, const int batch,
                   const int first, const int samples, const int bits, const uint k0,
                   const uint k1, const uint k2, const uint k3, const uint k4,
                   const uint k5, const uint k6, const uint k7)
{
    const int b = get_global_id(0);
    if (b >= batch) return;
    const uint row = ORDERED_ROW(b);
    bounds[b] = (int2)(starts[row], starts[row + 1]);
}
#endif

#ifdef SAMPLES
#ifndef LINE
#error "sparse_input.cl needs LINE"
#endif
// parameters: A at `weights`, [n_out, n_in], rows of `lda`
// columns, numbers [entries]   columns below n_in
// index map: work-item t * row_items + i: row i, samples SAMPLES * t, …
__kernel void apply(__global const REAL *parameters, const int weights, const int lda,
                    __global const int2 *bounds, __global const int *columns,
                    __global const REAL *numbers, __global REAL *z, const int ldz,
                    const int n_out, const int batch, const int row_items)
{
    const int i = get_global_id(0) % row_items;
    const int from = (int)(get_global_id(0) / row_items) * SAMPLES;
    if (i >= n_out) return;
    __global const REAL *row = parameters + weights + (size_t)i * lda;
#if LINE > 0
    for (int j = 0; j < lda; j += LINE) (void)((volatile __global const REAL *)row)[j];
#endif
    for (int b = from; b < min(batch, from + SAMPLES); ++b) {
        int e = bounds[b].x;
        const int end = bounds[b].y;
        REAL s0 = 0, s1 = 0, s2 = 0, s3 = 0;  // independent: loads overlap
        for (; e + 4 <= end; e += 4) {
            s0 += row[columns[e]] * numbers[e];
            s1 += row[columns[e + 1]] * numbers[e + 1];
            s2 += row[columns[e + 2]] * numbers[e + 2];
            s3 += row[columns[e + 3]] * numbers[e + 3];
        }
        for (; e < end; ++e) s0 += row[columns[e]] * numbers[e];
        z[(size_t)b * ldz + i] = (s0 + s1) + (s2 + s3);
    }
}
#endif

#ifdef GROUP
// gradients: at `weights`, [n_out, n_in], rows of `lda`; the others as of apply
// index map: work-group = row
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void outer(__global REAL *gradients, const int weights, const int lda, const int n_in,
           __global const int2 *bounds, __global const int *columns,
           __global const REAL *numbers, __global const REAL *dz, const int lddz,
           const int batch)
{
    const int id = get_local_id(0);
    const size_t i = get_group_id(0);
    __global REAL *row = gradients + weights + i * lda;
    for (int j = id; j < n_in; j += GROUP) row[j] = 0;
    for (int b = 0; b < batch; ++b) {
#if GROUP > 1
        barrier(CLK_GLOBAL_MEM_FENCE);
#endif
        const REAL derivative = dz[(size_t)b * lddz + i];
        const int end = bounds[b].y;
        for (int e = bounds[b].x + id; e < end; e += GROUP)
            row[columns[e]] += derivative * numbers[e];
    }
}
#endif

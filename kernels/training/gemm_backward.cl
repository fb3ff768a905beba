// gemm_backward: the products of a dense layer's backward pass, by tiles in local
// memory and tiles in registers (gemm.h).
//
// OUTER     1: the kernel outer; 0: the kernel apply_t
// HAS_BIAS  outer: 1 with the biases' gradient
//           apply_t: 1 where pre-activations are read and the layer below has biases
// X_PADDED  as in vectors.h; apply_t: 1
// GRADIENT  apply_t only: the epilogue multiplies by this derivative of the layer
//           below, such as grad_tanh of gradients.h; undefined: no epilogue
// READS_Z, STEEPNESS, HAS_LIMIT, LIMIT  with GRADIENT: as in activation_gradient.h
// REAL      float or double
// TILE_M, TILE_N, TILE_K, ITEM_M, ITEM_N, TEAMS, LANES, DEPTH, UNROLL  as in gemm.h
#define WIDTH 1
#include "include/activations.h"
#if !defined(OUTER) || !defined(HAS_BIAS) || !defined(X_PADDED)
#error "gemm_backward.cl needs OUTER, HAS_BIAS and X_PADDED"
#endif
#define A_K_MAJOR (1 - OUTER)
#define A_PADDED 1
#define B_K_MAJOR 0
#define B_PADDED X_PADDED
#include "dense/gemm.h"

#if OUTER
// target[split]: weights' gradient [n_out, stride] from `weights` on,
//                gradient[r, c] = sum over the split's b of ds[b, r] * x[b, c];
//                biases' gradient [n_out] from `bias` on, the sums of ds[b, r]
//
// target: the gradients; with split-k the partial sums, `pitch` values each
// ds [batch, ldds], x [batch, ldx]; split: its samples, a multiple of TILE_K
// index map: work-group (tile of rows, tile of columns, split)
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void outer(__global REAL *target, const int pitch, const int weights, const int stride,
           const int bias, __global const REAL *ds, const int ldds,
           __global const REAL *x, const int ldx, const int n_in, const int n_out,
           const int batch, const int split)
{
    __local REAL shared[SHARED] VEC_ALIGNED;
    const int id = get_local_id(0);
    const int row = get_group_id(0) * TILE_M, column = get_group_id(1) * TILE_N;
    const size_t first = (size_t)get_group_id(2) * split;
    target += (size_t)get_group_id(2) * pitch;
    VEC sums[ITEM_M][CHUNKS_N];
    const VEC bias_sums = multiply(sums, shared, ds + first * ldds + row, ldds,
                                   n_out - row, x + first * ldx + column, ldx,
                                   n_in - column, min(split, batch - (int)first));
#if HAS_BIAS
    // [ITEMS / (TILE_M / 4), TILE_M / 4]
    __local VEC *bias_partials = (__local VEC *)shared;
    barrier(CLK_LOCAL_MEM_FENCE);
    bias_partials[id] = bias_sums;
    barrier(CLK_LOCAL_MEM_FENCE);
    const int r = row + M_OF(id, TILE_M, 0);
    if (column == 0 && id < TILE_M / 4 && r < n_out) {
        VEC total = (VEC)(0);
        for (int i = id; i < ITEMS; i += TILE_M / 4) total += bias_partials[i];
        store_vector(target + bias + r, total, n_out - r, 1);
    }
#endif
    if (TEAM_OF(id) > 0) return;
UNROLLED
    for (int c = 0; c < CHUNKS_N; ++c) {
        const int n = column + COLUMN_OF(id, c);
        if (n >= n_in) continue;
UNROLLED
        for (int i = 0; i < ITEM_M; ++i) {
            const int m = row + ROW_OF(id, i);
            if (m >= n_out) continue;
            store_vector(target + weights + (size_t)m * stride + n, sums[i][c], n_in - n,
                     1);
        }
    }
}

// The reduction of split-k: gradients = sums over the splits, `size` values from
// `weights` on, then n_out values from `bias` on.
//
// partial [splits, pitch]: the weights' gradient, then the biases'; size and pitch are
// multiples of 4; n_out: 0 without biases
// index map: work-item: 4 values
__kernel void add_splits(__global REAL *gradients, const int weights, const int bias,
                        __global const REAL *partial, const int size, const int pitch,
                        const int splits, const int n_out)
{
    const int i = 4 * get_global_id(0);
    if (i >= size + n_out) return;
    VEC sum = (VEC)(0);
    for (int p = 0; p < splits; ++p)
        sum += *(__global const VEC *)(partial + (size_t)p * pitch + i);
    const int j = i - size;
    __global REAL *to = j < 0 ? gradients + weights + i : gradients + bias + j;
    store_vector(to, sum, j < 0 ? 4 : n_out - j, 1);
}

#else
#ifdef GRADIENT
#include "include/activation_gradient.h"
#endif

// dx[b, i] = sum over o of ds[b, o] A[o, i]; with GRADIENT times
// activation_gradient(saved[b, i] + bias[i])
//
// parameters [..]          A [n_out, stride] at `weights`
// ds [batch, ldds]         dx [batch, lddx], rows padded to whole vectors of 4
// saved [batch, ld_saved]  outputs or pre-activations of the layer below, padded as dx
// bias                     offset of the biases of the layer below in `parameters`
// index map: work-group (tile of samples, tile of inputs)
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void apply_t(__global const REAL *parameters, const int weights, const int stride,
             __global const REAL *ds, const int ldds, __global REAL *dx, const int lddx,
             __global const REAL *saved, const int ld_saved, const int bias,
             const int n_in, const int n_out, const int batch)
{
    __local REAL shared[SHARED] VEC_ALIGNED;
    const int id = get_local_id(0);
    const int sample = get_group_id(0) * TILE_M, column = get_group_id(1) * TILE_N;
    VEC sums[ITEM_M][CHUNKS_N];
    multiply(sums, shared, ds + (size_t)sample * ldds, ldds, batch - sample,
             parameters + weights + column, stride, n_in - column, n_out);
    if (TEAM_OF(id) > 0) return;
UNROLLED
    for (int c = 0; c < CHUNKS_N; ++c) {
        const int n = column + COLUMN_OF(id, c);
        if (n >= n_in) continue;
UNROLLED
        for (int i = 0; i < ITEM_M; ++i) {
            const size_t m = sample + ROW_OF(id, i);
            if (m >= batch) continue;
            VEC v = sums[i][c];
#ifdef GRADIENT
            VEC at = *(__global const VEC *)(saved + m * ld_saved + n);
            if (HAS_BIAS) at += *(__global const VEC *)(parameters + bias + n);
            v *= (VEC)(activation_gradient(at.s0), activation_gradient(at.s1),
                       activation_gradient(at.s2), activation_gradient(at.s3));
#endif
            store_vector(dx + m * lddx + n, v, n_in - n, 1);
        }
    }
}
#endif

// gemm: layers of a batch, by tiles in local memory and in registers (gemm.h):
// a is x [samples, inputs], b is A [neurons, inputs].
//
// HAS_BIAS    1 or 0
// STORES_Z  1: the pre-activations A x are stored too, without the bias; 0: not
// X_PADDED    as in vectors.h
// Y_PADDED    the same of y
// REAL, ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  as in activations.h
// TILE_M, TILE_N, TILE_K, ITEM_M, ITEM_N, TEAMS, LANES, DEPTH, UNROLL  as in gemm.h
#define WIDTH 1
#include "include/activations.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS) || !defined(STORES_Z) \
    || !defined(X_PADDED) || !defined(Y_PADDED)
#error "gemm.cl needs ACTIVATION, HAS_BIAS, STORES_Z, X_PADDED and Y_PADDED"
#endif
#define A_K_MAJOR 1
#define A_PADDED X_PADDED
#define B_K_MAJOR 1
#define B_PADDED 1
#include "dense/gemm.h"

// y[m, n] = f(pre[m, n] + bias[n]),  pre[m, n] = sum over k of x[m, k] A[n, k]
//
// parameters [..]      A [n_out, stride] at `weights`, bias [n_out] at `bias`
// x    [batch, ldx]    y [batch, ldy]
// pre [batch, ldk]     the pre-activations; unused without STORES_Z
// index map: work-group (tile of samples, tile of neurons)
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemm(__global const REAL *parameters, const int weights, const int stride,
          const int bias, __global const REAL *x, const int ldx, __global REAL *y,
          const int ldy, __global REAL *pre, const int ldk, const int n_in,
          const int n_out, const int batch)
{
    __local REAL shared[SHARED] VEC_ALIGNED;
    const int id = get_local_id(0);
    const int sample = get_group_id(0) * TILE_M, neuron = get_group_id(1) * TILE_N;
    VEC sums[ITEM_M][CHUNKS_N];
    multiply(sums, shared, x + (size_t)sample * ldx, ldx, batch - sample,
             parameters + weights + (size_t)neuron * stride, stride, n_out - neuron,
             n_in);
    if (TEAM_OF(id) > 0) return;
UNROLLED
    for (int c = 0; c < CHUNKS_N; ++c) {
        const int n = neuron + COLUMN_OF(id, c);
        if (n >= n_out) continue;
        // The bias, too, is padded to whole vectors in the flat buffer.
        const VEC start =
            HAS_BIAS ? *(__global const VEC *)(parameters + bias + n) : (VEC)(0);
UNROLLED
        for (int i = 0; i < ITEM_M; ++i) {
            const size_t m = sample + ROW_OF(id, i);
            if (m >= batch) continue;
            if (STORES_Z) store_vector(pre + m * ldk + n, sums[i][c], n_out - n, 1);
            VEC v = sums[i][c] + start;
            v.s0 = activate(v.s0);
            v.s1 = activate(v.s1);
            v.s2 = activate(v.s2);
            v.s3 = activate(v.s3);
            store_vector(y + m * ldy + n, v, n_out - n, Y_PADDED);
        }
    }
}

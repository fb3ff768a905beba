// mma_backward: the products of a dense layer's backward pass on Tensor Cores (mma.h,
// wgmma.h), of packed operands.
//
// UNITS     as in mma.cl
// OUTER     1: the kernel outer; 0: the kernel apply_t
// HAS_BIAS  apply_t: 1 if the layer below has biases and its pre-activations are read
// GRADIENT  apply_t: the activation derivative of the layer below, if the epilogue
//           multiplies by it; READS_Z, STEEPNESS, LIMIT with it, as in
//           activation_gradient.h
// REAL      float
// TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PRODUCER, SWIZZLE, SPLITS, PTX
//           as in mma.h or wgmma.h
#define WIDTH 1
#include "include/activations.h"
#if UNITS == 90
#include "tensor_core/wgmma.h"
#else
#include "tensor_core/mma.h"
#endif
#if !defined(UNITS) || !defined(OUTER) || !defined(HAS_BIAS)
#error "mma_backward.cl needs UNITS, OUTER and HAS_BIAS"
#endif

// Before and after the mainloop: the inverse scales of rows and columns.
#define LOAD_SCALES(rows, columns)                                                       \
    float row_scales[ROWS_PER_ITEM], loaded_scales[COLUMNS_PER_ITEM];                    \
    LOAD_ROWS(row_scales, a_inverse, rows)                                               \
    LOAD_COLUMNS(loaded_scales, b_inverse, columns)
#define SHARE_SCALES()                                                                   \
    __local float *scales = (__local float *)shared;                                     \
    barrier(CLK_LOCAL_MEM_FENCE); /* the mainloop has finished with it */                \
    STORE_COLUMNS(scales, loaded_scales)                                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    if (!is_consumer) return;
#define PAIR(i, j)                                                                       \
    ((float2)(sums[(i) / 2][j][(i) % 2 * 2], sums[(i) / 2][j][(i) % 2 * 2 + 1])          \
     * row_scales[i] * *(__local const float2 *)(scales + COLUMN_OF(j)))

#if OUTER
// gradients[weights + r * stride + c] = sum over b of ds[b, r] x[b, c]
//
// a, b       ds and x, transposed and packed; a_inverse, b_inverse: inverse scales
// index map: work-group: a tile of rows and columns
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void outer(__global const uint4 *a, __global const float *a_inverse,
           __global const uint4 *b, __global const float *b_inverse, const int blocks,
           __global float *gradients, const int weights, const int stride,
           const int n_in, const int n_out)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    const int2 tile = tile_of(get_group_id(0), n_out, n_in);
    LOAD_SCALES(n_out, n_in)
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    const int is_consumer = mainloop(sums, shared, a, b, tile, blocks, 0, blocks / ROUND);
    SHARE_SCALES()
    gradients += weights;
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j) {
        const int n = tile.s1 + COLUMN_OF(j);
        if (n >= n_in) continue;
UNROLLED
        for (int i = 0; i < ROWS_PER_ITEM; ++i) {
            const int m = tile.s0 + ROW_OF(i);
            if (m < n_out)
                store_pair(gradients + (size_t)m * stride + n, PAIR(i, j), n_in - n, 1);
        }
    }
}

#else
#ifdef GRADIENT
#include "include/activation_gradient.h"
#endif
#define COLUMNS_IN_FLIGHT (BLOCKS_N % 2 ? 2 : 4)  // of saved values

// dx[b, i] = sum over o of ds[b, o] A[o, i]; with GRADIENT multiplied by
// activation_gradient(saved[b, i] + bias[i])
//
// a, b       ds packed, A transposed and packed; a_inverse, b_inverse: inverse scales
// dx         [batch, lddx], rows padded to whole vectors of 4
// saved      [batch, ldk]: outputs or pre-activations of the layer below, likewise padded
// bias       offset of the biases of the layer below in `parameters`
// index map: work-group: a tile of samples and inputs
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void apply_t(__global const uint4 *a, __global const float *a_inverse,
             __global const uint4 *b, __global const float *b_inverse, const int blocks,
             __global float *dx, const int lddx, __global const float *saved,
             const int ldk, __global const float *parameters, const int bias,
             const int n_in, const int batch)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    const int2 tile = tile_of(get_group_id(0), batch, n_in);
    LOAD_SCALES(batch, n_in)
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    const int is_consumer = mainloop(sums, shared, a, b, tile, blocks, 0, blocks / ROUND);
    SHARE_SCALES()
UNROLLED
    for (int first = 0; first < 2 * BLOCKS_N; first += COLUMNS_IN_FLIGHT) {
        float2 saved_pairs[COLUMNS_IN_FLIGHT][ROWS_PER_ITEM];
#ifdef GRADIENT
UNROLLED
        for (int j = 0; j < COLUMNS_IN_FLIGHT; ++j) {
            const int n = min(tile.s1 + (int)COLUMN_OF(first + j), (n_in - 1) / 2 * 2);
            float2 column_biases = (float2)(0);
            if (HAS_BIAS)
                column_biases = *(__global const float2 *)(parameters + bias + n);
UNROLLED
            for (int i = 0; i < ROWS_PER_ITEM; ++i) {
                const size_t m = min(tile.s0 + (int)ROW_OF(i), batch - 1);
                saved_pairs[j][i] =
                    *(__global const float2 *)(saved + m * ldk + n) + column_biases;
            }
        }
#endif
UNROLLED
        for (int j = 0; j < COLUMNS_IN_FLIGHT; ++j) {
            const int n = tile.s1 + COLUMN_OF(first + j);
            if (n >= n_in) continue;
UNROLLED
            for (int i = 0; i < ROWS_PER_ITEM; ++i) {
                const int m = tile.s0 + ROW_OF(i);
                if (m >= batch) continue;
                float2 v = PAIR(i, first + j);
#ifdef GRADIENT
                v *= (float2)(activation_gradient(saved_pairs[j][i].s0),
                              activation_gradient(saved_pairs[j][i].s1));
#endif
                store_pair(dx + (size_t)m * lddx + n, v, n_in - n, 1);
            }
        }
    }
}
#endif

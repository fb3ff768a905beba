// mma_backward: the products of a dense layer's backward pass on matrix units (mma.h,
// wgmma.h), of packed operands.
//
// UNITS     as in mma.cl
// OUTER     1: the kernel outer; 0: the kernel apply_t
// HAS_BIAS  apply_t: 1 where the layer below has biases and its sums are read
// GRADIENT  apply_t: the derivative of the layer below, where it is multiplied by; left
//           out where not; READS_SUMS, STEEPNESS, LIMIT with it, as in activation_gradient.h
// REAL      float
// TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PRODUCER, PANEL, SPLITS, PTX  as in
//           mma.h or wgmma.h
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

// Before the products, and after them: what rows and columns are multiplied by.
#define ASK(rows, columns)                                                               \
    float of_rows[OWN_ROWS], own_scales[OWN_COLUMNS];                                    \
    ASK_FOR_ROWS(of_rows, a_inverse, rows)                                               \
    ASK_FOR_COLUMNS(own_scales, b_inverse, columns)
#define SHARE()                                                                          \
    __local float *scales = (__local float *)shared;                                     \
    barrier(CLK_LOCAL_MEM_FENCE); /* all have done with what was there */                \
    SHARE_COLUMNS(scales, own_scales)                                                    \
    barrier(CLK_LOCAL_MEM_FENCE);                                                        \
    if (!has_sums) return;
#define PAIR(i, j)                                                                       \
    ((float2)(sums[(i) / 2][j][(i) % 2 * 2], sums[(i) / 2][j][(i) % 2 * 2 + 1])          \
     * of_rows[i] * *(__local const float2 *)(scales + COLUMN_OF(j)))

#if OUTER
// gradients[weights + r * stride + c] = sum over b of ds[b, r] x[b, c]
//
// a, b       ds and x, transposed and packed; a_inverse, b_inverse: their scales'
// index map: work-group: a tile of rows and columns
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void outer(__global const uint4 *a, __global const float *a_inverse,
           __global const uint4 *b, __global const float *b_inverse, const int blocks,
           __global float *gradients, const int weights, const int stride,
           const int n_in, const int n_out)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    const int2 tile = tile_of(get_group_id(0), n_out, n_in);
    ASK(n_out, n_in)
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    const int has_sums = multiply(sums, shared, a, b, tile, blocks, 0, blocks / ROUND);
    SHARE()
    gradients += weights;
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j) {
        const int n = tile.s1 + COLUMN_OF(j);
        if (n >= n_in) continue;
UNROLLED
        for (int i = 0; i < OWN_ROWS; ++i) {
            const int m = tile.s0 + ROW_OF(i);
            if (m < n_out)
                put_pair(gradients + (size_t)m * stride + n, PAIR(i, j), n_in - n, 1);
        }
    }
}

#else
#ifdef GRADIENT
#include "include/activation_gradient.h"
#endif
#define AT_ONCE (BLOCKS_N % 2 ? 2 : 4)  // columns of values that are asked for together

// dx[b, i] = sum over o of ds[b, o] A[o, i]; with GRADIENT that is multiplied by
// slope(kept[b, i] + bias[i])
//
// a, b       ds packed, A transposed and packed; a_inverse, b_inverse: their scales'
// dx         [batch, lddx], rows padded to whole vectors of 4
// kept       [batch, ldk]: outputs or sums of the layer below, likewise padded
// bias       where the biases of the layer below start in `parameters`
// index map: work-group: a tile of samples and inputs
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void apply_t(__global const uint4 *a, __global const float *a_inverse,
             __global const uint4 *b, __global const float *b_inverse, const int blocks,
             __global float *dx, const int lddx, __global const float *kept,
             const int ldk, __global const float *parameters, const int bias,
             const int n_in, const int batch)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    const int2 tile = tile_of(get_group_id(0), batch, n_in);
    ASK(batch, n_in)
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    const int has_sums = multiply(sums, shared, a, b, tile, blocks, 0, blocks / ROUND);
    SHARE()
UNROLLED
    for (int first = 0; first < 2 * BLOCKS_N; first += AT_ONCE) {
        float2 times[AT_ONCE][OWN_ROWS];
#ifdef GRADIENT
UNROLLED
        for (int j = 0; j < AT_ONCE; ++j) {
            const int n = min(tile.s1 + (int)COLUMN_OF(first + j), (n_in - 1) / 2 * 2);
            float2 of_bias = (float2)(0);
            if (HAS_BIAS) of_bias = *(__global const float2 *)(parameters + bias + n);
UNROLLED
            for (int i = 0; i < OWN_ROWS; ++i) {
                const size_t m = min(tile.s0 + (int)ROW_OF(i), batch - 1);
                times[j][i] = *(__global const float2 *)(kept + m * ldk + n) + of_bias;
            }
        }
#endif
UNROLLED
        for (int j = 0; j < AT_ONCE; ++j) {
            const int n = tile.s1 + COLUMN_OF(first + j);
            if (n >= n_in) continue;
UNROLLED
            for (int i = 0; i < OWN_ROWS; ++i) {
                const int m = tile.s0 + ROW_OF(i);
                if (m >= batch) continue;
                float2 v = PAIR(i, first + j);
#ifdef GRADIENT
                v *= (float2)(slope(times[j][i].s0), slope(times[j][i].s1));
#endif
                put_pair(dx + (size_t)m * lddx + n, v, n_in - n, 1);
            }
        }
    }
}
#endif

// mma_backward: the products of a dense layer's backward pass on matrix units (mma.h,
// wgmma.h), of packed operands.
//
// UNITS     as in mma.cl
// OUTER     1: the kernel outer; 0: the kernel apply_t
// HAS_BIAS  apply_t: 1 where the layer below has biases and its sums are read
// GRADIENT  apply_t: the derivative of the layer below, where it is multiplied by; left
//           out where not; READS_SUMS, STEEPNESS, LIMIT with it, as in slope.h
// REAL      float
// TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PANEL, PLANES, PTX  as in mma.h
//           or wgmma.h
#define WIDTH 1
#include "activations.h"
#if UNITS == 90
#include "wgmma.h"
#else
#include "mma.h"
#endif
#if !defined(UNITS) || !defined(OUTER) || !defined(HAS_BIAS)
#error "mma_backward.cl needs UNITS, OUTER and HAS_BIAS"
#endif

// For all pairs of a lane's sums in a matrix of `rows` x `columns`: DO(m, n, v).
#define FOR_PAIRS(rows, columns, DO)                                                     \
    UNROLLED                                                                             \
    for (int j = 0; j < 2 * BLOCKS_N; ++j) {                                             \
        const int n = tile.s1 + COLUMN_OF(j);                                            \
        if (n >= columns) continue;                                                      \
        const float2 of_column = *(__global const float2 *)(b_inverse + n);              \
        UNROLLED                                                                         \
        for (int i = 0; i < 2 * BLOCKS_M; ++i) {                                         \
            const int m = tile.s0 + ROW_OF(i);                                           \
            if (m >= rows) continue;                                                     \
            const float *two = sums[i / 2][j] + i % 2 * 2;                               \
            const float2 v = (float2)(two[0], two[1]) * a_inverse[m] * of_column;        \
            DO(m, n, v)                                                                  \
        }                                                                                \
    }

#if OUTER
// gradients[weights + r * stride + c] = sum over b of ds[b, r] x[b, c]
//
// a, b       ds and x, turned and packed; a_inverse, b_inverse: their scales'
// index map: work-group: a tile of rows and columns
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void outer(__global const uint4 *a, __global const float *a_inverse,
           __global const uint4 *b, __global const float *b_inverse, const int blocks,
           __global float *gradients, const int weights, const int stride,
           const int n_in, const int n_out)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    const int2 tile = tile_of(get_group_id(0), n_out, n_in);
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    multiply(sums, shared, a, b, tile, blocks, 0, blocks / ROUND);
    gradients += weights;
#define PUT(m, n, v) put_pair(gradients + (size_t)m * stride + n, v, n_in - n, 1);
    FOR_PAIRS(n_out, n_in, PUT)
}

#else
#ifdef GRADIENT
#include "slope.h"
#endif

// dx[b, i] = sum over o of ds[b, o] A[o, i]; with GRADIENT that is multiplied by
// slope(kept[b, i] + bias[i])
//
// a, b       ds packed, A turned and packed; a_inverse, b_inverse: their scales'
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
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    multiply(sums, shared, a, b, tile, blocks, 0, blocks / ROUND);
#ifdef GRADIENT
#define PUT(m, n, v)                                                                     \
    float2 at = *(__global const float2 *)(kept + (size_t)m * ldk + n);                  \
    if (HAS_BIAS) at += *(__global const float2 *)(parameters + bias + n);               \
    const float2 times = (float2)(slope(at.s0), slope(at.s1));                           \
    put_pair(dx + (size_t)m * lddx + n, v * times, n_in - n, 1);
#else
#define PUT(m, n, v) put_pair(dx + (size_t)m * lddx + n, v, n_in - n, 1);
#endif
    FOR_PAIRS(batch, n_in, PUT)
}
#endif

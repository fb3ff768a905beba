// mma: layers of a batch on Tensor Cores (mma.h, wgmma.h): a is x [samples, inputs], b is
// A [neurons, inputs], both packed. `mma` multiplies. Where tiles alone would leave
// compute units idle, split-k divides the inputs among groups, and `reduce_split_k` adds
// the partial sums.
//
// UNITS     80: mma; 90: wgmma
// SPLIT_K   1: `mma` finishes the layer; else it writes the partial sums of its split
// PACKS     1: y is written packed, as the next layer's x: |y| <= 1
// Y_PADDED  1: rows of y start on a vector of 4
// HAS_BIAS, STORES_Z  as in gemm.cl
// REAL (float), ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  as in activations.h
// TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PRODUCER, SWIZZLE, SPLITS, PTX
//           as in mma.h or wgmma.h
#define WIDTH 1
#include "include/activations.h"
#if UNITS == 90
#include "tensor_core/wgmma.h"
#else
#include "tensor_core/mma.h"
#endif
#include "tensor_core/fast_math.h"
#if !defined(UNITS) || !defined(SPLIT_K) || !defined(PACKS) || !defined(ACTIVATION) \
    || !defined(HAS_BIAS) || !defined(STORES_Z) || !defined(Y_PADDED)
#error "mma.cl needs UNITS, SPLIT_K, PACKS, ACTIVATION, HAS_BIAS, STORES_Z and Y_PADDED"
#endif
#if PTX >= 80 && SPLITS == 1 && !HAS_LIMIT
#define ACTIVATE(v) ACTIVATION((v) * (float)(STEEPNESS))  // without a clip, fast
#else
#define ACTIVATE activate
#endif
#define UNIT_SCALES scales_of(as_uint(1.0f))  // of rows bounded by 1

// Store y, and the pre-activations with STORES_Z, of two neighbouring sums.
static inline void epilogue(float2 v, const size_t m, const int n, const float2 bias,
                            __global float *y, const int ldy, __global float *inverse,
                            __global float *pre_activations, const int ldk,
                            const int n_out)
{
    if (STORES_Z) store_pair(pre_activations + m * ldk + n, v, n_out - n, 1);
    v += bias;
    v = (float2)(ACTIVATE(v.s0), ACTIVATE(v.s1));
#if PACKS
    __global uint *to = (__global uint *)y + pair_offset(m, n, ldy);
    v = (float2)(v.s0, n + 1 < n_out ? v.s1 : 0) * UNIT_SCALES.s0;
    const uint high = pack_half2(v.s0, v.s1);
    *to = high;
    v = (v - unpack_half2(high)) * LOW_SCALE;
    if (SPLITS == 2) to[SPLIT_STRIDE] = pack_half2(v.s0, v.s1);
    if (n == 0) inverse[m] = UNIT_SCALES.s1;
#else
    store_pair(y + m * ldy + n, v, n_out - n, Y_PADDED);
#endif
}

// y[m, n] = f(sums[m, n] + bias[n]),  sums[m, n] = sum over k of x[m, k] A[n, k]
//
// x, a             packed, `blocks` blocks of terms; x_inverse, a_inverse: inverse scales
// parameters       bias [n_out] at `bias`
// y                [batch, ldy]; if SPLIT_K > 1 partial sums [SPLIT_K, batch, ldy]; with
//                  PACKS packed, ldy blocks of terms, and its inverse scales at `inverse`
// pre_activations  [batch, ldk]: the sums; unused without STORES_Z
// index map: work-group (tile, split)
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void mma(__global const uint4 *x, __global const float *x_inverse,
         __global const uint4 *a, __global const float *a_inverse, const int blocks,
         __global const float *parameters, const int bias, __global float *y,
         const int ldy, __global float *inverse, __global float *pre_activations,
         const int ldk, const int n_out, const int batch)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    __local float *scales = (__local float *)shared, *biases = scales + TILE_N;
    const int rounds = blocks / ROUND, split = get_group_id(1);
    const int2 tile = tile_of(get_group_id(0), batch, n_out);
    float row_scales[ROWS_PER_ITEM];
    float loaded_scales[COLUMNS_PER_ITEM], loaded_biases[COLUMNS_PER_ITEM];
    LOAD_ROWS(row_scales, x_inverse, batch)
    LOAD_COLUMNS(loaded_scales, a_inverse, n_out)
    if (HAS_BIAS) { LOAD_COLUMNS(loaded_biases, parameters + bias, n_out) }
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    const int is_consumer =
        mainloop(sums, shared, x, a, tile, blocks, rounds * split / SPLIT_K,
                 rounds * (split + 1) / SPLIT_K);
    barrier(CLK_LOCAL_MEM_FENCE);  // the mainloop has finished with local memory
    STORE_COLUMNS(scales, loaded_scales)
    if (HAS_BIAS) { STORE_COLUMNS(biases, loaded_biases) }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!is_consumer) return;
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j) {
        const int column = COLUMN_OF(j), n = tile.s1 + column;
        if (n >= n_out) continue;
        const float2 column_scales = *(__local const float2 *)(scales + column);
        float2 column_biases = (float2)(0);
        if (HAS_BIAS) column_biases = *(__local const float2 *)(biases + column);
UNROLLED
        for (int i = 0; i < ROWS_PER_ITEM; ++i) {
            const int m = tile.s0 + ROW_OF(i);
            if (m >= batch) continue;
            const float *pair = sums[i / 2][j] + i % 2 * 2;
            const float2 v =
                scaled_pair((float2)(pair[0], pair[1]), row_scales[i], column_scales);
#if SPLIT_K > 1
            store_pair(y + ((size_t)split * batch + m) * ldy + n, v, n_out - n, 1);
#else
            epilogue(v, m, n, column_biases, y, ldy, inverse, pre_activations, ldk, n_out);
#endif
        }
    }
}

// y, inverse and pre_activations as above, of partial sums: partial [SPLIT_K, batch, ld]
// index map: work-item (sample, pair of neurons)
__kernel void reduce_split_k(__global const float *partial, const int ld,
                             __global const float *parameters, const int bias,
                             __global float *y, const int ldy, __global float *inverse,
                             __global float *pre_activations, const int ldk,
                             const int n_out, const int batch)
{
    const size_t m = get_global_id(0);
    const int n = 2 * get_global_id(1);
    if (n >= n_out) return;
    float2 v = (float2)(0), biases = (float2)(0);
    if (HAS_BIAS) biases = *(__global const float2 *)(parameters + bias + n);
UNROLLED
    for (int p = 0; p < SPLIT_K; ++p)
        v += *(__global const float2 *)(partial + (p * (size_t)batch + m) * ld + n);
    epilogue(v, m, n, biases, y, ldy, inverse, pre_activations, ldk, n_out);
}

// mma_backward: the products of a dense layer's backward pass on Tensor Cores (mma.h,
// wgmma.h), of packed operands:
//
//     outer    gradients of A [n_out, n_in] = dsᵀ x        terms: samples
//     apply_t  dx [batch, n_in] = ds A                     terms: neurons
//
// One launch computes one of them, or both: then compute units take several tiles, and
// one multiplies while another loads or stores.
//
// UNITS     as in mma.cl
// PRODUCTS  1: outer; 2: apply_t; 3: both
// HAS_BIAS  apply_t: 1 if the layer below has biases and its pre-activations are read
// GRADIENT  apply_t: the activation derivative of the layer below, if the epilogue
//           multiplies by it; READS_Z, STEEPNESS, HAS_LIMIT, LIMIT with it, as in
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
#if !defined(UNITS) || !defined(PRODUCTS) || !defined(HAS_BIAS)
#error "mma_backward.cl needs UNITS, PRODUCTS and HAS_BIAS"
#endif
#ifdef GRADIENT
#include "include/activation_gradient.h"
#endif
#define COLUMNS_IN_FLIGHT (BLOCKS_N % 2 ? 2 : 4)  // of saved values

// Of the product that a group computes, where it is one of two.
#if PRODUCTS == 1
#define OF_PRODUCT(outer, apply_t) (outer)
#elif PRODUCTS == 2
#define OF_PRODUCT(outer, apply_t) (apply_t)
#else
#define OF_PRODUCT(outer, apply_t) (is_outer ? (outer) : (apply_t))
#endif

#define PAIR(i, j)                                                                       \
    scaled_pair(                                                                         \
        (float2)(sums[(i) / 2][j][(i) % 2 * 2], sums[(i) / 2][j][(i) % 2 * 2 + 1]),      \
        row_scales[i], *(__local const float2 *)(scales + COLUMN_OF(j)))

// outer:   gradients[weights + r * stride + c] = sum over b of ds[b, r] x[b, c]
// apply_t: dx[b, i] = sum over o of ds[b, o] A[o, i]; with GRADIENT multiplied by
//          activation_gradient(saved[b, i] + bias[i])
//
// ds_t, x_t  ds and x, transposed and packed, `sample_blocks` blocks of terms
// ds, a_t    ds packed, A transposed and packed, `neuron_blocks` blocks of terms
// …_inverse  their inverse scales
// dx         [batch, lddx], rows padded to whole vectors of 4
// saved      [batch, ldk]: outputs or pre-activations of the layer below, likewise padded
// bias       offset of the biases of the layer below in `parameters`
// index map: work-group: a tile of neurons and inputs, then of samples and inputs
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void products(const int n_in, const int n_out, const int batch
#if PRODUCTS & 1
              , __global const uint4 *ds_t, __global const float *ds_t_inverse,
              __global const uint4 *x_t, __global const float *x_t_inverse,
              const int sample_blocks, __global float *gradients, const int weights,
              const int stride
#endif
#if PRODUCTS & 2
              , __global const uint4 *ds, __global const float *ds_inverse,
              __global const uint4 *a_t, __global const float *a_t_inverse,
              const int neuron_blocks, __global float *dx, const int lddx,
              __global const float *saved, const int ldk,
              __global const float *parameters, const int bias
#endif
              )
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
#if PRODUCTS == 3
    const int outer_tiles =
        (n_out + TILE_M - 1) / TILE_M * ((n_in + TILE_N - 1) / TILE_N);
    const bool is_outer = get_group_id(0) < outer_tiles;
    const int number = get_group_id(0) - (is_outer ? 0 : outer_tiles);
#else
    const bool is_outer = PRODUCTS == 1;
    const int number = get_group_id(0);
#endif
    const int rows = OF_PRODUCT(n_out, batch);
    const int blocks = OF_PRODUCT(sample_blocks, neuron_blocks);
    const int2 tile = tile_of(number, rows, n_in);
    __global const float *a_inverse = OF_PRODUCT(ds_t_inverse, ds_inverse);
    __global const float *b_inverse = OF_PRODUCT(x_t_inverse, a_t_inverse);
    float row_scales[ROWS_PER_ITEM], loaded_scales[COLUMNS_PER_ITEM];
    LOAD_ROWS(row_scales, a_inverse, rows)
    LOAD_COLUMNS(loaded_scales, b_inverse, n_in)
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    const int is_consumer =
        mainloop(sums, shared, OF_PRODUCT(ds_t, ds), OF_PRODUCT(x_t, a_t), tile, blocks, 0,
                 blocks / ROUND);
    __local float *scales = (__local float *)shared;
    barrier(CLK_LOCAL_MEM_FENCE);  // the mainloop has finished with local memory
    STORE_COLUMNS(scales, loaded_scales)
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!is_consumer) return;
#if PRODUCTS & 1
    if (is_outer) {
        gradients += weights;
UNROLLED
        for (int j = 0; j < 2 * BLOCKS_N; ++j) {
            const int n = tile.s1 + COLUMN_OF(j);
            if (n >= n_in) continue;
UNROLLED
            for (int i = 0; i < ROWS_PER_ITEM; ++i) {
                const int m = tile.s0 + ROW_OF(i);
                if (m < n_out)
                    store_pair(gradients + (size_t)m * stride + n, PAIR(i, j), n_in - n,
                               1);
            }
        }
        return;
    }
#endif
#if PRODUCTS & 2
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
#endif
}

// mma: layers of a batch on matrix units (mma.h, wgmma.h): a is x [samples, inputs], b is
// A [neurons, inputs], both packed. `mma` multiplies; `add_parts` adds the sums of parts
// of the inputs where tiles alone would leave the device idle.
//
// UNITS     80: a warp's units; 90: a warp group's
// PARTS     1: `mma` finishes the layer; else it writes the sums of its part
// PACKS     1: y is written as the next layer's x, packed: no value is beyond 1
// Y_PADDED  1: rows of y start on a vector of 4
// HAS_BIAS, KEEPS_SUMS  as in gemm.cl
// REAL (float), ACTIVATION, STEEPNESS, LIMIT  as in activations.h
// TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PRODUCER, PANEL, SPLITS, PTX  as in
//           mma.h or wgmma.h
#define WIDTH 1
#include "include/activations.h"
#if UNITS == 90
#include "tensor_core/wgmma.h"
#else
#include "tensor_core/mma.h"
#endif
#include "tensor_core/fast_math.h"
#if !defined(UNITS) || !defined(PARTS) || !defined(PACKS) || !defined(ACTIVATION) \
    || !defined(HAS_BIAS) || !defined(KEEPS_SUMS) || !defined(Y_PADDED)
#error "mma.cl needs UNITS, PARTS, PACKS, ACTIVATION, HAS_BIAS, KEEPS_SUMS and Y_PADDED"
#endif
#if PTX >= 80 && SPLITS == 1 && !defined(LIMIT)
#define ACTIVATE(v) ACTIVATION((v) * (float)(STEEPNESS))  // as quick as they come
#else
#define ACTIVATE activate
#endif
#define SCALES scales_of(as_uint(1.0f))  // of rows whose values are not beyond 1

// y, and the sums where they are kept, from two neighbouring sums
inline void finish(float2 v, const size_t m, const int n, const float2 bias,
                   __global float *y, const int ldy, __global float *inverse,
                   __global float *kept, const int ldk, const int n_out)
{
    if (KEEPS_SUMS) put_pair(kept + m * ldk + n, v, n_out - n, 1);
    v += bias;
    v = (float2)(ACTIVATE(v.s0), ACTIVATE(v.s1));
#if PACKS
    __global uint *to = (__global uint *)y + pair_at(m, n, ldy);
    v = (float2)(v.s0, n + 1 < n_out ? v.s1 : 0) * SCALES.s0;
    const uint high = pack_half2(v.s0, v.s1);
    *to = high;
    v = (v - unpack_half2(high)) * LOW_SCALE;
    if (SPLITS == 2) to[NEXT_PLANE] = pack_half2(v.s0, v.s1);
    if (n == 0) inverse[m] = SCALES.s1;
#else
    put_pair(y + m * ldy + n, v, n_out - n, Y_PADDED);
#endif
}

// y[m, n] = f(sums[m, n] + bias[n]),  sums[m, n] = sum over k of x[m, k] A[n, k]
//
// x, a         packed, `blocks` blocks of terms; x_inverse, a_inverse: their scales'
// parameters   bias [n_out] at `bias`
// y            [batch, ldy]; with several PARTS sums [PARTS, batch, ldy]; with PACKS
//              packed, ldy blocks of terms, and its rows' scales at `inverse`
// kept         [batch, ldk]: the sums; anything without KEEPS_SUMS
// index map: work-group (tile, part)
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void mma(__global const uint4 *x, __global const float *x_inverse,
         __global const uint4 *a, __global const float *a_inverse, const int blocks,
         __global const float *parameters, const int bias, __global float *y,
         const int ldy, __global float *inverse, __global float *kept, const int ldk,
         const int n_out, const int batch)
{
    __local uint4 shared[SHARED] __attribute__((aligned(128)));
    __local float *scales = (__local float *)shared, *biases = scales + TILE_N;
    const int rounds = blocks / ROUND, part = get_group_id(1);
    const int2 tile = tile_of(get_group_id(0), batch, n_out);
    float of_rows[OWN_ROWS], own_scales[OWN_COLUMNS], own_biases[OWN_COLUMNS];
    ASK_FOR_ROWS(of_rows, x_inverse, batch)
    ASK_FOR_COLUMNS(own_scales, a_inverse, n_out)
    if (HAS_BIAS) { ASK_FOR_COLUMNS(own_biases, parameters + bias, n_out) }
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
    const int has_sums = multiply(sums, shared, x, a, tile, blocks,
                                  rounds * part / PARTS, rounds * (part + 1) / PARTS);
    barrier(CLK_LOCAL_MEM_FENCE);  // all have done with what was there
    SHARE_COLUMNS(scales, own_scales)
    if (HAS_BIAS) { SHARE_COLUMNS(biases, own_biases) }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!has_sums) return;
UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j) {
        const int column = COLUMN_OF(j), n = tile.s1 + column;
        if (n >= n_out) continue;
        const float2 of_column = *(__local const float2 *)(scales + column);
        float2 of_bias = (float2)(0);
        if (HAS_BIAS) of_bias = *(__local const float2 *)(biases + column);
UNROLLED
        for (int i = 0; i < OWN_ROWS; ++i) {
            const int m = tile.s0 + ROW_OF(i);
            if (m >= batch) continue;
            const float *two = sums[i / 2][j] + i % 2 * 2;
            const float2 v = (float2)(two[0], two[1]) * of_rows[i] * of_column;
#if PARTS > 1
            put_pair(y + ((size_t)part * batch + m) * ldy + n, v, n_out - n, 1);
#else
            finish(v, m, n, of_bias, y, ldy, inverse, kept, ldk, n_out);
#endif
        }
    }
}

// y, inverse and kept as above, from the sums of the parts: partial [PARTS, batch, ld]
// index map: work-item (sample, pair of neurons)
__kernel void add_parts(__global const float *partial, const int ld,
                        __global const float *parameters, const int bias,
                        __global float *y, const int ldy, __global float *inverse,
                        __global float *kept, const int ldk, const int n_out,
                        const int batch)
{
    const size_t m = get_global_id(0);
    const int n = 2 * get_global_id(1);
    if (n >= n_out) return;
    float2 v = (float2)(0), biases = (float2)(0);
    if (HAS_BIAS) biases = *(__global const float2 *)(parameters + bias + n);
UNROLLED
    for (int p = 0; p < PARTS; ++p)
        v += *(__global const float2 *)(partial + (p * (size_t)batch + m) * ld + n);
    finish(v, m, n, biases, y, ldy, inverse, kept, ldk, n_out);
}

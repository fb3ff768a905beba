// fused_mma: a chain of narrow dense layers in one launch, on matrix units.
//
// A warp takes ROWS_M * 16 samples through all layers. The outputs that a layer leaves in
// its lanes are, packed as halves, the very fragments that the next layer multiplies:
//
//     sums of columns 16 j …: a lane has        next layer's fragment of terms 16 j …:
//     row g      2t 2t+1   2t+8 2t+9            word 0    word 2
//     row g + 8  2t 2t+1   2t+8 2t+9            word 1    word 3
//
// so nothing but weights passes through local memory, and nothing but x and y through
// global memory. The idea is that of tiny-cuda-nn's fused networks: Mueller et al.,
// "Real-time neural radiance caching for path tracing", 2021; here rows are scaled as in
// halves.h, by the largest value that the four lanes of a row have.
//
// WIDE      inputs and neurons of every layer, filled up: a multiple of 32
// WARPS     of a group; usually 4 or 8
// ROWS_M    blocks of 16 samples of a warp: 1 or 2
// RESIDENT  1: all layers' weights stay in local memory; 0: one layer's at a time
// N_IN      inputs of the first layer
// X_PADDED  1: rows of x start on a vector of 4 and end in zeros; 0: not
// Y_PADDED  1: rows of y start on a vector of 4
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// REAL (float)  as in activations.h; PLANES, PTX as in halves.h
#define WIDTH 1
#include "activations.h"
#include "chain.h"
#include "fragments.h"
#if !defined(WIDE) || !defined(WARPS) || !defined(ROWS_M) || !defined(RESIDENT) \
    || !defined(N_IN) || !defined(X_PADDED) || !defined(Y_PADDED)
#error "fused_mma.cl needs WIDE, WARPS, ROWS_M, RESIDENT, N_IN, X_PADDED and Y_PADDED"
#endif
#define BLOCKS (WIDE / BLOCK)
#define LAYER (BLOCKS * BLOCKS * PLANES * WARP)     // 4-word parts of a layer's weights
#define SAMPLES (WARPS * ROWS_M * BLOCK)            // of a group
#define ITEMS (WARPS * WARP)

// most [ROWS_M][2] = the largest of what the four lanes of a row have; and its blocks as
// fragments. In plain C both pass through local memory, a warp's part of `exchange`.
#if PTX >= 80
#define EXCHANGED 1
inline void share_largest(uint (*most)[2], __local uint4 *exchange)
{
UNROLLED
    for (int i = 0; i < 2 * ROWS_M; ++i) {
        uint other;
        asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;"
                     : "=r"(other) : "r"(most[i / 2][i % 2]));
        const uint two = max(most[i / 2][i % 2], other);
        asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;" : "=r"(other) : "r"(two));
        most[i / 2][i % 2] = max(two, other);
    }
}
#define AS_FRAGMENT(words, exchange, place) (words)
#define EXCHANGE_BARRIER()
#else
#define STAGED (ROWS_M * BLOCKS * PLANES * WARP)    // of a warp; after them ROWS_M * 16
#define EXCHANGED (WARPS * (STAGED + 4 * ROWS_M))   // values
inline void share_largest(uint (*most)[2], __local uint4 *exchange)
{
    const int lane = get_local_id(0) % WARP;
    __local uint *largest = (__local uint *)(exchange + STAGED) + lane / 4;
    for (int i = 0; i < 2 * ROWS_M; ++i) largest[8 * i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 2 * ROWS_M; ++i)
        atomic_max(largest + 8 * i, most[i / 2][i % 2]);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 2 * ROWS_M; ++i) most[i / 2][i % 2] = largest[8 * i];
}
inline Fragment staged(const uint4 words, __local uint4 *block)
{
    block[get_local_id(0) % WARP] = words;
    return FRAGMENT(block, 0);
}
#define AS_FRAGMENT(words, exchange, place) staged(words, (exchange) + (place) * WARP)
#define EXCHANGE_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#endif

// The first `left` of two neighbouring values.
inline float2 pair_at(__global const float *from, const int left)
{
#if X_PADDED
    return left > 0 ? *(__global const float2 *)from : (float2)(0);
#else
    return (float2)(left > 0 ? from[0] : 0, left > 1 ? from[1] : 0);
#endif
}

// Start to copy so many 4-word parts of weights to local memory.
inline void copy_weights(__local uint4 *to, __global const uint4 *from, const int count)
{
    for (int i = get_local_id(0); i < count; i += ITEMS) copy_words(to + i, from + i);
    DEPART();
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx]
//
// weights    [LAYERS] packed layers; w_inverse [LAYERS, WIDE]: their scales'
// parameters the biases
// index map: work-group: every (groups)-th tile of SAMPLES; a warp: ROWS_M * 16 of them
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void fused_mma(__global const float *x, const int ldx, __global const uint4 *weights,
               __global const float *w_inverse, __global const float *parameters,
               __global float *y, const int ldy, const int batch)
{
    __local uint4 shared[(RESIDENT ? LAYERS : 1) * LAYER];
    __local uint4 exchanges[EXCHANGED];
    const int warp = get_local_id(0) / WARP, lane = get_local_id(0) % WARP;
    const int g = lane / 4, t = lane % 4;
    __local uint4 *exchange = exchanges + warp * (EXCHANGED / WARPS);
#if RESIDENT
    copy_weights(shared, weights, LAYERS * LAYER);
    ARRIVED(0);
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (int tile = get_group_id(0) * SAMPLES; tile < batch;
         tile += get_num_groups(0) * SAMPLES) {
        const int first = tile + warp * ROWS_M * BLOCK + g;
        float v[ROWS_M][2 * BLOCKS][4], inverse[ROWS_M][2];
UNROLLED
        for (int m = 0; m < ROWS_M; ++m) {
UNROLLED
            for (int i = 0; i < 2; ++i) {
                const int sample = first + m * BLOCK + 8 * i;
UNROLLED
                for (int j = 0; j < 2 * BLOCKS; ++j) {
                    const int k = 8 * j + 2 * t;
                    const float2 two =
                        pair_at(x + (size_t)min(sample, batch - 1) * ldx + k, N_IN - k);
                    v[m][j][2 * i] = two.s0;
                    v[m][j][2 * i + 1] = two.s1;
                }
            }
        }
        for (int layer = 0; layer < LAYERS; ++layer) {
#if !RESIDENT
            barrier(CLK_LOCAL_MEM_FENCE);  // all have done with the layer before
            copy_weights(shared, weights + layer * LAYER, LAYER);
#endif
            Fragment rows[ROWS_M][BLOCKS][PLANES];
            uint most[ROWS_M][2];
UNROLLED
            for (int m = 0; m < ROWS_M; ++m)
UNROLLED
                for (int i = 0; i < 2; ++i) {
                    most[m][i] = 0;
UNROLLED
                    for (int j = 0; j < 2 * BLOCKS; ++j)
                        most[m][i] = max(most[m][i],
                                         max(magnitude(v[m][j][2 * i]),
                                             magnitude(v[m][j][2 * i + 1])));
                }
            share_largest(most, exchange);
UNROLLED
            for (int m = 0; m < ROWS_M; ++m) {
                float scales[2];
UNROLLED
                for (int i = 0; i < 2; ++i) {
                    const float2 both = scales_of(most[m][i]);
                    scales[i] = both.s0;
                    inverse[m][i] = both.s1;
                }
UNROLLED
                for (int k = 0; k < BLOCKS; ++k) {
                    uint high[4], low[4];
UNROLLED
                    for (int i = 0; i < 4; ++i) {
                        const float *two = v[m][2 * k + i / 2] + i % 2 * 2;
                        float2 pair = (float2)(two[0], two[1]) * scales[i % 2];
                        high[i] = halves(pair.s0, pair.s1);
                        pair = (pair - of_halves(high[i])) * LOW;
                        low[i] = halves(pair.s0, pair.s1);
                    }
                    const int place = (m * BLOCKS + k) * PLANES;
                    rows[m][k][0] = AS_FRAGMENT(
                        (uint4)(high[0], high[1], high[2], high[3]), exchange, place);
#if PLANES == 2
                    rows[m][k][1] = AS_FRAGMENT(
                        (uint4)(low[0], low[1], low[2], low[3]), exchange, place + 1);
#endif
                }
            }
            EXCHANGE_BARRIER();
#if !RESIDENT
            ARRIVED(0);
            barrier(CLK_LOCAL_MEM_FENCE);
#endif
            __local const uint4 *a = shared + (RESIDENT ? layer * LAYER : 0);
            __global const float *scale = w_inverse + layer * WIDE;
            const int bias = bias_of[layer];
UNROLLED
            for (int j = 0; j < BLOCKS; ++j) {
                float main[ROWS_M][2][4], rest[ROWS_M][2][4];
UNROLLED
                for (int i = 0; i < ROWS_M * 8; ++i)
                    main[i / 8][i / 4 % 2][i % 4] = rest[i / 8][i / 4 % 2][i % 4] = 0;
UNROLLED
                for (int k = 0; k < BLOCKS; ++k) {
                    Fragment columns[PLANES];
UNROLLED
                    for (int p = 0; p < PLANES; ++p)
                        columns[p] =
                            FRAGMENT(a + ((j * BLOCKS + k) * PLANES + p) * WARP, lane);
UNROLLED
                    for (int m = 0; m < ROWS_M; ++m) {
UNROLLED
                        for (int side = 0; side < 2; ++side) {
                            multiply_add(main[m][side], rows[m][k][0], columns[0], side);
#if PLANES == 2
                            multiply_add(rest[m][side], rows[m][k][0], columns[1], side);
                            multiply_add(rest[m][side], rows[m][k][1], columns[0], side);
#endif
                        }
                    }
                }
UNROLLED
                for (int side = 0; side < 2; ++side) {
                    const int n = 16 * j + 8 * side + 2 * t;
                    const float2 of_column = *(__global const float2 *)(scale + n);
                    float2 add = (float2)(0);
                    if (bias >= 0 && n < n_out_of[layer])
                        add = *(__global const float2 *)(parameters + bias + n);
UNROLLED
                    for (int m = 0; m < ROWS_M; ++m) {
UNROLLED
                        for (int i = 0; i < 2; ++i) {
                            const float *two = main[m][side] + 2 * i;
                            const float *small = rest[m][side] + 2 * i;
                            float2 sum = (float2)(two[0], two[1]);
                            if (PLANES == 2) sum += (float2)(small[0], small[1]) / LOW;
                            sum = sum * inverse[m][i] * of_column + add;
                            v[m][2 * j + side][2 * i] = chain_activate(layer, sum.s0);
                            v[m][2 * j + side][2 * i + 1] = chain_activate(layer, sum.s1);
                        }
                    }
                }
            }
            EXCHANGE_BARRIER();
        }
UNROLLED
        for (int m = 0; m < ROWS_M; ++m) {
UNROLLED
            for (int i = 0; i < 2; ++i) {
                const int sample = first + m * BLOCK + 8 * i;
                if (sample >= batch) continue;
UNROLLED
                for (int j = 0; j < 2 * BLOCKS; ++j) {
                    const int n = 8 * j + 2 * t, left = n_out_of[LAYERS - 1] - n;
                    __global float *to = y + (size_t)sample * ldy + n;
                    const float *two = v[m][j] + 2 * i;
                    if (Y_PADDED && left > 1) {
                        *(__global float2 *)to = (float2)(two[0], two[1]);
                    } else {
                        if (left > 0) to[0] = two[0];
                        if (left > 1) to[1] = two[1];
                    }
                }
            }
        }
    }
}

// weight_gradients: products over samples of the deltas and values that fused_step.cl
// stored. A warp computes SQUARE x SQUARE blocks of a layer's, of a split of the samples.
//
// GRADIENT_WARPS  warps of a group
// SPLIT_K   splits of the samples: a multiple of GRADIENT_WARPS
// BIASES    elements of the flat buffer before the first bias
// others    as in fused_step.h
#include "training/fused_step.h"
#if !defined(GRADIENT_WARPS) || !defined(SPLIT_K) || !defined(BIASES)
#error "fused_step_gradients.cl needs GRADIENT_WARPS, SPLIT_K and BIASES"
#endif
#define ROUND_UP(a, b) (((a) + (b) - 1) / (b))
#define DEPTH (SPLITS == 1 ? 2 : 1)  // blocks of samples in flight, as registers allow

// Squares of SQUARE x SQUARE blocks of a layer.
#define ACROSS(layer) ROUND_UP(TERMS_OF(layer), SQUARE)
#define SQUARES(layer) (ROUND_UP(NEURONS_OF(layer), SQUARE) * ACROSS(layer))

// partial_gradients [SPLIT_K, BIASES]: the weights' gradients of each split of the samples
// index map: a warp: a square of a layer, of a split
__kernel __attribute__((reqd_work_group_size(GRADIENT_WARPS * WARP, 1, 1)))
void weight_gradients(__global const uint4 *values, __global const uint4 *deltas,
                      __global const int *powers, const int sample_blocks,
                      __global float *partial_gradients, const int samples)
{
    const int lane = get_local_id(0) % WARP;
#if PTX < 80
    __local uint4 exchanges[GRADIENT_WARPS][2][SQUARE][BLOCK_VECTORS];
    __local uint shuffle_spaces[GRADIENT_WARPS][WARP];
    __local uint *shuffle_space = shuffle_spaces[get_local_id(0) / WARP];
#else
    __local uint *shuffle_space = 0;
#endif
    // A group's warps have one layer; those of one split and several squares read the
    // same samples.
    int number = get_group_id(0) * GRADIENT_WARPS, layer = 0;
    for (; number >= SPLIT_K * SQUARES(layer); ++layer) number -= SPLIT_K * SQUARES(layer);
    number += get_local_id(0) / WARP;
    const int split = number / SQUARES(layer), square = number % SQUARES(layer);
    const int down = NEURONS_OF(layer), across = TERMS_OF(layer);
    const int m0 = square / ACROSS(layer) * SQUARE, n0 = square % ACROSS(layer) * SQUARE;
    const int count = ROUND_UP(samples, BLOCK), split_blocks = ROUND_UP(count, SPLIT_K);
    const int from = min(split * split_blocks, count);
    const int to = min(from + split_blocks, count);
    powers += layer * sample_blocks;
    int power = 2 * MAX_SCALE + 15;
    for (int i = from + lane; i < to; i += WARP) power = min(power, powers[i]);
UNROLLED
    for (int mask = 1; mask < WARP; mask *= 2)
        power = min(power, (int)shuffle_xor_word(power, mask, shuffle_space));
    const size_t a_row = down * BLOCK_VECTORS, b_row = across * BLOCK_VECTORS;
    deltas += (size_t)DELTA_BLOCKS_BEFORE(layer) * sample_blocks * BLOCK_VECTORS + lane;
    values += (size_t)VALUE_BLOCKS_BEFORE(layer) * sample_blocks * BLOCK_VECTORS + lane;
    float sums[SQUARE][2 * SQUARE][4];
UNROLLED
    for (int i = 0; i < SQUARE * 2 * SQUARE * 4; ++i)
        sums[i / (8 * SQUARE)][i / 4 % (2 * SQUARE)][i % 4] = 0;
    uint4 a[DEPTH][SQUARE][SPLITS], b[DEPTH][SQUARE][SPLITS];
    int block_power[DEPTH];
#define FETCH(d, k)                                                                      \
    block_power[d] = powers[k];                                                          \
UNROLLED                                                                                 \
    for (int i = 0; i < SQUARE * SPLITS; ++i) {                                          \
        const int block = i / SPLITS, p = i % SPLITS;                                    \
        a[d][block][p] =                                                                 \
            deltas[(k) * a_row + (min(m0 + block, down - 1) * SPLITS + p) * WARP];       \
        b[d][block][p] =                                                                 \
            values[(k) * b_row + (min(n0 + block, across - 1) * SPLITS + p) * WARP];     \
    }
UNROLLED
    for (int d = 0; d < DEPTH; ++d) {
        if (from + d < to) { FETCH(d, from + d) }
    }
    // In plain C all work-items pass the same number of barriers.
    for (int start = from; start < (PTX >= 80 ? to : from + split_blocks); start += DEPTH)
UNROLLED
    for (int d = 0; d < DEPTH; ++d) {
        const int k = start + d, less = k < to ? power - block_power[d] : 0;
        uint4 rows[SQUARE][SPLITS], columns[SQUARE][SPLITS];
        if (PTX >= 80 && k >= to) break;
UNROLLED
        for (int i = 0; i < SQUARE * SPLITS; ++i) {
            rows[i / SPLITS][i % SPLITS] = a[d][i / SPLITS][i % SPLITS];
            columns[i / SPLITS][i % SPLITS] = b[d][i / SPLITS][i % SPLITS];
        }
        if (less != 0) {
            const uint factor = power_half2(less);
UNROLLED
            for (int i = 0; i < SQUARE * SPLITS; ++i) {
                const uint4 w = rows[i / SPLITS][i % SPLITS];
                rows[i / SPLITS][i % SPLITS] =
                    (uint4)(mul_half2(w.s0, factor), mul_half2(w.s1, factor),
                            mul_half2(w.s2, factor), mul_half2(w.s3, factor));
            }
        }
        if (k + DEPTH < to) { FETCH(d, k + DEPTH) }
#if PTX >= 80
#define A(i, p) rows[i][p]
#define B(j, p) columns[j][p]
#else
        __local uint4 (*staged)[SQUARE][BLOCK_VECTORS] = exchanges[get_local_id(0) / WARP];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < SQUARE * SPLITS; ++i) {
            const uint4 zero = (uint4)(0);
            staged[0][i / SPLITS][i % SPLITS * WARP + lane] =
                k < to ? rows[i / SPLITS][i % SPLITS] : zero;
            staged[1][i / SPLITS][i % SPLITS * WARP + lane] =
                k < to ? columns[i / SPLITS][i % SPLITS] : zero;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#define A(i, p) FRAGMENT(staged[0][i] + (p) * WARP, lane)
#define B(j, p) FRAGMENT(staged[1][j] + (p) * WARP, lane)
#endif
UNROLLED
        for (int i = 0; i < SQUARE; ++i)
UNROLLED
            for (int j = 0; j < 2 * SQUARE; ++j) {
#if SPLITS == 1
                mma_m16n8k16(sums[i][j], A(i, 0), B(j / 2, 0), j % 2);
#else
                float high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
                mma_m16n8k16(high, A(i, 0), B(j / 2, 0), j % 2);
                mma_m16n8k16(low, A(i, 0), B(j / 2, 1), j % 2);
                mma_m16n8k16(low, A(i, 1), B(j / 2, 0), j % 2);
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] += fma(low[e], 1 / LOW_SCALE, high[e]);
#endif
            }
    }
    partial_gradients += (size_t)split * BIASES;
UNROLLED
    for (int i = 0; i < SQUARE * SQUARE; ++i) {
        const int m = m0 + i / SQUARE, n = n0 + i % SQUARE;
        if (m < down && n < across)
            store_weight_gradients(partial_gradients, layer, m, n,
                                   sums[i / SQUARE] + i % SQUARE * 2, power);
    }
}

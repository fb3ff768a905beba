// fused_slopes: the weights' gradients of what fused_step.cl has written: products over
// samples. A warp takes QUAD x QUAD blocks of a layer's and a part of the samples.
//
// SLOPE_WARPS  warps of a group
// PARTS     of the samples: a multiple of SLOPE_WARPS
// BIASES    elements of the flat buffer before the first bias
// others    as in fused_step.h
#include "training/fused_step.h"
#if !defined(SLOPE_WARPS) || !defined(PARTS) || !defined(BIASES)
#error "fused_step_gradients.cl needs SLOPE_WARPS, PARTS and BIASES"
#endif
#define ROUND_UP(a, b) (((a) + (b) - 1) / (b))
#define DEPTH (SPLITS == 1 ? 2 : 1)  // blocks of samples under way, as registers allow

// Squares of QUAD x QUAD blocks of a layer.
#define ACROSS(layer) ROUND_UP(TERMS_OF(layer), QUAD)
#define SQUARES(layer) (ROUND_UP(NEURONS_OF(layer), QUAD) * ACROSS(layer))

// parts [PARTS, BIASES]: the weights' gradients, of parts of the samples
// index map: a warp: a square of a part of a layer
__kernel __attribute__((reqd_work_group_size(SLOPE_WARPS * WARP, 1, 1)))
void slopes(__global const uint4 *values, __global const uint4 *derivatives,
            __global const int *powers, const int sample_blocks, __global float *parts,
            const int samples)
{
    const int lane = get_local_id(0) % WARP;
#if PTX < 80
    __local uint4 exchanges[SLOPE_WARPS][2][QUAD][PART];
    __local uint fews[SLOPE_WARPS][WARP];
    __local uint *few = fews[get_local_id(0) / WARP];
#else
    __local uint *few = 0;
#endif
    // A group's warps have one layer; those of one part and several squares read the
    // same.
    int number = get_group_id(0) * SLOPE_WARPS, layer = 0;
    for (; number >= PARTS * SQUARES(layer); ++layer) number -= PARTS * SQUARES(layer);
    number += get_local_id(0) / WARP;
    const int part = number / SQUARES(layer), square = number % SQUARES(layer);
    const int down = NEURONS_OF(layer), across = TERMS_OF(layer);
    const int m0 = square / ACROSS(layer) * QUAD, n0 = square % ACROSS(layer) * QUAD;
    const int count = ROUND_UP(samples, BLOCK), each = ROUND_UP(count, PARTS);
    const int from = min(part * each, count), to = min(from + each, count);
    powers += layer * sample_blocks;
    int power = 2 * MOST_SCALE + 15;
    for (int i = from + lane; i < to; i += WARP) power = min(power, powers[i]);
UNROLLED
    for (int mask = 1; mask < WARP; mask *= 2)
        power = min(power, (int)swapped(power, mask, few));
    const size_t a_row = down * PART, b_row = across * PART;
    derivatives += (size_t)DERIVATIVES_BEFORE(layer) * sample_blocks * PART + lane;
    values += (size_t)BLOCKS_BEFORE(layer) * sample_blocks * PART + lane;
    float sums[QUAD][2 * QUAD][4];
UNROLLED
    for (int i = 0; i < QUAD * 2 * QUAD * 4; ++i)
        sums[i / (8 * QUAD)][i / 4 % (2 * QUAD)][i % 4] = 0;
    uint4 a[DEPTH][QUAD][SPLITS], b[DEPTH][QUAD][SPLITS];
    int own_power[DEPTH];
#define FETCH(d, k)                                                                      \
    own_power[d] = powers[k];                                                            \
UNROLLED                                                                                 \
    for (int i = 0; i < QUAD * SPLITS; ++i) {                                            \
        const int block = i / SPLITS, p = i % SPLITS;                                    \
        a[d][block][p] =                                                                 \
            derivatives[(k) * a_row + (min(m0 + block, down - 1) * SPLITS + p) * WARP];  \
        b[d][block][p] =                                                                 \
            values[(k) * b_row + (min(n0 + block, across - 1) * SPLITS + p) * WARP];     \
    }
UNROLLED
    for (int d = 0; d < DEPTH; ++d) {
        if (from + d < to) { FETCH(d, from + d) }
    }
    // In plain C all work-items meet as often.
    for (int start = from; start < (PTX >= 80 ? to : from + each); start += DEPTH)
UNROLLED
    for (int d = 0; d < DEPTH; ++d) {
        const int k = start + d, less = k < to ? power - own_power[d] : 0;
        uint4 rows[QUAD][SPLITS], columns[QUAD][SPLITS];
        if (PTX >= 80 && k >= to) break;
UNROLLED
        for (int i = 0; i < QUAD * SPLITS; ++i) {
            rows[i / SPLITS][i % SPLITS] = a[d][i / SPLITS][i % SPLITS];
            columns[i / SPLITS][i % SPLITS] = b[d][i / SPLITS][i % SPLITS];
        }
        if (less != 0) {
            const uint times = as_halves(less);
UNROLLED
            for (int i = 0; i < QUAD * SPLITS; ++i) {
                const uint4 w = rows[i / SPLITS][i % SPLITS];
                rows[i / SPLITS][i % SPLITS] =
                    (uint4)(times_halves(w.s0, times), times_halves(w.s1, times),
                            times_halves(w.s2, times), times_halves(w.s3, times));
            }
        }
        if (k + DEPTH < to) { FETCH(d, k + DEPTH) }
#if PTX >= 80
#define A(i, p) rows[i][p]
#define B(j, p) columns[j][p]
#else
        __local uint4 (*own)[QUAD][PART] = exchanges[get_local_id(0) / WARP];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < QUAD * SPLITS; ++i) {
            const uint4 zero = (uint4)(0);
            own[0][i / SPLITS][i % SPLITS * WARP + lane] =
                k < to ? rows[i / SPLITS][i % SPLITS] : zero;
            own[1][i / SPLITS][i % SPLITS * WARP + lane] =
                k < to ? columns[i / SPLITS][i % SPLITS] : zero;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#define A(i, p) FRAGMENT(own[0][i] + (p) * WARP, lane)
#define B(j, p) FRAGMENT(own[1][j] + (p) * WARP, lane)
#endif
UNROLLED
        for (int i = 0; i < QUAD; ++i)
UNROLLED
            for (int j = 0; j < 2 * QUAD; ++j) {
#if SPLITS == 1
                multiply_add(sums[i][j], A(i, 0), B(j / 2, 0), j % 2);
#else
                float main[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
                multiply_add(main, A(i, 0), B(j / 2, 0), j % 2);
                multiply_add(rest, A(i, 0), B(j / 2, 1), j % 2);
                multiply_add(rest, A(i, 1), B(j / 2, 0), j % 2);
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] += fma(rest[e], 1 / LOW_SCALE, main[e]);
#endif
            }
    }
    parts += (size_t)part * BIASES;
UNROLLED
    for (int i = 0; i < QUAD * QUAD; ++i) {
        const int m = m0 + i / QUAD, n = n0 + i % QUAD;
        if (m < down && n < across)
            write_slopes(parts, layer, m, n, sums[i / QUAD] + i % QUAD * 2, power);
    }
}

// mma: layers of a batch on matrix units (mma.h): a is x [samples, inputs], b is A
// [neurons, inputs], both packed by pack.cl. `mma` multiplies; `add_parts` adds the sums
// of parts of the inputs where tiles alone would leave the device idle.
//
// TILE_M, TILE_N    samples and neurons of a group: 16 to 128, powers of two
// WARPS_M, WARPS_N  warps of a group, below and beside one another: they divide the tile
//                   into blocks of 16 x 16 or multiples
// STEP              blocks of 16 inputs that are copied at once: 1 or 2
// STAGES            steps in local memory: 2 to 4, of which one is computed
// SLICE             blocks of inputs that the units add up: a divisor of STEP
// PANEL             tiles of samples whose groups are neighbours: they share x
// PARTS             1: `mma` finishes the layer; else it writes the sums of its part
// Y_PADDED          1: rows of y start on a vector of 4
// HAS_BIAS, KEEPS_SUMS  as in gemm.cl
// PLANES, PTX       as in mma.h
// REAL (float), ACTIVATION, STEEPNESS, LIMIT  as in activations.h
#define WIDTH 1
#include "activations.h"
#include "mma.h"
#if !defined(TILE_M) || !defined(TILE_N) || !defined(WARPS_M) || !defined(WARPS_N) \
    || !defined(STEP) || !defined(STAGES) || !defined(SLICE) || !defined(PANEL) \
    || !defined(PARTS)
#error "mma.cl needs TILE_M, TILE_N, WARPS_M, WARPS_N, STEP, STAGES, SLICE, PANEL, PARTS"
#endif
#if !defined(ACTIVATION) || !defined(HAS_BIAS) || !defined(KEEPS_SUMS) \
    || !defined(Y_PADDED)
#error "mma.cl needs ACTIVATION, HAS_BIAS, KEEPS_SUMS and Y_PADDED"
#endif

#define ITEMS (WARPS_M * WARPS_N * WARP)
#define BLOCKS_M (TILE_M / WARPS_M / BLOCK)   // blocks of rows of a warp
#define BLOCKS_N (TILE_N / WARPS_N / BLOCK)   // and of columns
#define CHUNK (STEP * PLANES * WARP)          // 4-word parts of a block row's step
#define A_STEP (TILE_M / BLOCK * CHUNK)
#define B_STEP (TILE_N / BLOCK * CHUNK)

// Start to copy a step of an operand: `count` parts to local memory, CHUNK of them from
// every block row, which lie `pitch` parts apart. ITEMS is a multiple of CHUNK.
inline void copy_step(__local uint4 *to, __global const uint4 *from, const int count,
                      const int pitch)
{
    const int id = get_local_id(0);
    from += id / CHUNK * pitch + id % CHUNK;
UNROLLED
    for (int c = 0; c < count; c += ITEMS)
        if (count % ITEMS == 0 || c + id < count)
            copy_words(to + c + id, from + c / CHUNK * pitch);
}

// sums += a warp's part of a step; a and b: where its blocks start in local memory
inline void add_step(float (*sums)[2 * BLOCKS_N][4], __local const uint4 *a,
                     __local const uint4 *b)
{
    const int lane = get_local_id(0) % WARP;
UNROLLED
    for (int start = 0; start < STEP; start += SLICE) {
        Fragment rows[BLOCKS_M][SLICE][PLANES], columns[BLOCKS_N][SLICE][PLANES];
UNROLLED
        for (int s = 0; s < SLICE; ++s) {
UNROLLED
            for (int p = 0; p < PLANES; ++p) {
                const int at = ((start + s) * PLANES + p) * WARP;
UNROLLED
                for (int i = 0; i < BLOCKS_M; ++i)
                    rows[i][s][p] = FRAGMENT(a + i * CHUNK + at, lane);
UNROLLED
                for (int j = 0; j < BLOCKS_N; ++j)
                    columns[j][s][p] = FRAGMENT(b + j * CHUNK + at, lane);
            }
        }
UNROLLED
        for (int i = 0; i < BLOCKS_M; ++i) {
UNROLLED
            for (int j = 0; j < 2 * BLOCKS_N; ++j) {
#if PLANES == 1
UNROLLED
                for (int s = 0; s < SLICE; ++s)
                    multiply_add(sums[i][j], rows[i][s][0], columns[j / 2][s][0], j % 2);
#else
                float main[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
UNROLLED
                for (int s = 0; s < SLICE; ++s) {
                    multiply_add(main, rows[i][s][0], columns[j / 2][s][0], j % 2);
                    multiply_add(rest, rows[i][s][0], columns[j / 2][s][1], j % 2);
                    multiply_add(rest, rows[i][s][1], columns[j / 2][s][0], j % 2);
                }
UNROLLED
                for (int e = 0; e < 4; ++e)
                    sums[i][j][e] += fma(rest[e], 1 / LOW, main[e]);
#endif
            }
        }
    }
}

// Two neighbouring outputs, or the first of them where it is a row's last.
inline void put_pair(__global float *to, const float2 v, const int left, const int padded)
{
    if (padded && left > 1) {
        *(__global float2 *)to = v;
    } else {
        to[0] = v.s0;
        if (left > 1) to[1] = v.s1;
    }
}

// y, and the sums where they are kept, from two neighbouring sums
inline void finish(float2 v, const size_t m, const int n, __global const float *bias,
                   __global float *y, const int ldy, __global float *kept, const int ldk,
                   const int n_out)
{
    if (KEEPS_SUMS) put_pair(kept + m * ldk + n, v, n_out - n, 1);
    if (HAS_BIAS) v += *(__global const float2 *)(bias + n);
    v = (float2)(activate(v.s0), activate(v.s1));
    put_pair(y + m * ldy + n, v, n_out - n, Y_PADDED);
}

// y[m, n] = f(sums[m, n] + bias[n]),  sums[m, n] = sum over k of x[m, k] A[n, k]
//
// x, a         packed, `blocks` blocks of terms; x_inverse, a_inverse: their scales'
// parameters   bias [n_out] at `bias`
// y            [batch, ldy]; with several PARTS sums [PARTS, batch, ldy]
// kept         [batch, ldk]: the sums; anything without KEEPS_SUMS
// index map: work-group (tile, part); PANEL tiles of samples are passed together, tile of
// neurons by tile of neurons
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void mma(__global const uint4 *x, __global const float *x_inverse,
         __global const uint4 *a, __global const float *a_inverse, const int blocks,
         __global const float *parameters, const int bias, __global float *y,
         const int ldy, __global float *kept, const int ldk, const int n_out,
         const int batch)
{
    __local uint4 shared[STAGES * (A_STEP + B_STEP)];
    const int across = (n_out + TILE_N - 1) / TILE_N;
    const int down = (batch + TILE_M - 1) / TILE_M;
    const int panel = get_group_id(0) / (PANEL * across);
    const int within = get_group_id(0) % (PANEL * across);
    const int high = min(PANEL, down - panel * PANEL);
    const int sample = (panel * PANEL + within % high) * TILE_M;
    const int neuron = within / high * TILE_N;
    const int steps = blocks / STEP, part = get_group_id(1);
    const int from = steps * part / PARTS, to = steps * (part + 1) / PARTS;
    const int pitch = blocks * PLANES * WARP;
    x += (size_t)(sample / BLOCK) * pitch + from * CHUNK;
    a += (size_t)(neuron / BLOCK) * pitch + from * CHUNK;
    const int warp = get_local_id(0) / WARP, lane = get_local_id(0) % WARP;
    const int row = warp % WARPS_M * BLOCKS_M, column = warp / WARPS_M * BLOCKS_N;
    float sums[BLOCKS_M][2 * BLOCKS_N][4];
UNROLLED
    for (int i = 0; i < BLOCKS_M; ++i)
UNROLLED
        for (int j = 0; j < 2 * BLOCKS_N; ++j)
UNROLLED
            for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;

UNROLLED
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (from + stage < to) {
            __local uint4 *tiles = shared + stage * (A_STEP + B_STEP);
            copy_step(tiles, x, A_STEP, pitch);
            copy_step(tiles + A_STEP, a, B_STEP, pitch);
        }
        x += CHUNK;
        a += CHUNK;
        DEPART();
    }
    int stage = 0, next = STAGES - 1;
    for (int step = from; step < to; ++step) {
        ARRIVED(STAGES - 2);
        barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the stage before
        if (step + STAGES - 1 < to) {
            __local uint4 *tiles = shared + next * (A_STEP + B_STEP);
            copy_step(tiles, x, A_STEP, pitch);
            copy_step(tiles + A_STEP, a, B_STEP, pitch);
        }
        x += CHUNK;
        a += CHUNK;
        DEPART();
        __local const uint4 *tiles = shared + stage * (A_STEP + B_STEP);
        add_step(sums, tiles + row * CHUNK, tiles + A_STEP + column * CHUNK);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }

UNROLLED
    for (int j = 0; j < 2 * BLOCKS_N; ++j) {
        const int n = neuron + column * BLOCK + 8 * j + 2 * (lane % 4);
        if (n >= n_out) continue;
        const float2 of_column = *(__global const float2 *)(a_inverse + n);
UNROLLED
        for (int i = 0; i < 2 * BLOCKS_M; ++i) {
            const int m = sample + row * BLOCK + 8 * i + lane / 4;
            if (m >= batch) continue;
            const float *two = sums[i / 2][j] + i % 2 * 2;
            const float2 v = (float2)(two[0], two[1]) * x_inverse[m] * of_column;
#if PARTS > 1
            put_pair(y + ((size_t)part * batch + m) * ldy + n, v, n_out - n, 1);
#else
            finish(v, m, n, parameters + bias, y, ldy, kept, ldk, n_out);
#endif
        }
    }
}

// y and kept as above, from the sums of the parts: partial [PARTS, batch, ld]
// index map: work-item (pair of neurons, sample)
__kernel void add_parts(__global const float *partial, const int ld,
                        __global const float *parameters, const int bias,
                        __global float *y, const int ldy, __global float *kept,
                        const int ldk, const int n_out, const int batch)
{
    const int n = 2 * get_global_id(0);
    const size_t m = get_global_id(1);
    if (n >= n_out) return;
    float2 v = (float2)(0);
UNROLLED
    for (int p = 0; p < PARTS; ++p)
        v += *(__global const float2 *)(partial + (p * (size_t)batch + m) * ld + n);
    finish(v, m, n, parameters + bias, y, ldy, kept, ldk, n_out);
}

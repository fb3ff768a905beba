// gemm: layers of a batch, by tiles in local memory and tiles in registers.
//
// A group computes TILE_M samples times TILE_N neurons. For each slice of TILE_K inputs
// it puts its part of x and of A into local memory, turned so that k runs down; each
// work-item then holds ITEM_M x ITEM_N sums in registers and reads ITEM_M + ITEM_N
// values from local memory for ITEM_M * ITEM_N multiply-adds.
//
//                      a slice of A, turned:  TILE_K x TILE_N
//                               n ->
//                           +-----------+       A work-item's rows and columns come in
//                        k  |           |       chunks of 4, CHUNKS_M and CHUNKS_N of
//                           +-----------+       them, TILE / CHUNKS apart: neighbours
//   slice of x,   k         |     .     |       then read neighbouring vectors, and no
//   turned:     +---+       |     .     |       two of them the same bank.
//   TILE_K x  m |   |    m  | . . o . . |  o: ITEM_M x ITEM_N sums of one work-item
//   TILE_M      |   |       |     .     |
//               +---+       +-----------+
//
// While slice s is computed from one side of local memory, slice s + 1 is under way
// through registers into the other: one barrier a slice. A row of local memory is PITCH
// = TILE + 4 values long, so that 16 rows x 2 vectors, which a warp of 32 turns at
// once, fall on 32 different banks. Edges are filled with zeros.
//
// The scheme is the one of Volkov and Demmel, "Benchmarking GPUs to tune dense linear
// algebra", 2008, with the double buffering that became usual after it.
//
// TILE_M, TILE_N  samples and neurons of a group: multiples of 8; usually 8 to 128
// TILE_K          inputs of a slice: a multiple of 8; usually 16 or 32
// ITEM_M, ITEM_N  samples and neurons of a work-item: 4 or 8, and dividing the tile
// HAS_BIAS        1 or 0
// X_PADDED        as in vectors.h; Y_PADDED the same of y
// REAL, ACTIVATION, STEEPNESS, LIMIT  as in activations.h
#define WIDTH 1
#include "activations.h"
#define X_SPACE __global
#include "vectors.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS) || !defined(Y_PADDED)
#error "gemm.cl needs ACTIVATION, HAS_BIAS and Y_PADDED"
#endif
#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(ITEM_M) \
    || !defined(ITEM_N)
#error "gemm.cl needs TILE_M, TILE_N, TILE_K, ITEM_M and ITEM_N"
#endif

#define CHUNKS_M (ITEM_M / 4)
#define CHUNKS_N (ITEM_N / 4)
#define ACROSS (TILE_N / ITEM_N)            // work-items side by side in a tile
#define ITEMS (TILE_M / ITEM_M * ACROSS)    // work-items of a group
#define PITCH_M (TILE_M + 4)
#define PITCH_N (TILE_N + 4)
#define VECTORS_M (TILE_M * TILE_K / 4)     // vectors of a slice of x
#define VECTORS_N (TILE_N * TILE_K / 4)     // and of A
#define HELD_M ((VECTORS_M + ITEMS - 1) / ITEMS)  // of which a work-item carries
#define HELD_N ((VECTORS_N + ITEMS - 1) / ITEMS)

// Which vector of a slice of `rows` rows is the s-th: two of a row lie side by side in
// the order of s, then come the other rows.
#define ROW_OF(s, rows) ((s) / 2 % (rows))
#define VECTOR_OF(s, rows) ((s) / (2 * (rows)) * 2 + (s) % 2)

// held = vectors first … first + TILE_K / 4 - 1 of this group's rows of x
inline void fetch_x(VEC *held, __global const REAL *x, const int ldx, const int samples,
                    const int first, const int vectors, const int n_in)
{
#pragma unroll
    for (int h = 0; h < HELD_M; ++h) {
        const int s = h * ITEMS + get_local_id(0);
        const int row = ROW_OF(s, TILE_M), v = first + VECTOR_OF(s, TILE_M);
        held[h] = s < VECTORS_M && row < samples && v < vectors
                      ? four_of(x + (size_t)row * ldx, v, n_in) : (VEC)(0);
    }
}

inline void fetch_a(VEC *held, __global const REAL *a, const int stride,
                    const int neurons, const int first, const int vectors)
{
#pragma unroll
    for (int h = 0; h < HELD_N; ++h) {
        const int s = h * ITEMS + get_local_id(0);
        const int row = ROW_OF(s, TILE_N), v = first + VECTOR_OF(s, TILE_N);
        held[h] = s < VECTORS_N && row < neurons && v < vectors
                      ? ((__global const VEC *)(a + (size_t)row * stride))[v]
                      : (VEC)(0);
    }
}

// Put the s-th vector of a slice into its tile [TILE_K, rows + 4], turned.
inline void put(__local REAL *tile, const VEC held, const int s, const int rows)
{
    const int pitch = rows + 4;
    __local REAL *to = tile + 4 * VECTOR_OF(s, rows) * pitch + ROW_OF(s, rows);
    if (s < rows * TILE_K / 4) {
        to[0] = held.s0;
        to[pitch] = held.s1;
        to[2 * pitch] = held.s2;
        to[3 * pitch] = held.s3;
    }
}

// One row of a work-item's sums [CHUNKS_N] += value * b [CHUNKS_N]
inline void multiply_add(VEC *sums, const REAL value, const VEC *b)
{
#pragma unroll
    for (int c = 0; c < CHUNKS_N; ++c) sums[c] += value * b[c];
}

// y[m, n] = f(sum over k of x[m, k] A[n, k] + bias[n])
//
// parameters [..]           A [n_out, stride] at `weights`, bias [n_out] at `bias`
// x          [batch, ldx]   y [batch, ldy]
// index map: work-group (tile of samples, tile of neurons); work-item id is at
//            (id / ACROSS, id % ACROSS) in the group's tile
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gemm(__global const REAL *parameters, const int weights, const int stride,
          const int bias, __global const REAL *x, const int ldx, __global REAL *y,
          const int ldy, const int n_in, const int n_out, const int batch)
{
    __local REAL x_tiles[2][TILE_K * PITCH_M] VEC_ALIGNED;
    __local REAL a_tiles[2][TILE_K * PITCH_N] VEC_ALIGNED;
    const int down = get_local_id(0) / ACROSS, across = get_local_id(0) % ACROSS;
    const int sample = get_group_id(0) * TILE_M, neuron = get_group_id(1) * TILE_N;
    const int samples = min(TILE_M, batch - sample);
    const int neurons = min(TILE_N, n_out - neuron);
    const int vectors = stride / 4;
    __global const REAL *a = parameters + weights + (size_t)neuron * stride;
    x += (size_t)sample * ldx;

    VEC x_held[HELD_M], a_held[HELD_N];
    VEC sums[ITEM_M][CHUNKS_N];
#pragma unroll
    for (int i = 0; i < ITEM_M; ++i)
#pragma unroll
        for (int c = 0; c < CHUNKS_N; ++c) sums[i][c] = (VEC)(0);

    fetch_x(x_held, x, ldx, samples, 0, vectors, n_in);
    fetch_a(a_held, a, stride, neurons, 0, vectors);
    int side = 0;
    for (int first = 0; first < vectors; first += TILE_K / 4) {
        __local REAL *x_tile = x_tiles[side], *a_tile = a_tiles[side];
#pragma unroll
        for (int h = 0; h < HELD_M; ++h)
            put(x_tile, x_held[h], h * ITEMS + get_local_id(0), TILE_M);
#pragma unroll
        for (int h = 0; h < HELD_N; ++h)
            put(a_tile, a_held[h], h * ITEMS + get_local_id(0), TILE_N);
        barrier(CLK_LOCAL_MEM_FENCE);  // also: all have done with the other side
        fetch_x(x_held, x, ldx, samples, first + TILE_K / 4, vectors, n_in);
        fetch_a(a_held, a, stride, neurons, first + TILE_K / 4, vectors);
#pragma unroll 8
        for (int k = 0; k < TILE_K; ++k) {
            __local const VEC *x_row = (__local const VEC *)(x_tile + k * PITCH_M);
            __local const VEC *a_row = (__local const VEC *)(a_tile + k * PITCH_N);
            VEC b[CHUNKS_N];
#pragma unroll
            for (int c = 0; c < CHUNKS_N; ++c) b[c] = a_row[c * ACROSS + across];
#pragma unroll
            for (int c = 0; c < CHUNKS_M; ++c) {
                const VEC four = x_row[c * (TILE_M / ITEM_M) + down];
                multiply_add(sums[4 * c], four.s0, b);
                multiply_add(sums[4 * c + 1], four.s1, b);
                multiply_add(sums[4 * c + 2], four.s2, b);
                multiply_add(sums[4 * c + 3], four.s3, b);
            }
        }
        side = 1 - side;
    }

#pragma unroll
    for (int c = 0; c < CHUNKS_N; ++c) {
        const int n = neuron + 4 * (c * ACROSS + across);
        if (n >= n_out) continue;
        // The bias, too, is padded to whole vectors in the flat buffer.
        const VEC start =
            HAS_BIAS ? *(__global const VEC *)(parameters + bias + n) : (VEC)(0);
#pragma unroll
        for (int i = 0; i < ITEM_M; ++i) {
            const int row = i / 4 * 4 * (TILE_M / ITEM_M) + 4 * down + i % 4;
            if (row >= samples) continue;
            VEC v = sums[i][c] + start;
            v.s0 = activate(v.s0);
            v.s1 = activate(v.s1);
            v.s2 = activate(v.s2);
            v.s3 = activate(v.s3);
            __global REAL *out = y + (size_t)(sample + row) * ldy + n;
            if (Y_PADDED && n + 4 <= n_out) {
                *(__global VEC *)out = v;
            } else {
                out[0] = v.s0;
                if (n + 1 < n_out) out[1] = v.s1;
                if (n + 2 < n_out) out[2] = v.s2;
                if (n + 3 < n_out) out[3] = v.s3;
            }
        }
    }
}

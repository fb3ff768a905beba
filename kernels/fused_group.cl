// fused_group: narrow layers of a batch in one launch, on the units of warp groups
// (wgmma.h), whose weights all lie in local memory.
//
// A warp group has 64 samples from the first layer to the last. What the units add up,
// a lane has in the order in which they want their rows from registers:
//
//     sums:   rows g, g + 8    columns 8 j + 2 t, + 1        of j = 0, 1, …
//     rows:   rows g, g + 8    terms   16 k + 2 t, + 1 and 16 k + 8 + 2 t, + 1
//
// with g = lane / 4 and t = lane % 4. So outputs, rounded to halves, are the next layer's
// inputs where they are, with a scale for each row. Warp groups of a work-group share
// weights and nothing else: while one waits for its samples others multiply.
//
// WIDE      widest layer, its inputs too: 64 or 128; all are filled up to that
// LAYERS    of the chain
// N_OUT, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// N_IN      inputs of the first layer
// X_PADDED, Y_PADDED  1: rows of x, y start on a vector of 4, those of x end in zeros
// REAL      (float) as in activations.h
// TILE_M, TILE_N (WIDE), WARPS_M, WARPS_N, STEP, STAGES, SLICE, COPIER (0), PANEL,
// PLANES (1), PTX  as in wgmma.h
#define WIDTH 1
#include "activations.h"
#include "wgmma.h"
#include "quick.h"
#include "functions.h"
#if !defined(WIDE) || !defined(LAYERS) || !defined(N_OUT) || !defined(BIAS) \
    || !defined(FUNCTION) || !defined(N_IN) || !defined(X_PADDED) || !defined(Y_PADDED)
#error "fused_group.cl needs WIDE, LAYERS, N_OUT, BIAS, FUNCTION, N_IN, X_PADDED, Y_PADDED"
#endif
#define PIECE (WIDE * WIDE / 8)  // 4-word parts of a layer

__constant int n_out_of[LAYERS] = N_OUT;
__constant int bias_of[LAYERS] = BIAS;
__constant int function_of[LAYERS] = FUNCTION;

// A work-item's values of two rows, as the units add them up.
typedef float Values[WIDE / 8][4];

#if PTX == 90
// sums (+)= rows of 16 terms, in registers, times a block of columns
#define MULTIPLY_ROWS(width, sums, a, b, more)                                           \
    asm volatile(                                                                        \
        "{ .reg .pred more; setp.ne.b32 more, %[add], 0;\n"                              \
        "//sm_90a wgmma.mma_async.sync.aligned." SHAPE_OF(width) ".f32.f16.f16 "         \
        "{" NAMES(width) "}, {%[a0], %[a1], %[a2], %[a3]}, %[columns], more, 1, 1, 0;\n}"\
        : ALL(width, sums) : [a0] "r"((a)[0]), [a1] "r"((a)[1]), [a2] "r"((a)[2]),       \
          [a3] "r"((a)[3]), [columns] "l"(b), [add] "r"(more) : "memory")

inline uint largest_of_four(const uint most)
{
    uint two, other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=r"(two) : "r"(most));
    two = max(most, two);
    asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;" : "=r"(other) : "r"(two));
    return max(two, other);
}

// Start to bring samples to the last cache.
inline void announce(__global const float *from, const int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes)
                 : "memory");
}

// v = A v of a layer, both scaled; what undoes the rows' scales
inline float2 multiply_layer(float (*v)[4], __local const uint4 *weights, const int layer)
{
    uint most[2] = {0, 0}, a[WIDE / BLOCK][4];
UNROLLED
    for (int j = 0; j < WIDE / 8; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e) most[e / 2] = max(most[e / 2], magnitude(v[j][e]));
    const float2 first = scales_of(largest_of_four(most[0]));
    const float2 second = scales_of(largest_of_four(most[1]));
UNROLLED
    for (int k = 0; k < WIDE / BLOCK; ++k)
UNROLLED
        for (int h = 0; h < 2; ++h) {
            const int j = 2 * k + h;
            a[k][2 * h] = halves(v[j][0] * first.s0, v[j][1] * first.s0);
            a[k][2 * h + 1] = halves(v[j][2] * second.s0, v[j][3] * second.s0);
        }
    const ulong columns = descriptor((uint)(size_t)(weights + layer * PIECE));
    FENCE();
UNROLLED
    for (int k = 0; k < WIDE / BLOCK; ++k)
        MULTIPLY_ROWS(TILE_N, v, a[k], columns + k * B_PLANE(WIDE), k > 0);
    COMMIT();
    DONE_BUT(0);
    WRITTEN(TILE_N, v);
    return (float2)(first.s1, second.s1);
}
#define EXCHANGED 1
#else
// The same in plain C: work-items see each other's values through local memory.
inline float2 multiply_layer(float (*v)[4], __local const uint4 *weights, const int layer,
                             __local float *exchange)
{
    const int row = ROW_OF(0);
    float inverse[2];
    for (int j = 0; j < WIDE / 8; ++j)
        for (int e = 0; e < 4; ++e)
            exchange[(row + e / 2 * 8) * WIDE + COLUMN_OF(j) + e % 2] = v[j][e];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < 2; ++i) {
        __local const float *own = exchange + (row + 8 * i) * WIDE;
        uint most = 0;
        for (int k = 0; k < WIDE; ++k) most = max(most, magnitude(own[k]));
        const float2 scales = scales_of(most);
        inverse[i] = scales.s1;
        for (int j = 0; j < WIDE / 8; ++j)
            for (int e = 0; e < 2; ++e) {
                const int n = COLUMN_OF(j) + e;
                float sum = 0;
                for (int k = 0; k < WIDE; ++k) {
                    const size_t part = part_at(n, k, WIDE / BLOCK, WIDE);
                    sum += of_halves(halves(own[k] * scales.s0, 0)).s0
                           * vload_half(8 * (layer * PIECE + part) + k % 8,
                                        (__local const half *)weights);
                }
                v[j][2 * i + e] = sum;
            }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return (float2)(inverse[0], inverse[1]);
}
#define EXCHANGED (TILE_M * WIDE)
#endif

// Two neighbouring inputs of a sample, 0 past the last.
inline float2 load_pair(__global const float *row, const int k)
{
#if X_PADDED
    return k < N_IN ? *(__global const float2 *)(row + k) : (float2)(0);
#else
    return (float2)(k < N_IN ? row[k] : 0, k + 1 < N_IN ? row[k + 1] : 0);
#endif
}

// v = f(v * inverse * scales + biases) of a layer
inline void finish_layer(float (*v)[4], const int code, const float2 inverse,
                         __local const float2 *columns)
{
UNROLLED
    for (int j = 0; j < WIDE / 8; ++j) {
        const float4 both = *(__local const float4 *)(columns + COLUMN_OF(j));
UNROLLED
        for (int e = 0; e < 4; ++e) {
            const float scale = e % 2 ? both.s2 : both.s0, bias = e % 2 ? both.s3 : both.s1;
            const float sum = v[j][e] * (e < 2 ? inverse.s0 : inverse.s1);
            v[j][e] = activate_as(code, fma(sum, scale, bias));
        }
    }
}

// y [batch, ldy] = the chain's outputs for x [batch, ldx]
//
// weights     packed A of each layer, WIDE x WIDE; inverse [LAYERS, WIDE]: their scales
// parameters  the biases
// index map: a work-group takes 64 samples for each of its warp groups, then others
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void fused_group(__global const float *x, const int ldx, __global const uint4 *weights,
                 __global const float *inverse, __global const float *parameters,
                 __global float *y, const int ldy, const int batch)
{
    __local uint4 shared[LAYERS * PIECE] __attribute__((aligned(128)));
    __local float2 columns[LAYERS * WIDE] __attribute__((aligned(16)));
    __local float exchange[EXCHANGED];
    const int id = get_local_id(0);
    for (int i = id; i < LAYERS * PIECE; i += ITEMS) shared[i] = weights[i];
    for (int i = id; i < LAYERS * WIDE; i += ITEMS) {
        const int layer = i / WIDE, n = i % WIDE, bias = bias_of[layer];
        const bool there = n < n_out_of[layer];
        columns[i] = (float2)(there ? inverse[i] : 0,
                              there && bias >= 0 ? parameters[bias + n] : 0);
    }
#if PTX == 90
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    const int teams = get_num_groups(0) * GROUPS, rows = TILE_M / GROUPS;
    const int team = id / WARP_GROUP * get_num_groups(0) + get_group_id(0);
    const int own = ROW_OF(0) % rows;  // of the team's
    for (int tile = team; tile * rows < batch; tile += teams) {
        const int m = tile * rows + own;
        Values v;
UNROLLED
        for (int j = 0; j < WIDE / 8; ++j)
UNROLLED
            for (int i = 0; i < 2; ++i) {
                const int row = min(m + 8 * i, batch - 1);
                const float2 two = load_pair(x + (size_t)row * ldx, COLUMN_OF(j));
                v[j][2 * i] = two.s0;
                v[j][2 * i + 1] = two.s1;
            }
#if PTX == 90
        const int next = (tile + teams) * rows;
        if (id % WARP_GROUP == 0 && X_PADDED && next + rows <= batch)
            announce(x + (size_t)next * ldx, 4 * rows * ldx);
#endif
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; ++layer) {
#if PTX == 90
            const float2 by = multiply_layer(v, shared, layer);
#else
            const float2 by = multiply_layer(v, shared, layer, exchange);
#endif
            switch (function_of[layer]) {
#define FINISH(code, function, steepness, limit)                                         \
    case code: finish_layer(v, code, by, columns + layer * WIDE); break;
                FUNCTIONS(FINISH)
            }
        }
        const int n_out = n_out_of[LAYERS - 1];
UNROLLED
        for (int j = 0; j < WIDE / 8; ++j)
UNROLLED
            for (int i = 0; i < 2; ++i) {
                const int n = COLUMN_OF(j);
                if (n < n_out && m + 8 * i < batch)
                    put_pair(y + (size_t)(m + 8 * i) * ldy + n,
                             (float2)(v[j][2 * i], v[j][2 * i + 1]), n_out - n, Y_PADDED);
            }
    }
}

// stencil: a locally connected layer in the shapes that GPUs like.
//
// Row i of the layer reads its inputs i … i + WINDOW - 1. Its weights lie band by band:
// value r of row i is at weights + r * pitch + i (storage/local.py), so that work-items
// beside each other read vectors beside each other.
//
// REAL        float or double
// WINDOW      inputs of a row, at least 1
// VEC         rows a work-item: 1, 2 or 4; bands start on whole vectors
// SAMPLES     samples a work-item: they share its weights
// X_ALIGNED, Y_ALIGNED  1: every sample starts on a whole vector
// STREAM      1: weights and results are marked as needed once; with PTX, VEC is 4 and
//             REAL float
// GROUP       stencil_tile only: work-items of a group
// SUMS        1: the sums themselves are the result, without bias and function
// BIAS_STEP   from one row's bias to the next: 1, or 0 where all share one
// HAS_BIAS    1 or 0
// ACTIVATION, STEEPNESS, LIMIT  the layer's function (activations.h), without SUMS
#define WIDTH 1
#include "include/activations.h"
#if !defined(WINDOW) || !defined(VEC) || !defined(SAMPLES) || !defined(X_ALIGNED) \
    || !defined(Y_ALIGNED) || !defined(STREAM) || !defined(SUMS)                 \
    || !defined(HAS_BIAS) || !defined(BIAS_STEP)
#error "stencil.cl needs WINDOW, the macros of its vectors, STREAM, SUMS and the bias"
#endif
#if STREAM && PTX && VEC != 4
#error "stencil.cl: STREAM with PTX needs VEC 4"
#endif
#include "stencil/bands.h"

// What is needed once, and must not drive out of the caches what is needed again.
#if STREAM && PTX
inline ROWS READ_ONCE(__global const REAL *p)
{
    ROWS v;
    asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.s0), "=f"(v.s1), "=f"(v.s2), "=f"(v.s3)
                 : "l"(p));
    return v;
}
inline void WRITE_ONCE(__global REAL *p, const ROWS v)
{
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "f"(v.s0), "f"(v.s1), "f"(v.s2), "f"(v.s3)
                 : "memory");
}
#elif STREAM && defined(__clang__)
#define READ_ONCE(p) __builtin_nontemporal_load((__global const ROWS *)(p))
#define WRITE_ONCE(p, v) __builtin_nontemporal_store(v, (__global ROWS *)(p))
#else
#define READ_ONCE(p) (*(__global const ROWS *)(p))
#define WRITE_ONCE(p, v) *(__global ROWS *)(p) = (v)
#endif

#if SUMS
#define FINISH(v) (v)
#else
#define FINISH(v) finish(v)
#endif

// One row alone.
inline REAL single(__global const REAL *w, const size_t pitch, const REAL start,
                   __global const REAL *x)
{
    REAL sum = start;
    for (int r = 0; r < WINDOW; ++r) sum += w[r * pitch] * x[r];
#if SUMS
    return sum;
#else
    return activate(sum);
#endif
}

// y[b, i] = f(sum over r:  w[r, i] x[b, i + r]  + bias[i])
//
// parameters [..]          bands [WINDOW, pitch] at `weights`; the bias at `bias`
// x          [batch, ldx]  y [batch, ldy]
// index map: work-item part * across + v: rows VEC v … of the samples from SAMPLES part
//
//     x        x0 x1 x2 x3 x4 x5       WINDOW 3, VEC 4: the vector of x slides on by
//     band 0   w0 w1 w2 w3             one for each band
//     band 1      w0 w1 w2 w3
//     band 2         w0 w1 w2 w3
__kernel void stencil(__global const REAL *parameters, const int weights,
                      const int pitch, const int bias, __global const REAL *x,
                      const int ldx, __global REAL *y, const int ldy, const int n_out,
                      const int batch, const int across)
{
    const int i = get_global_id(0) % across * VEC;
    const int first = get_global_id(0) / across * SAMPLES;
    if (i >= n_out) return;
    __global const REAL *w = parameters + weights + i;
    x += i;
    y += i;
    if (i + VEC > n_out) {
        for (int j = 0; i + j < n_out; ++j)
            for (size_t b = first; b < min(first + SAMPLES, batch); ++b)
                y[b * ldy + j] = single(
                    w + j, pitch,
                    HAS_BIAS ? parameters[bias + BIAS_STEP * (i + j)] : (REAL)0,
                    x + b * ldx + j);
        return;
    }
    const ROWS start = bias_of(parameters + bias, i);
    __global const REAL *in[SAMPLES];
    ROWS sums[SAMPLES], at[SAMPLES];
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        in[s] = x + (size_t)min(first + s, batch - 1) * ldx;
        at[s] = X_ALIGNED ? *(__global const ROWS *)in[s] : READ_ROWS(in[s]);
        sums[s] = start;
    }
#if WINDOW <= 16
#pragma unroll
#endif
    for (int r = 0; r < WINDOW; ++r) {
        const ROWS weight = READ_ONCE(w + (size_t)r * pitch);
#pragma unroll
        for (int s = 0; s < SAMPLES; ++s) {
            sums[s] += weight * at[s];
            if (r + 1 < WINDOW) at[s] = SLIDE(at[s], in[s][VEC + r]);
        }
    }
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        if (first + s >= batch) continue;
        __global REAL *out = y + (size_t)(first + s) * ldy;
        const ROWS v = FINISH(sums[s]);
        if (Y_ALIGNED) WRITE_ONCE(out, v);
        else WRITE_ROWS(v, out);
    }
}

#ifdef GROUP
// The same by the textbook: a group reads its tile of x and the halo to its right into
// local memory once, and each work-item computes one row.
// index map: group sample * tiles + t: rows GROUP t …
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void stencil_tile(__global const REAL *parameters, const int weights, const int pitch,
                  const int bias, __global const REAL *x, const int ldx,
                  __global REAL *y, const int ldy, const int n_out, const int batch,
                  const int tiles)
{
    __local REAL values[GROUP + WINDOW - 1];
    const int item = get_local_id(0);
    const int start = get_group_id(0) % tiles * GROUP, i = start + item;
    const size_t sample = get_group_id(0) / tiles;
    const int held = min(GROUP, n_out - start) + WINDOW - 1;
    for (int j = item; j < held; j += GROUP) values[j] = x[sample * ldx + start + j];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i >= n_out) return;
    __global const REAL *w = parameters + weights + i;
    REAL sum = HAS_BIAS ? parameters[bias + BIAS_STEP * i] : (REAL)0;
#if WINDOW <= 16
#pragma unroll
#endif
    for (int r = 0; r < WINDOW; ++r) sum += w[(size_t)r * pitch] * values[item + r];
#if !SUMS
    sum = activate(sum);
#endif
    y[sample * ldy + i] = sum;
}
#endif

// stencil: a locally connected layer (a 1D stencil with own weights per row) on GPUs.
//
// Row i of the layer reads the inputs i … i + WINDOW - 1. The weights lie band by band:
// value r of row i is at weights + r * pitch + i (storage/local.py). So neighbouring
// work-items read neighbouring vectors (coalesced).
//
// REAL        float or double
// WINDOW      inputs of a row, at least 1
// VEC         rows of a work-item: 1, 2 or 4; bands are aligned to vectors
// SAMPLES     samples of a work-item, which share its weights
// X_ALIGNED, Y_ALIGNED  1: every sample is aligned to vectors
// STREAM      1: weights and results are streamed (PTX: .cs, evict-first; VEC is 4 and
//             REAL float)
// GROUP       stencil_tile only: work-items of a group
// SUMS        1: the result is the pre-activations, without bias and activation
// BIAS_STEP   stride of the biases: 1, or 0 where all rows share one
// HAS_BIAS    1 or 0
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  the layer's activation (activations.h), without SUMS
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

// Streaming loads and stores: data used once must not evict reused data from caches.
#if STREAM && PTX
static inline ROWS LOAD_STREAMING(__global const REAL *p)
{
    ROWS v;
    asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.s0), "=f"(v.s1), "=f"(v.s2), "=f"(v.s3)
                 : "l"(p));
    return v;
}
static inline void STORE_STREAMING(__global REAL *p, const ROWS v)
{
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "f"(v.s0), "f"(v.s1), "f"(v.s2), "f"(v.s3)
                 : "memory");
}
#elif STREAM && defined(__clang__)
#define LOAD_STREAMING(p) __builtin_nontemporal_load((__global const ROWS *)(p))
#define STORE_STREAMING(p, v) __builtin_nontemporal_store(v, (__global ROWS *)(p))
#else
#define LOAD_STREAMING(p) (*(__global const ROWS *)(p))
#define STORE_STREAMING(p, v) *(__global ROWS *)(p) = (v)
#endif

#if SUMS
#define EPILOGUE(v) (v)
#else
#define EPILOGUE(v) epilogue(v)
#endif

// One row, in scalars.
static inline REAL one_row(__global const REAL *w, const size_t pitch,
                           const REAL row_bias, __global const REAL *x)
{
    REAL sum = row_bias;
    for (int r = 0; r < WINDOW; ++r) sum += w[r * pitch] * x[r];
#if SUMS
    return sum;
#else
    return activate(sum);
#endif
}

// y[b, i] = f(sum over r:  w[r, i] x[b, i + r]  + bias[i])
//
// parameters [..]          bands [WINDOW, pitch] at `weights`; biases at `bias`
// x          [batch, ldx]  y [batch, ldy]
// index map: work-item b * across + v: rows VEC v …, samples SAMPLES b …
//
//     x        x0 x1 x2 x3 x4 x5       WINDOW 3, VEC 4: the vector of x slides by one
//     band 0   w0 w1 w2 w3             input per band
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
                y[b * ldy + j] = one_row(
                    w + j, pitch,
                    HAS_BIAS ? parameters[bias + BIAS_STEP * (i + j)] : (REAL)0,
                    x + b * ldx + j);
        return;
    }
    const ROWS biases = bias_of(parameters + bias, i);
    __global const REAL *in[SAMPLES];
    ROWS sums[SAMPLES], inputs[SAMPLES];
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        in[s] = x + (size_t)min(first + s, batch - 1) * ldx;
        inputs[s] = X_ALIGNED ? *(__global const ROWS *)in[s] : LOAD_ROWS(in[s]);
        sums[s] = biases;
    }
#if WINDOW <= 16
#pragma unroll
#endif
    for (int r = 0; r < WINDOW; ++r) {
        const ROWS weight = LOAD_STREAMING(w + (size_t)r * pitch);
#pragma unroll
        for (int s = 0; s < SAMPLES; ++s) {
            sums[s] += weight * inputs[s];
            if (r + 1 < WINDOW) inputs[s] = SLIDE(inputs[s], in[s][VEC + r]);
        }
    }
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        if (first + s >= batch) continue;
        __global REAL *out = y + (size_t)(first + s) * ldy;
        const ROWS v = EPILOGUE(sums[s]);
        if (Y_ALIGNED) STORE_STREAMING(out, v);
        else STORE_ROWS(v, out);
    }
}

#ifdef GROUP
// The textbook's tiling: a group copies its tile of x, with the halo to its right, to
// local memory; each work-item computes one row.
// index map: group sample * tiles + t: rows GROUP t …
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void stencil_tile(__global const REAL *parameters, const int weights, const int pitch,
                  const int bias, __global const REAL *x, const int ldx,
                  __global REAL *y, const int ldy, const int n_out, const int batch,
                  const int tiles)
{
    __local REAL tile[GROUP + WINDOW - 1];
    const int item = get_local_id(0);
    const int start = get_group_id(0) % tiles * GROUP, i = start + item;
    const size_t sample = get_group_id(0) / tiles;
    const int width = min(GROUP, n_out - start) + WINDOW - 1;
    for (int j = item; j < width; j += GROUP) tile[j] = x[sample * ldx + start + j];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i >= n_out) return;
    __global const REAL *w = parameters + weights + i;
    REAL sum = HAS_BIAS ? parameters[bias + BIAS_STEP * i] : (REAL)0;
#if WINDOW <= 16
#pragma unroll
#endif
    for (int r = 0; r < WINDOW; ++r) sum += w[(size_t)r * pitch] * tile[item + r];
#if !SUMS
    sum = activate(sum);
#endif
    y[sample * ldy + i] = sum;
}
#endif

// trapezoid: several locally connected layers in one launch, for GPUs.
//
// A group takes a tile of rows through all layers. Each work-item keeps VEC of them in
// registers; local memory passes them to its left neighbours. The halo shrinks a tile
// by WINDOW - 1 rows per layer. The next tile starts where this one's last layer ends,
// and computes the halo again (overlapped tiling: Krishnamoorthy et al., "Effective
// automatic parallelization of stencil computations", 2007). Outside the halo weights
// are read once. They are prefetched STAGES layers ahead.
//
//   x        |--------------------|                    tile t
//   layer 0  |------------------|.|                    . computed, but invalid
//   layer 1  |----------------|. .|--------------------|
//            |     step       |    tile t + 1
//
// REAL        float or double
// WINDOW      inputs of a row, at least 1
// VEC         rows of a work-item: 1, 2 or 4
// GROUP       work-items of a group: the tile is GROUP * VEC rows
// STAGES      layers whose weights are in flight (software pipeline)
// SAMPLES     samples of a group, which share its weights
// LINE        values that bands are padded to (storage/local.py)
// X_ALIGNED, Y_ALIGNED  1: every sample is aligned to vectors
// BIAS_STEP   stride of the biases: 1, or 0 where all rows share one
// HAS_BIAS    1 or 0
// ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  the layers' activation (activations.h)
#define WIDTH 1
#include "include/activations.h"
#if !defined(ACTIVATION) || !defined(WINDOW) || !defined(VEC) || !defined(GROUP) \
    || !defined(STAGES) || !defined(SAMPLES) || !defined(LINE) || !defined(X_ALIGNED) \
    || !defined(Y_ALIGNED) || !defined(HAS_BIAS) || !defined(BIAS_STEP)
#error "trapezoid.cl needs activation, bias, STAGES and the shape of its tiles"
#endif
#include "stencil/bands.h"

#define HALO ((WINDOW - 1 + VEC - 1) / VEC)  // vectors of right neighbours

// y[b, :] = the last layer's output for x[b, :]; row i of a layer reads the inputs i …
// i + WINDOW - 1
//
// parameters [..]         value r of a layer's row i at weights + r * pitch + i
// offsets    [.., 2]      of each layer's weights and biases; `first`: the first layer
// x          [batch, ldx]   y [batch, ldy]
// tile t starts at row t * step
// index map: group b * tiles + t: samples SAMPLES b …; work-item: rows VEC item … of
// the tile
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void trapezoid(__global const REAL *parameters, __global const int *offsets,
               const int first, const int layers, __global const REAL *x,
               const int ldx, __global REAL *y, const int ldy, const int n_in,
               const int batch, const int tiles, const int step)
{
    __local ROWS edges[2][SAMPLES][GROUP + HALO];
    const int item = get_local_id(0);
    const int start = get_group_id(0) % tiles * step, i = start + item * VEC;
    const int sample = get_group_id(0) / tiles * SAMPLES;
    const int n_out = n_in - layers * (WINDOW - 1);

    ROWS v[SAMPLES], weight[STAGES][WINDOW], bias[STAGES];
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        __global const REAL *in = x + (size_t)min(sample + s, batch - 1) * ldx + i;
        v[s] = (ROWS)((REAL)0);
        if (i + VEC <= n_in)
            v[s] = X_ALIGNED ? *(__global const ROWS *)in : LOAD_ROWS(in);
        else if (i < n_in)
            v[s] = LOAD_PARTIAL(in, n_in - i);
    }

// Load a layer's weights into stage a, but for rows that no output needs.
#define LOAD_STAGE(a, layer)                                                        \
    {                                                                               \
        const int rows = n_in - ((layer) + 1) * (WINDOW - 1);                       \
        const int needed = min(rows, start + GROUP * VEC - n_in + rows);            \
        if ((layer) < layers && i < needed) {                                       \
            const int pitch = (rows + LINE - 1) / LINE * LINE;                      \
            __global const REAL *w = parameters + offsets[2 * (first + (layer))];   \
            for (int r = 0; r < WINDOW; ++r)                                        \
                weight[a][r] = *(__global const ROWS *)(w + (size_t)r * pitch + i); \
            bias[a] = bias_of(parameters + offsets[2 * (first + (layer)) + 1], i);  \
        }                                                                           \
    }

#pragma unroll
    for (int a = 0; a < STAGES; ++a) {
        bias[a] = (ROWS)((REAL)0);
#pragma unroll
        for (int r = 0; r < WINDOW; ++r) weight[a][r] = (ROWS)((REAL)0);
        LOAD_STAGE(a, a)
    }
    for (int k = 0; k < layers; k += STAGES) {
#pragma unroll
        for (int a = 0; a < STAGES; ++a) {
            __local ROWS(*edge)[GROUP + HALO] = edges[(k + a) & 1];
#pragma unroll
            for (int s = 0; s < SAMPLES; ++s) edge[s][item] = v[s];
            // Double buffering: work-items one layer ahead write the other buffer.
            barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
            for (int s = 0; s < SAMPLES; ++s) {
                ROWS sums = bias[a], inputs = v[s], next = inputs;
#pragma unroll
                for (int r = 0; r < WINDOW; ++r) {
                    sums += weight[a][r] * inputs;
                    if (r % VEC == 0 && r + 1 < WINDOW)
                        next = edge[s][item + 1 + r / VEC];
                    inputs = SLIDE(inputs, ELEMENT(next, r % VEC));
                }
                if (k + a < layers) v[s] = epilogue(sums);
            }
            LOAD_STAGE(a, k + a + STAGES)
        }
    }
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        const int stop = min(start + step, n_out);
        if (sample + s >= batch) continue;
        __global REAL *out = y + (size_t)(sample + s) * ldy + i;
        if (i + VEC > stop) {
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                if (i + j < stop) out[j] = ELEMENT(v[s], j);
        } else if (Y_ALIGNED) {
            *(__global ROWS *)out = v[s];
        } else {
            STORE_ROWS(v[s], out);
        }
    }
}

// trapezoid: several locally connected layers in one launch, for GPUs.
//
// A group takes a tile of rows through all layers. Each work-item keeps VEC of them in
// registers, and of a layer's values only those at the edge of its neighbours' vectors
// go through local memory. What a tile reads of its right neighbour shrinks it by
// WINDOW - 1 rows a layer; the next tile starts where this one's last layer ends, and
// computes those rows again (overlapped tiling: Krishnamoorthy et al., "Effective
// automatic parallelization of stencil computations", 2007). Weights are read once but
// for that, and asked for AHEAD layers before they are needed.
//
//   x        |--------------------|                    tile t
//   layer 0  |------------------|.|                    . computed, and wrong
//   layer 1  |----------------|. .|--------------------|
//            |     step       |    tile t + 1
//
// REAL        float or double
// WINDOW      inputs of a row, at least 1
// VEC         rows a work-item: 1, 2 or 4
// GROUP       work-items of a group: the tile is GROUP * VEC rows
// AHEAD       layers whose weights are under way
// SAMPLES     samples a group: they share its weights
// LINE        values that bands are padded to (storage/local.py)
// X_ALIGNED, Y_ALIGNED  1: every sample starts on a whole vector
// BIAS_STEP   from one row's bias to the next: 1, or 0 where all share one
// HAS_BIAS    1 or 0
// ACTIVATION, STEEPNESS, LIMIT  the layers' function (activations.h)
#define WIDTH 1
#include "include/activations.h"
#if !defined(ACTIVATION) || !defined(WINDOW) || !defined(VEC) || !defined(GROUP) \
    || !defined(AHEAD) || !defined(SAMPLES) || !defined(LINE) || !defined(X_ALIGNED) \
    || !defined(Y_ALIGNED) || !defined(HAS_BIAS) || !defined(BIAS_STEP)
#error "trapezoid.cl needs the function, the bias, and the macros of its tiles"
#endif
#include "stencil/bands.h"

#define NEXT ((WINDOW - 1 + VEC - 1) / VEC)  // vectors read of neighbours

// y[b, :] = the layers' output for x[b, :]; row i of a layer reads its inputs i … i +
// WINDOW - 1
//
// parameters [..]         value r of a layer's row i at weights + r * pitch + i
// offsets    [.., 2]      where each layer's weights are, and its bias, from layer
//                         `first` on
// x          [batch, ldx]   y [batch, ldy]
// tile t starts at row t * step
// index map: group part * tiles + t; work-item: rows VEC item … of the tile
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void trapezoid(__global const REAL *parameters, __global const int *offsets,
               const int first, const int layers, __global const REAL *x,
               const int ldx, __global REAL *y, const int ldy, const int n_in,
               const int batch, const int tiles, const int step)
{
    __local ROWS edges[2][SAMPLES][GROUP + NEXT];
    const int item = get_local_id(0);
    const int start = get_group_id(0) % tiles * step, i = start + item * VEC;
    const int sample = get_group_id(0) / tiles * SAMPLES;
    const int n_out = n_in - layers * (WINDOW - 1);

    ROWS v[SAMPLES], weight[AHEAD][WINDOW], bias[AHEAD];
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        __global const REAL *in = x + (size_t)min(sample + s, batch - 1) * ldx + i;
        v[s] = (ROWS)((REAL)0);
        if (i + VEC <= n_in)
            v[s] = X_ALIGNED ? *(__global const ROWS *)in : READ_ROWS(in);
        else if (i < n_in)
            v[s] = SOME(in, n_in - i);
    }

// Ask for the weights of a layer, into place a; rows that none needs are left out.
#define ASK(a, layer)                                                               \
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
    for (int a = 0; a < AHEAD; ++a) {
        bias[a] = (ROWS)((REAL)0);
#pragma unroll
        for (int r = 0; r < WINDOW; ++r) weight[a][r] = (ROWS)((REAL)0);
        ASK(a, a)
    }
    for (int k = 0; k < layers; k += AHEAD) {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            __local ROWS(*edge)[GROUP + NEXT] = edges[(k + a) & 1];
#pragma unroll
            for (int s = 0; s < SAMPLES; ++s) edge[s][item] = v[s];
            // Two buffers: whoever is a layer ahead writes the other one.
            barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
            for (int s = 0; s < SAMPLES; ++s) {
                ROWS sums = bias[a], at = v[s], next = at;
#pragma unroll
                for (int r = 0; r < WINDOW; ++r) {
                    sums += weight[a][r] * at;
                    if (r % VEC == 0 && r + 1 < WINDOW)
                        next = edge[s][item + 1 + r / VEC];
                    at = SLIDE(at, PICK(next, r % VEC));
                }
                if (k + a < layers) v[s] = finish(sums);
            }
            ASK(a, k + a + AHEAD)
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
                if (i + j < stop) out[j] = PICK(v[s], j);
        } else if (Y_ALIGNED) {
            *(__global ROWS *)out = v[s];
        } else {
            WRITE_ROWS(v[s], out);
        }
    }
}

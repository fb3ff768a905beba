// split: several work-items per neuron.
//
// The first study's optimisation 2. One work-item per neuron leaves a GPU idle on narrow
// layers, and loads of neighbours are a row apart. A team of ITEMS work-items (team.h)
// reads a row with coalesced loads, and there are ITEMS times as many work-items.
//
//   group of GROUP work-items:   | team of neuron j | team of neuron j + 1 | …
//
// HAS_BIAS  1 or 0
// X_PADDED  as in vectors.h
// ITEMS, GROUP, TILE, UNROLL  as in team.h
// REAL, ACTIVATION, STEEPNESS, HAS_LIMIT, LIMIT  as in activations.h
#define WIDTH 1
#include "include/activations.h"
#define X_SPACE __global
#include "include/vectors.h"
#include "include/team.h"
#if !defined(ACTIVATION) || !defined(HAS_BIAS)
#error "split.cl needs ACTIVATION and HAS_BIAS"
#endif

// y[b, j] = f(sum over i of A[j, i] x[b, i] + bias[j])
//
// parameters [..]           A [n_out, stride] at `weights`, bias [n_out] at `bias`
// x          [batch, ldx]   y [batch, ldy]
// index map: work-group: a block of TEAMS neurons j, then a block of TILE samples b, which
//            varies faster; in one dimension: others may be limited to 65535 groups
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void split(__global const REAL *parameters, const int weights, const int stride,
           const int bias, __global const REAL *x, const int ldx, __global REAL *y,
           const int ldy, const int n_in, const int n_out, const int batch)
{
    __local REAL partial[PARTIALS];
    const int item = get_local_id(0) % ITEMS;
    const uint group = get_group_id(0), tiles = ((uint)batch + TILE - 1) / TILE;
    const size_t sample = (size_t)(group % tiles) * TILE;
    const int samples = min(TILE, batch - (int)sample);
    const int j = group / tiles * TEAMS + get_local_id(0) / ITEMS;
    x += sample * ldx;
    y += sample * ldy;
    const bool live = j < n_out;
    REAL sums[TILE];
    team_multiply(sums,
                  (__global const VEC *)(parameters + weights + (size_t)j * stride),
                  live ? stride / 4 : 0, x, ldx, samples, n_in, item);
    team_add(sums, partial);
    if (item == 0 && live) {
        const REAL start = HAS_BIAS ? parameters[bias + j] : (REAL)0;
#pragma unroll
        for (int t = 0; t < TILE; ++t)
            if (t < samples) y[(size_t)t * ldy + j] = activate(sums[t] + start);
    }
}

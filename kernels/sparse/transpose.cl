// transpose: from samples in rows to tiles of TILE samples with features in rows.
//
//   x [batch, ldx]                    transposed [tiles][width + 1][TILE]
//   sample 0   a b c d …              a e …   feature 0: samples 0 … TILE - 1
//   sample 1   e f g h …              b f …   feature 1
//
// Samples past the batch are zeros. Row `width` of a tile is never written and stays
// zero: kernels read it in place of padding.
//
// REAL   float or double
// TILE   samples of a tile
// BLOCK  features of a group
// GROUP  work-items of a group; 1: a sequential loop, for CPU cores
#if !defined(REAL) || !defined(TILE) || !defined(BLOCK) || !defined(GROUP)
#error "transpose.cl needs REAL, TILE, BLOCK and GROUP"
#endif

// index map: work-group: a tile, then a block of features, which varies faster; in one
//            dimension: others may be limited to 65535 groups
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void transpose(__global const REAL *x, const int ldx, __global REAL *transposed,
               const int width, const int batch)
{
    const uint group = get_group_id(0), blocks = ((uint)width + BLOCK - 1) / BLOCK;
    const int first = group % blocks * BLOCK;
    const size_t tile = group / blocks, sample = tile * TILE;
    const int features = min(BLOCK, width - first);
    const int samples = min(TILE, batch - (int)sample);
    x += sample * ldx + first;
    transposed += (tile * ((size_t)width + 1) + first) * TILE;
#if GROUP == 1
    for (int c = 0; c < features; ++c)
        for (int s = 0; s < TILE; ++s)
            transposed[c * TILE + s] = s < samples ? x[(size_t)s * ldx + c] : (REAL)0;
#else
    // The odd pitch avoids bank conflicts in reads and writes.
    __local REAL block[BLOCK * (TILE + 1)];
    const int id = get_local_id(0);
    for (int i = id; i < BLOCK * TILE; i += GROUP) {
        const int s = i / BLOCK, c = i % BLOCK;
        block[c * (TILE + 1) + s] =
            s < samples && c < features ? x[(size_t)s * ldx + c] : (REAL)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < features * TILE; i += GROUP)
        transposed[i] = block[i / TILE * (TILE + 1) + i % TILE];
#endif
}

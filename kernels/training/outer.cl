// outer: the weight gradient of a dense layer, with register tiles.
//
//     gradient[r, c] = sum over b of ds[b, r] * x[b, c]
//
// A work-item holds ROWS x VEC accumulators. For each sample it reads VEC values of x
// as a vector and ROWS values of ds. Split-k divides the batch into parts, for enough
// work-items; their partial sums go to `partial`, and add_parts adds them in the order
// of the parts. So equal sizes give equal bits.
//
//            x[b, c … c + VEC - 1]
//          +-----------------------+
//   ds[b,  | . . . . . . . . . . . |   The last tile of columns starts early, so that
//   r …    | . . . . sums  . . . . |   no read is out of bounds; it stores only the
//   ROWS]  | . . . . . . . . . . . |   columns beyond its neighbour's.
//          +-----------------------+
//
// REAL   float or double
// VEC    columns of a work-item, at most n_in: 1, 2, 4 or 8; 8 on CPUs
// ROWS   rows of a work-item: 1 to 8
// BLOCK  samples of a partial sum, which bounds rounding errors; usually 64
#if !defined(REAL) || !defined(VEC) || !defined(ROWS) || !defined(BLOCK)
#error "outer.cl needs REAL, VEC, ROWS and BLOCK"
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if VEC == 1
#define VALS REAL
#define LOAD(p) (*(p))
#else
#define VALS JOIN(REAL, VEC)
#define LOAD(p) JOIN(vload, VEC)(0, p)
#endif

// target [parts, size]: the gradients from `weights` on, or `partial` from 0
// stride: from a row of A to the next; size: slots of A; part: samples of a part
// index map: work-item: a part, then a tile of rows, then one of `across` tiles of columns,
//            which vary fastest; in one dimension: others may be limited to 65535
__kernel void outer(__global REAL *target, const int weights, const int stride,
                    const int size, __global const REAL *ds, const int ldds,
                    __global const REAL *x, const int ldx, const int n_in,
                    const int n_out, const int batch, const int part,
                    const int across)
{
    const size_t strip = get_global_id(0) / across;
    const uint strips = ((uint)n_out + ROWS - 1) / ROWS;
    const int tile = get_global_id(0) % across * VEC;
    const int row = strip % strips * ROWS;
    const size_t number = strip / strips;
    const int first = number * part, end = min(first + part, batch);
    if (tile >= n_in) return;
    const int column = min(tile, n_in - VEC);
    x += column;
    VALS sums[ROWS];
    int rows[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        sums[k] = (VALS)0;
        rows[k] = min(row + k, n_out - 1);
    }
    for (int start = first; start < end; start += BLOCK) {
        const int stop = min(start + BLOCK, end);
        VALS block[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; ++k) block[k] = (VALS)0;
        for (size_t b = start; b < stop; ++b) {
            const VALS values = LOAD(x + b * ldx);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) block[k] += ds[b * ldds + rows[k]] * values;
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k) sums[k] += block[k];
    }
    target += weights + number * size;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        __global REAL *out = target + (size_t)rows[k] * stride + column;
        const REAL *values = (const REAL *)&sums[k];
        if (row + k < n_out)
            for (int i = tile - column; i < VEC; ++i) out[i] = values[i];
    }
}

// gradients[weights + i] = sum over parts of partial[part, i]
// index map: work-item i
__kernel void add_parts(__global REAL *gradients, const int weights,
                        __global const REAL *partial, const int size, const int parts)
{
    const int i = get_global_id(0);
    if (i >= size) return;
    REAL sum = 0;
    for (int p = 0; p < parts; ++p) sum += partial[(size_t)p * size + i];
    gradients[weights + i] = sum;
}

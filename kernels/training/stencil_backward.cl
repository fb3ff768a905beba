// stencil_backward: the backward products of a locally connected layer. Row i of its
// matrix reads the inputs i … i + WINDOW - 1; value r of the row is at
// weights + r * pitch + i (storage/local.py).
//
// REAL     float or double
// WINDOW   inputs of a row, at least 1
// VEC      rows or columns at a time: 1 for coalesced loads (GPUs), else a vector
// CHUNK    rows or columns of a work-item, a multiple of VEC
// BANDS    outer only: bands of a work-item, with accumulators in registers
// BLOCK    outer only: samples of a partial sum; usually 64
#if !defined(REAL) || !defined(WINDOW) || !defined(VEC) || !defined(CHUNK)
#error "stencil_backward.cl needs REAL, WINDOW, VEC and CHUNK"
#endif

#define JOIN_TEXT(a, b) a##b
#define JOIN(a, b) JOIN_TEXT(a, b)
#if VEC == 1
#define VALS REAL
#define LOAD(p) (*(p))
#define STORE(p, v) *(p) = (v)
#else
#define VALS JOIN(REAL, VEC)
typedef VALS __attribute__((aligned(4))) VALS_UNALIGNED;
#define LOAD(p) (*(__global const VALS_UNALIGNED *)(p))
#define STORE(p, v) *(__global VALS_UNALIGNED *)(p) = v
#endif

#ifndef BANDS
// dx[b, j] (+)= sum over r:  w[r, j - r] ds[b, j - r]
//
// parameters [..]   ds [batch, ldds]   dx [batch, lddx]
// index map: work-item b * across + c: CHUNK columns of `block` samples, which share
// the weights in cache
//
//     band 0   w0 w1 w2 w3         a column of A, upwards:
//     band 1      w0 w1 w2 w3      dx2 = w[0, 2] ds2 + w[1, 1] ds1 + w[2, 0] ds0
//     band 2         w0 w1 w2 w3
//     dx       d0 d1 d2 d3 d4 d5
__kernel void apply_t(__global const REAL *parameters, const int weights,
                      const int pitch, __global const REAL *ds, const int ldds,
                      __global REAL *dx, const int lddx, const int n_out,
                      const int batch, const int accumulate, const int across,
                      const int block)
{
    const int start = get_global_id(0) % across * CHUNK;
    const int first = get_global_id(0) / across * block;
    const int stop = min(start + CHUNK, n_out + WINDOW - 1);
    __global const REAL *w = parameters + weights;
    for (size_t b = first; b < min(first + block, batch); ++b) {
        __global const REAL *in = ds + b * ldds;
        __global REAL *out = dx + b * lddx;
        int j = start;
        while (j < stop) {
            if (j >= WINDOW - 1 && j + VEC <= n_out) {
                VALS sum = accumulate ? LOAD(out + j) : (VALS)((REAL)0);
#if WINDOW <= 16
#pragma unroll
#endif
                for (int r = 0; r < WINDOW; ++r)
                    sum += LOAD(w + (size_t)r * pitch + j - r) * LOAD(in + j - r);
                STORE(out + j, sum);
                j += VEC;
            } else {
                REAL sum = accumulate ? out[j] : (REAL)0;
                for (int r = max(0, j - n_out + 1); r <= min(WINDOW - 1, j); ++r)
                    sum += w[(size_t)r * pitch + j - r] * in[j - r];
                out[j++] = sum;
            }
        }
    }
}
#else
#ifndef BLOCK
#error "outer needs BLOCK"
#endif
// gradients[r, i] = sum over b:  ds[b, i] x[b, i + r]
//
// target   [parts, size]  bands [WINDOW, pitch] from `offset` on, for each part of the
//                         batch (split-k)
// ds       [batch, ldds]   x [batch, ldx]
// index map: work-item (part * groups + g) * across + c: CHUNK rows, bands BANDS g …,
// samples share * part …
__kernel void outer(__global REAL *target, const int offset, const int pitch,
                    const int size, __global const REAL *ds, const int ldds,
                    __global const REAL *x, const int ldx, const int n_out,
                    const int batch, const int across, const int groups,
                    const int share)
{
    const int start = get_global_id(0) % across * CHUNK;
    const int rest = get_global_id(0) / across;
    const int band = rest % groups * BANDS, part = rest / groups;
    const int begin = part * share, end = min(begin + share, batch);
    const int bands = min(BANDS, WINDOW - band);
    target += offset + (size_t)part * size + (size_t)band * pitch;
    x += band;
    int i = start;
    const int stop = min(start + CHUNK, n_out);
    for (; i + VEC <= stop && bands == BANDS; i += VEC) {
        VALS total[BANDS];
#pragma unroll
        for (int r = 0; r < BANDS; ++r) total[r] = (VALS)((REAL)0);
        for (int from = begin; from < end; from += BLOCK) {
            VALS sum[BANDS];
#pragma unroll
            for (int r = 0; r < BANDS; ++r) sum[r] = (VALS)((REAL)0);
            for (size_t b = from; b < min(from + BLOCK, end); ++b) {
                const VALS d = LOAD(ds + b * ldds + i);
#pragma unroll
                for (int r = 0; r < BANDS; ++r) sum[r] += d * LOAD(x + b * ldx + i + r);
            }
#pragma unroll
            for (int r = 0; r < BANDS; ++r) total[r] += sum[r];
        }
#pragma unroll
        for (int r = 0; r < BANDS; ++r) STORE(target + (size_t)r * pitch + i, total[r]);
    }
    // Remainder: fewer rows than a vector's, or fewer bands than BANDS.
    for (; i < stop; ++i)
        for (int r = 0; r < bands; ++r) {
            REAL total = 0;
            for (int from = begin; from < end; from += BLOCK) {
                REAL sum = 0;
                for (size_t b = from; b < min(from + BLOCK, end); ++b)
                    sum += ds[b * ldds + i] * x[b * ldx + i + r];
                total += sum;
            }
            target[(size_t)r * pitch + i] = total;
        }
}
#endif

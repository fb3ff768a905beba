// sparse_outer: the weight gradient of a sparse layer, a sampled dense-dense product
// (SDDMM).
//
//   gradient[e] = sum over samples b of  ds[b, row of e] * x[b, column of e]
//
// ds and x are transposed before (transpose.cl), so that an entry is the dot product of
// two rows of TILE values, for each tile of samples.
//
// On GPUs a team of LANES = TILE / 4 work-items reads the two rows of an entry, for
// LANES entries in turn. Local memory transposes the partial sums, and work-item i of
// the group adds those of entry i:
//
//   team   item 0   1  …         partial, entry  0 1 2 …
//   entry 0  x . .  . .          item 0          a b c        entry 0: a + d + …
//   entry 1  x . .  . .          item 1          d e f        entry 1: b + e + …
//
// A CPU core (GROUP 1) takes runs of rows as in csr.cl, four entries of a row at a
// time, in whole vectors of samples.
//
// REAL   float or double
// TILE   samples of a tile: 4 and more; GROUP 1: a multiple of LANES
// LANES  elements of a vector, 8 of float or 4 of double (GROUP 1 only)
// GROUP  work-items of a group
// SLOTS  1: gradients are scattered through the table `slots`; 0: they lie in CSR order
// ROW, COLUMN  types of the indices: ushort where they fit, or int
#if !defined(REAL) || !defined(TILE) || !defined(GROUP) || !defined(SLOTS)           \
    || !defined(ROW) || !defined(COLUMN) || (GROUP == 1 && !defined(LANES))
#error "sparse_outer.cl needs REAL, TILE, GROUP, SLOTS, ROW, COLUMN, and of a GROUP of 1 \
LANES"
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#if GROUP > 1
#define VEC JOIN(REAL, 4)
#define LANES (TILE / 4)
#define PITCH (GROUP + 1)  // odd: no bank conflicts

// rows, columns, slots [entries]   below n_out, n_in and the storage's size; slots each
//                                  once, for they are written; any int where SLOTS is 0
// ds [tiles][n_out + 1][TILE]   x [tiles][n_in + 1][TILE], transposed
// index map: work-group = block of GROUP entries
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void outer(__global REAL *gradients, const int weights, __global const int *slots,
           __global const ROW *rows, __global const COLUMN *columns,
           __global const REAL *ds, __global const REAL *x, const int n_out,
           const int n_in, const int entries, const int tiles)
{
    __local REAL partial[LANES * PITCH];
    const int id = get_local_id(0), lane = id % LANES;
    const int block = get_group_id(0) * GROUP;
    REAL sums[LANES];
    int r[LANES], c[LANES];
#pragma unroll
    for (int j = 0; j < LANES; ++j) {
        const int e = min(block + id - lane + j, entries - 1);
        r[j] = rows[e] * LANES + lane;
        c[j] = columns[e] * LANES + lane;
        sums[j] = 0;
    }
    for (int tile = 0; tile < tiles; ++tile) {
        __global const VEC *d =
            (__global const VEC *)(ds + ((size_t)n_out + 1) * TILE * tile);
        __global const VEC *v =
            (__global const VEC *)(x + ((size_t)n_in + 1) * TILE * tile);
#pragma unroll
        for (int j = 0; j < LANES; ++j) {
            const VEC product = d[r[j]] * v[c[j]];
            sums[j] += (product.s0 + product.s1) + (product.s2 + product.s3);
        }
    }
#pragma unroll
    for (int j = 0; j < LANES; ++j) partial[lane * PITCH + id - lane + j] = sums[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    const int e = block + id;
    if (e < entries) {
        REAL sum = 0;
        for (int l = 0; l < LANES; ++l) sum += partial[l * PITCH + id];
        gradients[weights + (SLOTS ? slots[e] : e)] = sum;
    }
}
#else
#define VEC JOIN(REAL, LANES)
#define VEC4 JOIN(REAL, 4)
typedef VEC4 __attribute__((aligned(sizeof(REAL)))) Vec4Unaligned;

// The lane sums of four vectors.
static inline VEC4 lane_sums(const VEC a, const VEC b, const VEC c, const VEC d)
{
#if LANES == 8
    const VEC4 p = a.lo + a.hi, q = b.lo + b.hi, r = c.lo + c.hi, s = d.lo + d.hi;
#else
    const VEC4 p = a, q = b, r = c, s = d;
#endif
    const VEC4 first = (VEC4)(p.even, q.even) + (VEC4)(p.odd, q.odd);
    const VEC4 second = (VEC4)(r.even, s.even) + (VEC4)(r.odd, s.odd);
    return (VEC4)(first.even, second.even) + (VEC4)(first.odd, second.odd);
}

#define ROW_OF_X(e) (__global const VEC *)(x + (size_t)columns[e] * TILE)
#define SLOT(e) gradients[weights + (SLOTS ? slots[e] : (e))]

// starts [n_out + 1]   row r owns entries starts[r] … starts[r + 1] - 1; 0 first,
//                      sorted, the number of entries last
// columns, slots [entries, padded with zeros]   as of outer
// ds [tiles][n_out + 1][TILE]   x [tiles][n_in + 1][TILE], transposed
// bounds [runs + 1]    0 first, sorted, n_out last; index map: work-item = run
__kernel void outer_rows(__global REAL *gradients, const int weights,
                         __global const int *starts, __global const int *slots,
                         __global const COLUMN *columns, __global const REAL *ds,
                         __global const REAL *x, const int n_out, const int n_in,
                         const int tiles, __global const int *bounds)
{
    const int from = bounds[get_global_id(0)], to = bounds[get_global_id(0) + 1];
    for (int tile = 0; tile < tiles; ++tile) {
        for (int row = from; row < to; ++row) {
            __global const VEC *d = (__global const VEC *)(ds + (size_t)row * TILE);
            int e = starts[row];
            const int end = starts[row + 1];
            for (; e + 4 <= end; e += 4) {
                __global const VEC *x0 = ROW_OF_X(e), *x1 = ROW_OF_X(e + 1);
                __global const VEC *x2 = ROW_OF_X(e + 2), *x3 = ROW_OF_X(e + 3);
                VEC s0 = 0, s1 = 0, s2 = 0, s3 = 0;
                for (int i = 0; i < TILE / LANES; ++i) {
                    const VEC v = d[i];
                    s0 += v * x0[i];
                    s1 += v * x1[i];
                    s2 += v * x2[i];
                    s3 += v * x3[i];
                }
                VEC4 sums = lane_sums(s0, s1, s2, s3);
#if SLOTS
                if (tile)
                    sums += (VEC4)(SLOT(e), SLOT(e + 1), SLOT(e + 2), SLOT(e + 3));
                SLOT(e) = sums.s0;
                SLOT(e + 1) = sums.s1;
                SLOT(e + 2) = sums.s2;
                SLOT(e + 3) = sums.s3;
#else
                __global Vec4Unaligned *out =
                    (__global Vec4Unaligned *)(gradients + weights + e);
                *out = tile ? *out + sums : sums;
#endif
            }
            for (; e < end; ++e) {
                __global const VEC *x0 = ROW_OF_X(e);
                VEC sum = 0;
                for (int i = 0; i < TILE / LANES; ++i) sum += d[i] * x0[i];
                const REAL total = lane_sums(sum, sum, sum, sum).s0;
                SLOT(e) = tile ? SLOT(e) + total : total;
            }
        }
        ds += ((size_t)n_out + 1) * TILE;
        x += ((size_t)n_in + 1) * TILE;
    }
}
#endif

// sparse_outer: the weights' gradient of a sparse layer, at its entries alone.
//
//   gradient[e] = sum over samples b of  ds[b, row of e] * x[b, column of e]
//
// Both are transposed before (transpose.cl), so that an entry's sum is the product of two rows
// of TILE values, for each tile of samples.
//
// On GPUs LANES = TILE / 4 work-items read the two rows of an entry together, of LANES
// entries in turn; their shares are then added across in local memory, where work-item
// i of the group ends up with entry i:
//
//   team   item 0   1  …         shares of entry 0 1 2 …
//   entry 0  x . .  . .          item 0       a b c           entry 0: a + d + …
//   entry 1  x . .  . .          item 1       d e f           entry 1: b + e + …
//
// A CPU core (GROUP 1) takes runs of rows as csr.cl does, with four entries of a row at
// a time, whole vectors of samples each.
//
// REAL   float or double
// TILE   samples of a tile: 4 and more; GROUP 1: a multiple of LANES
// LANES  numbers of a vector, 8 of float or 4 of double (GROUP 1 only)
// GROUP  work-items of a group
// SLOTS  1: an entry's value is where a table says; 0: values lie as entries do
// ROW, COLUMN  types of the indices: ushort where they fit, or int
#if !defined(REAL) || !defined(TILE) || !defined(GROUP) || !defined(SLOTS)           \
    || !defined(ROW) || !defined(COLUMN)
#error "sparse_outer.cl needs the macros that its head names"
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#if GROUP > 1
#define VEC JOIN(REAL, 4)
#define LANES (TILE / 4)
#define PITCH (GROUP + 1)  // neither writing nor reading meets a bank twice

// rows, columns, slots [entries]   slots: any int where SLOTS is 0
// ds [tiles][n_out + 1][TILE]   x [tiles][n_in + 1][TILE], transposed
// index map: work-group = block of GROUP entries
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void outer(__global REAL *gradients, const int weights, __global const int *slots,
           __global const ROW *rows, __global const COLUMN *columns,
           __global const REAL *ds, __global const REAL *x, const int n_out,
           const int n_in, const int entries, const int tiles)
{
    __local REAL shares[LANES * PITCH];
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
            (__global const VEC *)(ds + (n_out + 1) * TILE * (size_t)tile);
        __global const VEC *v =
            (__global const VEC *)(x + (n_in + 1) * TILE * (size_t)tile);
#pragma unroll
        for (int j = 0; j < LANES; ++j) {
            const VEC product = d[r[j]] * v[c[j]];
            sums[j] += (product.s0 + product.s1) + (product.s2 + product.s3);
        }
    }
#pragma unroll
    for (int j = 0; j < LANES; ++j) shares[lane * PITCH + id - lane + j] = sums[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    const int e = block + id;
    if (e < entries) {
        REAL sum = 0;
        for (int l = 0; l < LANES; ++l) sum += shares[l * PITCH + id];
        gradients[weights + (SLOTS ? slots[e] : e)] = sum;
    }
}
#else
#define VEC JOIN(REAL, LANES)
#define VEC4 JOIN(REAL, 4)
typedef VEC4 __attribute__((aligned(sizeof(REAL)))) Vec4Unaligned;

// The sums over the lanes of four vectors.
inline VEC4 lane_sums(const VEC a, const VEC b, const VEC c, const VEC d)
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

// starts [n_out + 1]   row r owns entries starts[r] … starts[r + 1] - 1
// columns, slots [entries]   slots: any int where SLOTS is 0
// ds [tiles][n_out + 1][TILE]   x [tiles][n_in + 1][TILE], transposed
// bounds [runs + 1]    index map: work-item = run
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
                VEC4 found = lane_sums(s0, s1, s2, s3);
#if SLOTS
                if (tile)
                    found += (VEC4)(SLOT(e), SLOT(e + 1), SLOT(e + 2), SLOT(e + 3));
                SLOT(e) = found.s0;
                SLOT(e + 1) = found.s1;
                SLOT(e + 2) = found.s2;
                SLOT(e + 3) = found.s3;
#else
                __global Vec4Unaligned *place =
                    (__global Vec4Unaligned *)(gradients + weights + e);
                *place = tile ? *place + found : found;
#endif
            }
            for (; e < end; ++e) {
                __global const VEC *x0 = ROW_OF_X(e);
                VEC sum = 0;
                for (int i = 0; i < TILE / LANES; ++i) sum += d[i] * x0[i];
                const REAL found = lane_sums(sum, sum, sum, sum).s0;
                SLOT(e) = tile ? SLOT(e) + found : found;
            }
        }
        ds += ((size_t)n_out + 1) * TILE;
        x += ((size_t)n_in + 1) * TILE;
    }
}
#endif

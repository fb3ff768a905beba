// sparse_outer: the weights' gradient of a sparse layer, at its entries alone.
//
//   gradient[e] = sum over samples b of  ds[b, row of e] * x[b, column of e]
//
// Both are turned before (turn.cl), so that an entry's sum is the product of two rows of
// TILE values, for each tile of samples.
//
// On GPUs LANES = TILE / 4 work-items read the two rows of an entry together, of LANES
// entries in turn; their shares are then added across in local memory, where work-item i
// of the group ends up with entry i:
//
//   team   item 0   1  …         shares of entry 0 1 2 …
//   entry 0  x . .  . .          item 0       a b c           entry 0: a + d + …
//   entry 1  x . .  . .          item 1       d e f           entry 1: b + e + …
//
// REAL   float or double
// TILE   samples of a tile: 4 and more
// GROUP  work-items of a group
// SLOTS  1: an entry's value is where a table says; 0: values lie as entries do
// ROW, COLUMN  types of the indices: ushort where they fit, or int
#if !defined(REAL) || !defined(TILE) || !defined(GROUP) || !defined(SLOTS)           \
    || !defined(ROW) || !defined(COLUMN)
#error "sparse_outer.cl needs the macros that its head names"
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define VEC JOIN(REAL, 4)
#define LANES (TILE / 4)
#define PITCH (GROUP + 1)  // neither writing nor reading meets a bank twice

// rows, columns, slots [entries]   slots: any int where SLOTS is 0
// ds [tiles][n_out + 1][TILE]   x [tiles][n_in + 1][TILE], turned
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
        __global const VEC *d = (__global const VEC *)ds + (n_out + 1) * LANES * (size_t)tile;
        __global const VEC *v = (__global const VEC *)x + (n_in + 1) * LANES * (size_t)tile;
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

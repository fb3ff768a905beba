// A team of work-items computes one neuron, for TILE samples at once.
//
// The GROUP work-items of a group form GROUP / ITEMS teams. Work-item k of a team reads
// the vectors k, k + ITEMS, … of the neuron's row, so that loads are coalesced. A tree
// reduction in local memory adds up the team's partial sums:
//
//   row of A   | v0 | v1 | v2 | v3 | v4 | v5 | …     ITEMS 4
//   work-item     0    1    2    3    0    1
//
//   partial      p0   p1   p2   p3
//   stride 2     p0 + p2   p1 + p3
//   stride 1     p0 + p1 -> work-item 0
//
// ITEMS   work-items per neuron: a power of two, 1 to GROUP; usually 32 for one sample
// GROUP   work-items of a group: a multiple of ITEMS; usually 256
// TILE    samples per work-item, each with its own accumulator; a weight is loaded once
//         for all: 1 to 16
// UNROLL  vectors of weights loaded before the first is used, to keep enough loads in
//         flight: 1 to 8
// REAL, X_SPACE, X_PADDED  as in activations.h and vectors.h, which are included before
#if !defined(ITEMS) || !defined(GROUP) || !defined(TILE) || !defined(UNROLL)
#error "team.h needs ITEMS, GROUP, TILE and UNROLL"
#endif

#define TEAMS (GROUP / ITEMS)
#define PARTIALS (ITEMS > 1 ? TILE * GROUP : 1)  // partial sums in local memory

// sums[t] = this work-item's partial sum of  row . x[t]
//
// row      [vectors]      a row of A; not read if `vectors` is 0
// x        [TILE, ldx]    of which `samples` rows exist; row 0 replaces the others
// n_in     values in a row of x
// item     the work-item's number in its team
static inline void team_multiply(REAL *sums, __global const VEC *row, const int vectors,
                                 X_SPACE const REAL *x, const int ldx,
                                 const int samples, const int n_in, const int item)
{
    // Not an initialiser: PoCL 3.0 runs it only once if a loop surrounds this.
    for (int t = 0; t < TILE; ++t) sums[t] = 0;
    for (int first = item; first < vectors; first += UNROLL * ITEMS) {
        VEC a[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            a[u] = first + u * ITEMS < vectors ? row[first + u * ITEMS] : (VEC)(0);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int v = first + u * ITEMS;
            if (v < vectors) {
#pragma unroll
                for (int t = 0; t < TILE; ++t) {
                    const VEC b =
                        four_of(x + (size_t)(t < samples ? t : 0) * ldx, v, n_in);
                    ADD_PRODUCTS(sums[t], a[u], b)
                }
            }
        }
    }
}

// Reduce sums[t] over each team; work-item 0 of the team has the results. Every
// work-item of the group must call this.
//
// partial  [PARTIALS]  local memory
static inline void team_add(REAL *sums, __local REAL *partial)
{
#if ITEMS > 1
    const int id = get_local_id(0), item = id % ITEMS;
    barrier(CLK_LOCAL_MEM_FENCE);  // the previous partial sums have been read
#pragma unroll
    for (int t = 0; t < TILE; ++t) partial[t * GROUP + id] = sums[t];
    for (int stride = ITEMS / 2; stride > 0; stride /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < stride) {
#pragma unroll
            for (int t = 0; t < TILE; ++t) {
                sums[t] += partial[t * GROUP + id + stride];
                partial[t * GROUP + id] = sums[t];
            }
        }
    }
#endif
}

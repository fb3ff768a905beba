// sparse_team: CSR times x, one team of work-items per row, on GPUs.
//
// Bell and Garland, "Efficient sparse matrix-vector multiplication on CUDA" (2008),
// give a row to a warp. Here the team's size is free, and entries are read four at a
// time. Gathers stay local: for one sample x is first copied to local memory, whose
// banks serve scattered reads many times as fast as cache lines do; for a tile of
// samples x is transposed before (transpose.cl), so that an entry reads one row of TILE
// values.
//
//   row of entries   | 0 1 2 3 | 4 5 6 7 | 8 … |     read as aligned vectors; entries
//   team, PARTS 2      part 0    part 1   part 0     of other rows are masked
//
//   a part is LANES work-items, each with 4 of the tile's samples (TILE 1: one)
//
// Teams of a group advance along their rows together: where columns ascend, they read
// the same part of x at about the same time.
//
// REAL    float or double
// TILE    samples of a tile: 1, or 4 and more
// PARTS   parts of a row (slice-k): a power of two
// ROWS    rows of a group
// GROUP   work-items of a group
// UNROLL  vectors of entries in flight
// STAGES  stages in which x is copied to local memory; 0: x is not copied (TILE 1 only)
// STAGE   values of x of a stage
// WIDTH_X values of x
// SLOTS   1: values are gathered through the table `slots`; 0: they lie in CSR order
// COLUMN  type of the column indices: ushort where they fit, or int
// L2_PERCENT  percent of the entries that stay in the L2 cache between launches
//         (l2_policy.h, with REAL float and SLOTS 0); 0: the cache decides
// and the macros of sparse.h
#define WIDTH 1
#include "include/activations.h"
#include "sparse/sparse.h"
#if !defined(TILE) || !defined(PARTS) || !defined(ROWS) || !defined(GROUP)           \
    || !defined(UNROLL) || !defined(STAGES) || !defined(STAGE)                       \
    || !defined(WIDTH_X) || !defined(SLOTS) || !defined(COLUMN)                      \
    || !defined(L2_PERCENT)
#error "sparse_team.cl needs the shape of its tiles, UNROLL, SLOTS, COLUMN, L2_PERCENT"
#endif

#define VEC JOIN(REAL, 4)
#if TILE == 1
#define LANES 1
#define ACC REAL
#define PITCH (PARTS + 1)  // odd: no bank conflicts
#else
#define LANES (TILE / 4)
#define ACC VEC
#define PITCH (PARTS * TILE + 4)
#endif
#if L2_PERCENT
#include "include/l2_policy.h"
#define LOAD(type, p) JOIN(load_, type)((__global const type *)(p), policy)
#else
#define LOAD(type, p) *(__global const type *)(p)
#endif
#define COLUMNS JOIN(COLUMN, 4)

#define ITEMS (PARTS * LANES)
#define TEAMS (GROUP / ITEMS)

#if STAGES > 1
#define SEGMENTS STAGES  // of a row: the entries of one stage each
#define X_INDEX(k) (e + k >= first && e + k < end ? c[u].s##k - stage * STAGE : 0)
#else
#define SEGMENTS 1
#define X_INDEX(k) c[u].s##k
#endif
#if TILE == 1
// Entries of other rows are masked by selection: zero times a NaN of x would be NaN.
#define ADD(k)                                                                       \
    sum += e + k >= first && e + k < end ? v[u].s##k * x[X_INDEX(k)] : (REAL)0;
#else
#define ADD(k)                                                                       \
    {                                                                                \
        const bool live = e + k >= first && e + k < end;                             \
        const int column = live ? c[u].s##k : WIDTH_X;                               \
        sum += (live ? v[u].s##k : (REAL)0)                                          \
               * ((__global const VEC *)x)[(size_t)column * LANES + lane];           \
    }
#endif

// sums[b, r] (+)= sum over the entries of row r:  value * x[b, column]
//
// parameters [..]           values at `weights`, biases at `bias`
// starts     [n_out * SEGMENTS + 1]   in stage s row r has entries
//                           starts[r * SEGMENTS + s] … starts[r * SEGMENTS + s + 1] - 1;
//                           0 first, sorted, the number of entries last
// slots, columns [entries, padded with zeros to vectors]   columns are below WIDTH_X,
//                           slots below the storage's size, each once; any int if SLOTS
//                           is 0
// source     [batch, ldx]   x; or transposed [tiles][WIDTH_X + 1][TILE]
// sums [batch, lds]   y [batch, ldy]   as in sparse.h
// index map: work-group: a tile of samples, then a block of ROWS rows, which varies faster;
//            in one dimension: others may be limited to 65535 groups
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void sparse_team(__global const REAL *parameters, const int weights, const int bias,
                 __global const int *starts, __global const int *slots,
                 __global const COLUMN *columns, __global const REAL *source,
                 const int ldx, __global REAL *sums, const int lds, __global REAL *y,
                 const int ldy, const int n_out, const int batch)
{
    __local REAL partial[ROWS * PITCH] __attribute__((aligned(32)));
    const int id = get_local_id(0);
    const int part = id % ITEMS / LANES, lane = id % LANES;
    const uint group = get_group_id(0), blocks = ((uint)n_out + ROWS - 1) / ROWS;
    const int block = group % blocks * ROWS;
    const size_t sample = (size_t)(group / blocks) * TILE;
#if STAGES
    __local REAL x[STAGE];
#elif TILE == 1
    __global const REAL *x = source + sample * ldx;
#else
    __global const REAL *x = source + sample * (WIDTH_X + 1);
#endif
    __global const REAL *values = parameters + weights;
#if L2_PERCENT
    const ulong policy = create_l2_policy(L2_PERCENT);
#endif
    for (int stage = 0; stage < SEGMENTS; ++stage) {
#if STAGES
        const int values_of_x = min(STAGE, WIDTH_X - stage * STAGE);
        barrier(CLK_LOCAL_MEM_FENCE);  // the stage before has been read
        for (int i = id; i < values_of_x; i += GROUP)
            x[i] = source[sample * ldx + stage * STAGE + i];
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
        for (int r = id / ITEMS; r < ROWS; r += TEAMS) {
            const int row = block + r;
            const int first = row < n_out ? starts[row * SEGMENTS + stage] : 0;
            const int end = row < n_out ? starts[row * SEGMENTS + stage + 1] : 0;
            const int last = (end + 3) / 4;
            ACC sum = 0;
            for (int vector = first / 4 + part; vector < last;
                 vector += UNROLL * PARTS) {
                VEC v[UNROLL];
                int4 c[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    const int i = min(vector + u * PARTS, last - 1);
#if SLOTS
                    const int4 s = ((__global const int4 *)slots)[i];
                    v[u] = (VEC)(values[s.s0], values[s.s1], values[s.s2],
                                 values[s.s3]);
#else
                    v[u] = LOAD(VEC, values + 4 * i);
#endif
                    c[u] = convert_int4(LOAD(COLUMNS, columns + 4 * i));
                }
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    const int e = 4 * (vector + u * PARTS);
                    ADD(0) ADD(1) ADD(2) ADD(3)
                }
            }
#if TILE == 1
            partial[r * PITCH + part] = stage ? partial[r * PITCH + part] + sum : sum;
#else
            ((__local VEC *)partial)[(r * PITCH + part * TILE) / 4 + lane] = sum;
#endif
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < ROWS * TILE; i += GROUP) {
        const int r = i % ROWS, s = i / ROWS, row = block + r;
        if (row < n_out && sample + s < batch) {
            REAL sum = 0;
            for (int p = 0; p < PARTS; ++p) sum += partial[r * PITCH + p * TILE + s];
            epilogue(sum, sums + row, lds, y + row, ldy,
                     HAS_BIAS ? parameters[bias + row] : (REAL)0, sample + s);
        }
    }
}

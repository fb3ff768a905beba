// pack: a matrix of rows of terms, split into halves in the order of wgmma's operands
// (fp16_split.h).
//
// PANEL_ROWS     rows of a panel: a multiple of 8
// PACKERS        work-items that pack 8 rows: a power of two, 64 to 1024
// HELD           8 terms each that a work-item holds in registers between its two passes
// TRANSPOSED     1: rows of the matrix are columns of the source; 0: rows
// SOURCE_PADDED  1: rows of the source start on a vector of 4 and end in zeros; 0: not
// TOTALS         1: also sum the rows; 0: not
// MATRICES       matrices that the launch packs: 1 to 4
// GATHERS        1: rows of the first are a batch, gathered from a data set; 0: not
// SHUFFLED       with GATHERS, as in order.h
// SPLITS, PTX    as in fp16_split.h
#include "tensor_core/fp16_split.h"
#include "tensor_core/core_matrices.h"
#if !defined(PANEL_ROWS) || !defined(PACKERS) || !defined(HELD) || !defined(TRANSPOSED) \
    || !defined(SOURCE_PADDED) || !defined(TOTALS) || !defined(MATRICES)              \
    || !defined(GATHERS)
#error "pack_tiles.cl needs PANEL_ROWS, PACKERS, HELD, TRANSPOSED, SOURCE_PADDED, TOTALS, \
MATRICES and GATHERS"
#endif
#define ACROSS (PACKERS / CORE)     // rows of core matrices that are packed at once
#define ROW(group) ((group) * CORE + (int)get_local_id(0) % CORE)  // of a work-item
// The first term of a work-item's row.
#define START(source, group, transposed, ld) \
    ((source) + (size_t)ROW(group) * ((transposed) ? 1 : (ld)))

#if GATHERS
#define REAL float
#include "include/order.h"
#define AND_GATHER_PARAMETERS , GATHER_PARAMETERS
#define FIRST(group) (xs + (size_t)ORDERED_ROW(ROW(group)) * ldxs)
#define COPY(group) (x + (size_t)ROW(group) * ldx)
// A work-item's terms of a row: to[j] = from[j].
static inline void copy_terms(__global const float *from, __global float *to,
                              const int width)
{
    for (int j = get_local_id(0) / CORE; j < width; j += ACROSS) to[j] = from[j];
}
#else
#define AND_GATHER_PARAMETERS
#define FIRST(group) START(source + offset, group, TRANSPOSED, ld)
#define COPY(group) 0
#endif

// Pack 8 rows, of which a work-item's starts at source, and store it from `copy` on, too,
// unless that is 0; transposed, padded, panel and with_totals are constants.
static inline void pack_rows(__local uint *largest, __local float *sums,
                             const int group, const int transposed, const int padded,
                             const int panel, const int with_totals,
                             __global const float *source, const int ld, const int rows,
                             const int terms, __global uint4 *packed,
                             __global float *inverse, const int blocks,
                             __global float *totals, __global float *copy)
{
    const uint id = get_local_id(0);
    const int row = ROW(group), first = id / CORE;
    const int core_rows = 2 * blocks, stride = transposed ? ld : 1;
    const int live_terms = row < rows ? terms : 0;
    float8 held[HELD];
    uint most = 0;
    float total = 0;
UNROLLED
    for (int n = 0; n < HELD; ++n)
        held[n] = load_terms(source, CORE * (first + n * ACROSS), stride, live_terms,
                             padded);
UNROLLED
    for (int n = 0; n < HELD; ++n) {
        most = max(most, max_magnitude(held[n]));
        total += sum_of(held[n]);
        if (copy) store_terms(copy, CORE * (first + n * ACROSS), live_terms, padded, held[n]);
    }
    for (int p = first + HELD * ACROSS; p < core_rows; p += ACROSS) {
        const float8 v = load_terms(source, CORE * p, stride, live_terms, padded);
        most = max(most, max_magnitude(v));
        total += sum_of(v);
        if (copy) store_terms(copy, CORE * p, live_terms, padded, v);
    }
    largest[id] = most;
    if (with_totals) sums[id] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int left = PACKERS / 2; left >= CORE; left /= 2) {
        if (id < left) {
            largest[id] = max(largest[id], largest[id + left]);
            if (with_totals) sums[id] += sums[id + left];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float2 scales = scales_of(largest[id % CORE]);
    if (id < CORE) inverse[row] = scales.s1;
    packed += (size_t)(row / panel) * core_rows * SPLITS * panel + row % panel / 8 * 16
              + row % 8;
#define STORE(p, v)                                                                      \
    store_core_row(packed + (size_t)((p) / 2) * SPLITS * 2 * panel + (p) % 2 * 8,        \
                   (v) * scales.s0, panel)
UNROLLED
    for (int n = 0; n < HELD; ++n)
        if (first + n * ACROSS < core_rows) STORE(first + n * ACROSS, held[n]);
    for (int p = first + HELD * ACROSS; p < core_rows; p += ACROSS)
        STORE(p, load_terms(source, CORE * p, stride, live_terms, padded));
    if (with_totals && id < CORE && row < rows) totals[row] = sums[id];
}

// The arguments of a further matrix, with X for each of them, the last one first.
#define ARGUMENTS(n)                                                                     \
    , const int groups##n, __global const float *source##n, const int offset##n,         \
    const int ld##n, const int rows##n, const int terms##n, __global uint4 *packed##n,   \
    const int at##n, __global float *inverse##n, const int inverse_at##n,                \
    const int blocks##n
#if MATRICES == 1
#define ALL_ARGUMENTS
#define FURTHER(X)
#elif MATRICES == 2
#define ALL_ARGUMENTS ARGUMENTS(_2)
#define FURTHER(X) X(_2)
#elif MATRICES == 3
#define ALL_ARGUMENTS ARGUMENTS(_2) ARGUMENTS(_3)
#define FURTHER(X) X(_3) X(_2)
#else
#define ALL_ARGUMENTS ARGUMENTS(_2) ARGUMENTS(_3) ARGUMENTS(_4)
#define FURTHER(X) X(_4) X(_3) X(_2)
#endif

// packed  [panels, blocks, SPLITS, PANEL_ROWS / 8, 2, 8] of 4 words, 8 halves, from `at`
//         on: `rows` rows of `terms` values
// inverse [PANEL_ROWS * panels] from `inverse_at` on: the inverse scales of the rows
// totals  [rows] from `totals_at` on, with TOTALS: the rows' sums
// source  term k of row r at offset + r * ld + k; if TRANSPOSED at offset + k * ld + r
// xs …    with GATHERS: the batch's arrays, and the data set's (order.h); `source` is x
// …_2     and so on: further matrices, of PANEL_ROWS_2, TRANSPOSED_2, SOURCE_PADDED_2;
//         their groups begin at `groups_2`
// index map: work-group: 8 rows; work-item: a row, and every ACROSS-th 8 terms of it
__kernel __attribute__((reqd_work_group_size(PACKERS, 1, 1)))
void pack(__global const float *source, const int offset, const int ld, const int rows,
          const int terms, __global uint4 *packed, const int at,
          __global float *inverse, const int inverse_at, const int blocks,
          __global float *totals, const int totals_at AND_GATHER_PARAMETERS ALL_ARGUMENTS)
{
    __local uint largest[PACKERS];
    __local float sums[TOTALS ? PACKERS : 1];
    const int group = get_group_id(0);
#if PTX < 80
    // One call: PoCL 3.0's threads mix up groups with barriers in different branches.
    int begin = 0, transposed = TRANSPOSED, panel = PANEL_ROWS, with_totals = TOTALS;
    int padded = SOURCE_PADDED, stride = ld, all_rows = rows, all_terms = terms;
    int all_blocks = blocks;
    __global const float *from = FIRST(group);
    __global float *copy = COPY(group);
    __global uint4 *to = packed + at;
    __global float *scales = inverse + inverse_at;
#define SELECT(n)                                                                        \
    if (begin == 0 && group >= groups##n) {                                              \
        begin = groups##n, transposed = TRANSPOSED##n, panel = PANEL_ROWS##n;            \
        with_totals = 0, padded = SOURCE_PADDED##n, stride = ld##n, all_rows = rows##n;  \
        all_terms = terms##n, all_blocks = blocks##n, copy = 0;                          \
        from = START(source##n + offset##n, group - begin, transposed, stride);          \
        to = packed##n + at##n, scales = inverse##n + inverse_at##n;                     \
    }
    FURTHER(SELECT)
    pack_rows(largest, sums, group - begin, transposed, !transposed && padded, panel,
              with_totals, from, stride, all_rows, all_terms, to, scales, all_blocks,
              totals + totals_at, copy);
#else
#define PACK(n)                                                                          \
    if (group >= groups##n) {                                                            \
        const int own = group - groups##n;                                               \
        pack_rows(largest, sums, own, TRANSPOSED##n, !TRANSPOSED##n && SOURCE_PADDED##n, \
                  PANEL_ROWS##n, 0,                                                      \
                  START(source##n + offset##n, own, TRANSPOSED##n, ld##n), ld##n,        \
                  rows##n, terms##n, packed##n + at##n, inverse##n + inverse_at##n,      \
                  blocks##n, totals, 0);                                                 \
        return;                                                                          \
    }
    FURTHER(PACK)
    pack_rows(largest, sums, group, TRANSPOSED, !TRANSPOSED && SOURCE_PADDED, PANEL_ROWS,
              TOTALS, FIRST(group), ld, rows, terms, packed + at, inverse + inverse_at,
              blocks, totals + totals_at, COPY(group));
#endif
#if GATHERS
    if (ROW(group) >= batch) return;
    const size_t row = ROW(group), ordered = ORDERED_ROW(row);
    copy_terms(ts + ordered * ldts, t + row * ldt, t_width);
    copy_terms(ws + ordered * ldws, w + row * ldw, w_width);
#endif
}

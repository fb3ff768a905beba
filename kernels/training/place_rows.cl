// place_rows: samples from host memory to their places in a device's block, for CPU
// cores. One pass over the bytes reads, checks, converts and shuffles them.
//
//   host     row 0 | row 1 | row 2 | ...       read in their order, as a file has them
//                \      |  \
//   block   ... row 2 | row 0 | ... row 1      stored in the random one
//
// Columns, as those of Arrow, are read by tiles of rows and columns, each a cache line of
// float: a line that is read twice may have left the cache meanwhile, where columns lie
// a power of two apart.
//
// Rows that are stored at random cost less than rows that are read so: a store waits for
// nothing. Rows of whole cache lines are stored past the caches, which would read each
// line first (nontemporal stores).
//
// REAL            float or double: the block's
// FROM_X, FROM_T  types of the host's inputs and targets: char … ulong, float, double
// LINES           1: rows of x are whole cache lines of the block; 0: they are not
// COLUMNS         1: numbers of a column of the host's x are adjacent; 0: those of a row
// TILE            16: rows and columns that are read at a time, of columns
#if !defined(REAL) || !defined(FROM_X) || !defined(FROM_T) || !defined(LINES) \
    || !defined(COLUMNS) || !defined(TILE)
#error "place_rows.cl needs REAL, FROM_X, FROM_T, LINES, COLUMNS and TILE"
#endif
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define JOIN_TEXT(a, b) a##b
#define JOIN(a, b) JOIN_TEXT(a, b)
#define REAL8 JOIN(REAL, 8)
#define CONVERT JOIN(convert_, REAL)
#define CONVERT8 JOIN(convert_, REAL8)

#define STORE_CACHED(v, to) vstore8(v, 0, to)
#define STORE_LINES STORE_CACHED
#if LINES && defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#undef STORE_LINES
#define STORE_LINES(v, to) __builtin_nontemporal_store(v, (__global REAL8 *)(to))
#endif
#endif

// NAME(from, width, to): to[i] = from[i]; returns zeros, or NaN where one is not finite.
#define DEFINE_PLACE(NAME, FROM, STORE)                                              \
    static inline REAL8 NAME(__global const FROM *from, const int width,             \
                             __global REAL *to)                                      \
    {                                                                                \
        REAL8 faults = (REAL8)(0);                                                   \
        int i = 0;                                                                   \
        for (; i + 8 <= width; i += 8) {                                             \
            const REAL8 v = CONVERT8(vload8(0, from + i));                           \
            faults += v - v;                                                         \
            STORE(v, to + i);                                                        \
        }                                                                            \
        for (; i < width; ++i) {                                                     \
            const REAL v = CONVERT(from[i]);                                         \
            faults.s0 += v - v;                                                      \
            to[i] = v;                                                               \
        }                                                                            \
        return faults;                                                               \
    }
DEFINE_PLACE(place_t, FROM_T, STORE_CACHED)

#if COLUMNS
#define HALF (TILE / 2)  // rows and columns of a transpose in registers
#if HALF != 8
#error "place_rows.cl transposes vectors of 8: TILE must be 16"
#endif

// v[i].sj = v[j].si, by exchanges at distances of 4, 2 and 1.
#define EXCHANGE(I, J, UPPER, LOWER)                                                 \
    {                                                                                \
        const REAL8 a = v[I], b = v[J];                                              \
        v[I] = (REAL8)UPPER;                                                         \
        v[J] = (REAL8)LOWER;                                                         \
    }
#define EXCHANGE4(I) EXCHANGE(I, I + 4, (a.lo, b.lo), (a.hi, b.hi))
#define EXCHANGE2(I)                                                                 \
    EXCHANGE(I, I + 2, (a.s01, b.s01, a.s45, b.s45), (a.s23, b.s23, a.s67, b.s67))
#define EXCHANGE1(I)                                                                 \
    EXCHANGE(I, I + 1, (a.s0, b.s0, a.s2, b.s2, a.s4, b.s4, a.s6, b.s6),             \
             (a.s1, b.s1, a.s3, b.s3, a.s5, b.s5, a.s7, b.s7))
static inline void transpose(REAL8 *v)
{
    EXCHANGE4(0) EXCHANGE4(1) EXCHANGE4(2) EXCHANGE4(3)
    EXCHANGE2(0) EXCHANGE2(1) EXCHANGE2(4) EXCHANGE2(5)
    EXCHANGE1(0) EXCHANGE1(2) EXCHANGE1(4) EXCHANGE1(6)
}

// to[places[i] * stride + j] = from[i + j * pitch] of a tile; returns as place_t does.
static inline REAL8 place_tile(__global const FROM_X *from, const size_t pitch,
                               __global REAL *to, const size_t stride,
                               __global const int *places)
{
    REAL8 v[2][TILE], faults = (REAL8)(0);  // rows 0 to 7 and 8 to 15 of each column
    #pragma unroll
    for (int column = 0; column < TILE; ++column)
        #pragma unroll
        for (int half_ = 0; half_ < 2; ++half_) {
            v[half_][column] = CONVERT8(vload8(half_, from + column * pitch));
            faults += v[half_][column] - v[half_][column];
        }
    #pragma unroll
    for (int half_ = 0; half_ < 2; ++half_) {
        transpose(v[half_]);
        transpose(v[half_] + HALF);
        #pragma unroll
        for (int row = 0; row < HALF; ++row) {
            __global REAL *const one = to + places[half_ * HALF + row] * stride;
            STORE_LINES(v[half_][row], one);
            STORE_LINES(v[half_][HALF + row], one + HALF);
        }
    }
    return faults;
}

// Rows `first` to `end` of x, in columns of x_pitch.
static inline REAL8 place_x(__global const FROM_X *from, const int pitch,
                            const int width, __global REAL *to, const int stride,
                            __global const int *places, const int first, const int end)
{
    REAL8 faults = (REAL8)(0);
    const int rows = first + (end - first) / TILE * TILE, columns = width / TILE * TILE;
    for (int column = 0; column < columns; column += TILE)
        for (int row = first; row < rows; row += TILE)
            faults += place_tile(from + row + (size_t)column * pitch, pitch, to + column,
                                 stride, places + row);
    for (int row = first; row < end; ++row)
        for (int column = row < rows ? columns : 0; column < width; ++column) {
            const REAL v = CONVERT(from[row + (size_t)column * pitch]);
            faults.s0 += v - v;
            to[(size_t)places[row] * stride + column] = v;
        }
    return faults;
}
#else
DEFINE_PLACE(place_row, FROM_X, STORE_LINES)

// Rows `first` to `end` of x, of x_pitch.
static inline REAL8 place_x(__global const FROM_X *from, const int pitch,
                            const int width, __global REAL *to, const int stride,
                            __global const int *places, const int first, const int end)
{
    REAL8 faults = (REAL8)(0);
    for (int row = first; row < end; ++row)
        faults += place_row(from + (size_t)row * pitch, width,
                            to + (size_t)places[row] * stride);
    return faults;
}
#endif

// x_from [n, x_width]  the host's, in rows, or columns, of x_pitch
// t_from [n, t_width]  the host's, in rows of t_pitch
// x [block, x_stride], t [block, t_stride]  the block's; padding stays as it is
// places [n]   the row of each of the host's in the block, which begins at row `to`:
//              distinct rows from 0 to block - to - 1
// flag [1]     set where a number is not finite
// rows         of a work-item: some that a core's cache holds, as x and t may lie in
//              the same cache lines
// index map: work-item i takes rows i * rows … of the host
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
place_rows(__global const FROM_X *x_from, const int x_pitch, const int x_width,
           __global const FROM_T *t_from, const int t_pitch, const int t_width,
           __global REAL *x, const int x_stride, __global REAL *t, const int t_stride,
           __global const int *places, const int to, const int n, const int rows,
           volatile __global int *flag)
{
    const int first = get_global_id(0) * rows, end = min(first + rows, n);
    REAL8 faults = place_x(x_from, x_pitch, x_width, x + (size_t)to * x_stride,
                           x_stride, places, first, end);
    for (int row = first; row < end; ++row)
        faults += place_t(t_from + (size_t)row * t_pitch, t_width,
                          t + (size_t)(to + places[row]) * t_stride);
    atomic_or(flag, any(isnan(faults)));  // also ends the stores past the caches (x86)
}

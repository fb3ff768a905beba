// place_rows: samples from host memory to their places in a device's block, for CPU
// cores. One pass over the bytes reads, checks, converts and shuffles them.
//
//   host     row 0 | row 1 | row 2 | ...       read in their order, as a file has them
//                \      |  \
//   block   ... row 2 | row 0 | ... row 1      stored in the random one
//
// Rows that are stored at random cost less than rows that are read so: a store waits for
// nothing. Rows of whole cache lines are stored past the caches, which would read each
// line first (nontemporal stores).
//
// REAL            float or double: the block's
// FROM_X, FROM_T  types of the host's inputs and targets: char … ulong, float, double
// LINES           1: rows of x are whole cache lines of the block; 0: they are not
#if !defined(REAL) || !defined(FROM_X) || !defined(FROM_T) || !defined(LINES)
#error "place_rows.cl needs REAL, FROM_X, FROM_T and LINES"
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
DEFINE_PLACE(place_x, FROM_X, STORE_LINES)
DEFINE_PLACE(place_t, FROM_T, STORE_CACHED)

// x_from [n, x_width], t_from [n, t_width]  the host's, in rows of x_pitch and t_pitch
// x [block, x_stride], t [block, t_stride]  the block's; padding stays as it is
// places [n]   the row of each of the host's in the block, which begins at row `to`
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
    REAL8 faults = (REAL8)(0);
    for (int row = first; row < end; ++row)
        faults += place_x(x_from + (size_t)row * x_pitch, x_width,
                          x + (size_t)(to + places[row]) * x_stride);
    for (int row = first; row < end; ++row)
        faults += place_t(t_from + (size_t)row * t_pitch, t_width,
                          t + (size_t)(to + places[row]) * t_stride);
    atomic_or(flag, any(isnan(faults)));  // also ends the stores past the caches (x86)
}

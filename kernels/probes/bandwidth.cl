// bandwidth: reads memory and does nothing else, for the floors of the benchmarks.
//
// REAL    float or double
// WIDTH   numbers a load: 4 where work-items stand beside each other, 8 where each has
//         a core's vector registers for itself
// UNROLL  loads asked for before the first is used: 8
#if !defined(REAL) || !defined(WIDTH) || !defined(UNROLL)
#error "bandwidth.cl needs REAL, WIDTH and UNROLL"
#endif
#define JOIN_TEXT(a, b) a##b
#define JOIN(a, b) JOIN_TEXT(a, b)
#define VEC JOIN(REAL, WIDTH)

// The sum of data[0], data[step], … data[(count - 1) step], `passes` times over; count
// is a multiple of UNROLL.
inline VEC read(__global const VEC *data, const int count, const int step,
                const int passes)
{
    VEC sum[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) sum[u] = (VEC)(0);
    for (int pass = 0; pass < passes; ++pass)
        for (int k = 0; k < count; k += UNROLL) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) sum[u] += data[(size_t)(k + u) * step];
        }
#pragma unroll
    for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];
    return sum[0];
}

// Neighbours read neighbouring vectors, as GPUs like it.
//
// data  [count * items]   items: the launch's work-items
// sums  [items]
// index map: work-item i reads i, i + items, …
__kernel void read_beside(__global const VEC *data, const int count,
                          __global VEC *sums)
{
    const int i = get_global_id(0);
    sums[i] = read(data + i, count, get_global_size(0), 1);
}

// Each core reads a chunk of its own again and again, so that a small array is read
// from the cache that it fits in.
//
// data     [readers, count]
// sums     [readers]
// tickets  [1], 0 at first
// index map: groups of one work-item, many more than readers; the first to start on
// each core take the tickets and read for long, the others find none left. (A runtime
// may give a core several groups to run one after the other: with one group a reader,
// one core would do all.)
__kernel void read_chunks(__global const VEC *data, const int count, const int passes,
                          const int readers, __global VEC *sums,
                          volatile __global int *tickets)
{
    const int reader = atomic_inc(tickets);
    if (reader < readers)
        sums[reader] = read(data + (size_t)reader * count, count, 1, passes);
}

// Each work-item reads a share of its own, once, as cores like it.
//
// data  [items, count]   items: the launch's work-items
// sums  [items]
__kernel void read_shares(__global const VEC *data, const int count,
                          __global VEC *sums)
{
    const int i = get_global_id(0);
    sums[i] = read(data + (size_t)i * count, count, 1, 1);
}

// to[i] = from[i]
// index map: work-item i
__kernel void copy(__global const VEC *from, __global VEC *to)
{
    to[get_global_id(0)] = from[get_global_id(0)];
}

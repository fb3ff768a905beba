// bandwidth: memory reads and copies alone, for the record of rates and the roofline.
//
// REAL    float or double
// WIDTH   elements of a load: 4 on GPUs, 8 on CPU cores
// UNROLL  loads in flight: 8
// PTX     as given by the device
#if !defined(REAL) || !defined(WIDTH) || !defined(UNROLL) || !defined(PTX)
#error "bandwidth.cl needs REAL, WIDTH, UNROLL and PTX"
#endif
#define JOIN_TEXT(a, b) a##b
#define JOIN(a, b) JOIN_TEXT(a, b)
#define VEC JOIN(REAL, WIDTH)

// The sum of data[0], data[step], … data[(count - 1) * step], `passes` times; count is
// a multiple of UNROLL.
static inline VEC read(__global const VEC *data, const int count, const int step,
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

// Coalesced reads, for GPUs.
//
// data  [count * items]   items: the launch's work-items
// sums  [items]
// index map: work-item i reads i, i + items, …
__kernel void read_coalesced(__global const VEC *data, const int count,
                          __global VEC *sums)
{
    const int i = get_global_id(0);
    sums[i] = read(data + i, count, get_global_size(0), 1);
}

// A load past a compute unit's own cache, where there is a way to say so.
static inline VEC load_shared(__global const VEC *from)
{
#if PTX >= 70 && WIDTH == 4
    VEC found;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(found.s0), "=f"(found.s1), "=f"(found.s2), "=f"(found.s3)
                 : "l"(from));
    return found;
#else
    return *from;
#endif
}

// Coalesced reads of an array again and again, for GPUs: from the last cache that holds
// it, and not from a compute unit's own, as the rounds do not divide the array.
//
// data  [count]   more than the launch's work-items
// sums  [items]
// index map: work-item i reads i, i + items, …, modulo count; `loads` in all, a multiple
// of UNROLL
__kernel void read_around(__global const VEC *data, const int count, const int loads,
                          __global VEC *sums)
{
    const int items = get_global_size(0);
    int at = get_global_id(0);
    VEC sum[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) sum[u] = (VEC)(0);
    for (int k = 0; k < loads; k += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            sum[u] += load_shared(data + at);
            at += items;
            at -= at < count ? 0 : count;
        }
    }
#pragma unroll
    for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];
    sums[get_global_id(0)] = sum[0];
}

// Each core reads its own chunk repeatedly, so that a small array is read from the
// cache that it fits in.
//
// data     [readers, count]
// sums     [readers]
// tickets  [1], 0 at first
// index map: groups of one work-item, many more than readers. The first group on each
// core takes a ticket and reads for long; the others find none left. (A runtime may run
// several groups in order on one core: with one group per reader, one core could do all
// the work.)
__kernel void read_chunks(__global const VEC *data, const int count, const int passes,
                          const int readers, __global VEC *sums,
                          volatile __global int *tickets)
{
    const int reader = atomic_inc(tickets);
    if (reader < readers)
        sums[reader] = read(data + (size_t)reader * count, count, 1, passes);
}

// Each work-item reads its own contiguous share once, for CPU cores.
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

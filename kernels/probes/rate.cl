// rate: multiplies and adds in registers, for the floors of the benchmarks.
//
// REAL    float or double
// WIDTH   numbers a vector: 4 where work-items stand beside each other, 8 where each
//         has a core's vector registers for itself
// CHAINS  independent sums a work-item, enough to hide an operation's latency in the
//         registers there are: 4 to 12
#if !defined(REAL) || !defined(WIDTH) || !defined(CHAINS)
#error "rate.cl needs REAL, WIDTH and CHAINS"
#endif
#define JOIN_TEXT(a, b) a##b
#define JOIN(a, b) JOIN_TEXT(a, b)
#define VEC JOIN(REAL, WIDTH)

// 2 * WIDTH * CHAINS * steps operations a work-item.
//
// sums  [work-items]
__kernel void multiply_add(const REAL factor, const REAL term, const int steps,
                           __global VEC *sums)
{
    VEC sum[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum[c] = (VEC)((REAL)(c + get_global_id(0)));
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) sum[c] = sum[c] * factor + term;
    }
#pragma unroll
    for (int c = 1; c < CHAINS; ++c) sum[0] += sum[c];
    sums[get_global_id(0)] = sum[0];
}

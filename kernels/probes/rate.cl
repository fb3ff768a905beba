// rate: multiply-adds in registers, for the record of rates and the roofline.
//
// REAL    float or double
// WIDTH   elements of a vector: 4 on GPUs, 8 on CPU cores
// CHAINS  independent sums of a work-item, which hide an operation's latency and fit in
//         registers: 4 to 12
#if !defined(REAL) || !defined(WIDTH) || !defined(CHAINS)
#error "rate.cl needs REAL, WIDTH and CHAINS"
#endif
#define JOIN_TEXT(a, b) a##b
#define JOIN(a, b) JOIN_TEXT(a, b)
#define VEC JOIN(REAL, WIDTH)

// 2 * WIDTH * CHAINS * steps operations per work-item.
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

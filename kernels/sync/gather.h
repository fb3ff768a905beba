// Shared by kernels whose groups stay resident through all layers: prefetched weights,
// published values (ll_protocol.h, included before) gathered into local memory, and
// reductions within a team.
//
// GROUP  work-items of a group
// PTX    as given by the device
#if !defined(GROUP) || !defined(PTX)
#error "gather.h needs GROUP and PTX"
#endif
#include "include/warp.h"

// A vector of weights; zeros unless `valid`.
static inline float4 weights_at(__global const float4 *from, const bool valid)
{
#if PTX >= 70
    float4 w = (float4)0;
    // Predicated: a branch would keep loads from being issued together.
    asm volatile("{.reg .pred valid; setp.ne.s32 valid, %5, 0;"
                 "@valid ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];}"
                 : "+f"(w.x), "+f"(w.y), "+f"(w.z), "+f"(w.w)
                 : "l"(from), "r"((int)valid));
    return w;
#else
    return valid ? *from : (float4)0;
#endif
}

// Wait for the values that the group itself publishes. OpenCL does not promise that its
// other work-items run while one polls for them; PTX does. All work-items call it, under
// no condition, between the loop that reads inputs and `gather`: some compilers for CPUs
// end where a condition chooses between the two (docs/runtimes.md).
static inline void await_own_words(void)
{
#if PTX < 70
    barrier(CLK_GLOBAL_MEM_FENCE);
#endif
}

// Gather published vectors into local memory, with zeros up to whole steps. All
// work-items of the group call it, after `await_own_words`.
static inline void gather(__local float4 *source, __global const uint *words,
                          const int vectors, const int padded, __local int *timed_out,
                          __global int *timeout)
{
    __global const uint4 *from = (__global const uint4 *)words;
    for (int v = get_local_id(0); v < padded; v += GROUP) {
        if (v >= vectors) {
            source[v] = (float4)0;
            continue;
        }
        uint4 found = poll(from + v);
        int polls_left = *timed_out ? 0 : MAX_POLLS;
        while (!all_valid(found) && --polls_left >= 0) {
            backoff();
            found = poll(from + v);
        }
        if (polls_left < 0) *timed_out = *timeout = 1;
        source[v] = values_of(found);
    }
}

// Butterfly reduction over teams of 1 to 32 work-items; all of them have the sum. In
// plain C a team is one work-item.
static inline float team_sum(float v, const int items)
{
#if PTX >= 70
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        if (distance >= items) continue;
        v += shuffle_xor(v, distance);
    }
#endif
    return v;
}

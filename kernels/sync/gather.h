// What a group that stays for all layers reads: weights, before they are needed, and
// the values that other groups tell (ll_protocol.h, which comes first). And how the
// work-items that read a row together add up what they have.
//
// GROUP  work-items of a group
// PTX    as given by the device
#if !defined(GROUP) || !defined(PTX)
#error "gather.h needs GROUP and PTX"
#endif
#include "include/warp.h"

// A vector of weights, 0 unless it is `there`.
inline float4 weights_at(__global const float4 *from, const bool there)
{
#if PTX >= 70
    float4 w = (float4)0;
    // Predicated: a branch would keep loads from being issued together.
    asm volatile("{.reg .pred there; setp.ne.s32 there, %5, 0;"
                 "@there ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];}"
                 : "+f"(w.x), "+f"(w.y), "+f"(w.z), "+f"(w.w)
                 : "l"(from), "r"((int)there));
    return w;
#else
    return there ? *from : (float4)0;
#endif
}

// Gather vectors of words, and zeros up to whole steps.
inline void gather(__local float4 *source, __global const uint *words,
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
        int left = *timed_out ? 0 : MAX_POLLS;
        while (!all_valid(found) && --left >= 0) {
            backoff();
            found = poll(from + v);
        }
        if (left < 0) *timed_out = *timeout = 1;
        source[v] = values_of(found);
    }
}

// The sum of the values of as many work-items, 1 to 32, for each of them. In plain C it
// is one.
inline float team_sum(float v, const int items)
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

// Warp shuffles and barriers.
//
// PTX  as given by the device: from 70 on
#define WARP 32

#if PTX >= 70
// A barrier of the warp; orders its memory accesses.
static inline void warp_barrier(void)
{
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

// The value v of work-item ^ distance.
static inline float shuffle_xor(const float v, const int distance)
{
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=f"(other) : "f"(v), "r"(distance));
    return other;
}

static inline uint shuffle_xor_uint(const uint v, const int distance)
{
    uint other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=r"(other) : "r"(v), "r"(distance));
    return other;
}
#endif

// Bulk copies: whole pieces of memory on their way to local memory, without a work-item
// that waits for them or a register that they pass through (NVIDIA, from compute
// capability 9.0 on).
//
// A flag is a word in local memory whose phase, 0 or 1, ends when as many work-items
// have arrived as it was made for, and all bytes that it was told to expect have come.
//
// PTX  as given by the device: at least 90
#if !defined(PTX) || PTX < 90
#error "bulk_copy.h needs PTX of at least 90"
#endif
typedef ulong Mbarrier;

// How the hardware calls a place in local memory.
inline uint shared(const __local void *place)
{
    return (uint)(size_t)place;
}

inline void mbarrier_init(__local Mbarrier *flag, const int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared(flag)), "r"(arrivals) : "memory");
}

// After the last mbarrier_init, before a barrier.
inline void fence_mbarrier_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;"
                 ::: "memory");
}

inline void mbarrier_arrive(__local Mbarrier *flag)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"(shared(flag)) : "memory");
}

// Wait until the phase is over. It needs no bound of its own: what it waits for are
// copies, which end, and work-items of its own group, whose waits for others are bounded.
inline void mbarrier_wait(__local Mbarrier *flag, const uint phase)
{
    uint over;
    do {
        asm volatile("{.reg .pred over;"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;"
                     "selp.u32 %0, 1, 0, over;}"
                     : "=r"(over) : "r"(shared(flag)), "r"(phase) : "memory");
    } while (!over);
}

// How lines of memory that pass by the last cache are treated: `percent` of them are to
// stay there, the others are the first to go.
inline ulong create_l2_policy(const int percent)
{
    ulong policy;
    asm volatile("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, %1;"
                 : "=l"(policy) : "f"(0.01f * percent));
    return policy;
}

// Start to copy whole vectors; the flag arrives once, and waits for them.
inline void cp_async_bulk(__local float4 *to, __global const float *from, const int vectors,
                      __local Mbarrier *flag, const ulong policy)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared(flag)), "r"(16 * vectors) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(shared(to)), "l"(from), "r"(16 * vectors), "r"(shared(flag)),
                 "l"(policy) : "memory");
}

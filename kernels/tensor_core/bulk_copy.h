// Bulk asynchronous copies to local memory, completed by mbarriers (NVIDIA, from compute
// capability 9.0 on). No work-item waits for a copy, and it passes through no register.
//
// An mbarrier is a word in local memory. Its phase, 0 or 1, ends when its arrival count
// is reached and all bytes of its expected transactions have come.
//
// PTX  as given by the device: at least 90
#if !defined(PTX) || PTX < 90
#error "bulk_copy.h needs PTX of at least 90"
#endif
#include "include/l2_policy.h"
typedef ulong Mbarrier;

// An address of PTX's .shared window.
static inline uint shared_address(const __local void *pointer)
{
    return (uint)(size_t)pointer;
}

static inline void mbarrier_init(__local Mbarrier *mbarrier, const int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(mbarrier)), "r"(arrivals) : "memory");
}

// After the last mbarrier_init, before a barrier.
static inline void fence_mbarrier_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;"
                 ::: "memory");
}

static inline void mbarrier_arrive(__local Mbarrier *mbarrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"(shared_address(mbarrier)) : "memory");
}

// Wait until the phase ends. The wait needs no bound: copies complete, and work-items of
// the same group bound their own waits for other groups.
static inline void mbarrier_wait(__local Mbarrier *mbarrier, const uint phase)
{
    uint done;
    do {
        asm volatile("{.reg .pred over;"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;"
                     "selp.u32 %0, 1, 0, over;}"
                     : "=r"(done) : "r"(shared_address(mbarrier)), "r"(phase) : "memory");
    } while (!done);
}

// Start a copy of whole vectors: one arrival, which expects their bytes.
static inline void cp_async_bulk(__local float4 *to, __global const float *from,
                                 const int vectors, __local Mbarrier *mbarrier,
                                 const ulong policy)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(mbarrier)), "r"(16 * vectors) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(shared_address(to)), "l"(from), "r"(16 * vectors),
                 "r"(shared_address(mbarrier)), "l"(policy) : "memory");
}

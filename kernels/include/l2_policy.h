// Policies of the L2 cache: of data that it cannot hold, and that consecutive launches
// read, a part stays in it.
//
// PTX  as given by the device: at least 80
#if !defined(PTX) || PTX < 80
#error "l2_policy.h needs PTX of at least 80"
#endif

// `percent` of the lines are evicted last, the others first.
static inline ulong create_l2_policy(const int percent)
{
    ulong policy;
    asm volatile("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, %1;"
                 : "=l"(policy) : "f"(0.01f * percent));
    return policy;
}

// Loads by a policy.
#define DEFINE_LOAD(type, bits, code)                                                    \
    static inline type load_##type(__global const type *p, const ulong policy)           \
    {                                                                                    \
        type v;                                                                          \
        asm volatile("ld.global.L2::cache_hint.v4." bits " {%0, %1, %2, %3}, [%4], %5;"  \
                     : "=" code(v.s0), "=" code(v.s1), "=" code(v.s2), "=" code(v.s3)    \
                     : "l"(p), "l"(policy));                                             \
        return v;                                                                        \
    }
DEFINE_LOAD(float4, "f32", "f")
DEFINE_LOAD(int4, "b32", "r")
DEFINE_LOAD(ushort4, "b16", "h")

// Atomic accesses with memory ordering between work-groups. The atomics of OpenCL C 1.2
// are relaxed: they order no other access.
//
// load_acquire   later accesses stay after it         ) plain moves
// store_release  earlier accesses stay before it      ) on x86
// load_seq_cst, store_seq_cst, add_seq_cst   both, and all of these have a total order
//
// Clang has GCC's built-ins; they are used where atomics of an int are lock-free. Other
// compilers use fences, which OpenCL C 1.2 guarantees within a work-group only.
#if defined(__CLANG_ATOMIC_INT_LOCK_FREE) && __CLANG_ATOMIC_INT_LOCK_FREE == 2
static inline int load_acquire(volatile __global int *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void store_release(volatile __global int *p, const int value)
{
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

static inline int load_seq_cst(volatile __global int *p)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static inline void store_seq_cst(volatile __global int *p, const int value)
{
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);
}

static inline int add_seq_cst(volatile __global int *p, const int value)
{
    return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
#else
#if defined(__opencl_c_atomic_order_seq_cst) && defined(__opencl_c_atomic_scope_device)
#define FENCE                                                                      \
    atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_seq_cst,             \
                           memory_scope_device)
#else
#define FENCE mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif
static inline int load_acquire(volatile __global int *p)
{
    const int value = *p;
    FENCE;
    return value;
}

static inline void store_release(volatile __global int *p, const int value)
{
    FENCE;
    *p = value;
}

static inline int add_seq_cst(volatile __global int *p, const int value)
{
    FENCE;
    const int before = atomic_add(p, value);
    FENCE;
    return before;
}

static inline int load_seq_cst(volatile __global int *p)
{
    return add_seq_cst(p, 0);
}

static inline void store_seq_cst(volatile __global int *p, const int value)
{
    FENCE;
    atomic_xchg(p, value);
    FENCE;
}
#endif

// Atomic accesses that order the memory accesses around them, for work-items of several
// groups. OpenCL C's older atomics are relaxed: they order nothing else.
//
// load_acquire   later accesses stay behind it      ) on x86
// store_release  earlier ones stay before it        ) plain moves
// load_seq_cst, store_seq_cst, add_seq_cst   both, and all of these have one order
//
// Where Clang's atomics of an int are instructions, it has GCC's built-ins. Other
// compilers have fences: OpenCL C 1.2 promises theirs for a work-group alone.
#if defined(__CLANG_ATOMIC_INT_LOCK_FREE) && __CLANG_ATOMIC_INT_LOCK_FREE == 2
inline int load_acquire(volatile __global int *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

inline void store_release(volatile __global int *p, const int value)
{
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

inline int load_seq_cst(volatile __global int *p)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

inline void store_seq_cst(volatile __global int *p, const int value)
{
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);
}

inline int add_seq_cst(volatile __global int *p, const int value)
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
inline int load_acquire(volatile __global int *p)
{
    const int value = *p;
    FENCE;
    return value;
}

inline void store_release(volatile __global int *p, const int value)
{
    FENCE;
    *p = value;
}

inline int add_seq_cst(volatile __global int *p, const int value)
{
    FENCE;
    const int before = atomic_add(p, value);
    FENCE;
    return before;
}

inline int load_seq_cst(volatile __global int *p)
{
    return add_seq_cst(p, 0);
}

inline void store_seq_cst(volatile __global int *p, const int value)
{
    FENCE;
    atomic_xchg(p, value);
    FENCE;
}
#endif

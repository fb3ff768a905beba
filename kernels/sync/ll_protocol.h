// Values that work-groups of one launch publish to each other, one word of global memory
// each (NCCL's low-latency protocol, which stores a flag beside each value).
//
// A word is the bitwise complement of a value; 0 means "not yet published". A reader
// polls the word itself, so that neither a barrier nor a fence stands between two layers.
// Words are double-buffered: launches alternate between two sets, and each launch clears
// the set of the next one.
//
// All groups must run concurrently. Every wait is bounded: after MAX_POLLS polls a group
// sets the timeout flag, waits no more, and reads missing words as NaN.
//
// MAX_POLLS   polls of a word before the timeout
// BACKOFF_NS  nanoseconds between two polls, about
// PTX         as given by the device
#if !defined(MAX_POLLS) || !defined(BACKOFF_NS) || !defined(PTX)
#error "ll_protocol.h needs MAX_POLLS, BACKOFF_NS and PTX"
#endif

// Four words, as last written by any compute unit.
static inline uint4 poll(__global const uint4 *words)
{
#if PTX >= 70
    uint4 found;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "l"(words) : "memory");
    return found;
#else
    volatile __global const uint *each = (volatile __global const uint *)words;
    return (uint4)(each[0], each[1], each[2], each[3]);
#endif
}

// Whether all four words are published.
static inline bool all_valid(const uint4 words)
{
    return words.x && words.y && words.z && words.w;
}

// The values of four words.
static inline float4 values_of(const uint4 words)
{
    return as_float4(~words);
}

// Leave memory bandwidth to the groups that publish.
static inline void backoff(void)
{
#if PTX >= 70 && BACKOFF_NS > 0
    asm volatile("nanosleep.u32 %0;" :: "r"(BACKOFF_NS));
#endif
}

// Store a value as a word.
static inline void store_word(__global uint *word, const float value)
{
    // No word is 0: the one NaN that would become 0 is replaced by another.
    const uint bits = as_uint(value) == ~0u ? ~as_uint(NAN) : ~as_uint(value);
#if PTX >= 70
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(word), "r"(bits)
                 : "memory");
#else
    *(volatile __global uint *)word = bits;
#endif
}

// Publish a value in this launch's set, and clear its word in the next launch's set.
static inline void publish(__global uint *word, __global uint *other, const float value)
{
    store_word(word, value);
    *other = 0;
}

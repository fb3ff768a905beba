// Values that groups of one launch pass to each other, each as one word in memory that
// all see.
//
// A word is a value's bits, transposed over, so that 0 means that it is not there yet. A
// reader looks at the word itself, so that neither a barrier nor a fence stands between
// two layers (after the low-latency protocol of NVIDIA's NCCL, which sends a flag
// beside each value). Launches use two sets of words in turn, and each empties the set
// of the next.
//
// All groups must run at the same time. Every wait is bounded: after MAX_POLLS looks a
// group sets the timeout, waits no more, and takes what is not there for NaN.
//
// MAX_POLLS  looks at a word before the timeout
// BACKOFF_NS       nanoseconds between two looks, about
// PTX       as given by the device
#if !defined(MAX_POLLS) || !defined(BACKOFF_NS) || !defined(PTX)
#error "ll_protocol.h needs MAX_POLLS, BACKOFF_NS and PTX"
#endif

// Four words, seen as other compute units wrote them last.
inline uint4 poll(__global const uint4 *words)
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

// Whether all four are there.
inline bool all_valid(const uint4 words)
{
    return words.x && words.y && words.z && words.w;
}

// The values of four words.
inline float4 values_of(const uint4 words)
{
    return as_float4(~words);
}

// Leave the memory to those that write.
inline void backoff(void)
{
#if PTX >= 70 && BACKOFF_NS > 0
    asm volatile("nanosleep.u32 %0;" :: "r"(BACKOFF_NS));
#endif
}

// Tell a value.
inline void store_word(__global uint *word, const float value)
{
    // No word is 0: the one NaN that would be becomes another.
    const uint text = as_uint(value) == ~0u ? ~as_uint(NAN) : ~as_uint(value);
#if PTX >= 70
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(word), "r"(text)
                 : "memory");
#else
    *(volatile __global uint *)word = text;
#endif
}

// Tell a value in this launch's set, and empty its word in the other one.
inline void publish(__global uint *word, __global uint *other, const float value)
{
    store_word(word, value);
    *other = 0;
}

// The order of samples and random numbers, as clnet/nn/random.py, which names the
// sources.

// NAME(x): a hash of whole numbers of type UINT.
#define DEFINE_MIXED(NAME, UINT)                                                       \
    inline UINT NAME(UINT x)                                                           \
    {                                                                                  \
        x ^= x >> (UINT)(16);                                                          \
        x *= (UINT)(0x7FEB352Du);                                                      \
        x ^= x >> (UINT)(15);                                                          \
        x *= (UINT)(0x846CA68Bu);                                                      \
        return x ^ (x >> (UINT)(16));                                                  \
    }
DEFINE_MIXED(mixed, uint)

// Where number i of 0 … n-1 goes: a Feistel network of 2 * bits bits, one word of the
// key a round; what falls beyond n is sent through again. The walk ends, whatever it is
// given: it starts below n, and a bijection comes back to its start.
inline uint permuted(uint i, const uint n, const uint bits, const uint8 key)
{
    const uint mask = (1u << bits) - 1, last = n - 1;
    i = min(i, last);
    do {
        uint left = i >> bits, right = i & mask, next;
#define ROUND(word) \
    next = left ^ (mixed(right ^ word) & mask); left = right; right = next;
        ROUND(key.s0) ROUND(key.s1) ROUND(key.s2) ROUND(key.s3)
        ROUND(key.s4) ROUND(key.s5) ROUND(key.s6) ROUND(key.s7)
#undef ROUND
        i = (left << bits) | right;
    } while (i > last);
    return i;
}

// Counter-based random numbers and the random order of samples: nothing is stored, each
// is computed from its index by a hash. As clnet/nn/random.py, which names the sources.

// NAME(x): a hash of integers of type UINT.
#define DEFINE_HASH(NAME, UINT)                                                      \
    static inline UINT NAME(UINT x)                                                  \
    {                                                                                \
        x ^= x >> (UINT)(16);                                                        \
        x *= (UINT)(0x7FEB352Du);                                                    \
        x ^= x >> (UINT)(15);                                                        \
        x *= (UINT)(0x846CA68Bu);                                                    \
        return x ^ (x >> (UINT)(16));                                                \
    }
DEFINE_HASH(hash_word, uint)

// The permuted index of i in 0 … n-1: a Feistel network of 2 * bits bits, one word of
// the key a round. A result of n or more is permuted again (cycle walking). The walk
// always ends: it starts below n, and a bijection returns to its start.
static inline uint permuted(uint i, const uint n, const uint bits, const uint8 key)
{
    const uint mask = (1u << bits) - 1, last = n - 1;
    i = min(i, last);
    do {
        uint left = i >> bits, right = i & mask, next;
#define ROUND(word) \
    next = left ^ (hash_word(right ^ word) & mask); left = right; right = next;
        ROUND(key.s0) ROUND(key.s1) ROUND(key.s2) ROUND(key.s3)
        ROUND(key.s4) ROUND(key.s5) ROUND(key.s6) ROUND(key.s7)
#undef ROUND
        i = (left << bits) | right;
    } while (i > last);
    return i;
}

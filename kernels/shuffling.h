// The order of samples and random numbers, as clnet/shuffling.py, which names the sources.

inline uint mixed(uint x)
{
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

// Where number i of 0 … n-1 goes: a Feistel network of 2 * bits bits, one word of the key
// a round; what falls beyond n is sent through again.
inline uint permuted(uint i, const uint n, const uint bits, const uint8 key)
{
    const uint mask = (1u << bits) - 1;
    do {
        uint left = i >> bits, right = i & mask, next;
#define ROUND(word) next = left ^ (mixed(right ^ word) & mask); left = right; right = next;
        ROUND(key.s0) ROUND(key.s1) ROUND(key.s2) ROUND(key.s3)
        ROUND(key.s4) ROUND(key.s5) ROUND(key.s6) ROUND(key.s7)
#undef ROUND
        i = (left << bits) | right;
    } while (i >= n);
    return i;
}

// Number i of those of a step, in [0, 1).
inline REAL uniform_number(const uint seed, const uint count, const uint i)
{
    return (REAL)(mixed(i ^ mixed(mixed(seed) ^ count)) >> 8) * (REAL)(1.0f / 16777216);
}

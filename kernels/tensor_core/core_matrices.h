// Rows of floats as 4-word parts of halves in the order in which the matrix units of a
// warp group read them: after fp16_split.h.
#define UNIT 8                      // terms of a part, and rows that lie side by side

// 8 terms of a row, from k on, each `apart` from the next.
inline float8 load(__global const float *row, const int k, const int apart,
                   const int terms, const int padded)
{
    if (padded) {
        const float4 none = (float4)(0);
        return (float8)(k < terms ? *(__global const float4 *)(row + k) : none,
                        k + 4 < terms ? *(__global const float4 *)(row + k + 4) : none);
    }
    float v[UNIT];
UNROLLED
    for (int i = 0; i < UNIT; ++i)
        v[i] = k + i < terms ? row[(size_t)(k + i) * apart] : 0;
    return (float8)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

inline uint largest_of(const float8 v)
{
    const uint8 bits = as_uint8(v) & 0x7fffffffu;
    const uint4 four = max(bits.lo, bits.hi);
    const uint2 two = max(four.lo, four.hi);
    return max(two.s0, two.s1);
}

inline float sum_of(const float8 v)
{
    const float4 four = v.lo + v.hi;
    return (four.s0 + four.s1) + (four.s2 + four.s3);
}

inline uint4 halves_of(const float8 v)
{
    return (uint4)(pack_half2(v.s0, v.s1), pack_half2(v.s2, v.s3), pack_half2(v.s4, v.s5),
                   pack_half2(v.s6, v.s7));
}

inline void put(__global uint4 *to, const float8 v, const int piece)
{
    const uint4 high = halves_of(v);
    to[0] = high;
    if (SPLITS == 2) {
        const float8 cut = (float8)(unpack_half2(high.s0), unpack_half2(high.s1),
                                    unpack_half2(high.s2), unpack_half2(high.s3));
        to[2 * piece] = halves_of((v - cut) * LOW_SCALE);
    }
}

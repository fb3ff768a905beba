// Rows of floats packed as core matrices (PTX: 8 rows of 8 halves, 16 bytes a row), which
// wgmma reads from local memory. Comes after fp16_split.h.
#define CORE 8                      // rows, and terms, of a core matrix

// 8 terms of a row from k on, `stride` apart.
static inline float8 load_terms(__global const float *row, const int k,
                                const int stride, const int terms, const int padded)
{
    if (padded) {
        const float4 none = (float4)(0);
        return (float8)(k < terms ? *(__global const float4 *)(row + k) : none,
                        k + 4 < terms ? *(__global const float4 *)(row + k + 4) : none);
    }
    float v[CORE];
UNROLLED
    for (int i = 0; i < CORE; ++i)
        v[i] = k + i < terms ? row[(size_t)(k + i) * stride] : 0;
    return (float8)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

// Store 8 terms of a row from k on, side by side.
static inline void store_terms(__global float *row, const int k, const int terms,
                               const int padded, const float8 v)
{
    if (padded) {
        if (k < terms) *(__global float4 *)(row + k) = v.lo;
        if (k + 4 < terms) *(__global float4 *)(row + k + 4) = v.hi;
        return;
    }
    const float parts[CORE] = {v.s0, v.s1, v.s2, v.s3, v.s4, v.s5, v.s6, v.s7};
UNROLLED
    for (int i = 0; i < CORE; ++i)
        if (k + i < terms) row[k + i] = parts[i];
}

// The bits of the largest magnitude.
static inline uint max_magnitude(const float8 v)
{
    const uint8 bits = as_uint8(v) & 0x7fffffffu;
    const uint4 four = max(bits.lo, bits.hi);
    const uint2 two = max(four.lo, four.hi);
    return max(two.s0, two.s1);
}

static inline float sum_of(const float8 v)
{
    const float4 four = v.lo + v.hi;
    return (four.s0 + four.s1) + (four.s2 + four.s3);
}

static inline uint4 pack_half8(const float8 v)
{
    return (uint4)(pack_half2(v.s0, v.s1), pack_half2(v.s2, v.s3), pack_half2(v.s4, v.s5),
                   pack_half2(v.s6, v.s7));
}

// Store a row of a core matrix, and its low halves in the panel's second split.
static inline void store_core_row(__global uint4 *to, const float8 v, const int panel)
{
    const uint4 high = pack_half8(v);
    to[0] = high;
    if (SPLITS == 2) {
        const float8 rounded = (float8)(unpack_half2(high.s0), unpack_half2(high.s1),
                                        unpack_half2(high.s2), unpack_half2(high.s3));
        to[2 * panel] = pack_half8((v - rounded) * LOW_SCALE);
    }
}

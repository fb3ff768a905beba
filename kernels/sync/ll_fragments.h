// Values that work-groups of one launch publish to each other as matrix fragments.
//
// A fragment is 16 neurons of 8 samples, laid out as a block of fp16_split.h, but with
// eight rows and both fp16 splits of a value side by side. Lane 4 g + t holds four words
// of sample g:
//
//     high split: 2t 2t+1 | 2t+8 2t+9      low split: 2t 2t+1 | 2t+8 2t+9
//
// Each is published complemented (ll_protocol.h). The values of a sample in a fragment
// have a scale of their own, a word as well, unless all are known to be bounded by 1.
// Scales are times SUM_SCALE, and so are sums: those of large values do not overflow before
// they are multiplied by the scale of the weights.
//
// Accumulators of a fragment have the order of the matrix units: lane 4 g + t has those
// of neurons g and g + 8, samples 2t and 2t + 1. Local memory holds them by quarters,
// one for each t; a warp finishes a quarter, a value per lane. The accumulators of
// quarter t are rotated by 2t slots, so that neighbours that store together use all
// banks.
//
// SPLITS (2), PTX        as in fp16_split.h   ) both are
// MAX_POLLS, BACKOFF_NS  as in ll_protocol.h  ) included before
#define FRAGMENT_WORDS (4 * WARP)               // of a fragment
#define FRAGMENT_SAMPLES 8
#define BOUND 0x3f800000u                       // of bounded values: 1
#define SUM_SCALE 0x1p-24f                      // of sums of other values

// Slot of a lane's four accumulators, in vectors of 4.
static inline int accumulator_slot(const int lane)
{
    const int g = lane / 4, t = lane % 4;
    return 8 * t + (g + 2 * t) % 8;
}

// The sample and the neuron of a fragment that a lane finishes in a quarter.
static inline int sample_in(const int quarter, const int lane)
{
    return 2 * quarter + lane % 2;
}
static inline int neuron_in(const int quarter, const int lane)
{
    return (lane / 4 + 8 - 2 * quarter) % 8 + lane / 2 % 2 * 8;
}

// Poll four words again, unless all are valid.
static inline uint4 poll_again(__global const uint4 *words, uint4 found)
{
#if PTX >= 80
    asm volatile("{ .reg .pred missing; setp.ne.s32 missing, %5, 0;"
                 " @missing ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(found.x), "+r"(found.y), "+r"(found.z), "+r"(found.w)
                 : "l"(words), "r"((int)!all_valid(found)) : "memory");
    return found;
#else
    return poll(words);
#endif
}

// Poll one word, unless it is valid.
static inline uint poll_word(__global const uint *word, uint found)
{
#if PTX >= 80
    asm volatile("{ .reg .pred missing; setp.eq.u32 missing, %0, 0;"
                 " @missing ld.relaxed.gpu.global.u32 %0, [%1]; }"
                 : "+r"(found) : "l"(word) : "memory");
    return found;
#else
    return found ? found : *(volatile __global const uint *)word;
#endif
}

#if PTX >= 80
// Whether the predicate holds in all lanes of the warp.
static inline bool vote_all(const bool predicate)
{
    int all;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0;"
                 " vote.sync.all.pred q, p, 0xffffffff; selp.s32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"((int)predicate));
    return all;
}

// From one value per sample g, in its four lanes: the values of samples 2t and 2t + 1.
static inline float2 shuffle_samples(const float v)
{
    const int from = get_local_id(0) % 4 * 8;
    float2 two;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=f"(two.s0) : "f"(v), "r"(from));
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=f"(two.s1) : "f"(v), "r"(from + 4));
    return two;
}

// A lane's words of a fragment, complemented, from its values of neurons 2t, 2t + 1,
// 2t + 8 and 2t + 9; and the scale of its sample.
static inline uint4 pack_fragment(const float4 v, float *scale)
{
    uint most = max(max(magnitude(v.s0), magnitude(v.s1)),
                    max(magnitude(v.s2), magnitude(v.s3)));
    most = max(most, shuffle_xor_uint(most, 1));
    most = max(most, shuffle_xor_uint(most, 2));
    const float2 by = scales_of(most);
    *scale = by.s1 * SUM_SCALE;
    const float4 w = v * by.s0;
    const uint2 high = (uint2)(pack_half2(w.s0, w.s1), pack_half2(w.s2, w.s3));
    const float4 low =
        (w - (float4)(unpack_half2(high.s0), unpack_half2(high.s1))) * LOW_SCALE;
    return ~(uint4)(high, pack_half2(low.s0, low.s1), pack_half2(low.s2, low.s3));
}
#else
// The weight of a neuron and an input k, from a block in memory.
static inline float weight_at(__global const uint4 *block, const int neuron,
                              const int k)
{
    __global const half *a = (__global const half *)block;
    const int at = 32 * (neuron % 8) + 8 * (k % 8 / 2) + k / 8 * 4 + neuron / 8 * 2
                   + k % 2;
    return vload_half(at, a) + vload_half(at + BLOCK * BLOCK, a) / LOW_SCALE;
}

// The unscaled value of a sample and an input k, from a fragment in memory.
static inline float value_at(__global const uint *fragment, const int sample,
                             const int k)
{
    __global const uint *word = fragment + 4 * (4 * sample + k % 8 / 2) + k / 8;
    const float2 high = unpack_half2(~word[0]), low = unpack_half2(~word[2]);
    return (k % 2 ? high.s1 : high.s0) + (k % 2 ? low.s1 : low.s0) / LOW_SCALE;
}
#endif

// Both fp16 splits of a value in one word, the high split in the low half.
static inline uint split_half2(const float v)
{
    return pack_half2(v, (v - unpack_half2(pack_half2(v, 0)).s0) * LOW_SCALE);
}

// Publish this lane's value of a quarter of a fragment in the set `now`, if `valid`, and
// clear its word in the set `then`. Scales start at word `scales` of a set. In plain C
// this is a barrier of all work-items, before and after the stores.
static inline void publish_fragment(const float v, const int fragment,
                                    const int quarter, const bool scaled,
                                    const bool valid, const int scales,
                                    __global uint *now, __global uint *then,
                                    __local float *exchange)
{
    const int lane = get_local_id(0) % WARP;
    const int sample = sample_in(quarter, lane), neuron = neuron_in(quarter, lane);
    uint most = magnitude(v);
#if PTX >= 80
    if (scaled)
UNROLLED
        for (int distance = 2; distance < WARP; distance *= 2)
            most = max(most, shuffle_xor_uint(most, distance));
#else
    __local float *all = exchange + get_local_id(0) - lane;
    barrier(CLK_LOCAL_MEM_FENCE);
    all[lane] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int distance = 2; distance < WARP; distance += 2)
        most = max(most, magnitude(all[lane ^ distance]));
#endif
    const float2 by = scales_of(scaled ? most : BOUND);
    const uint splits = split_half2(v * by.s0);
    // Those of neuron ^ 1.
#if PTX >= 80
    const uint neighbour = shuffle_xor_uint(splits, 4);
#else
    const uint neighbour = split_half2(all[lane ^ 4] * by.s0);
#endif
    if (valid) {
        // The even neuron's lane publishes both high splits, the odd one's both low ones.
        const bool odd = neuron % 2;
        const uint word = odd ? neighbour >> 16 | (splits & 0xffff0000u)
                              : (splits & 0xffffu) | neighbour << 16;
        const int at = fragment * FRAGMENT_WORDS + (4 * sample + neuron % 8 / 2) * 4
                       + neuron / 8 + 2 * odd;
        publish(now + at, then + at, as_float(word));
        if (scaled) {  // all lanes of a sample publish the same scale
            const int offset = scales + fragment * FRAGMENT_SAMPLES + sample;
            publish(now + offset, then + offset, by.s1 * SUM_SCALE);
        }
    }
#if PTX < 80
    // The group polls its own words too. And PoCL 3.0 decides a branch between two
    // barriers for each work-item, and one after the last barrier of a condition for
    // all, as for the first.
    barrier(CLK_GLOBAL_MEM_FENCE);
#endif
}

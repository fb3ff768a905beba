// Values that groups of one launch hand over to each other as matrix units read them.
//
// A piece is 16 neurons of 8 samples: as a block of fp16_split.h has eight rows, but both
// halves of a value side by side. Lane 4 g + t's four words of sample g are
//
//     high halves: 2t 2t+1 | 2t+8 2t+9      low halves: 2t 2t+1 | 2t+8 2t+9
//
// Each is a word transposed over (ll_protocol.h). A sample's values in a piece have a scale of
// their own, a word as well, unless all are known to be bounded by 1.
//
// Sums of a piece are in the order in which the units give them: lane 4 g + t has those
// of neurons g and g + 8, samples 2t and 2t + 1. Local memory holds them by quarters,
// those of one t, from which a warp finishes a value a lane. In quarter t lanes' sums
// are transposed by 2t places, so that neighbours that store together use all banks.
//
// SPLITS (2), PTX  as in fp16_split.h; MAX_POLLS, BACKOFF_NS as in ll_protocol.h; both come first
#define PIECE (4 * WARP)                        // words of a piece
#define PIECE_SAMPLES 8
#define BOUND 0x3f800000u                       // of bounded values: 1

// Where a lane's four sums go, in fours.
inline int place_of_sums(const int lane)
{
    const int g = lane / 4, t = lane % 4;
    return 8 * t + (g + 2 * t) % 8;
}

// Which sample and neuron of a piece a lane finishes in a quarter.
inline int sample_in(const int quarter, const int lane) { return 2 * quarter + lane % 2; }
inline int neuron_in(const int quarter, const int lane)
{
    return (lane / 4 + 8 - 2 * quarter) % 8 + lane / 2 % 2 * 8;
}

// The same four words, looked at again unless they are there.
inline uint4 poll_again(__global const uint4 *words, uint4 found)
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

// One word, looked at unless it is there.
inline uint poll_word(__global const uint *word, uint found)
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
// Whether it is so for all lanes of a warp.
inline bool vote_all(const bool so)
{
    int all;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0;"
                 " vote.sync.all.pred q, p, 0xffffffff; selp.s32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"((int)so));
    return all;
}

// Of what each lane has of its sample g, that of samples 2t and 2t + 1.
inline float2 of_samples(const float v)
{
    const int from = get_local_id(0) % 4 * 8;
    float2 two;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=f"(two.s0) : "f"(v), "r"(from));
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=f"(two.s1) : "f"(v), "r"(from + 4));
    return two;
}

// A lane's words of a piece, transposed over, from its values of neurons 2t, 2t + 1, 2t + 8
// and 2t + 9; the scale that goes with them.
inline uint4 words_of(const float4 v, float *scale)
{
    uint most = max(max(magnitude(v.s0), magnitude(v.s1)),
                    max(magnitude(v.s2), magnitude(v.s3)));
    most = max(most, shuffle_xor_uint(most, 1));
    most = max(most, shuffle_xor_uint(most, 2));
    const float2 by = scales_of(most);
    *scale = by.s1;
    const float4 w = v * by.s0;
    const uint2 high = (uint2)(pack_half2(w.s0, w.s1), pack_half2(w.s2, w.s3));
    const float4 low = (w - (float4)(unpack_half2(high.s0), unpack_half2(high.s1))) * LOW_SCALE;
    return ~(uint4)(high, pack_half2(low.s0, low.s1), pack_half2(low.s2, low.s3));
}
#else
// The weight of a block in memory, of a neuron and an input k.
inline float weight_at(__global const uint4 *block, const int neuron, const int k)
{
    __global const half *a = (__global const half *)block;
    const int at = 32 * (neuron % 8) + 8 * (k % 8 / 2) + k / 8 * 4 + neuron / 8 * 2
                   + k % 2;
    return vload_half(at, a) + vload_half(at + BLOCK * BLOCK, a) / LOW_SCALE;
}

// The value of a piece in memory, likewise, before its scale.
inline float value_at(__global const uint *piece, const int sample, const int k)
{
    __global const uint *word = piece + 4 * (4 * sample + k % 8 / 2) + k / 8;
    const float2 high = unpack_half2(~word[0]), low = unpack_half2(~word[2]);
    return (k % 2 ? high.s1 : high.s0) + (k % 2 ? low.s1 : low.s0) / LOW_SCALE;
}
#endif

// A value's halves in one word, the high one low.
inline uint split_half2(const float v)
{
    return pack_half2(v, (v - unpack_half2(pack_half2(v, 0)).s0) * LOW_SCALE);
}

// Hand over this lane's value of a quarter of a piece, and empty its word in the other
// set. Nothing unless it is `mine`. Sets have their scales from word `scales` on. In
// plain C all work-items come together here.
inline void publish_fragment(const float v, const int piece, const int quarter, const bool scaled,
                    const bool mine, const int scales, __global uint *now,
                    __global uint *then, __local float *exchange)
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
    const uint own = split_half2(v * by.s0);
    // Of neuron ^ 1.
#if PTX >= 80
    const uint beside = shuffle_xor_uint(own, 4);
#else
    const uint beside = split_half2(all[lane ^ 4] * by.s0);
#endif
    if (!mine) return;
    // The even neuron's lane tells both high halves, the odd one's both low ones.
    const bool odd = neuron % 2;
    const uint word = odd ? beside >> 16 | (own & 0xffff0000u)
                          : (own & 0xffffu) | beside << 16;
    const int at = piece * PIECE + (4 * sample + neuron % 8 / 2) * 4 + neuron / 8
                   + 2 * odd;
    publish(now + at, then + at, as_float(word));
    if (scaled) {  // by all of its lanes, alike
        const int place = scales + piece * PIECE_SAMPLES + sample;
        publish(now + place, then + place, by.s1);
    }
}

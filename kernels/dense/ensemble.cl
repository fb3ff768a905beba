// ensemble: the outputs of many networks of one shape for the same samples, in a launch.
//
// A work-group takes a block of samples through some of the networks. Each of its
// work-items computes WIDTH samples alone, so that nothing waits: its column of `inputs`
// and `values` is its own, and a weight serves all lanes.
//
//   inputs | values 0 | values 1      of GROUP work-items, side by side
//          layer 0 -> | layer 1 ->    layers read one part of the values and write the other
//
// N_IN     inputs of the networks
// WIDEST   values of a layer that are kept, at most
// GROUP    work-items of a group: 1 on CPUs, whose work-items are vectors
// WIDTH    samples of a work-item
// SOFTMAX  1: the last outputs are a softmax of the chain's; 2: its logarithm; 0: neither
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// REAL     as in activations.h
#if !defined(N_IN) || !defined(WIDEST) || !defined(GROUP) || !defined(WIDTH) \
    || !defined(SOFTMAX)
#error "ensemble.cl needs N_IN, WIDEST, GROUP, WIDTH and SOFTMAX"
#endif
#include "include/activations.h"
#include "dense/chain.h"
#define LANE(v, k) (((const REAL *)&(v))[k])

// Pre-activations of COUNT neurons at once, all in registers: an input is read once for
// them. w: the first one's row
#define DEFINE_SUMS(COUNT)                                                           \
    static inline void sums_of_##COUNT(__global const REAL *w, const int stride,     \
                                       const int n_in, __local const VAL *from,      \
                                       VAL *sums)                                    \
    {                                                                                \
        VAL s[COUNT];                                                                \
        _Pragma("unroll") for (int j = 0; j < COUNT; ++j) s[j] = CONST(0);           \
        for (int i = 0; i < n_in; ++i) {                                             \
            const VAL v = from[i * GROUP];                                           \
            _Pragma("unroll") for (int j = 0; j < COUNT; ++j)                        \
                s[j] += (VAL)(w[j * stride + i]) * v;                                \
        }                                                                            \
        _Pragma("unroll") for (int j = 0; j < COUNT; ++j) sums[j] = s[j];            \
    }
DEFINE_SUMS(8)
DEFINE_SUMS(4)
DEFINE_SUMS(1)

// Store an output of each lane's sample, of which `live` exist.
static inline void store_lanes(__global REAL *y, const int ldy, const VAL v,
                               const int live)
{
    for (int k = 0; k < WIDTH && k < live; ++k) y[(size_t)k * ldy] = LANE(v, k);
}

// parameters [members, size]  flat buffers; `each` networks are a group's at most
// x          [batch, ldx]     N_IN values a row
// y          [batch, ldy]     the outputs of network 0, then of network 1 …
// index map: work-group = block of networks * blocks + block of `length` samples
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
ensemble(__global const REAL *parameters, const int size, const int members,
         const int each, __global const REAL *x, const int ldx, __global REAL *y,
         const int ldy, const int batch, const int length, const int blocks)
{
    __local VAL inputs[N_IN * GROUP], values[2 * WIDEST * GROUP];
    const int id = get_local_id(0), width = n_out_of[LAYERS - 1];
    const int first = get_group_id(0) / blocks * each;
    const int last = min(first + each, members);
    const int begin = get_group_id(0) % blocks * length;
    const int end = min(length, batch - begin);
    for (int at = id * WIDTH; at < end; at += GROUP * WIDTH) {
        const int live = end - at;
        const size_t sample = (size_t)begin + at;
        for (int i = 0; i < N_IN; ++i) {
            VAL v;
            for (int k = 0; k < WIDTH; ++k)  // lanes without a sample repeat the last
                ((REAL *)&v)[k] = x[(sample + min(k, live - 1)) * ldx + i];
            inputs[i * GROUP + id] = v;
        }
        for (int m = first; m < last; ++m) {
            __global const REAL *own = parameters + (size_t)m * size;
            __global REAL *out = y + sample * ldy + (size_t)m * width;
            __local const VAL *from = inputs + id;
            __local VAL *to = values + id;
            int n_in = N_IN;
            for (int l = 0; l < LAYERS; ++l) {
                const int n_out = n_out_of[l], stride = stride_of[l];
                const bool kept = l < LAYERS - 1 || SOFTMAX;
                for (int o = 0; o < n_out;) {
                    VAL sums[8];
                    __global const REAL *w = own + weights_of[l] + (size_t)o * stride;
                    const int left = n_out - o, count = left >= 8 ? 8 : left >= 4 ? 4 : 1;
                    if (count == 8) sums_of_8(w, stride, n_in, from, sums);
                    else if (count == 4) sums_of_4(w, stride, n_in, from, sums);
                    else sums_of_1(w, stride, n_in, from, sums);
                    for (int j = 0; j < count; ++j, ++o) {
                        const REAL bias =
                            bias_of[l] < 0 ? (REAL)0 : own[bias_of[l] + o];
                        const VAL v = chain_activate(l, sums[j] + (VAL)(bias));
                        if (kept) to[o * GROUP] = v;
                        else store_lanes(out + o, ldy, v, live);
                    }
                }
                from = to;
                to = values + id + (l & 1 ? 0 : WIDEST * GROUP);
                n_in = n_out;
            }
#if SOFTMAX
            VAL top = from[0], total = CONST(0);
            for (int o = 1; o < width; ++o)
                top = from[o * GROUP] > top ? from[o * GROUP] : top;
            for (int o = 0; o < width; ++o) total += exponential(from[o * GROUP] - top);
#if SOFTMAX == 2
            total = logarithm(total);
#endif
            for (int o = 0; o < width; ++o) {
                const VAL v = from[o * GROUP] - top;
                store_lanes(out + o, ldy,
                            SOFTMAX == 2 ? v - total : exponential(v) / total, live);
            }
#endif
        }
    }
}

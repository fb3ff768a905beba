// persistent_ring: a chain of dense layers in one launch over all compute units, one
// sample, weights by bulk copies.
//
// As in persistent.cl, groups stay resident from the first layer to the last and publish
// values as words. The weights take another way: a group's rows of a layer are
// contiguous, and a producer, one work-item of a warp of its own, copies them through
// all layers, COPY_ROWS rows at a time, to a ring of SLOTS in local memory
// (bulk_copy.h):
//
//   ring:       | full | full | in flight | in flight | empty |
//                    v
//   registers:  ROWS rows; work-item i of GROUP holds vectors i, i + GROUP … of each
//
// So memory is not idle while groups wait for values: the ring fills up, and ROWS rows
// of the next layer are in registers already. At most IN_FLIGHT slots are in flight:
// memory serves requests in order, and a poll behind more weights would come late.
//
// A work-item polls its vectors of the layer's inputs and holds them in registers for
// all rows. Partial sums of ROWS rows are first reduced within a warp by HALVINGS steps
// of recursive halving,
//
//   rows        work-items    0         1         2         3
//   0 1 2 3     partial sums  a a a a   b b b b   c c c c   d d d d
//   half        with i ^ 1    ab ab     ab ab     cd cd     cd cd       rows 0 1 | 2 3
//   a quarter   with i ^ 2    abcd      abcd      abcd      abcd        row 0|2|1|3
//
// then, through local memory, by REDUCERS work-items per row.
//
// A layer's rows are divided into GROUPS shares of equal size, give or take one; a group
// has another share in each layer, which balances the rows of all groups.
//
// GROUP      consumer work-items; GROUPS groups, all running concurrently
// SLOTS      slots of the ring, of SLOT vectors each: COPY_ROWS rows of the widest layer
// COPY_ROWS  rows of a bulk copy
// IN_FLIGHT  slots in flight at once
// ROWS       rows in registers: a power of two, a multiple of COPY_ROWS
// VECTORS    vectors of a row that a work-item holds, at most
// MAX_SHARE  rows of a share at most, in whole ROWS
// HALVINGS   0 up to the logarithm of ROWS
// REDUCERS   work-items that reduce a row's partial sums: a power of two, at most 8
// L2_PERCENT percent of the weights to keep in the L2 cache between launches
// WORDS      {n, …} offsets of the words of each layer's inputs; the first layer has none
// IN_ALL     words of a set
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// MAX_POLLS, BACKOFF_NS, PTX  as in ll_protocol.h and bulk_copy.h
// REAL       float
#define WIDTH 1
#include "include/activations.h"
#include "dense/chain.h"
#include "sync/by_value_input.h"
#include "sync/zero_copy_output.h"
#include "sync/ll_protocol.h"
#include "tensor_core/bulk_copy.h"
#include "include/warp.h"
#if !defined(GROUP) || !defined(GROUPS) || !defined(SLOTS) || !defined(SLOT) \
    || !defined(COPY_ROWS) || !defined(IN_FLIGHT) || !defined(ROWS) || !defined(VECTORS) \
    || !defined(MAX_SHARE) || !defined(HALVINGS) || !defined(REDUCERS) \
    || !defined(L2_PERCENT) || !defined(WORDS) || !defined(IN_ALL)
#error "persistent_ring.cl needs GROUP, GROUPS, SLOTS, SLOT, COPY_ROWS, IN_FLIGHT, ROWS, \
VECTORS, MAX_SHARE, HALVINGS, REDUCERS, L2_PERCENT, WORDS and IN_ALL"
#endif
#define WARPS (GROUP / WARP)
#define ROW_PARTIALS (GROUP >> HALVINGS)  // partial sums of a row in local memory

__constant int words_of[] = WORDS;

// A barrier of the consumers.
static inline void group_barrier(void)
{
    asm volatile("bar.sync 1, %0;" :: "n"(GROUP) : "memory");
}

// A group's rows of a layer.
typedef struct {
    int first, past;
} Share;

static inline Share share_of(const int group, const int layer)
{
    const int index = (group + layer) % GROUPS, n = n_out_of[layer];
    const Share share = {index * n / GROUPS, (index + 1) * n / GROUPS};
    return share;
}

// A slot of the ring and the phase of its mbarriers to wait for.
typedef struct {
    int slot;
    uint phase;
} RingSlot;

static inline RingSlot next_slot(const RingSlot at)
{
    const RingSlot next = {at.slot + 1, at.phase}, first = {0, at.phase ^ 1};
    return next.slot < SLOTS ? next : first;
}

// The producer: copy a group's weights of all layers to the ring.
static inline void copy_weights(__local float4 *slots, __local Mbarrier *full,
                                __local Mbarrier *empty,
                                __global const float *parameters, const int group)
{
    const ulong policy = create_l2_policy(L2_PERCENT);
    RingSlot to = {0, 1};  // the phase before the first has ended: all slots are empty
    RingSlot oldest = {0, 0};
    int copies = 0;
    for (int layer = 0; layer < LAYERS; ++layer) {
        const Share share = share_of(group, layer);
        const int stride = stride_of[layer];
        for (int row = share.first; row < share.past; row += COPY_ROWS) {
            mbarrier_wait(empty + to.slot, to.phase);
            if (copies++ >= IN_FLIGHT) {
                mbarrier_wait(full + oldest.slot, oldest.phase);
                oldest = next_slot(oldest);
            }
            cp_async_bulk(slots + to.slot * SLOT,
                          parameters + weights_of[layer] + (size_t)row * stride,
                          min(COPY_ROWS, share.past - row) * (stride / 4), full + to.slot,
                          policy);
            to = next_slot(to);
        }
    }
}

// Poll a work-item's vectors of a layer's inputs; whether all were published in time.
static inline bool poll_inputs(float4 *in, __global const uint *words,
                               const int vectors, const bool waits)
{
    const int id = get_local_id(0);
    __global const uint4 *from = (__global const uint4 *)words + id;
    uint4 found[VECTORS];
    int left = waits ? MAX_POLLS : 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        found[v] = v * GROUP + id < vectors ? (uint4)0 : (uint4)~0u;
    bool all;
    for (;;) {
        // Issue all loads before the first is used.
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (!all_valid(found[v])) found[v] = poll(from + v * GROUP);
        all = true;
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) all = all && all_valid(found[v]);
        if (all || --left < 0) break;
        backoff();
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) in[v] = values_of(found[v]);
    return all;
}

// Reduce ROWS partial sums with neighbours by recursive halving, into the first sums;
// the first row that the work-item ends up with.
static inline int reduce_halving(float *sums, const int lane)
{
    int first = 0;
#pragma unroll
    for (int i = 0; i < HALVINGS; ++i) {
        const int remaining = ROWS >> (i + 1);
        const bool upper = lane >> i & 1;
#pragma unroll
        for (int r = 0; r < remaining; ++r) {
            const float mine = upper ? sums[r + remaining] : sums[r];
            const float sent = upper ? sums[r] : sums[r + remaining];
            sums[r] = mine + shuffle_xor(sent, 1 << i);
        }
        first += upper ? remaining : 0;
    }
    return first;
}

// Reduce a row's partial sums in local memory; all its REDUCERS have the sum.
static inline float row_sum(const __local float *sums, const int reducer)
{
    const __local float4 *from = (const __local float4 *)sums + reducer;
    float4 all = from[0];
#pragma unroll
    for (int i = 1; i < ROW_PARTIALS / 4 / REDUCERS; ++i) all += from[i * REDUCERS];
    float sum = (all.x + all.y) + (all.z + all.w);
#pragma unroll
    for (int distance = REDUCERS / 2; distance > 0; distance /= 2)
        sum += shuffle_xor(sum, distance);
    return sum;
}

// y = the last layer's output for x
//
// parameters [..]      the flat buffer
// x [n_in]  y [n_out]  one sample
// words [2][IN_ALL]    all values between layers, double-buffered; initially 0
// launches [groups]    number of each group's launches so far; initially 0
// timeout              set when a wait reaches its bound
__kernel __attribute__((reqd_work_group_size(GROUP + WARP, 1, 1)))
void persistent_ring(__global const float *parameters, __global const float *x,
                     const int n_in, __global float *y, __global uint *words,
                     __global uint *launches, __global int *timeout ZERO_COPY_PARAMETER
                     BY_VALUE_PARAMETER)
{
    __local float4 slots[SLOTS * SLOT] __attribute__((aligned(128)));
    __local float partial[2][MAX_SHARE * ROW_PARTIALS] __attribute__((aligned(16)));
    __local Mbarrier full[SLOTS], empty[SLOTS];
    const int id = get_local_id(0), lane = id % WARP, group = get_group_id(0);
    const int own_row = id / REDUCERS, reducer = id % REDUCERS;  // the row it reduces
    const uint launch = launches[group];
    if (id >= GROUP) {
        if (lane < SLOTS) {
            mbarrier_init(full + lane, 1);
            mbarrier_init(empty + lane, WARPS);
        }
        fence_mbarrier_init();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id >= GROUP) {
        if (id == GROUP) copy_weights(slots, full, empty, parameters, group);
        return;
    }
    // The words of this launch, and those of the next one, which this one clears.
    __global uint *now = words + (launch & 1) * IN_ALL;
    __global uint *then = words + (~launch & 1) * IN_ALL;
    float4 weights[ROWS][VECTORS], in[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const int i = 4 * (v * GROUP + id);
        in[v] = (float4)(i < n_in ? INPUT(i) : 0, i + 1 < n_in ? INPUT(i + 1) : 0,
                         i + 2 < n_in ? INPUT(i + 2) : 0,
                         i + 3 < n_in ? INPUT(i + 3) : 0);
    }
    for (int i = group * GROUP + id; i < IN_ALL; i += GROUPS * GROUP) then[i] = 0;
    RingSlot current = {0, 0};
    bool waits = true;
    for (int layer = 0; layer < LAYERS; ++layer) {
        const Share share = share_of(group, layer);
        const int rows = share.past - share.first, vectors = stride_of[layer] / 4;
        if (rows == 0) continue;
        const bool last = layer == LAYERS - 1;
        const int output = (last ? 0 : words_of[layer + 1]) + share.first + own_row;
        const float bias =
            bias_of[layer] >= 0 && own_row < rows
                ? parameters[bias_of[layer] + share.first + own_row] : 0.0f;
        // The last share's group pads the last vector with zeros.
        const int published =
            share.past == n_out_of[layer] ? written_by(layer) - share.first : rows;
        const int function = function_of[layer];
        __local float *row_sums = partial[layer & 1];
        for (int row = 0; row < rows; row += ROWS) {
#pragma unroll
            for (int r = 0; r < ROWS; r += COPY_ROWS)
                if (row + r < rows) {
                    mbarrier_wait(full + current.slot, current.phase);
                    const __local float4 *copied = slots + current.slot * SLOT;
#pragma unroll
                    for (int v = 0; v < VECTORS; ++v) {
                        const int at = min(v * GROUP + id, vectors - 1);
#pragma unroll
                        for (int i = 0; i < COPY_ROWS; ++i)
                            weights[r + i][v] = copied[i * vectors + at];
                    }
                    warp_barrier();
                    if (lane == 0) mbarrier_arrive(empty + current.slot);
                    current = next_slot(current);
                }
            if (row == 0 && layer > 0) {
                if (!poll_inputs(in, now + words_of[layer], vectors, waits)) {
                    *timeout = 1;
                    waits = false;
                }
                warp_barrier();
            }
            float sums[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float sum = 0;
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    // Past the last vector, which is read again, `in` is 0. (An
                    // infinite weight there gives NaN; other kernels saturate.)
                    const float4 w = weights[r][v], a = in[v];
                    sum = fma(w.z, a.z, fma(w.w, a.w, sum));
                    sum = fma(w.x, a.x, fma(w.y, a.y, sum));
                }
                sums[r] = sum;
            }
            const int first = row + reduce_halving(sums, lane);
#pragma unroll
            for (int r = 0; r < ROWS >> HALVINGS; ++r)
                row_sums[(first + r) * ROW_PARTIALS + (id >> HALVINGS)] = sums[r];
        }
        group_barrier();
        // Whole warps continue: their work-items shuffle.
        if (id / WARP * WARP >= published * REDUCERS) continue;
        const float sum =
            row_sum(row_sums + min(own_row, MAX_SHARE - 1) * ROW_PARTIALS, reducer);
        float v = activate_as(function, sum + bias);
        v = own_row < rows ? v : 0;
        if (own_row < published && reducer == 0) {
            if (last) {
                y[output] = v;
                ZERO_COPY_STORE(output, v);
            } else {
                store_word(now + output, v);
            }
        }
    }
    if (id == 0) launches[group] = launch + 1;
}

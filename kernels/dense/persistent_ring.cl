// persistent_ring: a chain of dense layers in one launch over all compute units, one
// sample, weights by bulk copies.
//
// As in persistent.cl, groups stay from the first layer to the last, and values pass
// from group to group as words. What is new is how weights come. A group's rows of a
// layer follow each other in memory; one work-item, of a warp of its own, copies them
// through all layers, PIECE rows at a time, into a ring of SLOTS in local memory (bulk_copy.h):
//
//   ring:       | arrived | arrived | on its way | on its way | free |
//                    v
//   registers:  ROWS rows; work-item i of GROUP holds vectors i, i + GROUP … of each
//
// so that memory is not idle while values are waited for: the ring fills up, and ROWS
// rows of the next layer lie in registers already. But no more than FLIGHT slots are on
// their way at once: memory serves in turn, and a look at words behind more weights
// than keep it busy would come late.
//
// A work-item looks for its own vectors of the layer's values, and keeps them in
// registers for all rows. Its sums of ROWS rows are first added to those of neighbours,
// HALVINGS times by halves of the rows,
//
//   rows        work-items    0         1         2         3
//   0 1 2 3     own sums      a a a a   b b b b   c c c c   d d d d
//   half        with i ^ 1    ab ab     ab ab     cd cd     cd cd       rows 0 1 | 2 3
//   a quarter   with i ^ 2    abcd      abcd      abcd      abcd        row 0|2|1|3
//
// then, through local memory, by HOLDERS work-items a row.
//
// A layer's rows are dealt in GROUPS shares of as many, more or less one; a group takes
// another share in each layer, so that it gets as many rows as others in the end.
//
// GROUP   work-items that compute; GROUPS of them, all running at the same time
// SLOTS   of the ring, of SLOT vectors: PIECE rows of the widest layer
// FLIGHT  slots on their way at once
// ROWS    rows in registers: a power of two, whole pieces
// VECTORS of a row that a work-item holds, at most
// MOST    rows of a share at most, in whole ROWS
// HALVINGS  of the rows: 0 up to the logarithm of ROWS
// HOLDERS   work-items that add up a row's sums: a power of two, at most 8
// KEEP    percent of the weights that are to stay in the last cache between launches
// WORDS   {n, …} where the words of each layer's inputs start; the first has none
// IN_ALL  words of a set
// LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS, FUNCTION, FUNCTIONS  as in chain.h
// MAX_POLLS, BACKOFF_NS, PTX  as in ll_protocol.h and bulk_copy.h
// REAL    float
#define WIDTH 1
#include "include/activations.h"
#include "dense/chain.h"
#include "sync/by_value_input.h"
#include "sync/zero_copy_output.h"
#include "sync/ll_protocol.h"
#include "tensor_core/bulk_copy.h"
#include "include/warp.h"
#if !defined(GROUP) || !defined(GROUPS) || !defined(SLOTS) || !defined(SLOT) \
    || !defined(PIECE) || !defined(FLIGHT) || !defined(ROWS) || !defined(VECTORS) \
    || !defined(MOST) || !defined(HALVINGS) || !defined(HOLDERS) \
    || !defined(KEEP) || !defined(WORDS) || !defined(IN_ALL)
#error "persistent_ring.cl needs GROUP, GROUPS, SLOTS, SLOT, PIECE, FLIGHT, ROWS, \
VECTORS, MOST, HALVINGS, HOLDERS, KEEP, WORDS and IN_ALL"
#endif
#define WARPS (GROUP / WARP)
#define SUMS (GROUP >> HALVINGS)  // of a row, in local memory

__constant int words_of[LAYERS] = WORDS;

// Of those that compute.
inline void group_barrier(void)
{
    asm volatile("bar.sync 1, %0;" :: "n"(GROUP) : "memory");
}

// Rows of a layer.
typedef struct {
    int first, past;
} Share;

inline Share share_of(const int group, const int layer)
{
    const int turn = (group + layer) % GROUPS, n = n_out_of[layer];
    const Share share = {turn * n / GROUPS, (turn + 1) * n / GROUPS};
    return share;
}

// A slot of the ring, and the phase of its flags that ends with its being used.
typedef struct {
    int slot;
    uint phase;
} Place;

inline Place after(const Place place)
{
    const Place next = {place.slot + 1, place.phase}, first = {0, place.phase ^ 1};
    return next.slot < SLOTS ? next : first;
}

// Copy a group's weights into the ring, through all layers.
inline void copy_weights(__local float4 *slots, __local Mbarrier *full, __local Mbarrier *empty,
                         __global const float *parameters, const int group)
{
    const ulong policy = create_l2_policy(KEEP);
    Place to = {0, 1};  // no flag is in the phase before the first: all slots are free
    Place due = {0, 0};
    int copies = 0;
    for (int layer = 0; layer < LAYERS; ++layer) {
        const Share share = share_of(group, layer);
        const int stride = stride_of[layer];
        for (int row = share.first; row < share.past; row += PIECE) {
            mbarrier_wait(empty + to.slot, to.phase);
            if (copies++ >= FLIGHT) {
                mbarrier_wait(full + due.slot, due.phase);
                due = after(due);
            }
            cp_async_bulk(slots + to.slot * SLOT,
                      parameters + weights_of[layer] + (size_t)row * stride,
                      min(PIECE, share.past - row) * (stride / 4), full + to.slot,
                      policy);
            to = after(to);
        }
    }
}

// Look for a work-item's vectors of the values that a layer reads; whether all came.
inline bool poll_word(float4 *in, __global const uint *words, const int vectors,
                     const bool patient)
{
    const int id = get_local_id(0);
    __global const uint4 *from = (__global const uint4 *)words + id;
    uint4 found[VECTORS];
    int left = patient ? MAX_POLLS : 0;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        found[v] = v * GROUP + id < vectors ? (uint4)0 : (uint4)~0u;
    bool all;
    for (;;) {
        // All looks first, then all waits.
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

// Add up ROWS sums of each work-item with its neighbours', by halves of the rows, into
// the first of them; the first row that it ends up with.
inline int halve(float *sums, const int lane)
{
    int first = 0;
#pragma unroll
    for (int i = 0; i < HALVINGS; ++i) {
        const int kept = ROWS >> (i + 1);
        const bool upper = lane >> i & 1;
#pragma unroll
        for (int r = 0; r < kept; ++r) {
            const float own = upper ? sums[r + kept] : sums[r];
            const float given = upper ? sums[r] : sums[r + kept];
            sums[r] = own + shuffle_xor(given, 1 << i);
        }
        first += upper ? kept : 0;
    }
    return first;
}

// Add up what local memory holds of a row; all its HOLDERS have the sum.
inline float row_sum(const __local float *sums, const int holder)
{
    const __local float4 *from = (const __local float4 *)sums + holder;
    float4 all = from[0];
#pragma unroll
    for (int i = 1; i < SUMS / 4 / HOLDERS; ++i) all += from[i * HOLDERS];
    float sum = (all.x + all.y) + (all.z + all.w);
#pragma unroll
    for (int distance = HOLDERS / 2; distance > 0; distance /= 2)
        sum += shuffle_xor(sum, distance);
    return sum;
}

// y = the last layer's output for x
//
// parameters [..]      the flat buffer
// x [n_in]  y [n_out]  one sample
// words [2][IN_ALL]    of all values between layers, 0 at first
// launches [groups]    the number of each group's launches so far, 0 at first
// timeout                set where a wait hit its bound
__kernel __attribute__((reqd_work_group_size(GROUP + WARP, 1, 1)))
void persistent_ring(__global const float *parameters, __global const float *x,
                     const int n_in, __global float *y, __global uint *words,
                     __global uint *launches, __global int *timeout ZERO_COPY_PARAMETER
                     BY_VALUE_PARAMETER)
{
    __local float4 slots[SLOTS * SLOT] __attribute__((aligned(128)));
    __local float partial[2][MOST * SUMS] __attribute__((aligned(16)));
    __local Mbarrier full[SLOTS], empty[SLOTS];
    const int id = get_local_id(0), lane = id % WARP, group = get_group_id(0);
    const int own = id / HOLDERS, holder = id % HOLDERS;
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
    // Words of this launch, and those of the next one, which are to be empty then.
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
    Place here = {0, 0};
    bool patient = true;
    for (int layer = 0; layer < LAYERS; ++layer) {
        const Share share = share_of(group, layer);
        const int rows = share.past - share.first, vectors = stride_of[layer] / 4;
        if (rows == 0) continue;
        const bool last = layer == LAYERS - 1;
        const int place = (last ? 0 : words_of[layer + 1]) + share.first + own;
        const float bias = bias_of[layer] >= 0 && own < rows
                               ? parameters[bias_of[layer] + share.first + own] : 0.0f;
        // The last share's group fills up the last vector.
        const int told = share.past == n_out_of[layer] ? written_by(layer) - share.first
                                                       : rows;
        const int function = function_of[layer];
        __local float *row_sums = partial[layer & 1];
        for (int row = 0; row < rows; row += ROWS) {
#pragma unroll
            for (int r = 0; r < ROWS; r += PIECE)
                if (row + r < rows) {
                    mbarrier_wait(full + here.slot, here.phase);
                    const __local float4 *piece = slots + here.slot * SLOT;
#pragma unroll
                    for (int v = 0; v < VECTORS; ++v) {
                        const int at = min(v * GROUP + id, vectors - 1);
#pragma unroll
                        for (int i = 0; i < PIECE; ++i)
                            weights[r + i][v] = piece[i * vectors + at];
                    }
                    warp_barrier();
                    if (lane == 0) mbarrier_arrive(empty + here.slot);
                    here = after(here);
                }
            if (row == 0 && layer > 0) {
                if (!poll_word(in, now + words_of[layer], vectors, patient)) {
                    *timeout = 1;
                    patient = false;
                }
                warp_barrier();
            }
            float sums[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float sum = 0;
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    // Past the last vector, which is read again, `in` is 0. (So an
                    // infinite weight there gives NaN, where others saturate.)
                    const float4 w = weights[r][v], a = in[v];
                    sum = fma(w.z, a.z, fma(w.w, a.w, sum));
                    sum = fma(w.x, a.x, fma(w.y, a.y, sum));
                }
                sums[r] = sum;
            }
            const int first = row + halve(sums, lane);
#pragma unroll
            for (int r = 0; r < ROWS >> HALVINGS; ++r)
                row_sums[(first + r) * SUMS + (id >> HALVINGS)] = sums[r];
        }
        group_barrier();
        // Whole warps go on: their work-items give each other what they have.
        if (id / WARP * WARP >= told * HOLDERS) continue;
        const float sum = row_sum(row_sums + min(own, MOST - 1) * SUMS, holder);
        float v = activate_as(function, sum + bias);
        v = own < rows ? v : 0;
        if (own < told && holder == 0) {
            if (last) {
                y[place] = v;
                ZERO_COPY_STORE(place, v);
            } else {
                store_word(now + place, v);
            }
        }
    }
    if (id == 0) launches[group] = launch + 1;
}

// lane_members: trainings of many tiny networks in a launch, for GPUs: a team's lanes are
// the neurons of a network's hidden layer.
//
// A lane has the weights, gradients and state of its neurons in registers for all epochs
// of the launch: of their inputs, and to the outputs. Samples are in local memory, and all
// lanes read the same one at a time. A team takes TILE samples, and lane s completes
// sample s:
//
//   lane            0      1      2      3
//   hidden value    h0     h1     h2     h3      of each sample: TILE registers
//   output          s0     s1     s2     s3      folded: sums over the lanes of a sample
//   delta           s0     s1     s2     s3      one sample after the other to all lanes
//
// Several teams share the samples of a network, and add up gradients in local memory; each
// updates a copy of its own. Networks of a few neurons share a warp. All loops are of one
// length for a whole group, so that lanes meet at each exchange: a network that ends early,
// or has fewer samples, adds zeros.
//
// With matrix units a lane has a part of several neurons' weights instead: lane_matrix.h.
//
// IN, HIDDEN, OUT  widths; IN_PITCH  IN, rounded up to whole vectors
// MATRIX       1: products of inputs are by matrix units; 0: by lanes
// EXACT        1: inputs have TF32's bits, and no small parts (split_factors.h)
// LANES        lanes of a team: a power of two, within a warp
// EACH         neurons of a lane
// TEAMS, NETS  teams of a network, and networks of a group: their teams of one number take
//              the same samples, and share what a warp reads of them
// TILE         samples that a team takes at a time: a power of two, at most LANES
// DATA         samples of the data set
// WEIGHTS1, STRIDE1, BIAS1, WEIGHTS2, STRIDE2, BIAS2  offsets in the flat buffer, and
//              strides of rows; of no biases -1
// HIDDEN_NEURON, OUT_NEURON  a neuron of each layer
// SIZE         elements of the flat buffer
// SUBSETS      1: networks train on rows of the data set that a list names
// and the macros of steps.h
#define REAL float
#define WIDTH 1
#define PER_NETWORK REAL
#define RESIDENT 0
#define DROPS 0
#include "include/steps.h"
#include "include/neuron_functions.h"
#include "include/warp.h"
#include "members/member.h"
#if !UPDATE
#define SLOTS 0
#endif
#if !defined(IN) || !defined(HIDDEN) || !defined(OUT) || !defined(IN_PITCH) \
    || !defined(MATRIX) || !defined(EXACT) || !defined(LANES) || !defined(EACH) \
    || !defined(TEAMS) || !defined(NETS) || !defined(TILE) || !defined(DATA) \
    || !defined(WEIGHTS1) || !defined(STRIDE1) || !defined(BIAS1) \
    || !defined(WEIGHTS2) || !defined(STRIDE2) || !defined(BIAS2) \
    || !defined(HIDDEN_NEURON) || !defined(OUT_NEURON) || !defined(SIZE) \
    || !defined(SUBSETS)
#error "lane_members.cl needs IN, HIDDEN, OUT, IN_PITCH, MATRIX, EXACT, LANES, EACH, \
TEAMS, NETS, TILE, DATA, WEIGHTS1, STRIDE1, BIAS1, WEIGHTS2, STRIDE2, BIAS2, \
HIDDEN_NEURON, OUT_NEURON, SIZE and SUBSETS"
#endif

#define ALL _Pragma("unroll")
#define SHARED (LANES * NETS)  // lanes that take the same samples
#define GROUP (SHARED * TEAMS)
// A lane's values: for each neuron COLUMNS of its inputs' weights, bias, outputs' weights;
// and the outputs' biases, which all lanes have.
#if MATRIX
#define COLUMNS (IN_PITCH / 4)
#else
#define COLUMNS IN
#endif
#define NEURON_VALUES (COLUMNS + 1 + OUT)
#define VALUES (EACH * NEURON_VALUES + OUT)
#define RECORDS (RECORD + WEIGHTED)  // and the sum of the samples' weights

__constant Neuron hidden_neuron = HIDDEN_NEURON, out_neuron = OUT_NEURON;

// The value of another work-item of the warp.
#if PTX >= 70
static inline float from_item(const float v, const int item, __local float *exchange)
{
    float other;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                 : "=f"(other) : "f"(v), "r"(item & 31));
    return other;
}
#define EXCHANGE(v, mask) shuffle_xor(v, mask)
#else
static inline float from_item(const float v, const int item, __local float *exchange)
{
    exchange[get_local_id(0)] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    const float other = exchange[item];
    barrier(CLK_LOCAL_MEM_FENCE);
    return other;
}
#define EXCHANGE(v, mask) from_item(v, get_local_id(0) ^ (mask), exchange)
#endif

static inline float scaled(const Neuron neuron, float v)
{
    v *= neuron.steepness;
    v = v < -neuron.limit ? -neuron.limit : v;  // NaN stays
    return v > neuron.limit ? neuron.limit : v;
}

// The data set's row of sample s of a team's tile; `row`: that of the lane's sample, or of
// the tile's first where rows follow each other.
static inline int row_at(const int row, const int s, __local float *exchange)
{
#if GATHERED == 2 || SUBSETS
    const int first = get_local_id(0) - get_local_id(0) % LANES;
    return as_int(from_item(as_float(row), first + s, exchange));
#else
    return row + s;
#endif
}

#if MATRIX
#include "members/lane_matrix.h"
#else
#include "members/lane_products.h"
#endif

// Where value j of a lane is in the flat buffer; -1: nowhere.
static inline int place_of(const int j, const int lane)
{
    if (j >= EACH * NEURON_VALUES)
        return BIAS2 < 0 ? -1 : BIAS2 + j - EACH * NEURON_VALUES;
    const int neuron = neuron_at(j / NEURON_VALUES, lane), i = j % NEURON_VALUES;
    if (neuron >= HIDDEN) return -1;
    if (i < COLUMNS) {
        const int column = column_at(i, lane);
        return column < IN ? WEIGHTS1 + neuron * STRIDE1 + column : -1;
    }
    if (i == COLUMNS) return BIAS1 < 0 ? -1 : BIAS1 + neuron;
    return WEIGHTS2 + (i - COLUMNS - 1) * STRIDE2 + neuron;
}

// Whether no lane before has value j too.
static inline int is_first(const int j, const int lane)
{
    if (j >= EACH * NEURON_VALUES) return lane == 0;
    return j % NEURON_VALUES < COLUMNS || lane % SAME == 0;
}

// The sums of OWN values over lanes that are SAME apart, or a multiple: value s ends in
// those of number s SAME and on.
static inline float folded(float *values, __local float *exchange)
{
    ALL for (int stage = 0; stage < 5; ++stage) {  // of 2 to the power of 5 lanes
        const int mask = SAME << stage, upper = get_local_id(0) & mask;
        ALL for (int j = 0; j < OWN / 2; ++j) {
            if (j >= OWN >> (stage + 1)) continue;
            const float low = values[2 * j], high = values[2 * j + 1];
            values[j] = (upper ? high : low) + EXCHANGE(upper ? low : high, mask);
        }
    }
    float sum = values[0];
    ALL for (int mask = TILE; mask < LANES; mask *= 2) sum += EXCHANGE(sum, mask);
    return sum;
}

// The sum of a value over the lanes of a team.
static inline float lane_sum(float v, __local float *exchange)
{
    ALL for (int mask = 1; mask < LANES; mask *= 2) v += EXCHANGE(v, mask);
    return v;
}

// The losses of the lane's sample. y [OUT]: pre-activations without biases; replaced by
// the loss gradients with respect to them. Added to record: only if `counts`.
static inline void sample_loss(float *y, const float *biases, __local const float *t,
                               const float factor, const int valid, const int counts,
                               const float bit_fail_limit, float *record)
{
    const float mean_factor = MEAN ? factor / OUT : factor;
    const int weighs = factor != 0;  // 0 times an overflow would be NaN
    float v[OUT], loss = 0, squares = 0, fails = 0;
    ALL for (int o = 0; o < OUT; ++o) {
        v[o] = scaled(out_neuron, y[o] + biases[o]);
        y[o] = activate(out_neuron, v[o]);
    }
#if SOFTMAX
    float top = y[0], total = 0, targets = 0;
    ALL for (int o = 1; o < OUT; ++o) top = y[o] > top ? y[o] : top;
    ALL for (int o = 0; o < OUT; ++o) {
        total += exponential(y[o] - top);
        targets += t[o];
    }
    const float log_total = logarithm(total);
#endif
    ALL for (int o = 0; o < OUT; ++o) {
        const float z = y[o], target = t[o], scale = out_neuron.error_scale;
        const float output = LOSS_OUTPUT(z);
        const float dy = LOSS_SLOPE(z, output, target, scale) * mean_factor;
        loss += LOSS_TERM(z, target, scale);
        const float error = (target - output) * scale;
        squares += error * error;
        fails += fabs(error) >= bit_fail_limit ? 1 : 0;
        y[o] = valid && weighs ? dy * derivative(out_neuron, z, v[o]) : 0;
    }
    record[0] += counts && weighs ? loss * mean_factor : 0;
    record[1] += counts && weighs ? squares * factor : 0;
    record[2] += counts ? fails : 0;
#if WEIGHTED
    record[RECORD] += counts ? factor : 0;
#endif
}

// Arguments, in the order of clnet/variants/members/group_members.py:
//
// parameters [members, SIZE], x, t [DATA, width]: the data set
// weight [members, DATA], state [members, SLOTS, SIZE]
// most      samples of an epoch of a member, at most
// and those of member.h
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
lane_members(__global float *parameters, __global const float *x,
             __global const float *t, __global const float *weight,
             const float bit_fail_limit, __global float *state, const int batch,
             const int most, MEMBER_ARGUMENTS)
{
    __local float4 xs[(DATA + TILE) * IN_PITCH / 4];
    __local float ts[DATA * OUT];
    __local float sums[(TEAMS > 1 ? GROUP * (VALUES + RECORDS) : 1)];
#if PTX >= 70
    __local float *exchange = 0;
#else
    __local float exchange[GROUP * EXCHANGED];
#endif
    const int id = get_local_id(0), lane = id % LANES, team = id / SHARED;
    const int number = get_group_id(0) * NETS + id / LANES % NETS;
    const Member member = members[min(number, count_of_members - 1)];
    int running = number < count_of_members, ran = 0;
    for (int i = id; i < (DATA + TILE) * IN_PITCH; i += GROUP) {
        const int row = i / IN_PITCH, column = i % IN_PITCH;
        ((__local float *)xs)[i] =
            row < DATA && column < IN ? x[row * IN + column] : 0;
    }
    for (int i = id; i < DATA * OUT; i += GROUP) ts[i] = t[i];

    __global float *own = parameters + (size_t)member.index * SIZE;
    __global float *own_state = state + (size_t)member.index * SLOTS * SIZE;
    float values[VALUES], gradients[VALUES], slots[VALUES][SLOTS + 1];
    ALL for (int j = 0; j < VALUES; ++j) {
        const int place = place_of(j, lane);
        values[j] = place < 0 ? 0 : own[place];
        ALL for (int k = 0; k < SLOTS; ++k)
            slots[j][k] = place < 0 ? 0 : own_state[k * SIZE + place];
    }
    const float *biases = values + EACH * NEURON_VALUES;

    const int n = member.samples, full = min(batch, n);
    __global const Epoch *plan = schedule + (size_t)member.plan * (epochs + 1);
    __global float *first_totals = totals + (size_t)member.record * epochs * 2 * RECORD;
    float record[RECORDS], own_totals[2 * RECORD];
    ALL for (int k = 0; k < 2 * RECORD; ++k) own_totals[k] = 0;
    // One team stores in the end what all lanes have loaded.
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);

    const int steps = (most + min(batch, most) - 1) / min(batch, most);
    for (int step = 0; step < epochs * steps; ++step) {
        const int e = step / steps, begin = step % steps * full;
        const int size = running && begin < n ? min(full, n - begin) : 0;
        if (NETS == 1 && !running) break;
        ALL for (int j = 0; j < VALUES; ++j) gradients[j] = 0;
        ALL for (int k = 0; k < RECORDS; ++k) record[k] = 0;
        for (int start = team * TILE; start < batch + team * TILE;
             start += TEAMS * TILE) {
            const int sample = start + lane % TILE, valid = sample < size;
            int row = min(begin + sample, n - 1);
#if GATHERED == 2
            row = permuted(row, n, member.bits, vload8(0, plan[e].key));
#endif
#if SUBSETS
            if (member.first >= 0) row = subsets[member.first + row];
#endif
#if !(GATHERED == 2 || SUBSETS)
            const int first = min(begin + start, n - 1);  // zeros are behind the last row
#else
            const int first = row;
#endif
            float h[EACH][OWN], v[EACH][OWN];
            forward(xs, first, values, h, v, exchange);
            float y[OUT];
            ALL for (int o = 0; o < OUT; ++o) {
                float products[OWN];
                ALL for (int s = 0; s < OWN; ++s) {
                    products[s] = 0;
                    ALL for (int k = 0; k < EACH; ++k)
                        products[s] +=
                            values[k * NEURON_VALUES + COLUMNS + 1 + o] * h[k][s];
                }
                y[o] = folded(products, exchange);
            }
            float factor = 1;
#if WEIGHTED
            factor = weight[(size_t)member.index * DATA + row];
#endif
            sample_loss(y, biases, ts + row * OUT, factor, valid,
                        valid && lane < TILE, bit_fail_limit, record);
#if BACKWARD
            ALL for (int o = 0; o < OUT; ++o)
                gradients[EACH * NEURON_VALUES + o] += lane < TILE ? y[o] : 0;
            backward(xs, first, values, y, h, v, gradients, exchange);
#endif
        }
        ALL for (int o = 0; o < OUT; ++o)
            gradients[EACH * NEURON_VALUES + o] =
                lane_sum(gradients[EACH * NEURON_VALUES + o], exchange);
        ALL for (int k = 0; k < RECORDS; ++k) record[k] = lane_sum(record[k], exchange);
        ALL for (int j = 0; j < EACH * NEURON_VALUES; ++j)
            if (j % NEURON_VALUES >= COLUMNS)
                ALL for (int mask = 1; mask < SAME; mask *= 2)
                    gradients[j] += EXCHANGE(gradients[j], mask);
#if TEAMS > 1
        __local float *first = sums + id % SHARED;
        ALL for (int j = 0; j < VALUES; ++j) sums[j * GROUP + id] = gradients[j];
        ALL for (int k = 0; k < RECORDS; ++k) sums[(VALUES + k) * GROUP + id] = record[k];
        barrier(CLK_LOCAL_MEM_FENCE);
        ALL for (int j = 0; j < VALUES; ++j) {
            float sum = 0;
            ALL for (int i = 0; i < TEAMS; ++i) sum += first[j * GROUP + i * SHARED];
            gradients[j] = sum;
        }
        ALL for (int k = 0; k < RECORDS; ++k) {
            float sum = 0;
            ALL for (int i = 0; i < TEAMS; ++i)
                sum += first[(VALUES + k) * GROUP + i * SHARED];
            record[k] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#if WEIGHTED
        if (scales_weights(full, n)) {
            const float scale = weight_scale(record[RECORD], size);
            record[0] *= scale;
            record[1] *= scale;
            ALL for (int j = 0; j < VALUES; ++j) gradients[j] *= scale;
        }
#endif
        ALL for (int k = 0; k < RECORD; ++k) {
            const float before = begin ? own_totals[k] : 0;
            const float added = record[k] + (begin ? own_totals[RECORD + k] : 0);
            const float after = before + added;
            own_totals[k] = size ? after : own_totals[k];
            own_totals[RECORD + k] =
                size ? added - (after - before) : own_totals[RECORD + k];
        }
#if UPDATE
        StepInfo now = step_info(plan[e].rate, size, own_totals[1] + own_totals[1 + RECORD],
                                 begin + size, OUT,
                                 (member.epochs + e) * ((n + full - 1) / full)
                                     + step % steps,
                                 member.seed);
        now.penalties = (Penalties){member.l1, member.l2};
#if HAS_CLIP_NORM
        float squares = 0;
        ALL for (int j = 0; j < VALUES; ++j) {
            const int place = place_of(j, lane);
            const float g = add_penalties(values[j], gradients[j], size,
                                          now.penalties, place) / size;
            squares += place >= 0 && is_first(j, lane) ? g * g : 0;
        }
        now.norm = sqrt(lane_sum(squares, exchange));
#endif
        ALL for (int j = 0; j < VALUES; ++j) {
            const int place = place_of(j, lane);
            float s[SLOTS + 1];
            ALL for (int k = 0; k < SLOTS; ++k) s[k] = slots[j][k];
            const float next = stepped(values[j], gradients[j], s, now, place);
            const int changes = size && place >= 0;
            values[j] = changes ? next : values[j];
            ALL for (int k = 0; k < SLOTS; ++k)
                slots[j][k] = changes ? s[k] : slots[j][k];
        }
#endif
        if (size && begin + size == n) {
            if (lane == 0 && team == 0)
                ALL for (int k = 0; k < 2 * RECORD; ++k)
                    first_totals[e * 2 * RECORD + k] = own_totals[k];
            ran = e + 1;
            const float zero =
                (own_totals[0] - own_totals[0]) + (own_totals[1] - own_totals[1]);
            running = zero == 0 && own_totals[1] >= member.squares_limit
                      && own_totals[2] >= member.fails_limit;
        }
    }
    if (number >= count_of_members || team > 0) return;
    if (lane == 0) {
        __global float *end = ends + (size_t)member.record * END;
        for (int k = 0; k < 2 * RECORD; ++k) end[k] = own_totals[k];
        end[2 * RECORD] = ran;
    }
#if UPDATE
    ALL for (int j = 0; j < VALUES; ++j) {
        const int place = place_of(j, lane);
        if (place < 0 || !is_first(j, lane)) continue;
        own[place] = values[j];
        ALL for (int k = 0; k < SLOTS; ++k) own_state[k * SIZE + place] = slots[j][k];
    }
#endif
}

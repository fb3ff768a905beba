// cpu: a chain of dense layers in one launch, for CPU cores.
//
// A work-group is one work-item and one worker: a thread that stays resident from the
// first layer to the last. Every layer is divided into tasks, a block of samples times a
// group of panels. Workers claim tasks from a counter, so that a worker that starts
// late, or never, only leaves more tasks to the others.
//
//            panel 0     panel 1           group of GROUP panels = one task
//           +--16--+    +--16--+
//   bias    |......|    |......|           A is packed as [panel][1 + n_in][16] and
//   input 0 |......|    |......|           read as one stream, the bias first.
//   input 1 |......|    |......|           ROWS samples x PANELS panels are held in
//      :    |  :   |    |  :   |           registers for all of n_in.
//
// A layer must be complete before the next one starts. A worker that finds no task left
// waits for tasks that others hold. If one takes too long (its thread was preempted),
// the waiting worker computes that task again: both write the same values, to memory
// that no later layer reuses. So every wait is bounded and none fails, and no forward
// progress between work-groups is needed.
//
// Register rule (AVX2, 16 registers): ROWS * 2 * PANELS sums, 2 weights, 1 input. With
// registers of 512 bits (AVX-512, 32 of them): ROWS * PANELS sums, PANELS weights, 1 input.
//
// Sizes are arguments, so that one program serves all networks.
//
// FUNCTIONS(X)  the activations, X(code, act_NAME) …
// PANEL         outputs per panel: 16, one cache line
// LANES         floats of a vector: 8, two of them a panel, or 16
// STATE         words of `state` before its counters: at least 4
// MANY          1: batches above one sample; 0: without the taller tiles
// MAX_POLLS     polls of a task that another worker holds before it is computed again
// SPIN_POLLS    polls for another call before a helper returns
#define REAL float
#define WIDTH 8
#include "include/activations.h"
#include "include/atomics.h"
#if !defined(FUNCTIONS) || !defined(PANEL) || !defined(LANES) || !defined(STATE)   \
    || !defined(MANY) || !defined(MAX_POLLS) || !defined(SPIN_POLLS)
#error "cpu.cl needs FUNCTIONS, PANEL, LANES, STATE, MANY, MAX_POLLS and SPIN_POLLS"
#endif
#if PANEL != 16 || (LANES != 8 && LANES != 16)
#error "the tiles of cpu.cl hold a panel of 16 in one float16 or two float8"
#endif

// A row of the table of layers (LAYER of clnet/variants/dense/cpu.py).
typedef struct {
    int n_in, n_out;
    int packed;    // offset of the layer's panels, in float
    int out;       // offset of its values in `inner`; unused for the last layer
    int ldo;       // stride between samples
    int function;  // code of its activation
    int weights, stride;  // A [n_out, stride], from here on in the parameters
    int bias;             // offset of its biases there; -1: none
    float steepness, limit;
} Layer;

// Division of a call: `blocks` of at most `block` samples times groups of `group`
// panels.
typedef struct {
    int batch, block, blocks, group;
} Cut;

// Not inlined: each tile below would contain a copy of all functions.
__attribute__((noinline)) float8 apply_function(__global const Layer *layer,
                                                const float8 sum)
{
    float8 v = sum * (float8)layer->steepness;
    const float8 limit = (float8)layer->limit;
    v = v < -limit ? -limit : v;
    v = v > limit ? limit : v;
    switch (layer->function) {
#define CASE(number, function)                                                     \
    case number:                                                                   \
        return function(v);
        FUNCTIONS(CASE)
    }
    return v;
}

typedef float8 __attribute__((aligned(4))) float8_unaligned;

// Store 8 outputs of one sample, of which `live` exist.
static inline void store(__global float *y, const float8 v, const int live)
{
    if (live >= 8) {
        *(__global float8_unaligned *)y = v;
    } else {
        float part[8] __attribute__((aligned(32)));
        *(float8 *)part = v;
        for (int j = 0; j < live; ++j) y[j] = part[j];
    }
}

// Register tiles: NAME(...) computes ROWS samples x PANELS panels, all accumulators in
// named registers for all of n_in (arrays would be spilled to the stack).
//
// w     the first panel's bias row; panels are `panel_size` floats apart
// x     the first sample; samples are `ldx` apart; likewise y and ldy
// live  outputs that exist from the first panel on
//
//                 w0 w1 (panel 0)   w0 w1 (panel 1)
//     x of row 0  low00 high00      low01 high01
//     x of row 1  low10 high10      low11 high11
#define TILE_ARGUMENTS                                                             \
    __global const float *w, const int panel_size, const int n_in,                 \
    __global const float *x, const int ldx, __global float *y, const int ldy,      \
    __global const Layer *layer, const int live
#define ROW_POINTER(r) __global const float *x##r = x + r * ldx;
#if LANES == 16
// A parameter of 512 bits: without one the compiler takes two registers of 256.
static inline float16 multiply_add(const float16 a, const float16 b, const float16 c)
{
    return a * b + c;
}
#define PANEL_POINTER(p)                                                           \
    __global const float16 *w##p = (__global const float16 *)(w + p * panel_size);
#define START(r, p) float16 sum##r##p = w##p[0];
#define READ_WEIGHTS(p) const float16 a##p = w##p[i + 1];
#define READ_INPUT(r) const float16 v##r = (float16)x##r[i];
#define MULTIPLY_ADD(r, p) sum##r##p = multiply_add(a##p, v##r, sum##r##p);
#define LOW(r, p) sum##r##p.lo
#define HIGH(r, p) sum##r##p.hi
#else
#define PANEL_POINTER(p)                                                           \
    __global const float8 *w##p = (__global const float8 *)(w + p * panel_size);
#define START(r, p) float8 low##r##p = w##p[0], high##r##p = w##p[1];
#define READ_WEIGHTS(p) const float8 a##p = w##p[2 * i + 2], b##p = w##p[2 * i + 3];
#define READ_INPUT(r) const float8 v##r = (float8)x##r[i];
#define MULTIPLY_ADD(r, p) low##r##p += a##p * v##r; high##r##p += b##p * v##r;
#define LOW(r, p) low##r##p
#define HIGH(r, p) high##r##p
#endif
#define FINISH(r, p)                                                               \
    store(y + r * ldy + p * PANEL, apply_function(layer, LOW(r, p)),               \
          live - p * PANEL);                                                       \
    store(y + r * ldy + p * PANEL + 8, apply_function(layer, HIGH(r, p)),          \
          live - p * PANEL - 8);
// A tall tile reads one stream of weights so slowly that the hardware does not prefetch
// far enough: rows of a panel are prefetched PREFETCH_DISTANCE rows ahead. (In the tiles
// of one row, with four streams, this costs more than it gains.) Only compilers to a
// processor's own code have it: a translator to SPIR-V ends the process.
#define PREFETCH_DISTANCE 64
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))
#define PREFETCH(p)                                                                \
    __builtin_prefetch(                                                            \
        (const void *)(size_t)(w##p + PANEL / LANES * (i + 1 + PREFETCH_DISTANCE)));
#else
#define PREFETCH(p)
#endif
#define NO_PREFETCH(p)
#define DEFINE_TILE(NAME, ROWS, PANELS, PAIRS, LOAD)                               \
    static inline void NAME(TILE_ARGUMENTS)                                        \
    {                                                                              \
        PANELS(PANEL_POINTER)                                                      \
        ROWS(ROW_POINTER)                                                          \
        PAIRS(START)                                                               \
        for (int i = 0; i < n_in; ++i) {                                           \
            PANELS(READ_WEIGHTS)                                                   \
            PANELS(LOAD)                                                           \
            ROWS(READ_INPUT)                                                       \
            PAIRS(MULTIPLY_ADD)                                                    \
        }                                                                          \
        PAIRS(FINISH)                                                              \
    }
#define TO_1(X) X(0)
#define TO_2(X) X(0) X(1)
#define TO_3(X) TO_2(X) X(2)
#define TO_4(X) TO_3(X) X(3)
#define TO_5(X) TO_4(X) X(4)
#define TO_6(X) TO_5(X) X(5)
#define BY_1_1(X) X(0, 0)
#define BY_1_2(X) X(0, 0) X(0, 1)
#define BY_1_4(X) X(0, 0) X(0, 1) X(0, 2) X(0, 3)
#define BY_2_2(X) X(0, 0) X(0, 1) X(1, 0) X(1, 1)
#define BY_2_1(X) X(0, 0) X(1, 0)
#define BY_3_1(X) BY_2_1(X) X(2, 0)
#define BY_4_1(X) BY_3_1(X) X(3, 0)
#define BY_5_1(X) BY_4_1(X) X(4, 0)
#define BY_6_1(X) BY_5_1(X) X(5, 0)
#define BY_6_2(X) BY_6_1(X) X(0, 1) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1)

DEFINE_TILE(tile_1_1, TO_1, TO_1, BY_1_1, NO_PREFETCH)
DEFINE_TILE(tile_1_2, TO_1, TO_2, BY_1_2, NO_PREFETCH)
DEFINE_TILE(tile_1_4, TO_1, TO_4, BY_1_4, NO_PREFETCH)
#if MANY
DEFINE_TILE(tile_2_1, TO_2, TO_1, BY_2_1, NO_PREFETCH)
DEFINE_TILE(tile_2_2, TO_2, TO_2, BY_2_2, NO_PREFETCH)
DEFINE_TILE(tile_3_1, TO_3, TO_1, BY_3_1, PREFETCH)
DEFINE_TILE(tile_4_1, TO_4, TO_1, BY_4_1, PREFETCH)
DEFINE_TILE(tile_5_1, TO_5, TO_1, BY_5_1, PREFETCH)
DEFINE_TILE(tile_6_1, TO_6, TO_1, BY_6_1, PREFETCH)
#if LANES == 16
DEFINE_TILE(tile_6_2, TO_6, TO_2, BY_6_2, PREFETCH)
#endif
#endif

// A task: samples [0, rows) times panels [0, panels).
static inline void task(__global const float *w, const int n_in, const int panels,
                        __global const float *x, const int ldx, const int rows,
                        __global float *y, const int ldy, __global const Layer *layer,
                        const int live)
{
    const int panel_size = (n_in + 1) * PANEL;
#define TILE(NAME)                                                                 \
    NAME(w + (size_t)p * panel_size, panel_size, n_in, x + (size_t)row * ldx, ldx, \
         y + (size_t)row * ldy + p * PANEL, ldy, layer, live - p * PANEL)
#define WHILE(n, NAME)                                                             \
    for (; row + n <= rows; row += n)                                              \
        for (int p = 0; p < panels; ++p) TILE(NAME);
    int row = 0;
#if MANY
#if LANES == 16
    for (; row + 6 <= rows; row += 6) {
        int p = 0;
        for (; p + 2 <= panels; p += 2) TILE(tile_6_2);
        for (; p < panels; ++p) TILE(tile_6_1);
    }
#else
    WHILE(6, tile_6_1)
#endif
    WHILE(5, tile_5_1)
    WHILE(4, tile_4_1)
    WHILE(3, tile_3_1)
    for (; row + 2 <= rows; row += 2) {
        int p = 0;
        for (; p + 2 <= panels; p += 2) TILE(tile_2_2);
        for (; p < panels; ++p) TILE(tile_2_1);
    }
#endif
    for (; row < rows; ++row) {
        int p = 0;
        for (; p + 4 <= panels; p += 4) TILE(tile_1_4);
        for (; p + 2 <= panels; p += 2) TILE(tile_1_2);
        for (; p < panels; ++p) TILE(tile_1_1);
    }
}

static inline void layer_task(__global const Layer *layer, const int number,
                              const Cut cut, __global const float *packed,
                              __global const float *x, const int ldx, __global float *y)
{
    const int block = number % cut.blocks, first = number / cut.blocks * cut.group;
    const int panels = (layer->n_out + PANEL - 1) / PANEL;
    const int row = block * cut.block;
    task(packed + layer->packed + (size_t)first * (layer->n_in + 1) * PANEL,
         layer->n_in, min(cut.group, panels - first), x + (size_t)row * ldx, ldx,
         min(cut.block, cut.batch - row), y + (size_t)row * layer->ldo + first * PANEL,
         layer->ldo, layer, layer->n_out - first * PANEL);
}

#define SHARED_ARGUMENTS                                                           \
    __global const Layer *layers, const int count, __global const float *packed,   \
    __global const float *x, const int ldx, __global float *inner,                 \
    __global float *y, const int tasks, const int batch, const int block,          \
    const int group, const int many_workers
#define SHARED                                                                     \
    layers, count, packed, x, ldx, inner, y, tasks, batch, block, group, many_workers

// Compute tasks of one call until every task of every layer is done.
//
// layers  [count]         table of layers
// packed  [..]            panels of every layer, biases first
// x       [batch, ldx]    y: the output of the last layer
// inner   [..]            values between the layers
// tasks                   tasks of a layer at most
// many_workers            0: there is one worker, which neither claims nor waits
// claimed [count]         number of claimed tasks of each layer
// done    [count, tasks]  number of the last call that computed each task
static inline void work(SHARED_ARGUMENTS, volatile __global int *claimed,
                        volatile __global int *done, const int this_call)
{
    const Cut cut = {batch, block, (batch + block - 1) / block, group};
    __global const float *values = x;
    int ldv = ldx;
    for (int l = 0; l < count; ++l) {
        __global const Layer *layer = layers + l;
        __global float *out = l == count - 1 ? y : inner + layer->out;
        const int panels = (layer->n_out + PANEL - 1) / PANEL;
        const int total = (panels + group - 1) / group * cut.blocks;
        if (!many_workers) {
            for (int t = 0; t < total; ++t)
                layer_task(layer, t, cut, packed, values, ldv, out);
            values = out;
            ldv = layer->ldo;
            continue;
        }
        for (int t = atomic_inc(claimed + l); t < total; t = atomic_inc(claimed + l)) {
            layer_task(layer, t, cut, packed, values, ldv, out);
            store_release(done + l * tasks + t, this_call);
        }
        for (int t = 0; t < total; ++t) {
            volatile __global int *task_done = done + l * tasks + t;
            int polls = 0;
            while (load_acquire(task_done) != this_call && polls < MAX_POLLS) ++polls;
            if (load_acquire(task_done) != this_call)
                layer_task(layer, t, cut, packed, values, ldv, out);
        }
        values = out;
        ldv = layer->ldo;
    }
}

// The number of a call: 0, which `done` holds at first, is left out after 2^32 calls.
static inline int next_call(volatile __global const int *state)
{
    const uint next = (uint)state[0] + 1;
    return next ? next : 1;
}

// The workers of one call, all in one launch.
//
// state  initially 0: [0] the previous call, [1] workers that have finished, [2 …]
//        unused, [STATE …] claimed, done
// index map: work-group = worker
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
workers(SHARED_ARGUMENTS, volatile __global int *state)
{
    volatile __global int *claimed = state + STATE;
    const int this_call = next_call(state);
    work(SHARED, claimed, claimed + count, this_call);
    if (many_workers && add_seq_cst(state + 1, 1) == (int)get_global_size(0) - 1) {
        for (int l = 0; l < count; ++l) claimed[l] = 0;  // the last worker resets
        state[1] = 0;
        state[0] = this_call;
    }
}

// The calling thread as the first worker, with `helpers` on standby on other threads.
//
//   lead     open call n ---- work ---- close, wait until no helper is inside
//   helper      ...see n, enter ---- work ---- leave, poll for the next call...
//
// A helper enters, then polls whether the call is still open; the lead closes, then
// polls whether a helper is inside: so no helper inside is missed. While the call is
// closed, only the lead accesses the buffers. These stores and loads need a total order:
// they are sequentially consistent.
//
// state    as for `workers`, but [2] the open call or 0, [3] helpers inside
// timeout  [1]  set if a helper does not leave in time: the host then waits for it
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
lead(SHARED_ARGUMENTS, volatile __global int *state, volatile __global int *timeout)
{
    volatile __global int *claimed = state + STATE;
    const int this_call = next_call(state);
    state[0] = this_call;
    for (int l = 0; l < count; ++l) claimed[l] = 0;
    store_seq_cst(state + 2, this_call);
    work(SHARED, claimed, claimed + count, this_call);
    store_seq_cst(state + 2, 0);
    int polls = 0;
    while (load_seq_cst(state + 3) && polls < MAX_POLLS) ++polls;
    if (polls == MAX_POLLS) *timeout = 1;
}

// Workers that join the open call, then poll SPIN_POLLS times for the next one.
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
helpers(SHARED_ARGUMENTS, volatile __global int *state)
{
    volatile __global int *claimed = state + STATE;
    int last = 0;
    for (int polls = 0; polls < SPIN_POLLS; ++polls) {
        const int call = load_acquire(state + 2);
        if (call == 0 || call == last) continue;
        add_seq_cst(state + 3, 1);
        if (load_seq_cst(state + 2) == call) {
            work(SHARED, claimed, claimed + count, call);
            last = call;
        }
        add_seq_cst(state + 3, -1);
        polls = 0;
    }
}

// packed = A of every layer in panels, the bias first; neurons past n_out are zero.
//
// packed      [panels][1 + n_in][16] of each layer, from layers[l].packed on
// index map: work-item: every get_global_size(0)-th panel of each layer
__kernel void pack(__global const float *parameters, __global const Layer *layers,
                   const int count, __global float *packed)
{
    for (int l = 0; l < count; ++l) {
        __global const Layer *layer = layers + l;
        const int n_in = layer->n_in, panels = (layer->n_out + PANEL - 1) / PANEL;
        for (int panel = get_global_id(0); panel < panels; panel += get_global_size(0)) {
            __global float *out =
                packed + layer->packed + (size_t)panel * (n_in + 1) * PANEL;
            for (int j = 0; j < PANEL; ++j) {
                const int neuron = panel * PANEL + j;
                const int is_live = neuron < layer->n_out;
                out[j] = is_live && layer->bias >= 0 ? parameters[layer->bias + neuron]
                                                     : 0;
                __global const float *row =
                    parameters + layer->weights + (size_t)neuron * layer->stride;
                for (int i = 0; i < n_in; ++i)
                    out[(i + 1) * PANEL + j] = is_live ? row[i] : 0;
            }
        }
    }
}

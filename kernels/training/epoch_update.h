// The end of a step of epoch.cl and members.cl: the sum of the tasks' gradients and the
// update of the parameters. Include steps.h and epoch_task.h first.

// The arguments of the reduction and update that end a step.
typedef struct {
    __global float *total;   // [size] gradients of the whole step
    __global float *state;   // [SLOTS, size] of the optimiser
    __global const uchar *live;  // [size] 0 for padding, which stays zero
    int outputs;
    uint seed;
    Penalties penalties;
} UpdateArguments;

// The sum of a vector of gradients over the tasks, in their order.
static inline float8 sum_of_tasks(__global const float *gradients, const int tasks,
                                  const int pitch)
{
    float8 sum = *(__global const float8 *)gradients;
    for (int t = 1; t < tasks; ++t)
        sum += *(__global const float8 *)(gradients + (size_t)t * pitch);
    return sum;
}

static inline int8 live_lanes(__global const uchar *live)
{
    return convert_int8(*(__global const uchar8 *)live) != (int8)(0);
}

// Reduce the tasks' records and gradients [tasks, size + APART], and update the
// parameters.
static inline void finish_step(const Net *net, const UpdateArguments *update,
                               const Run *run, const int tasks,
                               __global const float *gradients, const int count)
{
    const int samples = run->size;
    for (int k = 0; k < RECORD; ++k) {
        float sum = 0;
        for (int t = 0; t < tasks; ++t)
            sum += gradients[(size_t)t * (net->size + APART) + net->size + k];
        add_to_total(run->totals, k, sum, starts_epoch(run));
    }
#if UPDATE
    StepInfo now =
        step_info(run->rate, samples, run->totals[1] + run->totals[4],
                  seen_samples(run), update->outputs, count, update->seed);
    now.penalties = update->penalties;
#endif
#if BACKWARD && (!UPDATE || HAS_CLIP_NORM)
    // The norm, or the caller, needs the whole gradient first.
    float8 squares = (float8)(0.0f);
    for (int i = 0; i < net->size; i += 8) {
        const float8 sum = sum_of_tasks(gradients + i, tasks, net->size + APART);
        *(__global float8 *)(update->total + i) = sum;
#if UPDATE
        const float8 w = *(__global const float8 *)(net->parameters + i);
        const float8 g =
            add_penalties(w, sum, samples, now.penalties, i) / (float8)(samples);
        squares += live_lanes(update->live + i) ? g * g : (float8)(0.0f);
#endif
    }
#if UPDATE
    now.norm = sqrt(lane_sum(squares));
#endif
#endif
#if UPDATE
    for (int i = 0; i < net->size; i += 8) {
#if HAS_CLIP_NORM
        const float8 sum = *(__global const float8 *)(update->total + i);
#else
        const float8 sum = sum_of_tasks(gradients + i, tasks, net->size + APART);
#endif
        __global float8 *w = (__global float8 *)(net->parameters + i);
        const int8 live = live_lanes(update->live + i);
        __global float *state = update->state + i;
        float8 slots[SLOTS + 1];  // C has no empty arrays
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            slots[k] = *(__global const float8 *)(state + (size_t)k * net->size);
        const float8 next = stepped(*w, sum, slots, now, i);
        *w = live ? next : *w;
#pragma unroll
        for (int k = 0; k < SLOTS; ++k) {
            __global float8 *at = (__global float8 *)(state + (size_t)k * net->size);
            *at = live ? slots[k] : *at;
        }
    }
#endif
}

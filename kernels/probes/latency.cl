// latency: how long a dependent load takes, and a value's way from each work-group to all.
//
// GROUP      work-items of a group of handover
// MAX_POLLS  polls of a work-item in all rounds, before it gives up
#if !defined(GROUP) || !defined(MAX_POLLS)
#error "latency.cl needs GROUP and MAX_POLLS"
#endif

// One work-item follows a ring of indices: each load needs the one before.
//
// ring [n]  ring[i] is the index after i
// end  [1]
__kernel void chase(__global const int *ring, const int steps, __global int *end)
{
    int at = 0;
    for (int step = 0; step < steps; ++step) at = ring[at];
    *end = at;
}

// Rounds in which every group publishes a word, and waits for the words of all: what the
// layers of the kernels do that stay resident (ll_protocol.h).
//
//   group 0   word = 1 . . all are 1 | word = 2 . . all are 2 | …
//   group 1      word = 1 . all are 1 | word = 2 . all are 2  | …
//
// words [groups]  zero at first
// late  [1]       zero at first; 1 if a word did not come
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void handover(volatile __global int *words, const int rounds, __global int *late)
{
    const int item = get_local_id(0), groups = get_num_groups(0);
    int left = MAX_POLLS;
    for (int round = 1; round <= rounds; ++round) {
        if (item == 0) words[get_group_id(0)] = round;
        for (int group = item; group < groups; group += GROUP)
            while (words[group] < round && left > 0) --left;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (left == 0) *late = 1;
}

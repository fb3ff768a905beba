// forward_progress: do the work-groups of one launch run concurrently?
//
// A barrier across groups: each increments a counter, and polls until all have arrived.
// Polls are bounded; a group that times out sets a flag, and the others stop too.
//
//   group 0   arrive . . . . . . all    arrived = 4
//   group 1     arrive . . . . . all
//   group 2          arrive . . .all
//   group 3               arrive .all   (groups that run in order: never)
//
// GROUP      work-items of a group
// LOCAL      bytes of local memory of a group: the most that a kernel may use
// MAX_POLLS  polls of a group
#if !defined(GROUP) || !defined(LOCAL) || !defined(MAX_POLLS)
#error "forward_progress.cl needs GROUP, LOCAL and MAX_POLLS"
#endif
#define ARRIVED 0    // groups that have arrived
#define PASSED 1     // groups that have seen all arrive
#define TIMED_OUT 2  // groups that have not

// counts [3]  zero at first
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
forward_progress(volatile __global int *counts)
{
    __local int memory[LOCAL / 4];
    // Keeps the compiler from removing the array.
    for (int i = get_local_id(0); i < LOCAL / 4; i += GROUP) memory[i] = i;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0)) return;
    const int groups = get_num_groups(0);
    atomic_add(counts + ARRIVED, memory[1]);
    for (int poll = 0; poll < MAX_POLLS; ++poll) {
        if (atomic_or(counts + ARRIVED, 0) == groups) {
            atomic_inc(counts + PASSED);
            return;
        }
        if (atomic_or(counts + TIMED_OUT, 0)) return;
    }
    atomic_inc(counts + TIMED_OUT);
}

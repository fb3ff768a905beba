// forward_progress: do the groups of one launch run concurrently?
//
// Each group counts itself in, and polls until all have come. The polls are bounded; a
// group that times out says so, and the others then stop too.
//
//   group 0   in . . . . . all    came = 4
//   group 1     in . . . . all
//   group 2          in . .all
//   group 3               in     (were it to start only when another has ended: never)
//
// GROUP      work-items of a group
// LOCAL      bytes of local memory that a group has: as much as any kernel's may
// MAX_POLLS  polls of a group
#if !defined(GROUP) || !defined(LOCAL) || !defined(MAX_POLLS)
#error "forward_progress.cl needs GROUP, LOCAL and MAX_POLLS"
#endif
#define IN 0         // groups that have come
#define MET 1        // groups that have seen all
#define TIMED_OUT 2  // groups that have not

// counts [3]  zero before
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
forward_progress(volatile __global int *counts)
{
    __local int taken[LOCAL / 4];
    // So that the compiler cannot do without it.
    for (int i = get_local_id(0); i < LOCAL / 4; i += GROUP) taken[i] = i;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0)) return;
    const int groups = get_num_groups(0);
    atomic_add(counts + IN, taken[1]);
    for (int poll = 0; poll < MAX_POLLS; ++poll) {
        if (atomic_or(counts + IN, 0) == groups) {
            atomic_inc(counts + MET);
            return;
        }
        if (atomic_or(counts + TIMED_OUT, 0)) return;
    }
    atomic_inc(counts + TIMED_OUT);
}

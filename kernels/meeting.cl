// meeting: do the groups of one launch run at the same time?
//
// Each group counts itself in, and looks whether all have come. It looks a bounded
// number of times; a group that has looked in vain says so, and no other one waits for
// long.
//
//   group 0   in . . . . . all    came = 4
//   group 1     in . . . . all
//   group 2          in . .all
//   group 3               in     (were it to start only when another has ended: never)
//
// GROUP     work-items of a group
// LOCAL     bytes of local memory that a group has: as much as any kernel's may
// PATIENCE  looks
#if !defined(GROUP) || !defined(LOCAL) || !defined(PATIENCE)
#error "meeting.cl needs GROUP, LOCAL and PATIENCE"
#endif
#define IN 0    // groups that have come
#define MET 1   // groups that have seen all
#define VAIN 2  // groups that have looked in vain

// counts [3]  zero before
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
meet(volatile __global int *counts)
{
    __local int taken[LOCAL / 4];
    // So that the compiler cannot do without it.
    for (int i = get_local_id(0); i < LOCAL / 4; i += GROUP) taken[i] = i;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0)) return;
    const int groups = get_num_groups(0);
    atomic_add(counts + IN, taken[1]);
    for (int look = 0; look < PATIENCE; ++look) {
        if (atomic_or(counts + IN, 0) == groups) {
            atomic_inc(counts + MET);
            return;
        }
        if (atomic_or(counts + VAIN, 0)) return;
    }
    atomic_inc(counts + VAIN);
}

// Tiles of a chain of layers, which groups take in turn, and how these wait for one
// another: each tile reads the values of its own rows alone, so that it waits for the
// tiles of these rows in the layer before. What is finished of a layer's inputs, rows of
// x, then tiles, is counted through all launches: nothing is ever emptied.
//
// LAYERS, N_OUT, WIDTHS, TILES  as in mma_chain.cl, whose tables come first
// TILE_M, CONSUMERS, GROUPS, WARP_GROUP, PTX  as in wgmma.h

// A group's tile: its number, its layer and where it begins.
typedef struct {
    int number, layer;
    int2 at;
} Task;

inline bool next_task(Task *task, const int groups, const int batch)
{
    task->number += groups;
    if (task->number >= tiles_before[LAYERS]) return false;
    while (task->number >= tiles_before[task->layer + 1]) ++task->layer;
    task->at = tile_of_width(task->number - tiles_before[task->layer], batch,
                             n_out_of[task->layer], width_of[task->layer]);
    return true;
}

inline int rows_of(const int batch) { return (batch + TILE_M - 1) / TILE_M * TILE_M; }

// Where what is finished of a layer's inputs is counted, of a tile's rows.
inline int count_of(const int layer, const int row, const int batch)
{
    return layer * ((batch + TILE_M - 1) / TILE_M) + row / TILE_M;
}

#if PTX == 90
#define TELLERS GROUPS      // work-items that count a tile, one of each warp group

// Of a warp group.
inline void team_barrier(void)
{
    asm volatile("bar.sync %0, %1;"
                 :: "r"(1 + (int)get_local_id(0) / WARP_GROUP), "n"(WARP_GROUP)
                 : "memory");
}

inline uint poll(__global const uint *count)
{
    uint seen;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count)
                 : "memory");
    return seen;
}

// Between what work-items write or read and what is copied in bulk.
inline void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

inline void add_one(__global uint *count)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(count) : "memory");
}
#else
#define TELLERS 1
inline void team_barrier(void)
{
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

inline uint poll(__global uint *count) { return atomic_or(count, 0); }
inline void fence_proxy_async(void) {}
inline void add_one(__global uint *count) { atomic_inc(count); }
#endif

// A work-item of each team that multiplies tells that it has finished its tile.
inline void publish(__global uint *count)
{
    fence_proxy_async();
    team_barrier();
    if (get_local_id(0) % (CONSUMERS / TELLERS) == 0 && get_local_id(0) < CONSUMERS)
        add_one(count);
}

// How often the count of a task's rows is told before all are there.
inline uint wanted_of(const Task task, const uint launch)
{
    const int before = max(task.layer, 1) - 1, width = width_of[before];
    const int tellers = (n_out_of[before] + width - 1) / width * TELLERS;
    return (launch + 1) * (task.layer ? tellers : TILE_M);
}

// Whether the count of a task's rows came to what is wanted.
inline bool there(__global uint *count, const uint wanted)
{
    return (int)(poll(count) - wanted) >= 0;
}

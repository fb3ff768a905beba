// The persistent tile scheduler of a chain of layers, and the dependencies of tiles. A
// tile reads the values of its own rows alone, so it waits for the tiles of these rows in
// the layer before. Counters count the finished rows of x, then tiles, through all
// launches, and are never reset.
//
// LAYERS, N_OUT, WIDTHS, TILES  as in mma_chain.cl, whose tables come first
// TILE_M, CONSUMERS, GROUPS, WARP_GROUP, PTX  as in wgmma.h

// A group's tile: its number, its layer, and the (row, column) at which it begins.
typedef struct {
    int number, layer;
    int2 origin;
} WorkTile;

static inline bool next_tile(WorkTile *tile, const int groups, const int batch)
{
    tile->number += groups;
    if (tile->number >= tiles_before[LAYERS]) return false;
    while (tile->number >= tiles_before[tile->layer + 1]) ++tile->layer;
    tile->origin = tile_of_width(tile->number - tiles_before[tile->layer], batch,
                                 n_out_of[tile->layer], width_of[tile->layer]);
    return true;
}

static inline int rows_of(const int batch)
{
    return (batch + TILE_M - 1) / TILE_M * TILE_M;
}

// The index of the counter of a layer's inputs, of a tile's rows.
static inline int counter_at(const int layer, const int row, const int batch)
{
    return layer * ((batch + TILE_M - 1) / TILE_M) + row / TILE_M;
}

#if PTX == 90
#define PUBLISHERS GROUPS   // work-items that count a tile, one of each warp group

static inline void warp_group_barrier(void)
{
    asm volatile("bar.sync %0, %1;"
                 :: "r"(1 + (int)get_local_id(0) / WARP_GROUP), "n"(WARP_GROUP)
                 : "memory");
}

static inline uint poll(__global const uint *counter)
{
    uint count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter)
                 : "memory");
    return count;
}

// Order accesses by work-items with bulk copies, which use the async proxy.
static inline void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

static inline void red_add_release(__global uint *counter)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
}
#else
#define PUBLISHERS 1
static inline void warp_group_barrier(void)
{
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

static inline uint poll(__global uint *counter) { return atomic_or(counter, 0); }
static inline void fence_proxy_async(void) {}
static inline void red_add_release(__global uint *counter) { atomic_inc(counter); }
#endif

// A work-item of each consumer warp group publishes that its tile is finished.
static inline void publish(__global uint *counter)
{
    fence_proxy_async();
    warp_group_barrier();
    if (get_local_id(0) % (CONSUMERS / PUBLISHERS) == 0 && get_local_id(0) < CONSUMERS)
        red_add_release(counter);
}

// The count at which all inputs of a tile's rows have arrived.
static inline uint target_count(const WorkTile tile, const uint launch)
{
    const int previous = max(tile.layer, 1) - 1, width = width_of[previous];
    const int publishers = (n_out_of[previous] + width - 1) / width * PUBLISHERS;
    return (launch + 1) * (tile.layer ? publishers : TILE_M);
}

// Whether a tile's counter reached its target.
static inline bool has_arrived(__global uint *counter, const uint target)
{
    return (int)(poll(counter) - target) >= 0;
}

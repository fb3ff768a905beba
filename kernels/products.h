// What the products on matrix units share (mma.h, wgmma.h): whose a tile is, and how its
// sums are written.
//
// TILE_M, TILE_N    rows and columns of a group
// PANEL             tiles of rows whose groups are neighbours: they share their columns
#if !defined(TILE_M) || !defined(TILE_N) || !defined(PANEL)
#error "products.h needs TILE_M, TILE_N and PANEL"
#endif

// Where a group's tile begins, as (row, column), of `rows` x `columns`: PANEL tiles of
// rows are passed together, tile of columns by tile of columns.
inline int2 tile_of(const int group, const int rows, const int columns)
{
    const int across = (columns + TILE_N - 1) / TILE_N;
    const int down = (rows + TILE_M - 1) / TILE_M;
    const int panel = group / (PANEL * across), within = group % (PANEL * across);
    const int high = min(PANEL, down - panel * PANEL);
    return (int2)((panel * PANEL + within % high) * TILE_M, within / high * TILE_N);
}

// Two neighbouring outputs, or the first of them where it is a row's last.
inline void put_pair(__global float *to, const float2 v, const int left, const int padded)
{
    if (padded && left > 1) {
        *(__global float2 *)to = v;
    } else {
        to[0] = v.s0;
        if (left > 1) to[1] = v.s1;
    }
}

// What the products on matrix units share (mma.h, wgmma.h): whose a tile is, what its rows
// and columns are multiplied by, and how its sums are written.
//
// TILE_M, TILE_N    rows and columns of a group
// PANEL             tiles of rows whose groups are neighbours: they share their columns
#if !defined(TILE_M) || !defined(TILE_N) || !defined(PANEL)
#error "products.h needs TILE_M, TILE_N and PANEL"
#endif

// Where a group's tile begins, as (row, column), of `rows` x `columns`: PANEL tiles of
// rows are passed together, tile of columns by tile of columns.
inline int2 tile_of_width(const int group, const int rows, const int columns,
                          const int width)
{
    const int across = (columns + width - 1) / width;
    const int down = (rows + TILE_M - 1) / TILE_M;
    const int panel = group / (PANEL * across), within = group % (PANEL * across);
    const int high = min(PANEL, down - panel * PANEL);
    return (int2)((panel * PANEL + within % high) * TILE_M, within / high * width);
}

inline int2 tile_of(const int group, const int rows, const int columns)
{
    return tile_of_width(group, rows, columns, TILE_N);
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

// Values of the tile's rows and columns are asked for before the products, so that nobody
// waits for them afterwards: those of its own rows a work-item keeps, those of columns it
// shares with the group when local memory is free.
#define OWN_ROWS (2 * BLOCKS_M)
#define OWN_COLUMNS ((TILE_N + ITEMS - 1) / ITEMS)
#define OWN_COLUMN(c) ((int)get_local_id(0) + (c) * ITEMS)
#define ASK_FOR_ROWS(own, values, rows)                                                  \
    UNROLLED                                                                             \
    for (int i = 0; i < OWN_ROWS; ++i)                                                   \
        own[i] = (values)[min(tile.s0 + (int)ROW_OF(i), rows - 1)];
#define ASK_FOR_COLUMNS(own, values, columns)                                            \
    UNROLLED                                                                             \
    for (int c = 0; c < OWN_COLUMNS; ++c)                                                \
        own[c] = (values)[min(tile.s1 + OWN_COLUMN(c), columns - 1)];
#define SHARE_COLUMNS(to, own)                                                           \
    UNROLLED                                                                             \
    for (int c = 0; c < OWN_COLUMNS; ++c)                                                \
        if (OWN_COLUMN(c) < TILE_N) (to)[OWN_COLUMN(c)] = own[c];

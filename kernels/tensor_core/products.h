// The tile scheduler and the epilogue's loads and stores of the products on Tensor Cores
// (mma.h, wgmma.h).
//
// TILE_M, TILE_N    rows and columns of a group's tile
// SWIZZLE           tiles of rows whose groups are neighbours and share columns in L2
#if !defined(TILE_M) || !defined(TILE_N) || !defined(SWIZZLE)
#error "products.h needs TILE_M, TILE_N and SWIZZLE"
#endif

// The (row, column) at which a group's tile of `rows` x `columns` begins: by bands of
// SWIZZLE tiles of rows, within a band column by column.
static inline int2 tile_of_width(const int group, const int rows, const int columns,
                                 const int width)
{
    const int column_tiles = (columns + width - 1) / width;
    const int row_tiles = (rows + TILE_M - 1) / TILE_M;
    const int band = group / (SWIZZLE * column_tiles);
    const int within = group % (SWIZZLE * column_tiles);
    const int band_rows = min(SWIZZLE, row_tiles - band * SWIZZLE);
    return (int2)((band * SWIZZLE + within % band_rows) * TILE_M,
                  within / band_rows * width);
}

static inline int2 tile_of(const int group, const int rows, const int columns)
{
    return tile_of_width(group, rows, columns, TILE_N);
}

// Two neighbouring sums times the scales of their row and columns, the smaller scale first:
// neither a sum and a large scale nor two scales overflow unless their product does.
static inline float2 scaled_pair(const float2 sums, const float row_scale,
                                 const float2 column_scales)
{
    return sums * fmin(column_scales, row_scale) * fmax(column_scales, row_scale);
}

// Store two neighbouring outputs, or the first alone where it is a row's last.
static inline void store_pair(__global float *to, const float2 v, const int left,
                              const int padded)
{
    if (padded && left > 1) {
        *(__global float2 *)to = v;
    } else {
        to[0] = v.s0;
        if (left > 1) to[1] = v.s1;
    }
}

// Scales and biases of the tile's rows and columns are loaded before the mainloop, which
// hides their latency. Those of rows stay in registers; those of columns go to local
// memory once the mainloop has finished with it.
#define ROWS_PER_ITEM (2 * BLOCKS_M)
#define COLUMNS_PER_ITEM ((TILE_N + ITEMS - 1) / ITEMS)
#define ITEM_COLUMN(c) ((int)get_local_id(0) + (c) * ITEMS)
#define LOAD_ROWS(loaded, values, rows)                                                  \
    UNROLLED                                                                             \
    for (int i = 0; i < ROWS_PER_ITEM; ++i)                                              \
        loaded[i] = (values)[min(tile.s0 + (int)ROW_OF(i), rows - 1)];
#define LOAD_COLUMNS(loaded, values, columns)                                            \
    UNROLLED                                                                             \
    for (int c = 0; c < COLUMNS_PER_ITEM; ++c)                                           \
        loaded[c] = (values)[min(tile.s1 + ITEM_COLUMN(c), columns - 1)];
#define STORE_COLUMNS(to, loaded)                                                        \
    UNROLLED                                                                             \
    for (int c = 0; c < COLUMNS_PER_ITEM; ++c)                                           \
        if (ITEM_COLUMN(c) < TILE_N) (to)[ITEM_COLUMN(c)] = loaded[c];

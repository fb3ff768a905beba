// The first layer's products where the data set's inputs are bfloat16 numbers, as one-hot
// codes and small integers are. A weight, or a derivative, is the sum of three bfloat16
// numbers, its pieces (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial
// intelligence datatype for higher-precision computations", 2019):
//
//     v = high + middle + low        8 bits each of float32's 24
//
// Products of pieces and inputs are exact, and matrix units add them up in float32. A
// weight is split once a step, and a derivative once a tile. A bias is the weight of the
// last input, which is 1.
//
//     inputs       [data, COLUMNS] in global memory (pack_inputs.cl), and
//                  [TILE, INPUT_PITCH] in local memory, row by row
//     weights      [PIECES, neurons, INPUT_PITCH]
//     derivatives  [PIECES, neurons, DELTA_PITCH], of the tile's samples
//
// Rows are an odd number of 16 bytes apart: eight of them are in different banks.
//
// PIECES         3
// COLUMNS        inputs with the constant one, padded with zeros to a multiple of 16
// PIECES_OFFSET  of the derivatives in a tile's memory
// SPLIT          as in group_members.cl
#if !defined(PIECES) || !defined(COLUMNS) || !defined(PIECES_OFFSET) \
    || !defined(SPLIT)
#error "exact_inputs.h needs PIECES, COLUMNS, PIECES_OFFSET and SPLIT"
#endif
#define INPUT_PITCH (COLUMNS + 8)
#define DELTA_PITCH (TILE + 8)
#define INPUTS(memory) ((__local ushort *)((memory) + X_OFFSET))
#define DELTAS_IN_PIECES(memory) ((__local ushort *)((memory) + PIECES_OFFSET))

// The pieces of v, in the upper halves of words.
static inline void split_pieces(float v, uint *pieces)
{
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        pieces[p] = as_uint(v) & 0xFFFF0000u;
        v -= as_float(pieces[p]);
    }
}

// The value whose pieces are SPLIT apart; and store one.
static inline float joined_pieces(__local const ushort *pieces)
{
    float v = 0;
#pragma unroll
    for (int p = PIECES - 1; p >= 0; --p) v += as_float((uint)pieces[p * SPLIT] << 16);
    return v;
}

static inline void store_pieces(__local ushort *to, const float v)
{
    uint pieces[PIECES];
    split_pieces(v, pieces);
#pragma unroll
    for (int p = 0; p < PIECES; ++p) to[p * SPLIT] = pieces[p] >> 16;
}

// Store the derivatives of neuron o for two samples.
static inline void store_delta_pieces(const int o, const float2 v, const int sample,
                                      __local float *memory)
{
    uint first[PIECES], second[PIECES];
    split_pieces(v.s0, first);
    split_pieces(v.s1, second);
    __local ushort *to = DELTAS_IN_PIECES(memory) + o * DELTA_PITCH + sample;
#pragma unroll
    for (int p = 0; p < PIECES; ++p)
        *(__local uint *)(to + p * layers[0].n_out * DELTA_PITCH) =
            first[p] >> 16 | second[p];
}

// Four blocks of 8 x 8 values; lane 8 j + i names row i of block j. Of each block, with
// lane = 4 b + a, a lane gets columns 2 a and 2 a + 1 of row b; or, of the transposed
// one, rows 2 a and 2 a + 1 of column b.
static inline void load_blocks(uint *v, __local const ushort *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((uint)(size_t)row));
}

static inline void load_transposed_blocks(uint *v, __local const ushort *row)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
        : "r"((uint)(size_t)row));
}

// As mma of split_factors.h, of 16 terms: a lane's are 2 a, 2 a + 1, and 8 more.
static inline void mma_bf16(float *c, const uint *a, const uint *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Start the copy of 16 bytes to local memory, or of zeros.
static inline void copy_vector(__local ushort *to, __global const ushort *from,
                               const int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((uint)(size_t)to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// Start the copy of the inputs of a warp's samples.
static inline void load_inputs(__global const ushort *from, const Loaded *loaded,
                               __local ushort *to)
{
    const int lane = own_id() % WARP;
    const int column = lane % LOADED_COLUMNS, row = lane / LOADED_COLUMNS;
#pragma unroll
    for (int i = 8 * column; i < COLUMNS; i += 8 * LOADED_COLUMNS)
#pragma unroll
        for (int k = 0; k < SLICE / LOADED_ROWS; ++k)
            copy_vector(to + (row + k * LOADED_ROWS) * INPUT_PITCH + i,
                        from + row_offset(loaded, k, COLUMNS) + i, is_valid(loaded, k));
}

// sums += the products of 16 BLOCK_ROWS neurons from o on with a warp's samples
static inline void exact_forward(const Net *net, const int o, const int slice,
                                 __local float *memory, float (*sums)[SIDES][4])
{
    const int lane = own_id() % WARP, neurons = layers[0].n_out;
    const int side = SIDES > 1 ? lane / 16 * 8 : 0;
    __local const ushort *x = INPUTS(memory)
        + (slice + side + lane % 8) * INPUT_PITCH + lane / 8 % 2 * 8;
    __local const ushort *w = net->pieces + lane / 16 * 8;
#pragma unroll STEPS
    for (int k = 0; k < COLUMNS; k += 16) {
        uint second[SIDES + 1][2];  // a load is of two sides
#pragma unroll
        for (int n = 0; n < SIDES; n += 2)
            load_blocks(second[n], x + 8 * n * INPUT_PITCH + k);
#pragma unroll
        for (int m = 0; m < BLOCK_ROWS; ++m) {
            if (o + 16 * m >= neurons) continue;
            const int row = min(o + 16 * m + lane % 16, neurons - 1);
#pragma unroll
            for (int p = PIECES - 1; p >= 0; --p) {
                uint first[4];
                load_blocks(first, w + p * SPLIT + row * INPUT_PITCH + k);
#pragma unroll
                for (int n = 0; n < SIDES; ++n) mma_bf16(sums[m][n], first, second[n]);
            }
        }
    }
}

// sums += the gradients of a block of weights, from neuron o and input i on, of `samples`
// samples from `first_sample` on
static inline void exact_outer(const int o, const int i, const int first_sample,
                               const int samples, __local float *memory,
                               float (*sums)[OUTER_SIDES][4])
{
    const int lane = own_id() % WARP, neurons = layers[0].n_out;
    const int rows = blocks[0].rows, sides = blocks[0].columns;
    __local const ushort *x =
        INPUTS(memory) + (first_sample + lane % 16) * INPUT_PITCH;
    __local const ushort *ds =
        DELTAS_IN_PIECES(memory) + first_sample + lane / 16 * 8;
#pragma unroll 2
    for (int s = 0; s < samples; s += 16) {
        uint second[OUTER_SIDES][2];
#pragma unroll
        for (int n = 0; n < OUTER_SIDES; n += 2)
            if (n < sides)
                load_transposed_blocks(
                    second[n], x + s * INPUT_PITCH
                                   + min(i + 8 * n + lane / 16 * 8, COLUMNS - 8));
#pragma unroll
        for (int m = 0; m < OUTER_ROWS; ++m) {
            if (m >= rows) continue;
            const int row = min(o + 16 * m + lane % 16, neurons - 1);
#pragma unroll
            for (int p = PIECES - 1; p >= 0; --p) {
                uint first[4];
                load_blocks(first, ds + (p * neurons + row) * DELTA_PITCH + s);
#pragma unroll
                for (int n = 0; n < OUTER_SIDES; ++n)
                    if (n < sides) mma_bf16(sums[m][n], first, second[n]);
            }
        }
    }
}

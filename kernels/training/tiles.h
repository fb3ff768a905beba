// Tiles of samples: products whose vector lanes are samples.
//
// The values of a layer are kept transposed, [feature][pitch], pitch samples of a tile side
// by side. So a layer of any width fills the vectors, weights are read as they lie, and
// one routine serves both directions:
//
//   forward    sums[o, s]     = sum over i of  w[o, i] x[i, s]
//   backward   dx[i, s]       = sum over o of  w[o, i] ds[o, s]
//   outer      gradient[o, i] = sum over s of  ds[o, s] x[i, s]
//
// A block of 4 rows x 3 vectors of 8 samples is held in registers: 12 sums, 3 loads and
// 4 broadcasts for 12 multiply-adds (AVX2 has 16 registers). Sums are named one by one:
// arrays of them would be spilled to the stack.
//
// Lengths in samples are multiples of 8; rows of values are padded with zeros to a
// multiple of 4.

#define ROW_WEIGHTS(r) __global const float *w##r = w + r * down;
#define START(r, v)                                                                  \
    float8 sum##r##v =                                                               \
        add ? ((__global float8 *)(y + r * pitch))[v] : (float8)(0.0f);
#define START_AT_ZERO(r, v) float8 sum##r##v = (float8)(0.0f);
#define LOAD_VALUES(v) const float8 x##v = ((__global const float8 *)x)[v];
#define LOAD_WEIGHT(r) const float8 a##r = (float8)(*w##r); w##r += across;
#define MULTIPLY_ADD(r, v) sum##r##v += a##r * x##v;
#define STORE_SUM(r, v) ((__global float8 *)(y + r * pitch))[v] = sum##r##v;

// y[r, s] (+)= sum over k of w[r * down + k * across] * x[k, s]
#define DEFINE_PRODUCT(NAME, ROWS, VECTORS, PAIRS)                                   \
    inline void NAME(__global const float *w, const int down, const int across,      \
                     __global const float *x, const int count, __global float *y,    \
                     const int pitch, const int add)                                 \
    {                                                                                \
        ROWS(ROW_WEIGHTS)                                                            \
        PAIRS(START)                                                                 \
        for (int k = 0; k < count; ++k) {                                            \
            VECTORS(LOAD_VALUES)                                                     \
            x += pitch;                                                              \
            ROWS(LOAD_WEIGHT_AND_ADD_##VECTORS)                                      \
        }                                                                            \
        PAIRS(STORE_SUM)                                                             \
    }
#define LOAD_WEIGHT_AND_ADD_TO_1(r) { LOAD_WEIGHT(r) MULTIPLY_ADD(r, 0) }
#define LOAD_WEIGHT_AND_ADD_TO_2(r)                                                  \
    { LOAD_WEIGHT(r) MULTIPLY_ADD(r, 0) MULTIPLY_ADD(r, 1) }
#define LOAD_WEIGHT_AND_ADD_TO_3(r)                                                  \
    { LOAD_WEIGHT(r) MULTIPLY_ADD(r, 0) MULTIPLY_ADD(r, 1) MULTIPLY_ADD(r, 2) }
#define TO_1(X) X(0)
#define TO_2(X) X(0) X(1)
#define TO_3(X) X(0) X(1) X(2)
#define TO_4(X) X(0) X(1) X(2) X(3)
#define BY_1_1(X) X(0, 0)
#define BY_1_2(X) X(0, 0) X(0, 1)
#define BY_1_3(X) X(0, 0) X(0, 1) X(0, 2)
#define BY_2_1(X) BY_1_1(X) X(1, 0)
#define BY_2_2(X) BY_1_2(X) X(1, 0) X(1, 1)
#define BY_2_3(X) BY_1_3(X) X(1, 0) X(1, 1) X(1, 2)
#define BY_4_1(X) BY_2_1(X) X(2, 0) X(3, 0)
#define BY_4_2(X) BY_2_2(X) X(2, 0) X(2, 1) X(3, 0) X(3, 1)
#define BY_4_3(X) BY_2_3(X) X(2, 0) X(2, 1) X(2, 2) X(3, 0) X(3, 1) X(3, 2)
DEFINE_PRODUCT(product_1_1, TO_1, TO_1, BY_1_1)
DEFINE_PRODUCT(product_1_2, TO_1, TO_2, BY_1_2)
DEFINE_PRODUCT(product_1_3, TO_1, TO_3, BY_1_3)
DEFINE_PRODUCT(product_2_1, TO_2, TO_1, BY_2_1)
DEFINE_PRODUCT(product_2_2, TO_2, TO_2, BY_2_2)
DEFINE_PRODUCT(product_2_3, TO_2, TO_3, BY_2_3)
DEFINE_PRODUCT(product_4_1, TO_4, TO_1, BY_4_1)
DEFINE_PRODUCT(product_4_2, TO_4, TO_2, BY_4_2)
DEFINE_PRODUCT(product_4_3, TO_4, TO_3, BY_4_3)

// The same for `rows` rows and `samples` samples, without sums before. The values of
// BLOCK features and 24 samples stay in the first cache while all rows pass.
#define BLOCK 256
inline void product(__global const float *w, const int down, const int across,
                    __global const float *x, const int count, __global float *y,
                    const int rows, const int samples, const int pitch)
{
    for (int k = 0; k < count; k += BLOCK) {
        const int here = min(BLOCK, count - k);
        int s = 0;
#define DOWN(n, m)                                                                   \
    for (; row + m <= rows; row += m)                                                \
        product_##m##_##n(w + row * down, down, across, x + s, here,                 \
                          y + row * pitch + s, pitch, k);
#define ACROSS(n)                                                                    \
    for (; s + 8 * n <= samples; s += 8 * n) {                                       \
        int row = 0;                                                                 \
        DOWN(n, 4) DOWN(n, 2) DOWN(n, 1)                                             \
    }
        ACROSS(3) ACROSS(2) ACROSS(1)
#undef ACROSS
#undef DOWN
        w += here * across;
        x += here * pitch;
    }
}

#define ROW_OF_DS(r) const float8 d##r = *(__global const float8 *)(ds + r * pitch);
#define ADD_PRODUCT(r, c) sum##r##c += d##r * v;
// One value of x at a time: with four there would be 17 registers.
#define ADD_COLUMN(ROWS_OF_SUMS, c)                                                  \
    {                                                                                \
        const float8 v = *(__global const float8 *)(x + c * pitch);                  \
        ROWS_OF_SUMS(c)                                                              \
    }
#define ONE_ROW(c) ADD_PRODUCT(0, c)
#define TWO_ROWS(c) ONE_ROW(c) ADD_PRODUCT(1, c)
#define THREE_ROWS(c) TWO_ROWS(c) ADD_PRODUCT(2, c)
#define STORE_ROW(r)                                                                 \
    {                                                                                \
        __global float4_unaligned *g =                                               \
            (__global float4_unaligned *)(gradient + r * stride);                    \
        const float4 found = lane_sums(sum##r##0, sum##r##1, sum##r##2, sum##r##3);  \
        *g = add ? *g + found : found;                                               \
    }

// gradient[r, c] (+)= sum over s of ds[r, s] * x[c, s], for 4 columns c
#define DEFINE_OUTER(NAME, ROWS, ROWS_OF_SUMS, PAIRS)                                \
    inline void NAME(__global const float *ds, __global const float *x,              \
                     const int samples, const int pitch, __global float *gradient,   \
                     const int stride, const int add)                                \
    {                                                                                \
        PAIRS(START_AT_ZERO)                                                         \
        for (int s = 0; s < samples; s += 8) {                                       \
            ROWS(ROW_OF_DS)                                                          \
            ADD_COLUMN(ROWS_OF_SUMS, 0)                                              \
            ADD_COLUMN(ROWS_OF_SUMS, 1)                                              \
            ADD_COLUMN(ROWS_OF_SUMS, 2)                                              \
            ADD_COLUMN(ROWS_OF_SUMS, 3)                                              \
            x += 8;                                                                  \
            ds += 8;                                                                 \
        }                                                                            \
        ROWS(STORE_ROW)                                                              \
    }
#define BY_1_4(X) X(0, 0) X(0, 1) X(0, 2) X(0, 3)
#define BY_2_4(X) BY_1_4(X) X(1, 0) X(1, 1) X(1, 2) X(1, 3)
#define BY_3_4(X) BY_2_4(X) X(2, 0) X(2, 1) X(2, 2) X(2, 3)
DEFINE_OUTER(outer_1, TO_1, ONE_ROW, BY_1_4)
DEFINE_OUTER(outer_2, TO_2, TWO_ROWS, BY_2_4)
DEFINE_OUTER(outer_3, TO_3, THREE_ROWS, BY_3_4)

// The same for `rows` rows of ds, and columns 0 … stride - 1. All rows that stay in
// cache are taken for some columns before the next ones are.
#define CACHED_VALUES 6144
inline void outer(__global const float *ds, __global const float *x, const int rows,
                  const int samples, const int pitch, __global float *gradient,
                  const int stride, const int add)
{
    const int most = max(3, CACHED_VALUES / pitch / 3 * 3);
    for (int begin = 0; begin < rows; begin += most) {
        const int end = min(begin + most, rows);
        for (int c = 0; c < stride; c += 4) {
            int row = begin;
#define DOWN(n)                                                                      \
    for (; row + n <= end; row += n)                                                 \
        outer_##n(ds + row * pitch, x + c * pitch, samples, pitch,                   \
                  gradient + row * stride + c, stride, add);
            DOWN(3) DOWN(2) DOWN(1)
#undef DOWN
        }
    }
}

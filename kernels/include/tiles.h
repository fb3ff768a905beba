// Products of tiles of samples: vector lanes are samples.
//
// The values of a layer are stored transposed, [feature][pitch], with a tile's samples
// contiguous. A layer of any width then fills the vectors, weights are read in place,
// and one routine serves both directions:
//
//   forward    z[o, s]        = sum over i of  w[o, i] x[i, s]
//   backward   dx[i, s]       = sum over o of  w[o, i] ds[o, s]
//   outer      gradient[o, i] = sum over s of  ds[o, s] x[i, s]
//
// A register tile is 4 rows x 3 vectors of 8 samples: 12 accumulators, with 3 loads and
// 4 broadcasts for 12 multiply-adds (AVX2 has 16 registers). Each accumulator has its
// own name: an array would be spilled to the stack.
//
// Lengths in samples are multiples of 8; rows of values are padded with zeros to a
// multiple of 4.

#define ROW_WEIGHTS(r) __global const float *w##r = w + r * row_stride;
#define START(r, v)                                                                  \
    float8 sum##r##v =                                                               \
        add ? ((__global float8 *)(y + r * pitch))[v] : (float8)(0.0f);
#define START_AT_ZERO(r, v) float8 sum##r##v = (float8)(0.0f);
#define LOAD_VALUES(v) const float8 x##v = ((__global const float8 *)x)[v];
#define LOAD_WEIGHT(r) const float8 a##r = (float8)(*w##r); w##r += k_stride;
#define MULTIPLY_ADD(r, v) sum##r##v += a##r * x##v;
#define STORE_SUM(r, v) ((__global float8 *)(y + r * pitch))[v] = sum##r##v;

// y[r, s] (+)= sum over k of w[r * row_stride + k * k_stride] * x[k, s]
#define DEFINE_PRODUCT(NAME, ROWS, VECTORS, PAIRS)                                   \
    static inline void NAME(__global const float *w, const int row_stride,           \
                            const int k_stride, __global const float *x,             \
                            const int count, __global float *y, const int pitch,     \
                            const int add)                                           \
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

// y = w x for `rows` rows and `samples` samples. The values of K_BLOCK features and 24
// samples stay in the L1 cache for all rows.
#define K_BLOCK 256
static inline void product(__global const float *w, const int row_stride,
                           const int k_stride, __global const float *x, const int count,
                           __global float *y, const int rows, const int samples,
                           const int pitch)
{
    for (int k = 0; k < count; k += K_BLOCK) {
        const int length = min(K_BLOCK, count - k);
        int s = 0;
#define ROW_LOOP(n, m)                                                               \
    for (; row + m <= rows; row += m)                                                \
        product_##m##_##n(w + row * row_stride, row_stride, k_stride, x + s, length, \
                          y + row * pitch + s, pitch, k);
#define SAMPLE_LOOP(n)                                                               \
    for (; s + 8 * n <= samples; s += 8 * n) {                                       \
        int row = 0;                                                                 \
        ROW_LOOP(n, 4) ROW_LOOP(n, 2) ROW_LOOP(n, 1)                                 \
    }
        SAMPLE_LOOP(3) SAMPLE_LOOP(2) SAMPLE_LOOP(1)
#undef SAMPLE_LOOP
#undef ROW_LOOP
        w += length * k_stride;
        x += length * pitch;
    }
}

#define ROW_OF_DS(r) const float8 d##r = *(__global const float8 *)(ds + r * pitch);
#define ADD_PRODUCT(r, c) sum##r##c += d##r * v;
// One vector of x at a time: four would need 17 registers.
#define ADD_COLUMN(ADD_ROWS, c)                                                      \
    {                                                                                \
        const float8 v = *(__global const float8 *)(x + c * pitch);                  \
        ADD_ROWS(c)                                                                  \
    }
#define ADD_1_ROW(c) ADD_PRODUCT(0, c)
#define ADD_2_ROWS(c) ADD_1_ROW(c) ADD_PRODUCT(1, c)
#define ADD_3_ROWS(c) ADD_2_ROWS(c) ADD_PRODUCT(2, c)
#define STORE_ROW(r)                                                                 \
    {                                                                                \
        __global float4_unaligned *g =                                               \
            (__global float4_unaligned *)(gradient + r * stride);                    \
        const float4 total = lane_sums(sum##r##0, sum##r##1, sum##r##2, sum##r##3);  \
        *g = add ? *g + total : total;                                               \
    }

// gradient[r, c] (+)= sum over s of ds[r, s] * x[c, s], for 4 columns c
#define DEFINE_OUTER(NAME, ROWS, ADD_ROWS, PAIRS)                                    \
    static inline void NAME(__global const float *ds, __global const float *x,       \
                            const int samples, const int pitch,                      \
                            __global float *gradient, const int stride,              \
                            const int add)                                           \
    {                                                                                \
        PAIRS(START_AT_ZERO)                                                         \
        for (int s = 0; s < samples; s += 8) {                                       \
            ROWS(ROW_OF_DS)                                                          \
            ADD_COLUMN(ADD_ROWS, 0)                                                  \
            ADD_COLUMN(ADD_ROWS, 1)                                                  \
            ADD_COLUMN(ADD_ROWS, 2)                                                  \
            ADD_COLUMN(ADD_ROWS, 3)                                                  \
            x += 8;                                                                  \
            ds += 8;                                                                 \
        }                                                                            \
        ROWS(STORE_ROW)                                                              \
    }
#define BY_1_4(X) X(0, 0) X(0, 1) X(0, 2) X(0, 3)
#define BY_2_4(X) BY_1_4(X) X(1, 0) X(1, 1) X(1, 2) X(1, 3)
#define BY_3_4(X) BY_2_4(X) X(2, 0) X(2, 1) X(2, 2) X(2, 3)
DEFINE_OUTER(outer_1, TO_1, ADD_1_ROW, BY_1_4)
DEFINE_OUTER(outer_2, TO_2, ADD_2_ROWS, BY_2_4)
DEFINE_OUTER(outer_3, TO_3, ADD_3_ROWS, BY_3_4)

// The same for `rows` rows of ds and columns 0 … stride - 1, by blocks of rows that
// stay in the L1 cache for all columns.
#define CACHED_VALUES 6144
static inline void outer(__global const float *ds, __global const float *x,
                         const int rows, const int samples, const int pitch,
                         __global float *gradient, const int stride, const int add)
{
    const int block = max(3, CACHED_VALUES / pitch / 3 * 3);
    for (int begin = 0; begin < rows; begin += block) {
        const int end = min(begin + block, rows);
        for (int c = 0; c < stride; c += 4) {
            int row = begin;
#define ROW_LOOP(n)                                                                  \
    for (; row + n <= end; row += n)                                                 \
        outer_##n(ds + row * pitch, x + c * pitch, samples, pitch,                   \
                  gradient + row * stride + c, stride, add);
            ROW_LOOP(3) ROW_LOOP(2) ROW_LOOP(1)
#undef ROW_LOOP
        }
    }
}

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
// LANES  samples of a vector: 8, or 16 where a register holds them
//
// A register tile is 4 rows x 3 vectors of 8 samples: 12 accumulators, with 3 loads and
// 4 broadcasts for 12 multiply-adds (AVX2 has 16 registers); or 8 rows x 3 vectors of 16
// (AVX-512 has 32). Each accumulator has its own name: an array would be spilled to the
// stack.
//
// Lengths in samples are multiples of LANES; rows of values are padded with zeros to a
// multiple of 4.
#if !defined(LANES) || (LANES != 8 && LANES != 16)
#error "tiles.h needs LANES: 8 or 16"
#endif
#define LANE_VECTOR JOIN(float, LANES)

// A parameter of 512 bits: without one the compiler takes two registers of 256.
static inline LANE_VECTOR multiply_add(const LANE_VECTOR a, const LANE_VECTOR b,
                                       const LANE_VECTOR c)
{
    return a * b + c;
}
#if LANES == 16
#define FOLDED(v) ((v).lo + (v).hi)
#else
#define FOLDED(v) (v)
#endif

#define ROW_WEIGHTS(r) __global const float *w##r = w + r * row_stride;
#define START(r, v)                                                                  \
    LANE_VECTOR sum##r##v =                                                          \
        add ? ((__global LANE_VECTOR *)(y + r * pitch))[v] : (LANE_VECTOR)(0.0f);
#define START_AT_ZERO(r, v) LANE_VECTOR sum##r##v = (LANE_VECTOR)(0.0f);
#define LOAD_VALUES(v) const LANE_VECTOR x##v = ((__global const LANE_VECTOR *)x)[v];
#define LOAD_WEIGHT(r) const LANE_VECTOR a##r = (LANE_VECTOR)(*w##r); w##r += k_stride;
#define MULTIPLY_ADD(r, v) sum##r##v = multiply_add(a##r, x##v, sum##r##v);
#define STORE_SUM(r, v) ((__global LANE_VECTOR *)(y + r * pitch))[v] = sum##r##v;

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
#define TO_6(X) TO_4(X) X(4) X(5)
#define TO_8(X) TO_6(X) X(6) X(7)
#define BY_1_1(X) X(0, 0)
#define BY_1_2(X) X(0, 0) X(0, 1)
#define BY_1_3(X) X(0, 0) X(0, 1) X(0, 2)
#define BY_2_1(X) BY_1_1(X) X(1, 0)
#define BY_2_2(X) BY_1_2(X) X(1, 0) X(1, 1)
#define BY_2_3(X) BY_1_3(X) X(1, 0) X(1, 1) X(1, 2)
#define BY_4_1(X) BY_2_1(X) X(2, 0) X(3, 0)
#define BY_4_2(X) BY_2_2(X) X(2, 0) X(2, 1) X(3, 0) X(3, 1)
#define BY_4_3(X) BY_2_3(X) X(2, 0) X(2, 1) X(2, 2) X(3, 0) X(3, 1) X(3, 2)
#define ROW_1(X, r) X(r, 0)
#define ROW_2(X, r) X(r, 0) X(r, 1)
#define ROW_3(X, r) X(r, 0) X(r, 1) X(r, 2)
#define BY_8_1(X) BY_4_1(X) ROW_1(X, 4) ROW_1(X, 5) ROW_1(X, 6) ROW_1(X, 7)
#define BY_8_2(X) BY_4_2(X) ROW_2(X, 4) ROW_2(X, 5) ROW_2(X, 6) ROW_2(X, 7)
#define BY_8_3(X) BY_4_3(X) ROW_3(X, 4) ROW_3(X, 5) ROW_3(X, 6) ROW_3(X, 7)
DEFINE_PRODUCT(product_1_1, TO_1, TO_1, BY_1_1)
DEFINE_PRODUCT(product_1_2, TO_1, TO_2, BY_1_2)
DEFINE_PRODUCT(product_1_3, TO_1, TO_3, BY_1_3)
DEFINE_PRODUCT(product_2_1, TO_2, TO_1, BY_2_1)
DEFINE_PRODUCT(product_2_2, TO_2, TO_2, BY_2_2)
DEFINE_PRODUCT(product_2_3, TO_2, TO_3, BY_2_3)
#if LANES == 16
#define TALL 8
DEFINE_PRODUCT(product_8_1, TO_8, TO_1, BY_8_1)
DEFINE_PRODUCT(product_8_2, TO_8, TO_2, BY_8_2)
DEFINE_PRODUCT(product_8_3, TO_8, TO_3, BY_8_3)
#else
#define TALL 4
DEFINE_PRODUCT(product_4_1, TO_4, TO_1, BY_4_1)
DEFINE_PRODUCT(product_4_2, TO_4, TO_2, BY_4_2)
DEFINE_PRODUCT(product_4_3, TO_4, TO_3, BY_4_3)
#endif

// y = w x for `rows` rows and `samples` samples. The values of K_BLOCK features and of
// three vectors of samples stay in the L1 cache for all rows.
#define K_BLOCK (2048 / LANES)
#define PRODUCT(m, n) JOIN(JOIN(product_, m), JOIN(_, n))
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
        PRODUCT(m, n)(w + row * row_stride, row_stride, k_stride, x + s, length,     \
                      y + row * pitch + s, pitch, k);
#define SAMPLE_LOOP(n)                                                               \
    for (; s + LANES * n <= samples; s += LANES * n) {                               \
        int row = 0;                                                                 \
        ROW_LOOP(n, TALL) ROW_LOOP(n, 2) ROW_LOOP(n, 1)                              \
    }
        SAMPLE_LOOP(3) SAMPLE_LOOP(2) SAMPLE_LOOP(1)
#undef SAMPLE_LOOP
#undef ROW_LOOP
        w += length * k_stride;
        x += length * pitch;
    }
}

#define ROW_OF_DS(r)                                                                 \
    const LANE_VECTOR d##r = *(__global const LANE_VECTOR *)(ds + r * pitch);
#define ADD_PRODUCT(r, c) sum##r##c = multiply_add(d##r, v, sum##r##c);
// One vector of x at a time: four would need 17 registers.
#define ADD_COLUMN(ADD_ROWS, c)                                                      \
    {                                                                                \
        const LANE_VECTOR v = *(__global const LANE_VECTOR *)(x + c * pitch);        \
        ADD_ROWS(c)                                                                  \
    }
#define ADD_1_ROW(c) ADD_PRODUCT(0, c)
#define ADD_2_ROWS(c) ADD_1_ROW(c) ADD_PRODUCT(1, c)
#define ADD_3_ROWS(c) ADD_2_ROWS(c) ADD_PRODUCT(2, c)
#define ADD_6_ROWS(c) ADD_3_ROWS(c) ADD_PRODUCT(3, c) ADD_PRODUCT(4, c) ADD_PRODUCT(5, c)
#define STORE_ROW(r)                                                                 \
    {                                                                                \
        __global float4_unaligned *g =                                               \
            (__global float4_unaligned *)(gradient + r * stride);                    \
        const float4 total = lane_sums(FOLDED(sum##r##0), FOLDED(sum##r##1),         \
                                       FOLDED(sum##r##2), FOLDED(sum##r##3));        \
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
        for (int s = 0; s < samples; s += LANES) {                                   \
            ROWS(ROW_OF_DS)                                                          \
            ADD_COLUMN(ADD_ROWS, 0)                                                  \
            ADD_COLUMN(ADD_ROWS, 1)                                                  \
            ADD_COLUMN(ADD_ROWS, 2)                                                  \
            ADD_COLUMN(ADD_ROWS, 3)                                                  \
            x += LANES;                                                              \
            ds += LANES;                                                             \
        }                                                                            \
        ROWS(STORE_ROW)                                                              \
    }
#define BY_1_4(X) X(0, 0) X(0, 1) X(0, 2) X(0, 3)
#define BY_2_4(X) BY_1_4(X) X(1, 0) X(1, 1) X(1, 2) X(1, 3)
#define BY_3_4(X) BY_2_4(X) X(2, 0) X(2, 1) X(2, 2) X(2, 3)
DEFINE_OUTER(outer_1, TO_1, ADD_1_ROW, BY_1_4)
DEFINE_OUTER(outer_2, TO_2, ADD_2_ROWS, BY_2_4)
#if LANES == 16
#define BY_6_4(X)                                                                    \
    BY_3_4(X) X(3, 0) X(3, 1) X(3, 2) X(3, 3) X(4, 0) X(4, 1) X(4, 2) X(4, 3)        \
    X(5, 0) X(5, 1) X(5, 2) X(5, 3)
#define OUTER_ROWS 6
DEFINE_OUTER(outer_6, TO_6, ADD_6_ROWS, BY_6_4)
#else
#define OUTER_ROWS 3
DEFINE_OUTER(outer_3, TO_3, ADD_3_ROWS, BY_3_4)
#endif
#define OUTER(n) JOIN(outer_, n)

// The same for `rows` rows of ds and columns 0 … stride - 1, by blocks of rows that
// stay in the L1 cache for all columns.
#define CACHED_VALUES 6144
static inline void outer(__global const float *ds, __global const float *x,
                         const int rows, const int samples, const int pitch,
                         __global float *gradient, const int stride, const int add)
{
    const int block =
        max(OUTER_ROWS, CACHED_VALUES / pitch / OUTER_ROWS * OUTER_ROWS);
    for (int begin = 0; begin < rows; begin += block) {
        const int end = min(begin + block, rows);
        for (int c = 0; c < stride; c += 4) {
            int row = begin;
#define ROW_LOOP(n)                                                                  \
    for (; row + n <= end; row += n)                                                 \
        OUTER(n)(ds + row * pitch, x + c * pitch, samples, pitch,                    \
                 gradient + row * stride + c, stride, add);
            ROW_LOOP(OUTER_ROWS) ROW_LOOP(2) ROW_LOOP(1)
#undef ROW_LOOP
        }
    }
}

// Vectors of VEC rows of a locally connected layer, of type ROWS.
//
// SLIDE(v, next)         v shifted by one row, with `next` as the last one
// LOAD_PARTIAL(p, n)     the first n rows at p, fewer than VEC, and zeros
// MAP(f, v)              f of every row
// ELEMENT(v, j)          row j, a constant
//
// REAL, WINDOW, VEC, HAS_BIAS, BIAS_STEP  as in the file that includes this, after
// activations.h
#if VEC == 1
#define ROWS REAL
#define SLIDE(v, next) (next)
#define LOAD_ROWS(p) (*(p))
#define STORE_ROWS(v, p) *(p) = (v)
#define MAP(f, v) f(v)
#define ELEMENT(v, j) (v)
#define LOAD_PARTIAL(p, n) ((ROWS)(p)[0])
#elif VEC == 2
#define ROWS JOIN(REAL, 2)
#define SLIDE(v, next) ((ROWS)(v.s1, next))
#define LOAD_ROWS(p) vload2(0, p)
#define STORE_ROWS(v, p) vstore2(v, 0, p)
#define MAP(f, v) ((ROWS)(f(v.s0), f(v.s1)))
#define ELEMENT(v, j) ((j) == 0 ? v.s0 : v.s1)
#define LOAD_PARTIAL(p, n) ((ROWS)((p)[0], (n) > 1 ? (p)[1] : (REAL)0))
#elif VEC == 4
#define ROWS JOIN(REAL, 4)
#define SLIDE(v, next) ((ROWS)(v.s123, next))
#define LOAD_ROWS(p) vload4(0, p)
#define STORE_ROWS(v, p) vstore4(v, 0, p)
#define MAP(f, v) ((ROWS)(f(v.s0), f(v.s1), f(v.s2), f(v.s3)))
#define ELEMENT(v, j) ((j) == 0 ? v.s0 : (j) == 1 ? v.s1 : (j) == 2 ? v.s2 : v.s3)
#define LOAD_PARTIAL(p, n)                              \
    ((ROWS)((p)[0], (n) > 1 ? (p)[1] : (REAL)0, \
            (n) > 2 ? (p)[2] : (REAL)0, (REAL)0))
#else
#error "VEC must be 1, 2 or 4"
#endif

// The biases of rows i … i + VEC - 1; `bias` points at the layer's first.
static inline ROWS bias_of(__global const REAL *bias, const int i)
{
#if !HAS_BIAS
    return (ROWS)((REAL)0);
#elif BIAS_STEP
    return *(__global const ROWS *)(bias + i);
#else
    return (ROWS)(*bias);
#endif
}

#ifdef ACTIVATION
static inline ROWS epilogue(const ROWS sums) { return MAP(activate, sums); }
#endif

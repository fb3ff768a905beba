// Products of matrix units to float32's accuracy: each factor is split into two of TF32's
// 11 bits, and three of their four products are added up (Markidis et al., "NVIDIA Tensor
// Core programmability, performance & precision", 2018; Ootomo and Yokota, "Recovering
// single precision accuracy from Tensor Cores", 2022).
//
// mma.m16n8k8 multiplies 16 x 8 by 8 x 8 elements. With lane = 4 b + a, a lane holds
//
//   of the first factor    rows b and b + 8, columns of the inner dimension p(a), q(a)
//   of the second factor   rows p(a) and q(a) of the inner dimension, column b
//   of the product         rows b and b + 8, columns 2 a and 2 a + 1
//
// where p and q are any permutation of 8: those that avoid bank conflicts.

// Factors, each value split.
typedef struct {
    uint big[4], small[4];
} FirstFactor;
typedef struct {
    uint big[2], small[2];
} SecondFactor;

// mma drops the last 13 bits of the small part: one bit of the value at most.
static inline void split(const float v, uint *big, uint *small)
{
    const uint rounded = (as_uint(v) + 0x1000u) & 0xFFFFE000u;
    *big = rounded;
    *small = as_uint(v - as_float(rounded));
}

#if PTX >= 80
static inline void mma(float *c, const uint *a, const uint *b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

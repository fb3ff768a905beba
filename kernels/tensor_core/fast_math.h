// Activations by the hardware's approximations, precise enough for halves. Comes after
// activations.h and fp16_split.h.
#if PTX >= 80 && SPLITS == 1
static inline float fast_tanh(const float v)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
}
static inline float fast_sigmoid(const float v)
{
    return 0.5f * fast_tanh(0.5f * v) + 0.5f;
}
static inline float fast_silu(const float v) { return v * fast_sigmoid(v); }
#define act_tanh fast_tanh
#define act_sigmoid fast_sigmoid
#define act_silu fast_silu
#endif

// The units' own functions, which will do to the precision of halves: after activations.h
// and fp16_split.h.
#if PTX >= 80 && PLANES == 1
inline float quick_tanh(const float v)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(v));
    return y;
}
inline float quick_sigmoid(const float v) { return 0.5f * quick_tanh(0.5f * v) + 0.5f; }
inline float quick_silu(const float v) { return v * quick_sigmoid(v); }
#define act_tanh quick_tanh
#define act_sigmoid quick_sigmoid
#define act_silu quick_silu
#endif

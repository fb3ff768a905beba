// Vector loads, stores and reductions of rows, by teams of TEAM work-items.
//
// REAL   float or double (activations.h comes first)
// WIDTH  elements of a vector: 4 or 8
// TEAM   work-items of a team, a power of two; 1 on CPU cores
// TEAMS  teams of a work-group
// PTX    70 and up: teams within a warp use warp barriers
#if !defined(TEAM) || !defined(TEAMS) || WIDTH == 1
#error "wide.h needs TEAM, TEAMS, and a WIDTH of 4 or 8"
#endif
#include "include/warp.h"
#define ITEM ((int)get_local_id(0) % TEAM)        // in its team
#define TEAM_ID ((int)(get_global_id(0) / TEAM))  // in the launch

#if WIDTH == 8
#define LANES ((VAL)(0, 1, 2, 3, 4, 5, 6, 7))
#else
#define LANES ((VAL)(0, 1, 2, 3))
#endif
#define LOAD_ALL JOIN(vload, WIDTH)
#define STORE_ALL JOIN(vstore, WIDTH)
typedef VAL __attribute__((aligned(sizeof(REAL)))) VAL_UNALIGNED;

// The first n values at p, and zeros if n is less than WIDTH; aligned: whether p is
// aligned to vectors.
static inline VAL load(__global const REAL *p, const int n, const bool aligned)
{
    if (n >= WIDTH)
        return aligned ? *(__global const VAL *)p : *(__global const VAL_UNALIGNED *)p;
    REAL some[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) some[j] = j < n ? p[j] : (REAL)0;
    return LOAD_ALL(0, some);
}

static inline void store(__global REAL *p, const VAL v, const int n, const bool aligned)
{
    if (n >= WIDTH && aligned) {
        *(__global VAL *)p = v;
        return;
    }
    if (n >= WIDTH) {
        *(__global VAL_UNALIGNED *)p = v;
        return;
    }
    REAL some[WIDTH];
    STORE_ALL(v, 0, some);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j)
        if (j < n) p[j] = some[j];
}

// v in the first n lanes, `other` in the rest.
static inline VAL masked(const VAL v, const VAL other, const int n)
{
    return n >= WIDTH ? v : LANES < CONST(n) ? v : other;
}

// Loop over this work-item's vectors of a part: j: first column, n: columns left.
#define EACH_VECTOR(part, share, width)                                     \
    const int last = min(((part) + 1) * (share), width);                    \
    for (int j = (part) * (share) + ITEM * WIDTH, n = last - j; j < last;   \
         j += TEAM * WIDTH, n = last - j)

static inline REAL plus(const REAL a, const REAL b) { return a + b; }
static inline REAL larger(const REAL a, const REAL b) { return a > b ? a : b; }

#if WIDTH == 8
#define REDUCE_LANES(f, v)                                                     \
    f(f(f(v.s0, v.s4), f(v.s2, v.s6)), f(f(v.s1, v.s5), f(v.s3, v.s7)))
#else
#define REDUCE_LANES(f, v) f(f(v.s0, v.s2), f(v.s1, v.s3))
#endif

// Four numbers reduced together.
typedef JOIN(REAL, 4) Four;

static inline Four plus_4(const Four a, const Four b) { return a + b; }
static inline Four larger_4(const Four a, const Four b) { return a > b ? a : b; }

// All-reduce of `value` by f among the work-items of a team; scratch [TEAM * TEAMS]
#if TEAM == 1
#define REDUCE_TEAM(f, value, scratch)
#else
#if PTX >= 70 && TEAM <= 32 && TEAM * TEAMS % 32 == 0
#define TEAM_BARRIER() warp_barrier()
#else
#define TEAM_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#endif
#define REDUCE_TEAM(f, value, scratch)                                         \
    {                                                                          \
        const int id = get_local_id(0);                                        \
        TEAM_BARRIER();                                                        \
        scratch[id] = value;                                                   \
        for (int step = TEAM / 2; step > 0; step /= 2) {                       \
            TEAM_BARRIER();                                                    \
            if (ITEM < step) scratch[id] = f(scratch[id], scratch[id + step]); \
        }                                                                      \
        TEAM_BARRIER();                                                        \
        value = scratch[id - ITEM];                                            \
    }
#endif

// Compensated summation; `lost`: the accumulated rounding error (Kahan, "Further
// remarks on reducing truncation errors", 1965). There may be millions of terms.
#define KAHAN_ADD(sum, lost, term)          \
    {                                       \
        const VAL added = (term) + lost;    \
        const VAL after = sum + added;      \
        lost = added - (after - sum);       \
        sum = after;                        \
    }

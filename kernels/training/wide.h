// What the kernels share that go through rows by vectors, in teams of TEAM work-items,
// and add up what they find.
//
// REAL   float or double (activations.h comes first)
// WIDTH  values of a vector: 4 or 8
// TEAM   work-items of a team, a power of two: 1 where each is a core's task
// TEAMS  teams of a work-group
// PTX    70 and up: NVIDIA's, where a team of a warp waits for itself alone
#if !defined(TEAM) || !defined(TEAMS) || WIDTH == 1
#error "wide.h needs TEAM, TEAMS, and a WIDTH of 4 or 8"
#endif
#include "include/warp.h"
#define ITEM ((int)get_local_id(0) % TEAM)           // of its team
#define TEAM_NUMBER ((int)(get_global_id(0) / TEAM))  // in all groups

#if WIDTH == 8
#define LANES ((VAL)(0, 1, 2, 3, 4, 5, 6, 7))
#else
#define LANES ((VAL)(0, 1, 2, 3))
#endif
#define LOAD_ALL JOIN(vload, WIDTH)
#define STORE_ALL JOIN(vstore, WIDTH)
typedef VAL __attribute__((aligned(sizeof(REAL)))) VAL_UNALIGNED;

// The first n of the values at p, and zeros if n is less than WIDTH; aligned: whether p
// is a whole vector's address.
inline VAL load(__global const REAL *p, const int n, const bool aligned)
{
    if (n >= WIDTH)
        return aligned ? *(__global const VAL *)p : *(__global const VAL_UNALIGNED *)p;
    REAL some[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) some[j] = j < n ? p[j] : (REAL)0;
    return LOAD_ALL(0, some);
}

inline void store(__global REAL *p, const VAL v, const int n, const bool aligned)
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

// v where there are values: in its first n lanes.
inline VAL among(const VAL v, const VAL other, const int n)
{
    return n >= WIDTH ? v : LANES < CONST(n) ? v : other;
}

// This work-item's vectors of a part: j runs over their columns, n counts what is left.
#define EACH_VECTOR(part, share, width)                                     \
    const int last = min(((part) + 1) * (share), width);                    \
    for (int j = (part) * (share) + ITEM * WIDTH, n = last - j; j < last;   \
         j += TEAM * WIDTH, n = last - j)

inline REAL plus(const REAL a, const REAL b) { return a + b; }
inline REAL larger(const REAL a, const REAL b) { return a > b ? a : b; }

#if WIDTH == 8
#define FOLD(f, v)                                                     \
    f(f(f(v.s0, v.s4), f(v.s2, v.s6)), f(f(v.s1, v.s5), f(v.s3, v.s7)))
#else
#define FOLD(f, v) f(f(v.s0, v.s2), f(v.s1, v.s3))
#endif

// Numbers of which the sums, or the largest, are found together.
typedef JOIN(REAL, 4) Four;

inline Four plus_each(const Four a, const Four b) { return a + b; }
inline Four larger_each(const Four a, const Four b) { return a > b ? a : b; }

// one = f of all the team's work-items' `one`, in all of them; held [TEAM * TEAMS]
#if TEAM == 1
#define IN_TEAM(f, one, held)
#else
#if PTX >= 70 && TEAM <= 32 && TEAM * TEAMS % 32 == 0
#define TEAM_BARRIER() warp_barrier()
#else
#define TEAM_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#endif
#define IN_TEAM(f, one, held)                                         \
    {                                                                 \
        const int id = get_local_id(0);                               \
        TEAM_BARRIER();                                               \
        held[id] = one;                                               \
        for (int step = TEAM / 2; step > 0; step /= 2) {              \
            TEAM_BARRIER();                                           \
            if (ITEM < step) held[id] = f(held[id], held[id + step]); \
        }                                                             \
        TEAM_BARRIER();                                               \
        one = held[id - ITEM];                                        \
    }
#endif

// A sum and what rounding took from it so far (Kahan, "Further remarks on reducing
// truncation errors", 1965): there may be millions of terms.
#define ADD(sum, lost, term)                \
    {                                       \
        const VAL added = (term) + lost;    \
        const VAL after = sum + added;      \
        lost = added - (after - sum);       \
        sum = after;                        \
    }

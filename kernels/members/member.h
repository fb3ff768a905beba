// The tables of populations' kernels, and their arguments. Comes after steps.h.
//
// DROPS  1: layers drop outputs, as a network's rows of Drop say
#ifndef DROPS
#error "member.h needs DROPS"
#endif

// A row of the table of members (MEMBER of clnet/opencl/launch.py).
typedef struct {
    int index;    // of the member's parameters and state
    int record;   // of its totals and its end
    int plan;     // its row of the schedule
    int samples;  // of an epoch
    int first;    // of its list of samples in `subsets`; -1: all samples
    int bits;     // of half a sample's index, for the random order
    int epochs;   // done before
    uint seed;
    float squares_limit, fails_limit;  // as of Run
    float l1, l2;                      // penalties
} Member;

// A row of the table of dropouts, of a layer (DROP of clnet/opencl/launch.py).
typedef struct {
    uint stream;    // XORed to the seed for the layer's own hashes
    int threshold;  // hashes below it drop
    float factor, share;  // of the values that stay: factor = 1 / share
} Drop;

#if DROPS
// The word of a step's hashes for a layer, as dropout.cl.
static inline uint drop_start(const Drop drop, const uint seed, const int count)
{
    return hash_word(hash_word(seed ^ drop.stream) ^ (uint)count);
}
#endif

// Weights of a step's samples are scaled to a mean of 1 where the host has not done it, as
// it does for steps of all samples, and of one.
static inline int scales_weights(const int batch, const int samples)
{
    return batch > 1 && batch < samples;
}

static inline float weight_scale(const float sum, const int samples)
{
    return sum > 0 ? samples / sum : 1;
}

// Arguments of all kernels of members, in the order of `MEMBER_ARGUMENTS` of
// clnet/variants/members/members.py:
//
// totals [members, epochs, 2 * RECORD]  sums of each epoch
// ends [members, END]  the totals of a member's last epoch, and its number of epochs
// members [count_of_members], schedule [plans, epochs + 1]
// drops [members, layers]
// epochs        of each member
#define END (2 * RECORD + 1)
#define MEMBER_ARGUMENTS                                                             \
    __global float *totals, __global float *ends, __global const Member *members,    \
        const int count_of_members, __global const int *subsets,                     \
        __global const Drop *drops, __global const Epoch *schedule, const int epochs

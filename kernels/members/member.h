// A row of the table of members (MEMBER of clnet/opencl/launch.py).
typedef struct {
    int index;    // of the member's parameters, state and totals
    int samples;  // of an epoch
    int first;    // of its list of samples in `subsets`; -1: all samples
    int bits;     // of half a sample's index, for the random order
    int epochs;   // done before
    uint seed;
    float squares_limit, fails_limit;  // as of Run
} Member;

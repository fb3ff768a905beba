// What a kernel gives to the host itself: no copy from the device comes after it.
//
// host_output  where the host's array is, in memory that the device writes at the host's own
//         address; 0: none is wanted
#define ZERO_COPY_PARAMETER , const ulong host_output
#define ZERO_COPY_STORE(i, v) \
    if (host_output) ((__global volatile float *)host_output)[i] = v

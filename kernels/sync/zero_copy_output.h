// Zero-copy output: the kernel stores to pinned host memory, so that no copy from the
// device follows the launch.
//
// host_output  address of the host's array, which is also its address on the device;
//              0: no zero-copy output
#define ZERO_COPY_PARAMETER , const ulong host_output
#define ZERO_COPY_STORE(i, v) \
    if (host_output) ((__global volatile float *)host_output)[i] = v

// mapped_host_memory: can kernels store to host memory at its own address?
//
// host_output     as in zero_copy_output.h, of the launch's size
// index map: work-item i stores `first` + i
#include "sync/zero_copy_output.h"
__kernel void mapped_host_memory(const int first ZERO_COPY_PARAMETER)
{
    ZERO_COPY_STORE(get_global_id(0), first + (int)get_global_id(0));
}

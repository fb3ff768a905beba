// mapped_host_memory: does the host see what kernels write at its memory's address?
//
// answer     as in zero_copy_output.h, of the launch's size
// index map: work-item i gives `first` + i
#include "sync/zero_copy_output.h"
__kernel void mapped_host_memory(const int first ANSWER_ARGUMENT)
{
    ANSWER(get_global_id(0), first + (int)get_global_id(0));
}

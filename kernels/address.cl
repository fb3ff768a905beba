// address: does what kernels write at an address of the host's memory arrive there?
//
// answer     as in answer.h, of the launch's size
// index map: work-item i gives `first` + i
#include "answer.h"
__kernel void address(const int first ANSWER_ARGUMENT)
{
    ANSWER(get_global_id(0), first + (int)get_global_id(0));
}

// What a kernel gives to the host itself: no copy from the device comes after it.
//
// answer  where the host's array is, in memory that the device writes at the host's own
//         address; 0: none is wanted
#define ANSWER_ARGUMENT , const ulong answer
#define ANSWER(i, v) \
    if (answer) ((__global volatile float *)answer)[i] = v

// What a kernel is given to read, among its own arguments: no copy to the device goes
// before it.
//
//   host's array --> arguments of the launch --> given.values     there: 1
//   buffer of the device ----------------------> x                there: 0
//
// GIVEN  values, 0: none are given so
#ifndef GIVEN
#error "by_value_input.h needs GIVEN"
#endif
#if GIVEN
typedef struct {
    int there;
    float values[GIVEN];
} Given;
#define GIVEN_ARGUMENT , const Given given
#define INPUT(i) (given.there ? given.values[i] : x[i])
#else
#define GIVEN_ARGUMENT
#define INPUT(i) x[i]
#endif

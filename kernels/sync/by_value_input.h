// What a kernel is given to read, among its own arguments: no copy to the device goes
// before it.
//
//   host's array --> arguments of the launch --> by_value.values     there: 1
//   buffer of the device ----------------------> x                there: 0
//
// BY_VALUE  values, 0: none are given so
#ifndef BY_VALUE
#error "by_value_input.h needs BY_VALUE"
#endif
#if BY_VALUE
typedef struct {
    int there;
    float values[BY_VALUE];
} ByValueInput;
#define BY_VALUE_PARAMETER , const ByValueInput by_value
#define INPUT(i) (by_value.there ? by_value.values[i] : x[i])
#else
#define BY_VALUE_PARAMETER
#define INPUT(i) x[i]
#endif

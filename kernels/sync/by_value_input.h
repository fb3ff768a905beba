// A small input passed by value, among the kernel's arguments: no copy to the device
// precedes the launch.
//
//   host array --> launch arguments --> by_value.values     by_value.present: 1
//   device buffer --------------------> x                   by_value.present: 0
//
// BY_VALUE  values passed by value; 0: the kernel has no such argument
#ifndef BY_VALUE
#error "by_value_input.h needs BY_VALUE"
#endif
#if BY_VALUE
typedef struct {
    int present;
    float values[BY_VALUE];
} ByValueInput;
#define BY_VALUE_PARAMETER , const ByValueInput by_value
#define INPUT(i) (by_value.present ? by_value.values[i] : x[i])
#else
#define BY_VALUE_PARAMETER
#define INPUT(i) x[i]
#endif

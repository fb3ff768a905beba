// gradient_sum: the data-parallel reduction (all-reduce) of several devices' gradients,
// computed on each of them.
//
//   device 0    gradients  others[0]  others[1]      sum: 0 + 1 + 2
//   device 1    others[0]  gradients  others[1]      sum: 0 + 1 + 2
//   device 2    others[0]  others[1]  gradients      sum: 0 + 1 + 2
//
// All add in the order of the devices: their results are equal bit for bit.
//
// REAL    float or double
#ifndef REAL
#error "gradient_sum.cl needs REAL"
#endif

// gradients [size]         this device's, added if `own` is 1; then the sum
// others    [count, size]  of the other devices, `before` of them before this one
// index map: work-item i adds element i
__kernel void gradient_sum(__global REAL *gradients, __global const REAL *others,
                           const int before, const int own, const int count,
                           const int size)
{
    const int i = get_global_id(0);
    if (i >= size) return;
    REAL sum = 0;
    for (int k = 0; k < before; k++) sum += others[(size_t)k * size + i];
    if (own) sum += gradients[i];
    for (int k = before; k < count; k++) sum += others[(size_t)k * size + i];
    gradients[i] = sum;
}

// gradient_sum: the data-parallel reduction (all-reduce) of two devices' gradients,
// computed on each of them. Sums of two have the same bits in either order.
//
// REAL    float or double
#ifndef REAL
#error "gradient_sum.cl needs REAL"
#endif

// gradients [size]   this device's; then the sum
// other     [size]   the other device's
// index map: work-item i adds element i
__kernel void gradient_sum(__global REAL *gradients, __global const REAL *other,
                           const int size)
{
    const int i = get_global_id(0);
    if (i < size) gradients[i] += other[i];
}

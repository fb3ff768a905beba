// The inputs of a data set as bfloat16 numbers, which they are (exact_inputs.h):
//
//     x [rows, n_in]  ->  to [rows, COLUMNS]: inputs; 1 if `ones`; zeros
//
// COLUMNS  inputs of a sample with their padding
#ifndef COLUMNS
#error "pack_inputs.cl needs COLUMNS"
#endif
__kernel void pack_inputs(__global const float *x, __global ushort *to, const int rows,
                          const int n_in, const int ones)
{
    const size_t id = get_global_id(0);
    const int row = id / COLUMNS, column = id % COLUMNS;
    if (row >= rows) return;
    const float one = column == n_in && ones ? 1 : 0;
    const float v = column < n_in ? x[(size_t)row * n_in + column] : one;
    to[id] = as_uint(v) >> 16;
}

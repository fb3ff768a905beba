// cascade_values: the values of one neuron, or the residuals of an output, of all samples.
//
// A work-item computes WIDTH samples.
//
// WIDTH      samples of a work-item: 8 on CPUs, else 1
// RESIDUALS  0: outputs y of the neuron; 1: scaled errors (t - y) of an output, whose
//            targets are t
// and the macros of neurons.h
#define REAL float
#include "include/activations.h"
#include "include/gradients.h"
#include "cascade/neurons.h"
#if !defined(RESIDUALS)
#error "cascade_values.cl needs RESIDUALS"
#endif

// inputs [tiles, rows, TILE]  of which each sample's first n_in are read
// neurons, number             the neuron's row
// weights, offset             its weights are weights[offset] …
// targets [tiles, rows_out, TILE], not read without RESIDUALS
// found   [tiles, rows_out, TILE], of which row `row` is written: 0 beyond the last sample
__kernel void
cascade_values(__global const float *inputs, __global const float *targets,
               __global const CascadeNeuron *neurons, __global const float *weights,
               __global float *found, const int number, const int offset,
               const int n_in, const int rows, const int rows_out, const int row,
               const int samples)
{
    const int i = get_global_id(0) * WIDTH, tile = i / TILE, at = i % TILE;
    __global const float *x = inputs + (size_t)tile * rows * TILE + at;
    VAL sum = CONST(0);
    for (int h = 0; h < n_in; ++h)
        sum += CONST(weights[offset + h]) * *(__global const VAL *)(x + h * TILE);
    const CascadeNeuron neuron = neurons[number];
    VAL y, dy;
    respond(neuron, sum, &y, &dy);
    const size_t to = ((size_t)tile * rows_out + row) * TILE + at;
#if RESIDUALS
    y = (*(__global const VAL *)(targets + to) - y) * CONST(neuron.error_scale);
#endif
#if WIDTH == 8
    const int8 valid = (int8)(i) + (int8)(0, 1, 2, 3, 4, 5, 6, 7) < (int8)(samples);
#else
    const int valid = i < samples;
#endif
    *(__global VAL *)(found + to) = valid ? y : CONST(0);
}

// Constant tables of a chain of dense layers: each layer's output is the next one's
// input.
//
// LAYERS        layers in the chain, at least 1
// N_OUT         {n, …} neurons of each layer
// STRIDE        {n, …} row strides of A: the layer's inputs, padded to whole vectors
//               of 4
// WEIGHTS       {n, …} offsets of each A [n_out, stride] in the parameters
// BIAS          {n, …} offsets of the biases [n_out]; -1: none
// FUNCTION      {n, …} codes of the activations
//               Tables may have one number more, which no layer reads.
// FUNCTIONS     as in functions.h
// REAL          as in activations.h, which is included before
#if !defined(LAYERS) || !defined(N_OUT) || !defined(STRIDE) || !defined(WEIGHTS) \
    || !defined(BIAS) || !defined(FUNCTION)
#error "chain.h needs LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS and FUNCTION"
#endif
#include "include/functions.h"

__constant int n_out_of[] = N_OUT;
__constant int stride_of[] = STRIDE;
__constant int weights_of[] = WEIGHTS;
__constant int bias_of[] = BIAS;
__constant int function_of[] = FUNCTION;

// A layer's activation f(clip(steepness * sum)).
static inline VAL chain_activate(const int layer, const VAL sum)
{
    return activate_as(function_of[layer], sum);
}

// Values of a row that a layer writes: its neurons, then zeros up to the next layer's
// stride.
static inline int written_by(const int layer)
{
    return layer == LAYERS - 1 ? n_out_of[layer] : stride_of[layer + 1];
}

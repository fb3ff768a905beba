// A chain of dense layers, each one's output the next one's input, as constant tables.
//
// LAYERS        layers in the chain, at least 1
// N_OUT         {n, …} neurons of each layer
// STRIDE        {n, …} from one row of A to the next: the layer's inputs, padded to
//               whole vectors of 4
// WEIGHTS       {n, …} where each layer's A [n_out, stride] starts in the parameters
// BIAS          {n, …} where its biases [n_out] start; -1 where there are none
// FUNCTION      {n, …} code of its activation
// FUNCTIONS     as in functions.h
// REAL          as in activations.h, which comes first
#if !defined(LAYERS) || !defined(N_OUT) || !defined(STRIDE) || !defined(WEIGHTS) \
    || !defined(BIAS) || !defined(FUNCTION)
#error "chain.h needs LAYERS, N_OUT, STRIDE, WEIGHTS, BIAS and FUNCTION"
#endif
#include "include/functions.h"

__constant int n_out_of[LAYERS] = N_OUT;
__constant int stride_of[LAYERS] = STRIDE;
__constant int weights_of[LAYERS] = WEIGHTS;
__constant int bias_of[LAYERS] = BIAS;
__constant int function_of[LAYERS] = FUNCTION;

// f(clip(steepness * sum)) of a layer.
inline VAL chain_activate(const int layer, const VAL sum)
{
    return activate_as(function_of[layer], sum);
}

// Values of a row that a layer must write: its neurons, and for the next layer's whole
// vectors zeros up to its stride.
inline int written_by(const int layer)
{
    return layer == LAYERS - 1 ? n_out_of[layer] : stride_of[layer + 1];
}

"""Dense layers: from one work-item a neuron to whole networks on Tensor Cores.

Start with `naive`, then `gemm` (batches) and `persistent` (one sample).
"""

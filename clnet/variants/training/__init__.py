"""Training steps: gradients of each kind of layer, optimisers, whole steps.

Start with `gemm_backward` and `optimisers`, then `whole_step` and `epoch`.
"""

"""Training steps: gradients of each kind of layer, optimisers, whole steps.

Start with `outer` and `optimisers`, then `whole_step` and `epoch`.
"""

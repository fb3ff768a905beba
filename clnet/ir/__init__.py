"""A network as a flat program of ops, and the meaning of each op in NumPy.

Imports `nn`. Start with `ops`; `lowering` makes programs of networks, `training_ops`
adds the ops of a training step, and `reference` is the oracle of every test.
"""

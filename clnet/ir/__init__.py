"""A network as a flat program of ops, each with its NumPy meaning, gradient and cost.

Imports `nn`. Start with `op`, the base of all ops, and `product`, a family of them;
`program` is a sequence, `lowering` makes programs of networks, and `reference` runs
them: the oracle of every test.
"""

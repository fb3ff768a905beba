"""The studies: what was claimed, what this machine says, and what the others do.

``python -m benchmarks STUDY`` and ``clnet bench STUDY`` are the same.
"""

"""Partially connected layers, by CSR order and by formats' own kernels.

Start with `sparse` (CPU cores, GPUs, and what all share), then `sell`.
"""

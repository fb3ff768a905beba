"""Partially connected layers, one module a way to read their entries.

Start with `csr` (CPU cores) and `sparse_team` (GPUs); `sparse` holds what they share.
"""

"""Partially connected layers, one module per storage layout and device type.

Start with `csr` (CPU cores) and `sparse_team` (GPUs); `sparse` holds what they share.
"""

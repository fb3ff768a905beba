"""Partially connected layers, one module per storage layout and device type.

Start with `sparse` (CPU cores, and what all share), then `sparse_team` (GPUs).
"""

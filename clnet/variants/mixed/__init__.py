"""Layers of several kinds in one launch.

Start with `fused_sparse`, which turns any layer into rows of entries.
"""

"""Layers of several kinds in one launch.

Start with `fused_sparse`; `products` reads any layer as rows of entries.
"""

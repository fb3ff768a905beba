"""Baselines: other libraries, on the same cases."""

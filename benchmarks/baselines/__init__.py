"""Baselines: other libraries' implementations of the cases."""

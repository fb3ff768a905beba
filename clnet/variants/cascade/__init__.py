"""Launches of cascade training, whose kernels are in ``kernels/cascade``."""

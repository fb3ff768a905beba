"""Every op on every device, slowly: generic kernels, and NumPy on the host.

Start with `generic`.
"""

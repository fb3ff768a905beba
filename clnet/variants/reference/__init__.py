"""Every op, anywhere, slowly: generic kernels, and NumPy on the host.

Start with `generic`.
"""

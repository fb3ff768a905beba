"""OpenCL: devices and their quirks, kernels and programs, memory and launches.

Imports `ir` and below; knows neither networks nor variants. Start with `device` (a
record of capabilities) and `launch` (a record of a kernel launch); `session` holds a
context and its queues.
"""

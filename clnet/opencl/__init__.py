"""OpenCL: devices and their quirks, kernels and programs, memory and launches.

The only folder that imports `pyopencl`; it imports `ir` and below, and knows neither
networks nor variants. Start with `device` (a record of capabilities), `launch` (a
record of a kernel launch) and `session` (a context and its queues). `bound` gives
launches their kernels and the memory that they name, `commands` enqueues them.
"""

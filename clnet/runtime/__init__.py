"""Running planned steps: launches bound to buffers, plans, several devices.

Imports `variants` and below. Start with `plan`, which users call. `executable` runs
inference, `replay` training steps; both are a `binding` of launches to memory.
"""

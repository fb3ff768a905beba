"""Running planned steps: plans, training steps, several devices, ranks.

Imports `variants` and below, and calls OpenCL by `clnet.opencl` alone. Start with
`plan`, which users call. `executable` runs inference, `replay` training steps; both put
the launches of `opencl.bound` in order by a `binding.LaunchSchedule`.
"""

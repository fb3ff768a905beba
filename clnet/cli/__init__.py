"""The command line, ``clnet``.

Imports all other packages. Start with `main`, which parses the arguments. `commands`,
`train` and `bench` run them; `doctor` examines the OpenCL set-up.
"""

"""The command line, ``clnet``.

Imports all other packages. Start with `options`, the tables of commands, and `main`,
which parses them. `commands`, `train` and `bench` run; `doctor` examines the set-up.
"""

"""The command line, ``clnet``.

Imports everything. Start with `main`, which parses; `commands`, `train` and `bench`
run, `doctor` examines the set-up.
"""

"""Cascade training without OpenCL: constants, neurons, rules, networks that grow.

It imports layers, models, optimisers and FANN's parameters. Start with `constants`,
then `shortcut`.
"""

"""Cascade training without OpenCL: its constants and neurons, and networks that grow.

It imports layers, models, optimisers and FANN's parameters. Start with `constants`,
then `shortcut`.
"""

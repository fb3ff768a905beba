"""Training: epochs, batches, stop rules, callbacks, several devices.

Imports `planning` and below. Start with `fit`, the training loop. `setup` checks the
arguments; `passes` runs the epochs of one device, `parallel` those of several.
"""

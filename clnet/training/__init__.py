"""Training: epochs, batches, stop rules, callbacks, several devices.

Imports `planning` and below. Start with `fit`, the training loop. `setup` checks the
arguments; `passes` runs epochs: a `feed` brings samples to the devices of a `group`.
"""

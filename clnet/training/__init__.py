"""Training: epochs, batches, stop rules, callbacks, several devices.

Imports `planning` and below. Start with `fit`; `setup` checks what users ask for,
`passes` runs the epochs of one device, `parallel` those of several.
"""

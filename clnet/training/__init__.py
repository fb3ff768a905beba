"""Training: arguments, epochs, stop rules, callbacks, devices, ranks, populations.

Imports `planning` and below. Start with `fit`: `fit_options` are its arguments, `setup`
checks them, `trainer` is the loop of one network, `member_training` that of many which
`population` shares out. `passes` runs epochs: a `feed` brings samples to the devices of
a `group`.
"""

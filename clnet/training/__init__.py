"""Training: arguments, epochs, stop rules, callbacks, devices, ranks, populations.

Imports `planning` and below. Start with `fit`: `fit_options` are its arguments, `setup`
checks them, and `trainer` is the loop, which `segments` of one network run, launches of
`member_training`, which `population` shares out, or a `cascade`. `passes` computes
epochs: a `feed` brings samples to the devices of a `group`.
"""

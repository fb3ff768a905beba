"""Times of candidates and covers: measured once, and remembered in the tuning store.

Start with `times`; `calls` and `trial` compare calls and steps of training with the
`oracle`, `measure` takes their times, `fingerprint` makes the store's keys, and
`budget` limits the time.
"""

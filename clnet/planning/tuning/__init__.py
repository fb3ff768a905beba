"""Times of candidates and covers: measured once, and remembered in the tuning store.

Start with `times`; `measure` times inference, `trial` training steps, `fingerprint`
makes the store's keys, and `search` limits the time. `first_use` compares kernels that
no planner measures.
"""

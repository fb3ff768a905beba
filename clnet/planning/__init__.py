"""Planning: the cheapest cover of a program by variants, from measured times.

Imports `runtime` and below. Start with `inference`, from users' arguments to a plan;
`planner` chooses a cover, `search` decides what is measured for it, `tuning` measures,
and `explain` prints.
"""

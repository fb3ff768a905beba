"""Planning: the cheapest cover of a program by variants, from measured times.

Imports `runtime` and below. Start with `inference`, from users' arguments to a plan;
`planner` searches, `cover` finds the shortest path, `tuning` measures, and `explain`
prints.
"""

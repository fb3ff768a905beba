"""Planning: the cheapest cover of a program by variants, from measured times.

Imports `runtime` and below. Start with `inference`, from what users ask for to a plan;
`planner` searches, `cover` finds the shortest path, `tuning` measures, `explain` tells.
"""

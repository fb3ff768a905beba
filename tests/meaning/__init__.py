"""Instruments that judge meaning: random cases beside others' tools, by seed.

`runner` runs an instrument; each other module is one: a function ``case`` of a seed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # `bounds`, and other modules there

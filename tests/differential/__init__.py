"""The differential tester: random networks and covers against oracles.

A case is a network, a cover of its program by forced variants and configurations, and
data. `cases` draws it from a seed; `check` compares it with the oracle in NumPy.
``python -m tests.differential`` runs many.
"""

import sys
from pathlib import Path

# As under pytest: `bounds` and `devices` are modules of the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

"""Faults, kills and signals."""

import sys
from pathlib import Path

# As under pytest: `children` is a module of the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

"""The environment of tests' child processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import clnet

TESTS = Path(__file__).parent
CHECKOUT = Path(clnet.__file__).parents[1]


def child_environment(**variables: object) -> dict[str, str]:
    """Return this process's environment and paths of imports, with more variables."""
    paths = os.pathsep.join([str(CHECKOUT), str(TESTS), *filter(None, sys.path)])
    more = {name: str(value) for name, value in variables.items()}
    return {**os.environ, "PYTHONPATH": paths, **more}

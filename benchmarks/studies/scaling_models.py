"""Models of parallel speed-up: Amdahl's law, and Hill and Marty's for chips.

M. D. Hill and M. R. Marty, "Amdahl's Law in the Multicore Era", IEEE Computer 41 (7),
2008: a chip has room for n simple cores; a core made of r of them runs serial code
sqrt(r) times as fast.
"""

from __future__ import annotations

import math

CHIP = 256.0  # simple cores, as in the paper's largest chip
FRACTIONS = (0.5, 0.9, 0.975, 0.99, 0.999)  # of the work, parallel; the paper's


def amdahl(parallel: float, cores: float) -> float:
    """Return the speed-up of work whose parallel fraction is spread over cores."""
    return 1 / (1 - parallel + parallel / cores)


def symmetric(parallel: float, chip: float, r: float) -> float:
    """Return the speed-up of a chip of equal cores, over one simple core.

    `chip` simple cores fit on it, of which each core takes `r`.
    """
    speed = math.sqrt(r)
    return 1 / ((1 - parallel) / speed + parallel * r / (speed * chip))

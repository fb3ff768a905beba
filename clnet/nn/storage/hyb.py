"""HYB, the sum of an ELL with the first K entries of each row, and a COO: its K."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clnet.errors import InputError, quoted

if TYPE_CHECKING:
    from clnet.nn.storage.pattern import Pattern

SHARE = 1 / 3  # of the rows, by Bell and Garland


def hyb_width(pattern: Pattern, share: float = SHARE) -> int:
    """Return the ELL width K of a pattern; 0: COO alone.

    The largest K such that at least a share of the rows has K entries or more (Bell
    and Garland, "Efficient sparse matrix-vector multiplication on CUDA", 2008).
    """
    if not 0 < share <= 1:
        raise InputError(f"a share of the rows must be in (0, 1], not {quoted(share)}")
    # Rounded first: a third of 9 rows may be 3.0000000000000004, and means three.
    needed = max(1, int(np.ceil(round(share * pattern.n_out, 9))))
    return int(np.sort(pattern.lengths)[::-1][needed - 1])

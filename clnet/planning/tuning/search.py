"""A search for the best way: how long it may take, and what is seen of it meanwhile."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any

PATIENCE = 1.0  # seconds until a search is spoken of


class Search:
    """What the searches for one plan share; a context, which ends its progress line.

    Parameters
    ----------
    seconds : float
        After so many nothing more is measured than a plan needs.
    progress : bool
        Whether a line on stderr tells of what is measured, once that takes a while.

    Attributes
    ----------
    seconds : float
        As given.
    """

    def __init__(self, seconds: float = math.inf, progress: bool = False) -> None:
        self.seconds = seconds
        self._end = time.perf_counter() + seconds
        self._line = _line() if progress else None

    @property
    def over(self) -> bool:
        """Whether its time is."""
        return time.perf_counter() >= self._end

    def tell(self, what: str) -> None:
        """Show that something more is measured now."""
        if self._line is not None:
            self._line.set_postfix_str(what, refresh=False)
            self._line.update()

    def __enter__(self) -> Search:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the line."""
        if self._line is not None:
            self._line.close()


def _line() -> Any:
    """Return a line of tqdm's, which starts a thread."""
    from tqdm import tqdm

    return tqdm(
        desc="measuring kernels", delay=PATIENCE, leave=False, dynamic_ncols=True,
        bar_format="{desc}: {n_fmt} in {elapsed}{postfix}",
    )

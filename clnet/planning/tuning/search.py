"""The time limit of a search, and its progress line."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any

PROGRESS_DELAY = 1.0  # seconds until the progress line appears


class Search:
    """The limit and the progress line that the searches for one plan share.

    A context manager, which closes the line.

    Parameters
    ----------
    seconds : float
        The limit; after it, only what a plan needs is measured.
    progress : bool
        Whether a line on stderr shows what is measured, after `PROGRESS_DELAY`.

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
    def expired(self) -> bool:
        """Whether the limit is over."""
        return time.perf_counter() >= self._end

    def show(self, what: str) -> None:
        """Count one more measurement, and show what it measures."""
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
        """Close the progress line."""
        if self._line is not None:
            self._line.close()


def _line() -> Any:
    """Return a progress line. The import is late: tqdm starts a thread."""
    from tqdm import tqdm

    return tqdm(
        desc="measuring kernels", delay=PROGRESS_DELAY, leave=False, dynamic_ncols=True,
        bar_format="{desc}: {n_fmt} in {elapsed}{postfix}",
    )

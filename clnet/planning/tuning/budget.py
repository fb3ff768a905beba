"""The time limit of a search, and its progress line."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from clnet.checks import check_flag

PROGRESS_DELAY = 1.0  # seconds until the progress line appears
SHARE = 0.1  # of the time that a plan's runs take, which measuring may take
# Of a candidate, before one was measured: its build, its comparison with the oracle and
# its measurement. PoCL takes 0.5 to 3 s for the build.
CANDIDATE_SECONDS = 1.0


class Budget:
    """The limit and the progress line that the searches for one plan share.

    A context manager, which closes the line.
    """

    def __init__(
        self, seconds: float = math.inf, progress: bool | None = False,
        runs: float = math.inf,
    ) -> None:
        check_flag("progress", progress, optional=True)
        self.seconds: float = seconds
        self.runs: float = runs
        self._begin = time.perf_counter()
        self._candidates: list[float] = []  # seconds
        shown = sys.stderr.isatty() if progress is None else progress
        self._line = _Line() if shown else None

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave out of the limit what is measured once for all searches."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._begin += time.perf_counter() - start

    @contextmanager
    def candidate(self, name: str) -> Iterator[None]:
        """Show a candidate's name, and count the time of its measurement."""
        self.show(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._candidates.append(time.perf_counter() - start)

    def pays(self, seconds: float) -> bool:
        """Return whether one more candidate may be measured; see `pays_for`.

        It is expected to take as long as the ones before, or `CANDIDATE_SECONDS`.
        """
        before = self._candidates or [0.0]
        cost = max(CANDIDATE_SECONDS, sum(before) / len(before))
        return self.pays_for(cost, seconds)

    def pays_for(self, cost: float, seconds: float) -> bool:
        """Return whether a measurement may begin.

        It must end within the limit, and within the `SHARE` of the time of all runs.
        """
        end = time.perf_counter() - self._begin + cost
        return end <= min(self.seconds, SHARE * self.runs * seconds)

    def show(self, what: str) -> None:
        """Count one more comparison or measurement, and show what it tries."""
        if self._line is not None:
            self._line.show(what)

    def __enter__(self) -> Budget:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the progress line."""
        if self._line is not None:
            self._line.close()


class _Line:
    """A progress line, drawn after a delay though a build still keeps the caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._what, self._closed = 0, "", False
        self._bar: Any = None
        self._timer = threading.Timer(PROGRESS_DELAY, self._draw)
        self._timer.daemon = True
        self._timer.start()

    def show(self, what: str) -> None:
        """Count one more, and name it."""
        with self._lock:
            self._count, self._what = self._count + 1, what
            self._update()

    def close(self) -> None:
        """Wipe the line away."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.close()

    def _draw(self) -> None:
        with self._lock:
            if not self._closed:
                self._bar = _bar()
                self._update()

    def _update(self) -> None:
        if self._bar is not None:
            self._bar.n = self._count
            self._bar.set_postfix_str(self._what)


def _bar() -> Any:
    """Return an empty line. The import is late: tqdm starts a thread."""
    from tqdm.auto import tqdm

    return tqdm(
        desc="building and measuring kernels", leave=False, dynamic_ncols=True,
        bar_format="{desc}: {n_fmt} in {elapsed}{postfix}",
    )

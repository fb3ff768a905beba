"""Fixtures of the planner's tests."""

from __future__ import annotations

import pytest

from clnet.opencl import rate_probes
from clnet.opencl.store import Timing
from clnet.planning.tuning import measure as measuring
from clnet.planning.tuning import times


@pytest.fixture
def lab(monkeypatch):
    from planner_lab import Lab

    return Lab(monkeypatch)


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch):
    """Fakes of runs are their times."""
    timing, timings = times.timing, times.timings

    def is_fake(run):
        return isinstance(run, Timing)

    monkeypatch.setattr(
        times, "timing", lambda run: run if is_fake(run) else timing(run)
    )
    monkeypatch.setattr(
        times, "timings", lambda runs, pays:
        runs if all(map(is_fake, runs)) else timings(runs, pays)
    )


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """A test starts with nothing remembered, and measures in a moment."""
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measuring, "ROUND_SECONDS", 1e-5)
    forget = times.store_of.cache_clear, rate_probes._known.cache_clear
    for clear in forget:
        clear()
    yield
    for clear in forget:
        clear()

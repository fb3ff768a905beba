"""Fixtures of the planner's tests."""

from __future__ import annotations

import pytest

from clnet.planning.tuning import measure as measuring
from clnet.planning.tuning import times


@pytest.fixture
def lab(monkeypatch):
    from planner_lab import Lab

    return Lab(monkeypatch)


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    """A test starts with nothing remembered, and measures in a moment."""
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measuring, "ROUND_SECONDS", 1e-5)
    times.store_of.cache_clear()
    yield
    times.store_of.cache_clear()

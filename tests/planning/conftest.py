"""Fixtures of the planner's tests."""

from __future__ import annotations

import pytest
from planner_lab import Lab


@pytest.fixture
def lab(monkeypatch):
    return Lab(monkeypatch)

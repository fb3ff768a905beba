"""Fixtures of the runtime's tests."""

from __future__ import annotations

import pytest
from covers import NETWORK, on_device


@pytest.fixture(scope="module")
def plan():
    return on_device(NETWORK, 4)


@pytest.fixture(scope="module")
def single():
    return on_device(NETWORK, 1)

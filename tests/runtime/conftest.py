"""Fixtures of the runtime's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def plan():
    from covers import NETWORK, on_device

    return on_device(NETWORK, 4)


@pytest.fixture(scope="module")
def single():
    from covers import NETWORK, on_device

    return on_device(NETWORK, 1)

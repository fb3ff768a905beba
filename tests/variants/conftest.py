"""Fixtures of the variants' tests."""

from __future__ import annotations

import pytest

from clnet.opencl.discovery import device


@pytest.fixture(scope="module")
def place():
    return device()

"""Fixtures of the variants' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from memory import GuardedMemory

from clnet.opencl.discovery import device


@pytest.fixture(scope="module")
def place():
    return device()


@pytest.fixture(autouse=True)
def _guarded_memory() -> Iterator[None]:
    """Fail a test whose kernels write behind a buffer."""
    guarded = GuardedMemory()
    with guarded.installed():
        yield
    assert not guarded.written(), "bytes behind buffers of these sizes were written"

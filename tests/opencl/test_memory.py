"""Copies between host arrays: the same whether or not threads share them."""

from __future__ import annotations

import numpy as np
import pytest

from clnet.opencl import memory
from clnet.opencl.memory import COPY_THREADS, copy_rows


@pytest.mark.parametrize(
    "rows", [0, 1, COPY_THREADS - 1, COPY_THREADS, 4 * COPY_THREADS + 3]
)
@pytest.mark.parametrize("large", [0, 1 << 30], ids=["threads", "alone"])
def test_rows_are_copied_whole(monkeypatch, rows, large):
    monkeypatch.setattr(memory, "LARGE_COPY", large)
    source = np.arange(5 * rows, dtype=np.float32).reshape(rows, 5)
    padded = np.zeros((rows, 8), np.float32)
    copy_rows(padded[:, :5], source)
    np.testing.assert_array_equal(padded[:, :5], source)
    assert not padded[:, 5:].any()


def test_what_goes_wrong_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(memory, "LARGE_COPY", 0)
    with pytest.raises(ValueError, match="broadcast"):
        copy_rows(np.zeros((8, 2)), np.zeros((8, 3)))

"""Copies between host arrays, by one thread and by several."""

from dataclasses import replace

import numpy as np
import pytest

from clnet.nn.copies import COPY_THREADS
from clnet.opencl import memory
from clnet.opencl.discovery import device
from clnet.opencl.memory import ALIGNMENT, Memory, copy_rows, has_nan
from clnet.opencl.session import Session


@pytest.mark.parametrize(
    "rows", [0, 1, COPY_THREADS - 1, COPY_THREADS, 4 * COPY_THREADS + 3]
)
@pytest.mark.parametrize("large", [0, 1 << 30], ids=["threads", "one thread"])
def test_copy_rows(monkeypatch, rows, large):
    monkeypatch.setattr(memory, "LARGE_COPY", large)
    source = np.arange(5 * rows, dtype=np.float32).reshape(rows, 5)
    padded = np.zeros((rows, 8), np.float32)
    copy_rows(padded[:, :5], source)
    np.testing.assert_array_equal(padded[:, :5], source)
    assert not padded[:, 5:].any()


@pytest.mark.parametrize("rows", [1, COPY_THREADS - 1, 4 * COPY_THREADS + 3])
@pytest.mark.parametrize("large", [0, 1 << 30], ids=["threads", "one thread"])
def test_nan_is_found_wherever_it_is(monkeypatch, rows, large):
    monkeypatch.setattr(memory, "LARGE_COPY", large)
    values = np.random.default_rng(rows).normal(size=(rows, 8))[:, :5]
    values[0, 0], values[-1, -1] = np.inf, -np.inf
    assert not has_nan(values)
    for at in np.ndindex(values.shape):
        one = values.copy()
        one[at] = np.nan
        assert has_nan(one)


@pytest.mark.parametrize("svm", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_repeated_writes(svm, count):
    where = device() if svm else replace(device(), fine_svm=False, companions=())
    one, values = Session(where), np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = Memory(one, 4 * 60)
    buffer.write_repeated(one, values, count)
    found = buffer.read(one, 60, "float32")
    np.testing.assert_array_equal(found[: 6 * count], np.tile(values.ravel(), count))
    assert not found[6 * count :].any()


def test_errors_of_threads_are_raised(monkeypatch):
    monkeypatch.setattr(memory, "LARGE_COPY", 0)
    with pytest.raises(ValueError, match="broadcast"):
        copy_rows(np.zeros((8, 2)), np.zeros((8, 3)))


def test_system_svm_is_the_hosts_own_memory(monkeypatch):
    monkeypatch.setattr("pyopencl.svm_empty", None)
    where = replace(device(), fine_svm=True, system_svm=True)
    one = Session(where)
    for size in (1, 63, 1000):
        shared = Memory(one, size)
        assert shared.array.nbytes == size
        assert shared.array.ctypes.data % ALIGNMENT == 0
        assert not shared.array.any()


def test_a_dropped_buffer_is_no_longer_counted_though_its_end_is_interrupted(
    monkeypatch
):
    def interrupted():
        raise KeyboardInterrupt

    one = Session(device())
    buffer = Memory(one, 1000)
    assert one.allocated == buffer.size >= 1000
    monkeypatch.setattr(memory, "is_forked", interrupted)
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    del buffer
    assert one.allocated == 0

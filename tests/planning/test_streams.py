"""Predictions and evaluations of samples that are read by parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clnet import InputError, Network, device
from clnet.planning import inference, predictions
from clnet.runtime.plan import Plan
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Host

CPU = "cpu"
NETWORK = Network.mlp([8, 4, 2], seed=1)
X = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
T = np.random.default_rng(1).uniform(size=(1000, 2)).astype(np.float32)
BUFFER = 6 * 4 * 10 * 64  # blocks of 64 samples
Y = NETWORK.predict(X, CPU)


class Counting:
    """An array in a file that counts what is read of it."""

    chunks = (10, 8)

    def __init__(self, array):
        self.array, self.largest = array, 0
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows):
        part = self.array[rows]
        self.largest = max(self.largest, len(part))
        return part


def mapped(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def batches():
    for start in range(0, 1000, 37):
        yield X[start : start + 37], T[start : start + 37]


def as_near(y):
    # Another batch may be computed in another order.
    np.testing.assert_allclose(y, Y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_maps_are_predicted_by_parts(tmp_path, dtype):
    x = mapped(tmp_path / "x.npy", X.astype(dtype))
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", "float32", (1000, 2))
    assert NETWORK.predict(x, CPU, out=out, buffer=BUFFER) is out
    as_near(np.load(tmp_path / "y.npy"))
    as_near(NETWORK.predict(x, CPU, buffer=BUFFER))
    as_near(NETWORK.predict(x, CPU))


def test_stored_arrays_are_read_a_block_at_a_time():
    x = Counting(X)
    as_near(NETWORK.predict(x, CPU, buffer=BUFFER))
    assert x.largest == 64


def test_batches_are_predicted_as_they_come():
    as_near(NETWORK.predict(batches(), CPU, buffer=BUFFER))
    as_near(NETWORK.predict((x for x, _ in batches()), CPU))
    out = np.full((1000, 2), np.nan, np.float32)
    as_near(NETWORK.predict(batches(), CPU, out=out, buffer=BUFFER))


def test_arrays_in_memory_have_an_out_too():
    out = np.full((1000, 2), np.nan, np.float32)
    assert NETWORK.predict(X, CPU, out=out) is out
    as_near(out)
    many = np.resize(X, (9000, 8))
    out = np.full((9000, 2), np.nan)
    NETWORK.predict(many, CPU, out=out)
    as_near(out[:1000])
    assert np.isfinite(out).all()


def test_evaluations_are_the_same_by_parts(tmp_path):
    x, t = mapped(tmp_path / "x.npy", X), mapped(tmp_path / "t.npy", T)
    whole = NETWORK.evaluate(X, T, CPU)
    for found in (
        NETWORK.evaluate(x, t, CPU, buffer=BUFFER),
        NETWORK.evaluate(batches(), device=CPU, buffer=BUFFER),
        NETWORK.evaluate(x, T, CPU),
    ):
        assert found.mse == pytest.approx(whole.mse, rel=1e-5)
        assert found.bit_fail == pytest.approx(whole.bit_fail, abs=1)
        assert (found.accuracy is None) == (whole.accuracy is None)
        if whole.accuracy is not None:
            assert found.accuracy == pytest.approx(whole.accuracy, abs=1e-2)
            assert found.confusion.sum() == 1000


def test_one_sentence_says_what_is_wrong():
    short = np.zeros((999, 2), np.float32)
    with pytest.raises(InputError, match=r"out is an array \[999, 2\]"):
        NETWORK.predict(X, CPU, out=short)
    with pytest.raises(InputError, match="out has 999 rows, and x more"):
        NETWORK.predict(batches(), CPU, out=short)
    with pytest.raises(InputError, match="out has 2000 rows, and x 1000"):
        NETWORK.predict(batches(), CPU, out=np.zeros((2000, 2)))
    with pytest.raises(InputError, match="out is read-only"):
        NETWORK.predict(X, CPU, out=np.broadcast_to(np.float32(0), (1000, 2)))
    with pytest.raises(InputError, match=r"at sample 37, has shape \[37, 7\]"):
        NETWORK.predict(
            (X[i : i + 37, : 8 - (i > 0)] for i in range(0, 1000, 37)), CPU
        )
    with pytest.raises(InputError, match="x has no sample"):
        NETWORK.predict(iter([]), CPU)
    with pytest.raises(InputError, match="leave out t"):
        NETWORK.evaluate(batches(), T, CPU)
    with pytest.raises(InputError, match="have no targets"):
        NETWORK.evaluate((x for x, _ in batches()), device=CPU)
    with pytest.raises(InputError, match="t is missing"):
        NETWORK.evaluate(X, device=CPU)
    with pytest.raises(InputError, match="buffer must be"):
        NETWORK.predict(X, CPU, buffer=0)


CARDS = [replace(device(CPU), type="gpu", fine_svm=False, companions=(), index=f"9:{i}")
         for i in (7, 8)]


@pytest.mark.parametrize("devices", [CARDS[:1], CARDS], ids=["one", "two"])
def test_narrow_networks_take_many_samples_a_call(monkeypatch, devices):
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))
    monkeypatch.setattr(predictions, "CHUNK", 4)
    four = 4 * 4 * 10 * 4  # times as many samples
    monkeypatch.setattr(predictions, "CHUNK_BYTES", four)
    network = Network.mlp([8, 4, 2], seed=1)
    as_near(network.predict(X, devices))
    calls = {batch for _, batch, _ in network._plans.plans}
    assert max(calls) == 16
    monkeypatch.setattr(predictions, "CHUNK_BYTES", 1)
    assert predictions.chunk_length(network, tuple(devices), 1000) == 4


def test_a_map_is_read_while_the_device_computes(tmp_path, monkeypatch):
    """Each part starts before the outputs of the one before are waited for."""
    events = []

    def noting(name):
        call = getattr(Plan, name)

        def noted(self, *arguments):
            events.append(name)
            return call(self, *arguments)

        return noted

    for name in "start", "finish":
        monkeypatch.setattr(Plan, name, noting(name))
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))
    network = Network.mlp([8, 4, 2], seed=1)
    as_near(network.predict(mapped(tmp_path / "x.npy", X), CARDS[:1], buffer=BUFFER))
    assert events[:4] == ["start", "start", "finish", "start"]

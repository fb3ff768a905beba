"""Trainings and predictions by all devices that are like the tested one, if several."""

from __future__ import annotations

import numpy as np
import pytest
from bounds import assert_right

import clnet
from clnet import Network
from clnet.nn.optimisers import SGD
from clnet.runtime.data_parallel import alike

DEVICES = [one for one in clnet.devices() if alike([one, clnet.device()])]
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.skipif(len(DEVICES) < 2, reason="there is one device")


def test_sums_of_few_digits_have_the_bits_of_one_device():
    x, w = (RNG.integers(-2, 3, size).astype(np.float32) for size in ((256, 8), (4, 8)))
    found = []
    for devices in DEVICES[:1], DEVICES:
        net = Network.mlp([8, 4], "identity")
        net.set_layer(0, np.zeros((4, 8)), np.zeros(4))
        net.fit(x, x @ w.T, optimiser=SGD(0.25), epochs=1, batch_size=256,
                devices=devices, tune=False)
        found.append(net.parameters)
    assert found[0].any()
    np.testing.assert_array_equal(*found)


def test_parameters_stay_equal_on_all_devices():
    # Gradients of several pieces, some of which leave before others are computed.
    net = Network.mlp([64, 1024, 2048, 8], ["relu", "relu", "softmax"], seed=1)
    x, t = RNG.random((512, 64), np.float32), np.tile(np.eye(8), (64, 1))
    found = []

    def record(training, epoch):
        found.append([one.values()[0] for one in training._segments._train_state])

    history = net.fit(x, t, optimiser=SGD(0.01), batch_size=128, epochs=3,
                      devices=DEVICES, tune=False, callbacks=[record])
    assert "bus" in history.plan or "gradients" in history.plan
    for one, *others in found:
        for other in others:
            np.testing.assert_array_equal(other, one)


def test_predictions_of_a_file_are_those_of_one_device(tmp_path):
    net = Network.mlp([33, 65, 10], "tanh", seed=1)  # rows with padding
    x = RNG.random((40_000, 33), np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for one in x, mapped:
        assert_right(net, x, net.predict(one, DEVICES))

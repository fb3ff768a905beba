"""Plans: threads that call them, and that replace parameters."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pyopencl.array as cla
import pytest
from bounds import assert_right
from covers import (
    ABSENT,
    CPU,
    DEVICES,
    NETWORK,
    cover,
    inputs,
    on_device,
)
from waits import join

from clnet import Dense, Network
from clnet.opencl.session import session


def run_threads(*works):
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    join(threads)
    assert errors == []


@pytest.mark.parametrize("kinds", [
    ["naive", "host"], ["cpu with caller", "cpu"], ["cpu serial", "naive"],
], ids=" then ".join)
def test_threads_call_one_plan(kinds):
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    plan = cover(network, CPU, kinds, 2)

    def work(seed):
        x = inputs(network, 2, seed)
        expected = plan(x)
        assert_right(network, x, expected)
        for _ in range(30):
            np.testing.assert_array_equal(plan(x), expected)

    run_threads(*(lambda seed=seed: work(seed) for seed in range(4)))


def test_threads_call_plans_of_one_network():
    network = Network.mlp([5, 40, 3], "tanh", seed=1)

    def work(kind):
        x = inputs(network, 2)
        for _ in range(5):
            plan = cover(network, CPU, [kind, kind], 2)
            for _ in range(5):
                assert_right(network, x, plan(x))

    kinds = {"cpu", "cpu with caller", "naive", "host"} - ABSENT
    run_threads(*(lambda kind=kind: work(kind) for kind in kinds))


def powers():
    """A network of eight layers, and two states whose mixtures give other outputs."""
    layers = [Dense(16, "identity", bias=False) for _ in range(8)]
    network = Network(16, layers, seed=1)
    states = [np.full(network.parameters.shape, v, np.float32) for v in (1 / 16, 1 / 8)]
    return network, states, (1.0, 256.0)


@DEVICES
@pytest.mark.parametrize("name", ["host", "naive", "split", "gemm", "generic", "cpu"])
def test_a_run_reads_the_parameters_of_one_moment(device, name):
    """Another plan uploads new ones while a run is being enqueued."""
    network, (old, new), outputs = powers()
    network.parameters = old
    one, other = (on_device(network, b, device, [name]) for b in (1, 2))
    results = []

    def replace():
        network.parameters = new
        results.append(other(np.ones((2, 16), np.float32)))

    thread = threading.Thread(target=replace)

    def meanwhile():
        if thread.ident is None:
            thread.start()
            thread.join(0.1)  # it waits for the run

    actions = one._executable._actions
    actions.insert(len(actions) // 2, meanwhile)
    results.append(one(np.ones((1, 16), np.float32)))
    join([thread])
    assert {float(y) for result in results for y in result.flat} <= {*outputs}
    np.testing.assert_array_equal(one(np.ones((1, 16), np.float32)), outputs[1])


@pytest.mark.parametrize("name", ["host", "naive", "split", "cpu"])
def test_threads_replace_parameters(name):
    network, states, outputs = powers()
    network.parameters = states[0]
    plans = [on_device(network, batch, CPU, [name]) for batch in (1, 2, 3)]

    def call(plan):
        x = np.ones((plan.batch, 16), np.float32)
        for _ in range(200):
            y = plan(x)
            assert y.flat[0] in outputs
            np.testing.assert_array_equal(y, y.flat[0])

    def replace():
        for number in range(1000):
            network.parameters = states[number % 2]

    run_threads(*(lambda plan=plan: call(plan) for plan in plans), replace)


def test_an_executable_made_meanwhile_disturbs_no_run():
    """It adds a packed buffer, which makes the store refill all before the next run."""
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    plan = cover(network, CPU, ["host", "host"], 2)
    x = inputs(network, 2)
    plan(x)
    plan._executable._actions.insert(0, lambda: cover(network, CPU, ["cpu", "cpu"], 2))
    assert_right(network, x, plan(x))


def test_threads_get_one_session():
    device = dataclasses.replace(CPU, index="7:7")
    found = []
    run_threads(*[lambda: found.append(session(device))] * 4)
    assert len(set(map(id, found))) == 1


def test_threads_mix_host_and_device_arrays(plan):
    def host():
        for seed in range(20):
            x = inputs(NETWORK, 4, seed)
            assert_right(NETWORK, x, plan(x))

    def there():
        for seed in range(20):
            x = inputs(NETWORK, 4, seed)
            assert_right(NETWORK, x, plan(cla.to_device(plan.queue, x)).get())

    run_threads(host, there)

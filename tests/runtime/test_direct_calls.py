"""Direct calls: the shortest way of `predict` and of a plan, and what it must keep."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from math import inf

import numpy as np
import pytest
from bounds import assert_right
from covers import CPU, DEVICES, KINDS, cover, inputs, on_device
from waits import join

import clnet
from clnet import ClnetWarning, InputError, Network, Scaling
from clnet.planning import inference
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Host


@pytest.fixture
def network(own_store, monkeypatch):
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))
    monkeypatch.setattr(inference, "CALL_SECONDS", inf)  # the first call measures
    return Network.mlp([5, 7, 3], "tanh", seed=1)


def python_calls(function):
    """The Python functions that a call enters, but for itself."""
    entered = []
    sys.setprofile(
        lambda frame, event, _: entered.append(frame.f_code) if event == "call" else 0
    )
    try:
        function()
    finally:
        sys.setprofile(None)
    return entered[1:]


@pytest.mark.parametrize("seconds", [inf, inference.CALL_SECONDS])
def test_a_known_batch_takes_the_direct_call(network, monkeypatch, seconds):
    """`predict` enters no other function than the plan, be it the first one."""
    monkeypatch.setattr(inference, "CALL_SECONDS", seconds)
    for x in (inputs(network, 1)[0], inputs(network, 1), inputs(network, 4)):
        expected = network.predict(x, "cpu")
        plan = network.plan_for("cpu", len(np.atleast_2d(x)))
        assert np.array_equal(network.predict(x, "cpu"), expected)
        by_plan = python_calls(lambda x=x, plan=plan: plan(x))
        by_predict = python_calls(lambda x=x: network.predict(x, "cpu"))
        assert by_predict == [Network.predict.__code__, *by_plan]


CONVERSIONS = {
    "list": lambda x: x.tolist(),
    "float64": lambda x: x.astype(np.float64),
    "big-endian": lambda x: x.astype(">f4"),
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "subclass": lambda x: x.view(type("Own", (np.ndarray,), {})),
    "masked": np.ma.asarray,
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_arrays_of_all_kinds_give_the_same(network, convert):
    x = inputs(network, 4)
    expected = network.predict(x, CPU)
    plan = network.plan_for(CPU, 4)
    for y in (network.predict(convert(x), CPU), plan(convert(x))):
        assert type(y) is np.ndarray
        assert np.array_equal(y, expected)


@DEVICES
@pytest.mark.parametrize("kinds", [["naive", "host"], ["host", "naive"], ["cpu"] * 2])
def test_outputs_are_the_callers_own(device, kinds):
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    for batch in (1, 3):
        plan = cover(network, device, kinds, batch)
        x = inputs(network, batch)
        y = plan(x)
        expected = y.copy()
        y[...] = np.nan
        again = plan(x)
        plan(inputs(network, batch, seed=1))
        assert np.array_equal(again, expected)
        if batch == 1:
            row = plan(x[0])
            row[...] = np.nan
            assert np.array_equal(plan(x[0]), expected[0])


@pytest.mark.parametrize("kinds", [["naive", "host"], ["cpu", "cpu"]])
def test_a_direct_call_waits_for_a_started_one(kinds):
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    plan = cover(network, CPU, kinds, 2)
    one, two = (inputs(network, 2, seed) for seed in (1, 2))
    expected = plan(one), plan(two)
    results = []
    thread = threading.Thread(target=lambda: results.append(plan(two)))
    plan.start(one)
    thread.start()
    thread.join(0.1)
    assert results == []
    assert np.array_equal(plan.finish(), expected[0])
    join([thread])
    assert np.array_equal(results[0], expected[1])


def test_a_started_call_waits_for_a_direct_one():
    """Its inputs are not written over those of the other."""
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    plan = cover(network, CPU, ["naive", "naive"], 2)
    one, two = (inputs(network, 2, seed) for seed in (1, 2))
    expected = plan(one), plan(two)
    results = []

    def start():
        plan.start(two)
        results.append(plan.finish())

    thread = threading.Thread(target=start)

    def meanwhile():
        if thread.ident is None:
            thread.start()
            thread.join(0.1)

    plan._executable._actions.insert(0, meanwhile)
    assert np.array_equal(plan(one), expected[0])
    join([thread])
    assert np.array_equal(results[0], expected[1])


def test_a_direct_call_waits_for_a_long_one(monkeypatch):
    """A call with `out` fills the inputs some time before it runs."""
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    plan = cover(network, CPU, ["naive", "naive"], 2)
    first, second = (inputs(network, 2, seed) for seed in (1, 2))
    expected = plan(first), plan(second)
    results = []
    thread = threading.Thread(target=lambda: results.append(plan(second)))
    run = plan._executable.run

    def linger_and_run():
        monkeypatch.undo()
        thread.start()
        thread.join(0.1)
        run()

    monkeypatch.setattr(plan._executable, "run", linger_and_run)
    assert np.array_equal(plan(first, out=np.empty_like(expected[0])), expected[0])
    join([thread])
    assert np.array_equal(results[0], expected[1])


def test_threads_start_and_call_one_plan():
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    plan = on_device(network, 2)
    wrong = []

    def work(seed):
        x = inputs(network, 2, seed)
        expected = on_device(network, 2)(x)
        for number in range(300):
            if (number + seed) % 3:
                y = plan(x)
            else:
                plan.start(x)
                y = plan.finish()
            if not np.array_equal(y, expected):
                wrong.append(y)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    join(threads)
    assert wrong == []


def test_replaced_parameters_are_taken(network):
    x = inputs(network, 2)
    network.predict(x, CPU)
    for factor in (2, 0.5):
        network.parameters = network.parameters * np.float32(factor)
        for _ in range(2):  # by an upload, and without
            assert_right(network, x, network.predict(x, CPU))


def test_a_scaling_that_comes_later_is_applied(network):
    x = inputs(network, 2)
    network.predict(x, CPU)
    network.scaling = Scaling.of(inputs(network, 9), inputs(network, 9)[:, :3])
    with pytest.warns(ClnetWarning, match="scaling that is not used"):
        network.predict(x, CPU)
    scaled = network.predict(x, CPU, scale=True)
    assert not np.array_equal(scaled, network.predict(x, CPU, scale=False))
    network.scaling = None
    with pytest.raises(InputError, match="it has none"):
        network.predict(x, CPU, scale=True)
    with pytest.raises(InputError, match="scale must be"):
        network.predict(x, CPU, scale="yes")


@pytest.mark.parametrize("arguments", [
    {"device": "no such"}, {"device": 3}, {"device": {}}, {"precision": "low"},
    {"precision": []},
], ids=str)
def test_wrong_arguments_are_refused_after_right_ones(network, arguments):
    x = inputs(network, 2)
    network.predict(x, CPU)
    with pytest.raises((InputError, clnet.DeviceError)):
        network.predict(x, **{"device": CPU, **arguments})
    for wrong in (x[:, :4], x[0, :4], x[:0], x[np.newaxis], x.astype(complex)):
        with pytest.raises(InputError):
            network.predict(wrong, CPU)


def test_evicted_plans_are_freed(network, monkeypatch):
    monkeypatch.setattr(inference, "MAX_CACHED_PLANS", 2)
    x = inputs(network, 6)
    executables = weakref.WeakSet()
    for batch in range(1, 7):
        network.predict(x[:batch], CPU)
        executables.add(network.plan_for(CPU, batch)._executable)
    gc.collect()
    assert len(executables) == 2
    assert {shape for shape, *_ in network._recent} <= {(5, 5), (6, 5)}


def test_a_plan_in_use_is_not_evicted(network, monkeypatch):
    """Though its direct calls alone are used."""
    monkeypatch.setattr(inference, "MAX_CACHED_PLANS", 2)
    x = inputs(network, 5)
    network.predict(x[:1], CPU)
    often = network.plan_for(CPU, 1)
    for batch in (2, 3, 4, 5):
        for _ in range(2):
            network.predict(x[:1], CPU)
        network.predict(x[:batch], CPU)
        assert often in network._plans.plans.values()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_step_is_called_directly(kind):
    network = Network.mlp([5, 40, 3], "tanh", seed=1)
    plan = cover(network, CPU, [kind, kind], 2)
    assert (2, 5) in plan.direct
    x = inputs(network, 2)
    assert_right(network, x, plan(x))
    assert_right(network, x, plan.direct[2, 5](x))

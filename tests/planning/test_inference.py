"""Inference: arguments, plans, and the outputs of any number of samples."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading

import numpy as np
import pytest
from bounds import assert_right
from planner_lab import CPU, NETWORK, inputs
from waits import join

from clnet import Network
from clnet.errors import DeviceError, InputError
from clnet.planning import inference, predictions
from clnet.runtime.plan import Plan
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Host

pytestmark = pytest.mark.usefixtures("own_store")


# Bad arguments --------------------------------------------------------------------


@pytest.mark.parametrize("batch", [0, -1, 1.5, "1", None, True, [1]])
def test_a_batch_is_a_whole_number(batch):
    with pytest.raises(InputError, match="batch must be a whole number of at least 1"):
        NETWORK.compile(CPU, batch)


@pytest.mark.parametrize("tune", [0, 1, "yes", [], np.array([True, False])])
def test_tune_is_none_true_or_false(tune):
    with pytest.raises(InputError, match="tune must be True, False or None, not"):
        NETWORK.compile(CPU, tune=tune)


@pytest.mark.parametrize(
    ("variants", "sentence"),
    [
        (["naive", "naiv"], "unknown variant 'naiv': did you mean 'naive'?"),
        (["gem"], "did you mean 'gemm'?"),
        (["quick"], "unknown variant 'quick': known are cpu, csr, "),
        ([3], "unknown variant 3"),
        (["epoch"], "variant 'epoch' computes steps of training, which `fit` plans"),
        ([["naive"]], "unknown variant"),
        ("naive", "variants must be a list of names, not 'naive'"),
        (3, "variants must be a list of names, not 3"),
        ([], "variants is empty: name some of naive"),
        ([Naive], r"variants has the class Naive: give a variant, Naive\(\)"),
        (["naive", Naive()], "variants has two of the name 'naive', by which"),
    ],
)
def test_variants_are_named(variants, sentence):
    with pytest.raises(InputError, match=sentence.replace("?", r"\?")):
        NETWORK.compile(CPU, variants=variants)


@dataclasses.dataclass(frozen=True)
class Own(Naive):
    """A variant that is not registered."""

    name: str = "own"


def test_a_variant_of_the_users_own_is_planned():
    for variants in ([Own()], ["host", Own()]):
        plan = NETWORK.compile(CPU, tune=False, variants=variants)
        assert "own" in plan.explain()
    plan = NETWORK.compile(CPU, variants=[Own()])
    assert {step.variant for step in plan.steps} == {Own()}


def test_a_missing_device_is_an_error():
    with pytest.raises(DeviceError, match="no device matches 'no such'"):
        NETWORK.compile("no such")


# predict --------------------------------------------------------------------------


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))
    monkeypatch.setattr(predictions, "CHUNK", 4)


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 7, 8, 9, 13])
def test_predict_takes_any_number_of_samples(small_chunks, batch):
    network = Network.mlp([5, 7, 3], seed=1)
    x = inputs(network, batch)
    assert_right(network, x, network.predict(x, CPU))
    (plan,) = network._plans.plans.values()  # the last call's too
    calls = -(-batch // 4)
    assert plan.batch == -(-batch // calls)


def test_predict_keeps_the_rank(small_chunks):
    network = Network.mlp([5, 7, 3], seed=1)
    x = inputs(network, 3)
    y = network.predict(x, CPU)
    assert y.shape == (3, 3)
    one = network.predict(x[0], CPU)
    assert one.shape == (3,)
    assert_right(network, x[:1], one[np.newaxis])
    assert network.predict(x[:1], CPU).shape == (1, 3)
    assert network.predict(x.tolist(), CPU).shape == (3, 3)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.zeros((0, 5)), "x has no sample"),
        (np.zeros((2, 4)), r"x has shape \[2, 4\], expected \[batch, 5\] or \[5\]"),
        (np.zeros(4), r"x has shape \[4\], expected"),
        (np.zeros((1, 1, 5)), r"x has shape \[1, 1, 5\], expected"),
        (0.0, r"x has shape \[\], expected"),
        ([[1, 2], [3]], "x must be a rectangular array of numbers"),
        (["a"] * 5, "numbers"),
        (np.zeros((2, 5), complex), "numbers"),
        (None, "numbers"),
    ],
)
def test_bad_inputs_are_errors(x, sentence):
    with pytest.raises(InputError, match=sentence):
        Network.mlp([5, 3], seed=1).predict(x, CPU)


def test_predict_takes_replaced_parameters(small_chunks):
    network = Network.mlp([5, 3], seed=1)
    x = inputs(network, 6)
    before = network.predict(x, CPU)
    network.parameters = network.parameters * 2
    assert_right(network, x, network.predict(x, CPU))
    network.parameters = network.parameters / 2
    np.testing.assert_array_equal(network.predict(x, CPU), before)


def test_chunks_use_the_parameters_of_one_moment(small_chunks, monkeypatch):
    network = Network.mlp([5, 3], seed=1)
    x = inputs(network, 22)
    before = network.predict(x, CPU)
    start = Plan.start

    def replace_after(self, *arguments):
        start(self, *arguments)
        network.parameters = network.parameters * 2

    monkeypatch.setattr(Plan, "start", replace_after)
    np.testing.assert_array_equal(network.predict(x, CPU), before)


@pytest.mark.parametrize("copied", [
    copy.copy, copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network)),
])
def test_a_copy_predicts_by_its_own_parameters(small_chunks, copied):
    network = Network.mlp([5, 3], seed=1)
    x = inputs(network, 2)
    before = network.predict(x, CPU)
    other = copied(network)
    with pytest.raises(ValueError, match="read-only"):
        other.parameters[0] = 1
    np.testing.assert_array_equal(other.predict(x, CPU), before)
    other.parameters = np.zeros_like(network.parameters)
    np.testing.assert_array_equal(other.predict(x, CPU), np.full((2, 3), 0.5))
    np.testing.assert_array_equal(network.predict(x, CPU), before)


def test_a_few_plans_are_cached(small_chunks, monkeypatch):
    monkeypatch.setattr(inference, "MAX_CACHED_PLANS", 2)
    network = Network.mlp([5, 3], seed=1)
    x = inputs(network, 3)
    for batch in (1, 2, 3, 1, 2):
        assert_right(network, x[:batch], network.predict(x[:batch], CPU))
        assert len(network._plans.plans) <= 2
    cached = set(map(id, network._plans.plans.values()))
    network.predict(x[:2], CPU)
    assert set(map(id, network._plans.plans.values())) == cached


def test_the_least_recently_used_plan_is_evicted(small_chunks, monkeypatch):
    monkeypatch.setattr(inference, "MAX_CACHED_PLANS", 2)
    network = Network.mlp([5, 3], seed=1)
    often = network.plan_for(CPU, 1)
    for batch in (2, 3, 4):
        network.plan_for(CPU, batch)
        assert network.plan_for(CPU, 1) is often


def test_threads_may_predict_at_once(small_chunks, monkeypatch):
    # Few, so that they evict each other's.
    monkeypatch.setattr(inference, "MAX_CACHED_PLANS", 2)
    network = Network.mlp([5, 7, 3], seed=1)
    wrong = []

    def work(seed):
        try:
            for batch in (1, 2, 3, 4, 6):
                x = inputs(network, batch, seed)
                assert_right(network, x, network.predict(x, CPU))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    join(threads)
    assert wrong == []

"""Outputs, classes and errors of all networks together: those of each by itself."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from bounds import assert_right

import clnet
from clnet import Dense, InputError, Local, Network, Population, Sparse
from clnet.ir.lowering import lower
from clnet.nn.model import EnsembleModel
from clnet.opencl.session import session
from clnet.planning import predictions
from clnet.planning.inference import PlanCache
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.dense.naive import MAX_SIZE, EnsembleOutputs

CPU = clnet.device("cpu")
# The same device, as if it were a GPU: groups of many work-items, which are no vectors.
GROUPS = replace(CPU, type="gpu", fine_svm=False, companions=(), index="9:1")
ENSEMBLE = EnsembleOutputs()
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (50, 6)).astype(np.float32)
T = RNG.uniform(-1, 1, (50, 3)).astype(np.float32)

TOGETHER = {
    "tanh": Network.mlp([6, 9, 3], "tanh"),
    "one layer": Network(6, [Dense(3, "relu")]),
    "softmax": Network.mlp([6, 17, 5, 3], "sigmoid", output="softmax"),
    "logarithm": Network.mlp([6, 3], output="log_softmax"),
    "no bias": Network(6, [Dense(13, "relu", bias=False), Dense(3, "gelu")]),
    "clipped": Network(6, [Dense(4, "tanh", 0.5), Dense(3)], fann_compatible=True),
}
ALONE = {
    "sparse": Network(6, [Sparse(8, "tanh", density=0.5, seed=1), Dense(3)]),
    "local": Network(6, [Local(window=3, activation="tanh"), Dense(3)]),
    "mixed": Network(6, [Dense(2, ["relu", "tanh"]), Dense(3)]),
    "shortcut": Network(6, [Dense(4, "tanh"), Dense(3, sources=(0, 1))]),
    "jumps": Network(6, [Dense(8, "threshold"), Dense(3)]),
    "large": Network.mlp([6, 300, 300, 3], "tanh"),
}


def population(network, members=5):
    return Population(network, members)


def in_float64(network):
    return Network(
        network.n_in, network.layers, dtype="float64",
        fann_compatible=network.fann_compatible,
    )


def each(networks, call):
    return np.stack([call(network) for network in networks])


@pytest.mark.parametrize("device", [CPU, GROUPS], ids=["vectors", "groups"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize(("members", "batch"), [(2, 1), (3, 50), (70, 9)])
def test_the_kernel_is_right(name, dtype, device, members, batch):
    if dtype == "float64" and not CPU.fp64:
        pytest.skip("the device has no float64")
    shape = TOGETHER[name] if dtype == "float32" else in_float64(TOGETHER[name])
    networks, x = population(shape, members), X[:batch].astype(dtype)
    model = EnsembleModel(shape, networks.parameters)
    program = lower(model)
    span = program.span(0, 1, batch)
    assert ENSEMBLE.refuse(span, device) is None
    step = PlanStep(span, ENSEMBLE, {}, device)
    executable = Executable(
        session(device), model, [step], [program.input], [program.output]
    )
    executable.x["x"][...] = x
    executable.run()
    y = executable.result("ys").reshape(batch, members, 3)
    for number in {0, 1, members - 1}:
        assert_right(networks[number], x, y[:, number])


@pytest.mark.parametrize("name", ALONE)
def test_other_networks_are_refused(name):
    model = EnsembleModel(ALONE[name], population(ALONE[name]).parameters)
    reason = ENSEMBLE.refuse(lower(model).span(0, 1, 1), CPU)
    assert reason is not None
    if name == "large":
        assert str(MAX_SIZE) in reason


def samples(kind, folder):
    """Return inputs and targets in a carrier."""
    if kind == "array":
        return X, T
    if kind == "list":
        return X.tolist(), T.tolist()
    if kind == "sparse":
        return sp.csr_matrix(X), T
    if kind == "map":
        for name, array in ("x", X), ("t", T):
            np.save(folder / f"{name}.npy", array)
        return (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xt")
    return [(X[i : i + 7], T[i : i + 7]) for i in range(0, 50, 7)], None


@pytest.mark.parametrize("kind", ["array", "list", "sparse", "map", "batches"])
@pytest.mark.parametrize("name", ["softmax", "shortcut"])
def test_carriers(name, kind, tmp_path):
    shape = {**TOGETHER, **ALONE}[name]
    networks = population(shape)
    before = networks.network.parameters
    x, t = samples(kind, tmp_path)
    buffer = 6 * 4 * 9 * 8  # blocks of eight samples
    inputs = (inputs for inputs, _ in x) if kind == "batches" else x
    np.testing.assert_allclose(
        networks.predict(inputs, CPU, buffer=buffer),
        each(networks, lambda one: one.predict(X, CPU)), rtol=1e-5, atol=1e-6,
    )
    expected = [one.evaluate(X, T, CPU).mse for one in networks]
    found = networks.evaluate(x, t, CPU, buffer=buffer)
    np.testing.assert_allclose([one.mse for one in found], expected, rtol=1e-5)
    assert networks.network.parameters is before


@pytest.mark.parametrize("name", ["tanh", "mixed"])
def test_one_sample_scaling_and_parts(name, monkeypatch):
    shape = copy({**TOGETHER, **ALONE}[name])
    shape.scaling = clnet.Scaling.of(3 * X + 5, 10 * T)
    networks = population(shape)
    assert networks.predict(X[0], CPU, scale=False).shape == (5, 3)
    whole = networks.predict(3 * X + 5, CPU, scale=True)
    np.testing.assert_allclose(
        whole,
        each(networks, lambda one: one.predict(3 * X + 5, CPU, scale=True)),
        rtol=1e-5, atol=1e-5,
    )
    monkeypatch.setattr(predictions, "CHUNK", 16)
    parts = networks.predict(3 * X + 5, CPU, scale=True)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)


def test_a_launch_computes_all(monkeypatch):
    made, plan = [], PlanCache.plan

    def noted(self, *arguments):
        made.append(self.network.members)
        return plan(self, *arguments)

    monkeypatch.setattr(PlanCache, "plan", noted)
    population(TOGETHER["tanh"]).predict(X, CPU)
    population(ALONE["large"]).predict(X, CPU)
    assert made == [5, 1]
    networks = population(TOGETHER["tanh"])
    networks.predict(X, CPU)
    (text,) = (plan.explain() for plan in networks._ensemble.plans.values())
    assert "networks" in text
    made.clear()
    population(TOGETHER["tanh"], 1).predict(X, CPU)
    assert made == [1]
    monkeypatch.setattr(predictions, "CHUNK_BYTES", 4 * 15 * 8)  # outputs of eight
    made.clear()
    population(TOGETHER["tanh"]).predict(X, CPU)
    assert made == [5]  # of all parts


def test_parameters_are_those_of_the_call():
    networks = population(TOGETHER["tanh"])
    before = networks.predict(X, CPU)
    networks.parameters = np.zeros_like(networks.parameters)
    assert not networks.predict(X, CPU).any()
    networks.parameters = networks.parameters[:2]
    assert networks.predict(X, CPU).shape == (2, 50, 3)
    other = population(TOGETHER["tanh"])
    other.predict(X, CPU)
    for copied in copy(other), pickle.loads(pickle.dumps(other)):
        copied.parameters = np.zeros_like(copied.parameters)
        assert not copied.predict(X, CPU).any()
    np.testing.assert_array_equal(other.predict(X, CPU), before)
    histories = other.fit(X, T, epochs=3, optimiser="rprop", seed=0, device=CPU)
    mse = [one.mse for one in other.evaluate(X, T, CPU)]
    assert mse == pytest.approx([one.evaluate(X, T, CPU).mse for one in other])
    assert len(histories) == 5


def test_errors():
    networks = population(TOGETHER["tanh"])
    with pytest.raises(InputError, match=r"x has shape \[2, 5\]"):
        networks.predict(np.zeros((2, 5)), CPU)
    with pytest.raises(InputError, match="t is missing"):
        networks.evaluate(X, device=CPU)
    with pytest.raises(InputError, match="have no targets"):
        networks.evaluate(iter([X]), device=CPU)

"""Formats and devices chosen by measurement, and views of networks in other formats."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from bounds import assert_right
from training_lab import PLAIN

import clnet
from clnet import Dense, Network, Sparse, load
from clnet.errors import DeviceError, InputError
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.storage.formats import FORMATS, predicted_nbytes
from clnet.nn.storage.layout import live_elements
from clnet.nn.storage.pattern import Pattern
from clnet.opencl.session import session
from clnet.opencl.store import Timing
from clnet.planning import format_planner, training_planner
from clnet.planning.cover import Cover, PlanReport
from clnet.planning.format_planner import (
    NetworkView,
    best_format,
    distinct,
    fastest_planner,
)
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning.budget import Budget
from clnet.planning.tuning.trial import StepTrial
from clnet.runtime.binding import PlanStep
from clnet.runtime.train_state import TrainState
from clnet.training import plans
from clnet.training.callbacks import Checkpoint
from clnet.training.history import TrainingState
from clnet.variants.training.gemm_backward import GemmBackward, TiledOuter

CPU = clnet.device("cpu")
GPU = clnet.Device("some gpu", "gpu")
DEVICES = (
    clnet.Device("gpu", index="0:0", type="gpu", compute_units=132),
    clnet.Device("cpu", index="1:0", compute_units=2),
)
RNG = np.random.default_rng(1)
MASK = RNG.random((30, 20)) < 0.3


def network_of(dtype="float32", **options):
    layers = [
        Sparse(30, "tanh", pattern=MASK, **options), Dense(5, "sigmoid"),
        Sparse(7, density=0.4, sources=(0, 2)),
    ]
    return Network(20, layers, seed=1, dtype=dtype)


@pytest.mark.parametrize("form", FORMATS)
def test_a_view_has_the_parameters_of_its_network(form):
    network = network_of()
    view = NetworkView(network, form)
    for _ in range(2):
        assert view.version == network.version
        for number in range(3):
            for what in ("weights", "biases"):
                np.testing.assert_array_equal(
                    getattr(view, what)(number), getattr(network, what)(number)
                )
        padding = np.delete(view.parameters, view.relayout.target)
        assert not padding.any()
        network.parameters = RNG.uniform(-1, 1, network.parameters.shape)
    with pytest.raises(InputError, match="set those of its network"):
        view.parameters = view.parameters
    with pytest.raises(ValueError, match="read-only"):
        view.parameters[0] = 1


def test_named_formats_stay():
    view = NetworkView(network_of(format="ell"), "dia")
    assert view.matrices[0].format == "ell"
    assert view.matrices[2].format == "dia"


class FakePlanner:
    """A planner whose whole calls take the given seconds; below 0: it fails."""

    budget = Budget()

    def __init__(self, seconds, form=None):
        self.seconds, self.format, self.report = seconds, form, PlanReport()

    def can_prune(self, seconds):
        return "too slow" if self.seconds == 99 else None

    def timed_cover(self):
        if self.seconds is None:
            return None
        if self.seconds < 0:
            raise DeviceError("too small")
        return Cover((), 0.0, Timing(self.seconds, self.seconds, 0.0))

    def note_searched(self, seconds):
        self.searched = seconds


def chosen(network, device, **seconds):
    tried = []

    def planner(stored):
        name = stored.matrices[0].format.replace("masked", "dense")
        tried.append(FakePlanner(seconds.get(name), name))
        return tried[-1]

    best = best_format(network, device, planner)
    if best is not tried[0]:  # later calls ask by the network's own format
        assert tried[0].searched == min(time for _, time in best.report.formats)
    return best.format, best.report, [one.format for one in tried]


def test_the_format_of_the_shortest_calls_is_taken():
    found, report, tried = chosen(network_of(), GPU, csr=3, sell=2, ell=4, dense=5)
    assert (found, tried) == ("sell", ["csr", "sell", "ell", "dia", "dense"])
    assert report.formats == [("sell", 2), ("csr", 3), ("ell", 4), ("dense", 5)]
    assert chosen(network_of(), CPU, csr=3, dense=5)[::2] == (
        "csr", ["csr", "dia", "dense"]
    )


def test_of_formats_as_fast_within_five_percent_the_first_is_taken():
    found, report, _ = chosen(network_of(), GPU, csr=3, sell=2.9, ell=3.2)
    assert found == "csr"
    assert report.formats == [("csr", 3), ("sell", 2.9), ("ell", 3.2)]
    found, report, _ = chosen(network_of(), GPU, csr=3, sell=2.05, ell=2)
    assert found == "sell"
    assert report.formats == [("sell", 2.05), ("ell", 2), ("csr", 3)]


def test_formats_that_fail_or_have_no_time_are_left_out():
    found, report, _ = chosen(network_of(), GPU, csr=3, sell=-1, ell=99, dense=5)
    assert found == "csr"
    assert report.formats == [("csr", 3), ("dense", 5)]
    assert report.untried == [("ell", "too slow")]
    assert report.failures == ["sell: too small"]
    # Nothing may be measured, and nothing is remembered.
    assert chosen(network_of(), GPU, dense=1)[::2] == ("csr", ["csr"])


def test_networks_without_auto_layers_keep_their_formats():
    assert chosen(Network(20, [Sparse(30, pattern=MASK, format="ell")]), GPU)[2] == [
        "ell"
    ]
    assert chosen(Network.mlp([3, 2]), GPU)[2] == ["dense"]


def test_much_larger_formats_are_not_tried(monkeypatch):
    monkeypatch.setattr(format_planner, "_launch_seconds", lambda device: 0.0)
    pattern = np.eye(200, dtype=bool)
    pattern[3] = True
    network = Network(200, [Sparse(200, pattern=pattern)], seed=1)
    _, report, tried = chosen(network, GPU, csr=3)
    assert tried == ["csr"]
    assert [name for name, _ in report.untried] == ["sell", "ell", "dia", "dense"]
    assert all(why.startswith("it needs ") for _, why in report.untried)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(30, 20), (3, 70_000), (70_000, 3)])
def test_predicted_bytes_are_exact(form, shape):
    flat = np.sort(RNG.choice(shape[0] * shape[1], 200, replace=False))
    pattern = Pattern(*shape, *np.divmod(flat, shape[1]))
    size = sum(part.nbytes(8) for part in FORMATS[form](pattern))
    assert predicted_nbytes(pattern, form, 8) == size


def test_memory_limits_stay():
    limit = network_of().matrices[0].nbytes(4)
    network = network_of(memory_limit=limit)
    found, report, tried = chosen(network, CPU, csr=3, dense=1)
    assert (found, tried) == ("csr", ["csr"])
    assert f"the memory limit is {limit}" in report.failures[0]


def test_plans_run_in_the_chosen_format():
    network = network_of()
    plan = network.compile("cpu", 3)
    text = plan.explain()
    assert "formats of the layers of format auto, by whole calls" in text
    assert max(map(len, text.splitlines())) <= 80
    again = network.compile("cpu", 3, tune=False)
    assert type(again.network) is type(plan.network)  # remembered
    x = RNG.uniform(-1, 1, (3, 20)).astype("float32")
    for one in (plan, again):
        for _ in range(2):
            assert_right(network, x, one(x))
            network.parameters = RNG.uniform(-1, 1, network.parameters.shape)


# Devices ----------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "cpu", "best"), [(1, 2, "gpu"), (3, 2, "cpu")])
def test_the_device_of_the_shortest_call_is_taken(gpu, cpu, best):
    planners = {"gpu": FakePlanner(gpu), "cpu": FakePlanner(cpu)}
    found = fastest_planner(DEVICES, lambda device: planners[device.name])
    assert found is planners[best]
    assert found.report.devices == sorted(
        [("gpu", gpu), ("cpu", cpu)], key=lambda pair: pair[1]
    )


def test_a_failing_device_is_left_out_and_reported():
    planners = {"gpu": FakePlanner(-1), "cpu": FakePlanner(2)}
    found = fastest_planner(DEVICES, lambda device: planners[device.name])
    assert found.report.failures == ["gpu: too small"]
    with pytest.raises(DeviceError, match="gpu: too small; cpu: too small"):
        fastest_planner(DEVICES, lambda device: FakePlanner(-1))


def test_of_equal_devices_one_is_measured():
    gpu, cpu = DEVICES
    assert distinct((gpu, replace(gpu, index="0:1"), cpu)) == [gpu, cpu]


@pytest.mark.usefixtures("own_store")
def test_a_network_runs_on_the_fastest_device():
    network = Network.mlp([5, 7, 3], seed=1)
    x = RNG.uniform(-1, 1, (2, 5)).astype("float32")
    with pytest.raises(DeviceError, match="with tune=False none may be measured"):
        network.compile("fastest", tune=False)
    assert_right(network, x, network.predict(x, device="Fastest"))
    text = network.plan_for("fastest", 2).explain()
    assert "devices, by whole calls\n  " in text
    assert clnet.devices()[0].name in text
    with pytest.raises(InputError, match='"fastest" is accepted by compile and'):
        network.predict(x, device=["fastest"])
    with pytest.raises(InputError, match="name the device here"):
        network.fit(x, np.zeros((2, 3)), device="fastest")
    with pytest.raises(InputError, match="batch must be a whole number"):
        network.compile("fastest", 0)


# Training ---------------------------------------------------------------------------


@pytest.fixture
def fastest(own_store, monkeypatch):
    """Let one format's products be the fastest by far in every measurement."""
    return lambda form: _find_fastest(monkeypatch, form)


def _find_fastest(monkeypatch, form):
    measured = []
    name = {"dense": "masked"}.get(form, form)

    def ready(self, steps, *parts, **options):
        measured.append(self.network)
        storages = [
            op.storage for step in steps for op in step.span.ops
            if hasattr(op, "storage")
        ]
        products = 0.5 * sum(storage.name != name for storage in storages)
        return Timing(products + 1e-12, products + 1e-12, 0.0)

    monkeypatch.setattr(Budget, "pays", lambda self, seconds: True)
    monkeypatch.setattr(plans, "plan_training", plan_training)
    monkeypatch.setattr(training_planner, "TRAINING_VARIANTS", PLAIN)
    monkeypatch.setattr(StepTrial, "ready", ready)
    alternatives = dict.fromkeys(("cpu", "gpu"), ("dense", "sell", "ell"))
    monkeypatch.setattr(format_planner, "ALTERNATIVES", alternatives)
    return measured


SAMPLES = RNG.uniform(-1, 1, (24, 20)), RNG.uniform(0, 1, (24, 7))


@pytest.mark.parametrize("form", ["dense", "sell"])
def test_training_is_the_same_in_the_chosen_format(form, fastest, tmp_path):
    """Sums have another order; float64 keeps its roundings small for 4 epochs."""
    dtype, near = "float64", 1e-10
    options = {"optimiser": "rprop", "batch_size": 8, "seed": 3, "l2": 1e-3}
    usual = network_of(dtype)
    expected = usual.fit(*SAMPLES, epochs=4, validation=SAMPLES, **options)
    assert "as they are stored" in expected.plan
    fastest(form)

    def trained(network, epochs, **more):
        history = network.fit(*SAMPLES, epochs=epochs, **options, **more)
        assert history.plan.split("by steps of training")[1].split()[2] == form
        return history

    whole, path = network_of(dtype), tmp_path / "saved.safetensors"
    third = tmp_path / "third.safetensors"
    seen = []

    def see(running, epoch):
        seen.append(running.parameters)
        running.parameters = seen[-1]
        if epoch.number == 4:
            shutil.copy(path, third)  # the last epoch is saved too
        np.testing.assert_array_equal(running.parameters, seen[-1])

    history = trained(
        whole, 4, validation=SAMPLES, callbacks=[see, Checkpoint(path, every=3)]
    )
    assert whole.matrices[0].format == "csr"
    np.testing.assert_allclose(whole.parameters, usual.parameters, near, 1e-2 * near)
    np.testing.assert_allclose(
        history.validation_loss, expected.validation_loss, near
    )
    padding = ~live_elements(whole.layout, whole.storages)
    assert padding.any() and not whole.parameters[padding].any()
    np.testing.assert_array_equal(
        history.state.values[:, padding], expected.state.values[:, padding]
    )
    np.testing.assert_array_equal(load(third).parameters, seen[2])

    part = network_of(dtype)
    trained(part, 2).state.save(tmp_path / "state.npz")
    state = TrainingState.load(tmp_path / "state.npz")
    np.testing.assert_array_equal(state.parameters, seen[1])
    again = trained(part, 2, state=state)
    np.testing.assert_array_equal(part.parameters, whole.parameters)
    np.testing.assert_array_equal(again.state.values, history.state.values)
    other = network_of(dtype, format="csr")
    other.fit(*SAMPLES, epochs=2, state=state, **options)
    np.testing.assert_allclose(other.parameters, whole.parameters, near, 1e-2 * near)


def test_formats_that_cannot_win_are_not_measured(fastest):
    network, measured = network_of(), fastest("csr")
    plan = network.fit(*SAMPLES, epochs=1).plan
    assert {id(one) for one in measured} == {id(network)}
    assert "not tried  ell: even 3 times as fast" in plan
    del measured[:]
    network.fit(*SAMPLES, epochs=1)
    assert not measured  # every time is remembered


def test_random_numbers_by_index_keep_the_format(fastest):
    fastest("dense")
    plan = network_of().fit(*SAMPLES, epochs=1, optimiser="sarprop").plan
    assert "csr: they are trained as they are stored" in " ".join(plan.split())


def test_the_state_of_a_view_is_read_in_the_layout_of_its_network():
    network = network_of()
    size = network.layout.size
    state = RNG.uniform(-1, 1, (2, size)).astype("float32")
    view = NetworkView(network, "ell")
    train_state = TrainState(session(CPU), network.parameters, state, view.relayout)
    assert train_state.size == view.layout.size != size
    for expected in (network.parameters, network.parameters * 2):
        train_state.replace(expected)
        np.testing.assert_array_equal(train_state.values()[0], expected)
        train_state.snapshot(0, with_state=False)
        train_state.replace(0 * expected)
        train_state.restore(0)
        np.testing.assert_array_equal(train_state.values()[0], expected)
    np.testing.assert_array_equal(train_state.values()[1], state)


@pytest.mark.parametrize("variant", [TiledOuter(), GemmBackward()],
                         ids=["outer", "gemm"])
def test_dense_kernels_give_the_gradients_of_masked_rows(variant, monkeypatch):
    monkeypatch.setattr("clnet.planning.tuning.measure.ROUND_SECONDS", 1e-5)
    network = network_of(format="dense")
    program = lower_training(network, loss_function("mse"), None)
    trial = StepTrial(network, program, CPU)
    at = next(
        i for i, op in enumerate(program.ops)
        if type(op).__name__ == "Outer" and op.storage.name == "masked"
    )
    span = program.span(at, at + 1, 9)
    assert variant.refuse(span, CPU) is None
    for config in list(variant.space(span, CPU))[:2]:
        step = PlanStep(span, variant, config, CPU)
        trial.ready([step], (), span.outputs)  # or raises WrongResultError

"""Measuring: the comparison with the oracle, and times."""

from __future__ import annotations

import dataclasses
import re
import time

import numpy as np
import pytest
from faults.injection import assert_keeps_nothing
from hypothesis import given, settings
from hypothesis import strategies as st

import clnet
from clnet import Dense, Network, Sparse
from clnet.errors import BuildError, DeviceError
from clnet.opencl.session import device_errors, session
from clnet.planning.tuning import measure as measuring
from clnet.planning.tuning.calls import PERIOD, CallTrial, representative
from clnet.planning.tuning.measure import Run, timing, timings
from clnet.planning.tuning.oracle import (
    TOLERANCE,
    WrongResultError,
    difference,
    quiet_errors,
)
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Generic, Host
from clnet.variants.sparse.sparse import Csr

CPU = clnet.device("cpu")
SESSION = session(CPU)


def check(network, *steps):
    return CallTrial(network, network.program, CPU).check(*steps)


def ready(network, *steps, device=CPU, on_device=True):
    trial = CallTrial(network, network.program, device)
    return trial.ready(*steps, on_device=on_device)


@dataclasses.dataclass(frozen=True)
class Changed(Naive):
    """Naive with other macros, or other launches."""

    defines: dict = dataclasses.field(default_factory=dict, hash=False)
    change: dict = dataclasses.field(default_factory=dict, hash=False)

    def launches(self, span, config, device):
        (launch,) = super().launches(span, config, device)
        defines = {**launch.defines, **self.defines}
        return (dataclasses.replace(launch, defines=defines, **self.change),)


def layer(network, variant, batch=4, device=CPU):
    """A network's first layer as one step, with its inputs and outputs."""
    span = network.program.span(0, 2, batch)
    return [PlanStep(span, variant, {}, device)], span.inputs, span.outputs


def host_steps(network, batch=4):
    ops = range(len(network.program.ops))
    spans = [network.program.span(i, i + 1, batch) for i in ops]
    return [PlanStep(span, Host(), {}, None) for span in spans]


def whole(network, variant, batch=4):
    ops = range(0, len(network.program.ops), 2)
    spans = [network.program.span(i, i + 2, batch) for i in ops]
    steps = [PlanStep(span, variant, {}, CPU) for span in spans]
    return steps, [network.program.input], [network.program.output]


NETWORK = Network.mlp([20, 30, 10], "tanh", seed=1)


# The check ------------------------------------------------------------------------


def test_parameters_replaced_meanwhile_are_no_fault(monkeypatch):
    network = Network.mlp([5, 7, 3], seed=1)
    run = Executable.run

    def replace_after(self):
        run(self)
        network.parameters = network.parameters * 3

    monkeypatch.setattr(Executable, "run", replace_after)
    for _ in range(2):
        check(network, *whole(network, Naive(), 3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch", [1, 4, 9])
def test_right_results_pass(dtype, batch):
    if dtype == "float64" and not CPU.fp64:
        pytest.skip("the device has no float64")
    network = Network.mlp([20, 30, 10], ["tanh", "gelu"], seed=1, dtype=dtype)
    check(network, *layer(network, Naive(), batch))
    check(network, *whole(network, Naive(), batch))


@pytest.mark.parametrize("batch", [1, 4, 9])
@pytest.mark.parametrize(
    "defines",
    [
        {"ACTIVATION": "act_sin_symmetric"}, {"STEEPNESS": "1.001f"}, {"HAS_BIAS": 0},
    ],
)
def test_wrong_results_are_noticed(defines, batch):
    network = Network.mlp([20, 30, 10], "tanh", seed=1)
    network.parameters = network.parameters + np.float32(0.01)
    with pytest.raises(WrongResultError, match=r"naive differs from the oracle by \d"):
        check(network, *layer(network, Changed(defines=defines), batch))


def test_one_neuron_left_out_is_noticed():
    network = Network.mlp([20, 1001, 3], "tanh", seed=1)
    steps, inputs, outputs = layer(network, Naive(), 8)
    (launch,) = Naive().launches(steps[0].span, {}, CPU)
    assert launch.arguments.count(1001) == 1  # the neurons; rows are padded
    arguments = tuple(1000 if a == 1001 else a for a in launch.arguments)
    wrong = Changed(change={"arguments": arguments})
    with pytest.raises(WrongResultError):
        check(network, [PlanStep(steps[0].span, wrong, {}, CPU)], inputs, outputs)


@pytest.mark.parametrize("batch", [2, 9, 31, 32, 62, 100])
def test_the_last_sample_left_out_is_noticed(batch):
    network = Network.mlp([20, 30, 10], "tanh", seed=1)
    steps, inputs, outputs = layer(network, Naive(), batch)
    (launch,) = Naive().launches(steps[0].span, {}, CPU)
    (items,) = launch.global_size
    fewer = Changed(change={"global_size": (items // batch * (batch - 1),)})
    with pytest.raises(WrongResultError, match=f"in row {batch - 1}, at most"):
        check(network, [PlanStep(steps[0].span, fewer, {}, CPU)], inputs, outputs)


@pytest.mark.parametrize("tolerance", TOLERANCE.values())
@given(
    row=st.integers(0, 999), column=st.integers(0, 99),
    by=st.sampled_from([16, 64, 128, 256, -8]),
)
@settings(max_examples=10, deadline=None)
def test_a_row_in_place_of_another_is_noticed(tolerance, row, column, by):
    """Rows of a batch repeat, but never at a power of two."""
    exact = np.random.default_rng(1).uniform(-1, 1, (PERIOD, 100))
    perturbed = exact * (1 + tolerance)
    found = np.resize(exact, (1000, 100))
    other = row + by if 0 <= row + by < 1000 else row - by
    found[row] = found[other]

    def faults():
        return [
            difference(found[i : i + PERIOD], exact, perturbed, tolerance, i)
            for i in range(0, 1000, PERIOD)
        ]

    assert [fault is None for fault in faults()].count(False) == 1
    found = np.resize(exact, (1000, 100))
    assert set(faults()) == {None}
    found[row, column] += 200 * tolerance  # one number, 20 times the largest rounding
    assert [fault is None for fault in faults()].count(False) == 1


def test_results_that_are_not_numbers_are_wrong():
    network = Network.mlp([20, 30], "sigmoid", seed=1)
    wrong = Changed(defines={"STEEPNESS": "NAN"})
    with pytest.raises(WrongResultError, match="by nan in norm"):
        check(network, *layer(network, wrong))


def test_a_jump_hides_no_wrong_kernel():
    network = Network.mlp([20, 300], "threshold", seed=1)
    check(network, *layer(network, Naive()))
    wrong = Changed(defines={"ACTIVATION": "act_threshold_symmetric"})
    with pytest.raises(WrongResultError):
        check(network, *layer(network, wrong))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "layer", [Dense(40, "threshold"), Dense(40, "sin", steepness=100.0),
              Dense(40, "tanh", steepness=1e6)],
)
def test_networks_that_magnify_roundings_pass(layer, seed):
    network = Network(40, [layer] * 3, seed=seed)
    check(network, *whole(network, Naive(), 8))
    steps = host_steps(network)
    check(network, steps, [network.program.input], [network.program.output])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_overflowing_results_are_not_compared(value):
    network = Network.mlp([20, 30, 10], ["identity", "sigmoid"], seed=1)
    network.parameters = np.full(network.parameters.shape, value)
    check(network, *whole(network, Naive()))


def test_single_ops_are_checked():
    network = Network(6, [Dense(5, "softmax")], seed=1)
    for i in range(3):
        span = network.program.span(i, i + 1, 3)
        steps = [PlanStep(span, Generic(), {}, CPU)]
        check(network, steps, span.inputs, span.outputs)


# Failing kernels ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        (Changed(change={"kernel": "none"}), "INVALID_KERNEL_NAME"),
        (Changed(change={"arguments": ()}), "INVALID_KERNEL_ARGS"),
        (Changed(change={"arguments": (1,) * 40}), "clSetKernelArg failed"),
        (Changed(change={"local_size": (1 << 20,), "global_size": (1 << 20,)}),
         "INVALID_WORK_(GROUP|ITEM)_SIZE"),
    ],
    ids=["unnamed", "unbound", "too many", "too large"],
)
def test_errors_of_opencl_are_device_errors(variant, sentence):
    name = re.escape(CPU.name)
    expected = f"^{name} failed while running: .*{sentence}"
    with pytest.raises(DeviceError, match=expected):
        ready(NETWORK, *layer(NETWORK, variant))


@pytest.mark.parametrize("errors", [device_errors, quiet_errors])
def test_an_error_keeps_no_memory(errors):
    """A device's buffers are free when the error is."""
    assert_keeps_nothing(errors(SESSION), MemoryError, DeviceError)


def test_a_kernel_that_does_not_build_is_a_build_error():
    wrong = Changed(defines={"ACTIVATION": "no_such_function"})
    with pytest.raises(BuildError, match=r"naive.cl does not build"):
        ready(NETWORK, *layer(NETWORK, wrong))


def test_too_little_memory_is_a_device_error():
    small = dataclasses.replace(CPU, global_memory=1000)
    steps, inputs, outputs = layer(NETWORK, Naive(), device=small)
    with pytest.raises(DeviceError, match=r"no room for \d+ bytes"):
        ready(NETWORK, steps, inputs, outputs, device=small)


# Times ----------------------------------------------------------------------------


@pytest.mark.parametrize("on_device", [True, False])
def test_a_measured_time_is_positive(monkeypatch, on_device):
    monkeypatch.setattr(measuring, "ROUND_SECONDS", 1e-5)
    monkeypatch.setattr(measuring, "WARM_UP_SECONDS", 1e-5)
    run = ready(NETWORK, *layer(NETWORK, Naive()), on_device=on_device)
    found = timing(run)
    assert found.seconds > 0
    assert found.latency > 0
    assert found.spread >= 0


def test_the_host_is_measured_likewise():
    steps = host_steps(NETWORK)
    run = ready(
        NETWORK, steps, [NETWORK.program.input], [NETWORK.program.output],
        on_device=False,
    )
    assert timing(run).seconds > 0


def nothing():
    """End at once."""


class Clock:
    """A clock that only moves when something runs."""

    def __init__(self, monkeypatch):
        self.now, self.runs = 0.0, 0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def taking(self, seconds):
        def run():
            self.now += seconds
            self.runs += 1

        return run


def test_back_to_back_and_alone(monkeypatch):
    clock = Clock(monkeypatch)
    run, finish = 2.0**-13, 2.0**-12  # so that their sums are exact
    found = timing(Run(clock.taking(run), clock.taking(finish)))
    assert found.latency == pytest.approx(run + finish)
    repeats = int(measuring.ROUND_SECONDS / (run + finish))
    assert found.seconds == pytest.approx(run + finish / repeats)
    assert found.spread == pytest.approx(0)


def test_a_slow_run_is_not_repeated(monkeypatch):
    clock = Clock(monkeypatch)
    found = timing(Run(clock.taking(2 * measuring.LONGEST_SECONDS), nothing))
    assert clock.runs == 1
    assert found.seconds == found.latency == 2 * measuring.LONGEST_SECONDS


def test_repeats_of_a_short_run_are_bounded(monkeypatch):
    monkeypatch.setattr(measuring, "WARM_UP_SECONDS", 0)
    clock = Clock(monkeypatch)
    run = clock.taking(1e-12)
    assert timing(Run(run, nothing)).seconds > 0
    assert clock.runs < 10_000


def test_interruptions_do_not_count(monkeypatch):
    """Most rounds are quick; the slow ones only widen the spread."""
    clock = Clock(monkeypatch)

    def run():
        clock.runs += 1
        clock.now += 5e-2 if clock.runs in (7, 40) else 1e-3

    found = timing(Run(run, nothing))
    assert found.seconds == pytest.approx(1e-3)
    assert found.latency == pytest.approx(1e-3)


def test_runs_are_measured_in_turn_while_it_pays(monkeypatch):
    """A load that begins later affects all; runs far from the best are left out."""
    clock, order = Clock(monkeypatch), []
    monkeypatch.setattr(measuring, "WARM_UP_SECONDS", 0)

    def run(name, seconds):
        def start():
            order.append(name)
            clock.now += seconds * (1 + (clock.now > 0.2))

        return Run(start, nothing)

    runs = [run("a", 0.010), run("b", 0.011), run("far", 0.050)]
    a, b, far = timings(runs, lambda cost, seconds: cost > seconds)
    assert a.seconds < b.seconds < far.seconds
    rounds = "".join(name[0] for name in order[3:])
    assert rounds.startswith("fbaabffbaabffba" + "baabbaabba")
    assert rounds.count("f") == measuring.ROUNDS
    assert rounds.count("a") == measuring.ROUNDS * measuring.REMEASURES
    order.clear()
    timings(runs, lambda cost, seconds: False)
    assert order.count("a") == 1 + measuring.ROUNDS


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (64, 64), (65, 128), (1000, 1024)],
)
def test_the_next_power_of_two_represents_a_batch(batch, expected):
    assert representative(batch) == expected


def test_accumulators_are_inputs_and_outputs():
    """HYB's second product accumulates."""
    network = Network(30, [Sparse(20, density=0.3, format="hyb", seed=1)], seed=1)
    span = network.program.span(1, 2, 9)
    assert set(span.outputs) < set(span.inputs)
    for variant, config in ((Generic(), {}), (Csr(), {"runs": 1, "tile": 8})):
        steps = [PlanStep(span, variant, config, CPU)]
        assert check(network, steps, span.inputs, span.outputs)

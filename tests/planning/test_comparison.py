"""Plans are compared with the oracle before their first answer counts, once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from bounds import assert_right
from planner_lab import inputs, names

import clnet
from clnet import Dense, Network, Sparse
from clnet.errors import ClnetWarning, DeviceError
from clnet.ir.lowering import lower_training
from clnet.ir.program import split_program
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam, Rprop
from clnet.opencl.store import Timing
from clnet.planning import inference
from clnet.planning.planner import Planner
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning import times
from clnet.planning.tuning.calls import CallTrial
from clnet.planning.tuning.trial import StepTrial
from clnet.runtime.binding import PlanStep
from clnet.variants.dense.naive import Naive, Staged
from clnet.variants.reference.generic import Generic, GenericBackward
from clnet.variants.training.optimisers import Optimisers

pytestmark = pytest.mark.usefixtures("own_store")
CPU = clnet.device("cpu")


@dataclasses.dataclass(frozen=True)
class WrongEdge(Naive):
    """Naive, without the last sample of a batch that is no power of two."""

    name: str = "wrong_edge"

    def launches(self, span, config, device):
        (launch,) = super().launches(span, config, device)
        if span.batch & (span.batch - 1):
            (items,) = launch.global_size
            fewer = (items // span.batch * (span.batch - 1),)
            launch = dataclasses.replace(launch, global_size=fewer)
        return (launch,)


def net(seed=1, **options):
    network = Network.mlp([5, 7, 3], "tanh", seed=seed, **options)
    network.parameters = network.parameters + np.asarray(0.1, network.dtype)
    return network


@pytest.fixture
def compared(monkeypatch):
    """The comparisons of whole plans and of their parts, with their steps."""
    seen = []
    real = CallTrial.check
    monkeypatch.setattr(
        CallTrial, "check", lambda *parts: seen.append(parts[1]) or real(*parts)
    )
    return seen


def forget(monkeypatch, folder: Path):
    """Use another store, as another process on another machine does."""
    monkeypatch.setenv("CLNET_CACHE_DIR", str(folder))
    times.store_of.cache_clear()


@pytest.mark.parametrize("tune", [None, False])
def test_a_kernel_wrong_at_the_plans_batch_alone_gives_no_answer(monkeypatch, tune):
    """Times are measured at a power of two, and its results are right there."""
    network = net()
    monkeypatch.setattr(inference, "VARIANTS", (WrongEdge(), Naive()))
    network.compile(CPU, 32, tune=tune)  # right, whichever is measured faster
    remembered = times.store_of(CPU)
    for candidate in Planner(network, CPU, 32, False, (WrongEdge(),)).candidates():
        span = candidate.step.span
        remembered.put(
            span.signature, times.key_of(candidate.step), Timing(1e-9, 1e-9, 0.0)
        )
    with pytest.warns(ClnetWarning, match=r"^wrong_edge is left out: .* in row 28,"):
        plan = network.compile(CPU, 29, tune=tune)
    assert names(plan) == ["naive", "naive"]
    assert "wrong_edge: failed: " in " ".join(plan.explain().split())
    x = inputs(network, 29)
    assert_right(network, x, plan(x))


def test_a_forced_kernel_that_is_wrong_gives_no_answer():
    with (
        pytest.warns(ClnetWarning, match="^wrong_edge is left out: "),
        pytest.raises(DeviceError, match=r"no cover of .* wrong_edge: failed: "),
    ):
        net().compile(CPU, 29, variants=[WrongEdge()], tune=False)


def test_a_plan_is_compared_once_per_device(monkeypatch, tmp_path, compared):
    def plan(batch=29, seed=1, variants=("naive",), **options):
        compared.clear()
        net(seed, **options).compile(CPU, batch, variants=list(variants), tune=False)
        return len(compared)

    assert plan() == 1
    assert plan() == 0
    assert plan(seed=2) == 0  # other weights
    assert plan(batch=30) == 1
    assert plan(variants=["local"]) == 1
    assert plan(dtype="float64") == 1
    times.store_of.cache_clear()  # another process
    assert plan() == 0
    monkeypatch.setattr(times, "exact_fingerprint", lambda span: "another version")
    assert plan() == 1
    monkeypatch.undo()
    forget(monkeypatch, tmp_path / "other")
    monkeypatch.setattr(CallTrial, "check", lambda *parts: False)
    assert plan() == 0  # values too large are no comparison
    monkeypatch.undo()


def test_patterns_of_equal_sizes_are_compared_each(compared):
    columns = np.arange(12).reshape(4, 3)
    for shift in (0, 1):
        mask = np.zeros((4, 12), bool)
        np.put_along_axis(mask, (columns + shift) % 12, True, axis=1)
        network = Network(12, [Sparse(4, pattern=mask)], seed=1)
        network.compile(CPU, 2, variants=["csr"], tune=False)
    assert len(compared) == 2


def test_covers_for_device_arrays_and_the_fallback_are_compared(compared):
    network = net()
    plan = network.compile(CPU, 29, variants=["host", "naive"], tune=False)
    compared.clear()
    others = int(any(step.device != CPU for step in plan.steps))
    plan._device_steps()
    assert len(compared) == others
    plan._fallback_steps()
    assert len(compared) == others
    other = net(dtype="float64").compile(CPU, 29, variants=["host"], tune=False)
    assert set(names(other)) == {"host"}
    assert len(compared) == others  # NumPy alone


def test_covers_for_device_arrays_leave_wrong_kernels_out():
    network = net()
    made = Planner(network, CPU, 29, False, (WrongEdge(), Staged()))
    made.report.candidates = list(made.candidates())
    wrong = [c for c in made.report.candidates if c.step.variant.name == "wrong_edge"]
    with pytest.warns(ClnetWarning, match="^wrong_edge is left out: "):
        steps = made._steps_of(
            [dataclasses.replace(c, modelled=0.0) for c in wrong]
            + [c for c in made.report.candidates if c not in wrong], "here",
        )
    assert {step.variant.name for step in steps} == {"local"}


def test_steps_wrong_only_together_are_left_out(monkeypatch):
    network = net()
    real = CallTrial.check

    def check(self, steps, inputs, outputs):
        if [step.variant.name for step in steps] == ["naive", "naive"]:
            raise DeviceError("they share a buffer")
        return real(self, steps, inputs, outputs)

    monkeypatch.setattr(CallTrial, "check", check)
    with pytest.warns(ClnetWarning, match="^naive is left out: they share a buffer"):
        plan = network.compile(CPU, 29, variants=["naive", "local"], tune=False)
    assert names(plan) == ["local", "local"]


@dataclasses.dataclass(frozen=True)
class WrongUpdate(Optimisers):
    """The optimisers, with another constant."""

    name: str = "wrong_update"

    def launches(self, span, config, device):
        return tuple(
            dataclasses.replace(
                one, defines={**one.defines, "INCREASE_FACTOR": "1.3f"}
            )
            for one in super().launches(span, config, device)
        )


def test_a_wrong_step_of_training_is_left_out():
    network = net()
    program = lower_training(network, loss_function("mse"), Rprop())
    variants = (WrongUpdate(), Optimisers(), Generic(), GenericBackward())
    with pytest.warns(ClnetWarning, match="^wrong_update is left out: "):
        plan = plan_training(network, program, CPU, 21, tune=False, variants=variants)
    assert "optimisers" in {step.variant.name for step in plan.steps}


@pytest.mark.parametrize("optimiser", [Adam(), Rprop()])
def test_the_update_alone_is_compared(optimiser):
    """Its gradients come from other programs: several devices add theirs."""
    network = Network(4, [Dense(5, "tanh"), Sparse(3, density=0.5)], seed=1)
    program = lower_training(network, loss_function("mse"), optimiser)
    _, update = split_program(program)
    span = update.span(0, len(update.ops), 8)
    steps = [PlanStep(span, Optimisers(), {}, CPU)]
    assert StepTrial(network, update, CPU).check(steps, (), span.outputs)

"""Trials of steps of training: compared with the oracle, and timed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from training_lab import DEVICE, PLAIN, Everything, net, program_of

from clnet.errors import ClnetWarning
from clnet.nn.losses import LOSSES
from clnet.nn.optimisers import OPTIMISERS, Rprop
from clnet.opencl.launch import Scalar
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning import trial, trial_runs
from clnet.planning.tuning.measure import timing
from clnet.planning.tuning.oracle import WrongResultError
from clnet.planning.tuning.trial import StepTrial
from clnet.runtime.binding import PlanStep
from clnet.variants.reference.generic import GenericBackward
from clnet.variants.training.optimisers import Optimisers

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.mark.parametrize("options", [
    {}, {"samples": 50}, {"samples": 50, "shuffled": True, "weighted": True},
], ids=str)
def test_right_steps_pass_and_change_no_parameter(options):
    network = net()
    before = network.parameters.copy()
    program = program_of(network, Rprop(), **options)
    plan = plan_training(network, program, DEVICE, 20, variants=PLAIN)
    assert "failed" not in plan.explain()
    assert "measured whole" in " ".join(plan.explain().split())  # wrapped anywhere
    np.testing.assert_array_equal(network.parameters, before)
    assert network.version == 0


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_passes(name):
    network = net()
    rule = OPTIMISERS[name]()
    program = program_of(network, rule)
    number = len(program.ops) - 1
    span = program.span(number, number + 1, 1 if rule.batch else 20)
    step = PlanStep(span, Optimisers(), {}, DEVICE)
    found = timing(
        StepTrial(network, program, DEVICE).ready([step], (), span.outputs)
    )
    assert found.seconds > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_passes(loss):
    network = net(LOSSES[loss].activation or "tanh")
    program = program_of(network, None, loss)
    tried = StepTrial(network, program, DEVICE)
    steps = plan_training(
        network, program, DEVICE, 20, tune=False, variants=PLAIN
    ).steps
    assert timing(tried.ready(steps, (), program.outputs)).seconds > 0


@dataclasses.dataclass(frozen=True)
class Wrong(Optimisers):
    """The optimisers, with other macros."""

    name: str = "wrong"
    change: tuple = ()

    def launches(self, span, config, device):
        (launch,) = super().launches(span, config, device)
        defines = {**launch.defines, **dict(self.change)}
        return (dataclasses.replace(launch, defines=defines),)


@dataclasses.dataclass(frozen=True)
class WrongBack(GenericBackward):
    """Gradients of one sample fewer."""

    name: str = "wrong_back"

    def launches(self, span, config, device):
        launches = super().launches(span, config, device)
        return tuple(
            dataclasses.replace(one, arguments=tuple(
                span.batch - 1 if a == span.batch and isinstance(a, int) else a
                for a in one.arguments
            )) for one in launches
        )


@pytest.mark.parametrize(("variants", "name"), [
    ((Wrong(change=(("INCREASE_FACTOR", "1.3f"),)),), "wrong"),
    ((Wrong(change=(("LEAST", "nonsense("),)),), "wrong"),
    ((WrongBack(),), "wrong_back"),
], ids=["wrong", "unbuilt", "one left out"])
def test_wrong_variants_are_left_out_and_reported(variants, name):
    network = net()
    program = program_of(network, Rprop())
    with pytest.warns(ClnetWarning, match=f"^{name} is left out: "):
        plan = plan_training(
            network, program, DEVICE, 21, variants=(*variants, *PLAIN), tune=True
        )
    rightly = {"wrong": "optimisers", "wrong_back": "generic_backward"}[name]
    assert rightly in {step.variant.name for step in plan.steps}
    assert f"{name}: failed: " in " ".join(plan.explain().split())


def test_a_wrong_whole_is_noticed():
    network = net()
    program = program_of(network, Rprop())
    steps = plan_training(
        network, program, DEVICE, 20, tune=False, variants=PLAIN
    ).steps
    last = dataclasses.replace(
        steps[-1], variant=Wrong(change=(("INCREASE_FACTOR", "1.5f"),))
    )
    tried = StepTrial(network, program, DEVICE)
    with pytest.raises(WrongResultError, match="wrong differs from the oracle by"):
        tried.ready([*steps[:-1], last], (), program.outputs)


def test_large_batches_are_checked_at_a_smaller_size(monkeypatch):
    monkeypatch.setattr(trial, "CHECKED_FLOPS", 1e3)
    seen = []
    real = trial.StepTrial._fault
    monkeypatch.setattr(
        trial.StepTrial, "_fault",
        lambda self, steps, *rest: seen.append(steps[0].span.batch)
        or real(self, steps, *rest),
    )
    network = net()
    plan = plan_training(
        network, program_of(network, Rprop()), DEVICE, 500, variants=PLAIN
    )
    assert min(seen) == trial.LEAST_CHECKED
    assert max(seen) <= 500  # of ops that do not grow with the batch
    assert "failed" not in plan.explain()


# Whole programs ---------------------------------------------------------------------


def test_a_variant_may_compute_a_whole_program():
    network = net()
    program = program_of(network, Rprop())
    plan = plan_training(
        network, program, DEVICE, 20, tune=True, variants=(Everything(),)
    )
    (step,) = plan.steps
    assert step.span.ops == program.ops
    assert "failed" not in plan.explain()
    assert "everything" in plan.explain()


def test_many_steps_are_timed_together(monkeypatch):
    """A step's time is the mean of the pass."""
    network = net()
    program = program_of(network, Rprop(), samples=50)
    span = program.span(0, len(program.ops), 8)
    tried = StepTrial(network, program, DEVICE)
    monkeypatch.setattr(StepTrial, "check", lambda *parts: True)
    monkeypatch.setattr(trial_runs, "PASS_SECONDS", 1e3)

    class Counting(Everything):
        def launches(self, span, config, device):
            return tuple(
                dataclasses.replace(one, when="inputs") if i else dataclasses.replace(
                    one, arguments=(*one.arguments[:-1], Scalar("steps"))
                )
                for i, one in enumerate(super().launches(span, config, device))
            )

    seen = []
    real = trial_runs.Replay.run_pass
    monkeypatch.setattr(
        trial_runs.Replay, "run_pass",
        lambda self, *rest: seen.append(rest[0]) or real(self, *rest),
    )
    for variant, samples in ((Everything(), 8), (Counting(), 50)):
        seen.clear()
        step = PlanStep(span, variant, {}, DEVICE)
        tried.ready([step], (), program.outputs)
        assert seen[-1] == samples


def test_trials_share_the_data_set_and_check_once(monkeypatch):
    network = net()
    program = program_of(network, Rprop(), samples=50)
    span = program.span(0, len(program.ops), 8)
    step = PlanStep(span, Everything(), {}, DEVICE)
    tried = StepTrial(network, program, DEVICE)
    written, checked = [], []
    real = trial_runs.Replay.write
    monkeypatch.setattr(
        trial_runs.Replay, "write",
        lambda self, value, rows: written.append(value.name) or real(self, value, rows),
    )
    fault = StepTrial._fault
    monkeypatch.setattr(
        StepTrial, "_fault", lambda *parts: checked.append(parts) or fault(*parts)
    )
    for _ in range(3):
        tried.ready([step], (), program.outputs)
    assert sorted(written) == ["ts", "xs"]
    assert len(checked) == 1
    other = PlanStep(span, Everything(), {"a": 2}, DEVICE)
    tried.ready([other], (), program.outputs)
    assert sorted(written) == ["ts", "xs"]
    assert len(checked) == 2

"""The planner of training: measurements, checks, choices and text."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from training_lab import DEVICE, PLAIN, Everything, net, program_of

from clnet import Dense, Network, Sparse
from clnet.cli import main as cli
from clnet.errors import WIDTH, ClnetWarning, DeviceError
from clnet.nn.optimisers import Rprop
from clnet.opencl.store import Timing
from clnet.planning import cover, training_planner
from clnet.planning.format_planner import NetworkView
from clnet.planning.training_planner import TRAINING_VARIANTS, plan_training
from clnet.planning.tuning import times
from clnet.planning.tuning.trial import StepTrial
from clnet.training import plans
from clnet.variants import cost

SCREEN = 75  # lines
pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture
def trials(monkeypatch):
    """The steps that are measured, and their times by a rule."""
    found = []

    def ready(self, steps, *parts, **options):
        found.append(tuple(steps))
        seconds = ready.rule(steps)
        if isinstance(seconds, Exception):
            raise seconds
        return Timing(seconds, seconds, 0.0)

    ready.rule = lambda steps: 1e-6 * len(steps)
    monkeypatch.setattr(StepTrial, "ready", ready)

    class Trials:
        steps = found

        def rule(self, rule):
            ready.rule = rule

    return Trials()


# Measurements -------------------------------------------------------------------


def test_the_batch_of_the_training_is_measured_once(trials):
    network = net()
    program = program_of(network, Rprop())
    first = plan_training(network, program, DEVICE, 20, variants=PLAIN)
    assert {step.span.batch for steps in trials.steps for step in steps} == {20}
    assert any(len(steps) > 1 for steps in trials.steps)  # whole covers too
    trials.steps.clear()
    times.store_of.cache_clear()  # as in another process
    again = plan_training(network, program, DEVICE, 20, variants=PLAIN)
    assert trials.steps == []
    assert [s.config for s in again.steps] == [s.config for s in first.steps]
    assert [s.variant for s in again.steps] == [s.variant for s in first.steps]
    assert again.explain() == first.explain()


def test_plans_are_kept(trials):
    """By what they depend on, for other networks of the shape too."""
    first = plan_training(net(), program_of(net(), Rprop()), DEVICE, 20, variants=PLAIN)
    trials.steps.clear()
    other = Network(4, net().layers, seed=2)
    again = plan_training(
        other, program_of(other, Rprop()), DEVICE, 20, variants=PLAIN
    )
    assert trials.steps == [] and again.network is other
    assert again.steps == first.steps and again.explain() == first.explain()
    for rule, batch in ((Rprop(), 21), (Rprop(delta_max=9.0), 20)):
        plan = plan_training(
            other, program_of(other, rule), DEVICE, batch, variants=PLAIN
        )
        assert plan.steps != first.steps
    plan_training(
        other, program_of(other, Rprop()), DEVICE, 20, tune=True, variants=PLAIN
    )
    assert trials.steps  # measured again


def test_kept_plans_have_the_format_of_a_view(monkeypatch):
    """Each network gets a view of its own."""
    layers = [Sparse(30, density=0.2, seed=1), Dense(2)]
    monkeypatch.setattr(
        training_planner, "best_format",
        lambda network, device, planner: planner(NetworkView(network, "ell")),
    )
    views = []
    for seed in (1, 2):
        network = Network(20, layers, seed=seed)
        lowered = partial(program_of, rule=Rprop())
        views.append(plan_training(
            network, lowered(network), DEVICE, 20, variants=PLAIN, lowered=lowered
        ).network)
    assert [view.format for view in views] == ["ell", "ell"]
    assert views[0].layout == views[1].layout
    assert (views[0].parameters != views[1].parameters).any()


def test_a_few_candidates_of_a_span_are_measured(trials):
    network = net()
    program = program_of(network, Rprop())
    plan_training(network, program, DEVICE, 20, variants=PLAIN)
    spans = [steps[0].span.signature for steps in trials.steps if len(steps) == 1]
    assert max(spans.count(span) for span in spans) <= 2 * 3  # equal layers, devices
    trials.steps.clear()
    plan_training(network, program, DEVICE, 20, tune=True, variants=PLAIN)
    if DEVICE.companions:  # one device alone has few candidates
        assert len(trials.steps) > len(spans)


def modelled(steps):
    """The modelled seconds of steps."""
    return sum(
        cost.modelled(s.variant.cost(s.span, s.config, s.device), s.device)
        for s in steps
    )


def spans_of(trials):
    return {step.span.signature for steps in trials.steps for step in steps}


def test_parts_are_measured_only_where_they_may_be_faster(trials):
    network = net()
    program = program_of(network, Rprop())
    whole = program.span(0, len(program.ops), 20).signature
    best = modelled(plan_training(
        network, program, DEVICE, 20, tune=False, variants=PLAIN
    ).steps)
    for share, alone in ((0.5, True), (2.0, False)):
        trials.steps.clear()
        seconds = share * best / cover.MAX_SPEEDUP
        trials.rule(
            lambda steps, seconds=seconds:
            seconds if len(steps[0].span.ops) > 2 else modelled(steps)
        )
        plan = plan_training(
            network, program, DEVICE, 20, variants=(Everything(), *PLAIN)
        )
        assert (spans_of(trials) == {whole}) == alone
        assert {s.variant.name for s in plan.steps} == {"everything"}
        text = " ".join(plan.explain().split())
        assert "candidates: even 3 times as fast as modelled they" in text
        times.store_of(DEVICE).path.unlink(missing_ok=True)
        times.store_of.cache_clear()


def test_others_are_measured_where_the_likely_ones_fail(trials):
    network = net()
    program = program_of(network, Rprop())

    def rule(steps):
        if any(s.variant.name == "everything" or s.device.serial for s in steps):
            return DeviceError("it broke")
        return modelled(steps)

    trials.rule(rule)
    with pytest.warns(ClnetWarning, match="is left out: it broke"):
        plan = plan_training(
            network, program, DEVICE, 20, variants=(Everything(), *PLAIN)
        )
    assert {step.device for step in plan.steps} == {DEVICE}
    trials.rule(lambda steps: DeviceError("it broke"))
    times.store_of.cache_clear()
    times.store_of(DEVICE).path.unlink(missing_ok=True)
    with (
        pytest.raises(DeviceError, match="no cover of this network"),
        pytest.warns(ClnetWarning, match="is left out: it broke"),
    ):
        plan_training(network, program, DEVICE, 20, variants=PLAIN)


def test_without_tuning_nothing_is_measured(trials):
    network = net()
    plan = plan_training(network, program_of(network, Rprop()), DEVICE, 20, tune=False)
    assert trials.steps == []
    assert "nothing new may be measured" in " ".join(plan.explain().split())
    assert "modelled, nothing measured" in " ".join(plan.explain().split())


def test_the_fastest_device_is_taken(trials):
    network = net()
    for target in DEVICE.places:
        times.store_of.cache_clear()
        trials.rule(lambda steps, target=target: sum(
            1e-6 if step.device == target else 1e-3 for step in steps
        ))
        found = plan_training(
            network, program_of(network, Rprop()), DEVICE, 20, tune=True, variants=PLAIN
        )
        assert {step.device for step in found.steps} == {target}
        times.store_of(DEVICE).path.unlink(missing_ok=True)


def test_variants_can_be_forced():
    network = net()
    program = program_of(network, Rprop())
    plan = plan_training(network, program, DEVICE, 3, tune=False, variants=PLAIN)
    assert {step.variant for step in plan.steps} == set(PLAIN)
    with pytest.raises(DeviceError, match="no cover of this network"):
        plan_training(network, program, DEVICE, 3, variants=PLAIN[:2])


# Text -----------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 8])
def test_the_history_knows_the_plan(monkeypatch, batch):
    plain = partial(plan_training, tune=False, variants=PLAIN)
    monkeypatch.setattr(plans, "plan_training", plain)
    network = net()
    rng = np.random.default_rng(0)
    history = network.fit(
        rng.uniform(-1, 1, (20, 4)), rng.uniform(0, 1, (20, 2)), epochs=1,
        batch_size=batch, optimiser="adam",
    )
    assert all(len(line) <= WIDTH for line in history.plan.splitlines())
    assert "a step of training" in " ".join(history.plan.split())
    for words in ("loss", "tally", "(1-)?2 weights'", "(1|1-2) bias'", "2 product'"):
        assert re.search(rf"^{words} ", history.plan, re.MULTILINE)
    assert "\nupdate " in history.plan
    assert ("\ngather " in history.plan) == (batch == 8)
    assert re.search(r"^loss +generic_backward ", history.plan, re.MULTILINE)


def test_the_command_line_explains_a_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        StepTrial, "ready", lambda *parts, **options: Timing(1e-5, 1e-5, 0.0)
    )
    net().save(tmp_path / "small.safetensors")
    arguments = ["explain", str(tmp_path / "small.safetensors"), "--batch", "20"]
    assert cli.main([*arguments, "--training", "rprop"]) == 0
    found = capsys.readouterr().out
    assert "a step of training" in " ".join(found.split())
    assert len(found.splitlines()) < SCREEN
    assert all(len(line) <= WIDTH for line in found.splitlines())
    assert cli.main([*arguments, "--training", "rpop"]) == 2
    assert "did you mean 'rprop'" in capsys.readouterr().err


def test_two_trainings_that_measure_are_bit_equal(monkeypatch):
    monkeypatch.setattr(plans, "plan_training", training_planner.plan_training)
    monkeypatch.setattr(training_planner, "TRAINING_VARIANTS", PLAIN)
    rng = np.random.default_rng(0)
    x, t = rng.uniform(-1, 1, (20, 4)), rng.uniform(0, 1, (20, 2))
    found = []
    for _ in range(2):
        network = net()
        history = network.fit(x, t, epochs=3, validation=(x, t))
        assert "measured" in history.plan
        found.append(network.parameters)
    np.testing.assert_array_equal(*found)


def test_all_variants_of_training_are_searched():
    network = net()
    plan = plan_training(network, program_of(network, Rprop()), DEVICE, 20, tune=False)
    assert len(TRAINING_VARIANTS) > len(PLAIN)
    assert plan.steps

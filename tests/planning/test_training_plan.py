"""The planner of training: measurements, checks, choices and text."""

from __future__ import annotations

import dataclasses
import random
import re
from functools import partial

import numpy as np
import pytest

from clnet import Dense, Network, Sparse
from clnet.cli import main as cli
from clnet.errors import WIDTH, ClnetWarning, DeviceError
from clnet.ir.lowering import lower_training
from clnet.ir.training_ops import Update
from clnet.nn.losses import LOSSES, loss_function
from clnet.nn.optimisers import OPTIMISERS, Rprop
from clnet.opencl.discovery import device
from clnet.opencl.launch import Scalar
from clnet.opencl.session import session
from clnet.opencl.store import Timing
from clnet.planning import candidates, cover, training_planner
from clnet.planning.format_planner import NetworkView
from clnet.planning.training_planner import TRAINING_VARIANTS, plan_training
from clnet.planning.tuning import measure as measuring
from clnet.planning.tuning import times, trial
from clnet.planning.tuning.measure import Check, WrongResultError
from clnet.planning.tuning.trial import Trial
from clnet.runtime.binding import Step
from clnet.training import fit as training
from clnet.variants.cost import Cost
from clnet.variants.reference.generic import Generic
from clnet.variants.reference.generic_backward import GenericBackward
from clnet.variants.training.optimisers import Optimisers

DEVICE = device("cpu")
SCREEN = 75  # lines
PLAIN = (Generic(), GenericBackward(), Optimisers())


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """Every test starts with nothing remembered, and measures in a moment."""
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measuring, "ROUND_SECONDS", 1e-5)
    times.store_of.cache_clear()
    yield
    times.store_of.cache_clear()


def net(last="sigmoid", **options):
    return Network(4, [Dense(5, "tanh"), Dense(2, last)], seed=1, **options)


def program_of(network, rule=None, loss="mse", **options):
    return lower_training(network, loss_function(loss), rule, **options)


@pytest.fixture
def trials(monkeypatch):
    """The steps that are measured, and their times by a rule."""
    found = []

    def measure(self, steps, outputs):
        found.append(tuple(steps))
        seconds = measure.rule(steps)
        if isinstance(seconds, Exception):
            raise seconds
        return Timing(seconds, seconds, 0.0)

    measure.rule = lambda steps: 1e-6 * len(steps)
    monkeypatch.setattr(Trial, "measure", measure)

    class Trials:
        steps = found

        def rule(self, rule):
            measure.rule = rule

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
        candidates.modelled(s.variant.cost(s.span, s.config, s.device), s.device)
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


@pytest.mark.parametrize("seed", range(5))
def test_the_search_finds_the_best_sum(trials, seed):
    """Pruning is exact while no kernel exceeds `MAX_SPEEDUP`."""
    network = net()
    program = program_of(network, Rprop())

    def seconds(steps):
        found = 0.0
        for s in steps:
            key = (s.span.signature, s.variant.name, s.device.name, seed)
            factor = random.Random(repr(key)).uniform(1 / cover.MAX_SPEEDUP, 2)
            found += factor * modelled([s])
        return found

    trials.rule(seconds)
    few = plan_training(network, program, DEVICE, 20, variants=PLAIN)
    count = len({repr(steps) for steps in trials.steps})
    trials.steps.clear()
    times.store_of(DEVICE).path.unlink(missing_ok=True)
    times.store_of.cache_clear()
    all_ = plan_training(network, program, DEVICE, 20, variants=PLAIN, tune=True)
    assert seconds(few.steps) <= seconds(all_.steps) * (1 + 1e-9)
    assert count <= len({repr(steps) for steps in trials.steps})


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


# On the device ----------------------------------------------------------------------


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
    step = Step(span, Optimisers(), {}, DEVICE)
    found = Trial(session(DEVICE), network, program).measure([step], span.outputs)
    assert found.seconds > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_passes(loss):
    network = net(LOSSES[loss].fused or "tanh")
    program = program_of(network, None, loss)
    tried = Trial(session(DEVICE), network, program)
    steps = plan_training(
        network, program, DEVICE, 20, tune=False, variants=PLAIN
    ).steps
    assert tried.measure(steps, program.outputs).seconds > 0


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
    tried = Trial(session(DEVICE), network, program)
    with pytest.raises(WrongResultError, match="wrong differs from the oracle by"):
        tried.measure([*steps[:-1], last], program.outputs)


def test_large_batches_are_checked_at_a_smaller_size(monkeypatch):
    monkeypatch.setattr(trial, "CHECKED_FLOPS", 1e3)
    seen = []
    real = trial.Trial._fault
    monkeypatch.setattr(
        trial.Trial, "_fault",
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


@dataclasses.dataclass(frozen=True)
class Everything:
    """A whole program by generic kernels, as one span."""

    name: str = "everything"
    reach: str = "program"

    def refuse(self, span, device):
        return None if isinstance(span.ops[-1], Update) else "it trains"

    def space(self, span, device):
        return ({"a": 1}, {"a": 2})

    def cost(self, span, config, device):
        return Cost(1, 1, 1, 0, 1)

    def launches(self, span, config, device):
        found = []
        for op in span.ops:
            part = dataclasses.replace(span, ops=(op,), outputs=op.writes)
            for variant in PLAIN:
                if variant.refuse(part, device) is None:
                    found += variant.launches(part, {}, device)
                    break
        return tuple(found)


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
    tried = Trial(session(DEVICE), network, program)
    monkeypatch.setattr(Trial, "check", lambda *parts: Check(True, False))
    monkeypatch.setattr(trial, "PASS_SECONDS", 1e3)

    class Counting(Everything):
        def launches(self, span, config, device):
            return tuple(
                dataclasses.replace(one, when="inputs") if i else dataclasses.replace(
                    one, arguments=(*one.arguments[:-1], Scalar("steps"))
                )
                for i, one in enumerate(super().launches(span, config, device))
            )

    seen = []
    real = trial.Replay.run_pass
    monkeypatch.setattr(
        trial.Replay, "run_pass",
        lambda self, *rest: seen.append(rest[0]) or real(self, *rest),
    )
    for variant, samples in ((Everything(), 8), (Counting(), 50)):
        seen.clear()
        step = Step(span, variant, {}, DEVICE)
        tried.measure([step], program.outputs)
        assert seen[-1] == samples


def test_trials_share_the_data_set_and_check_once(monkeypatch):
    network = net()
    program = program_of(network, Rprop(), samples=50)
    span = program.span(0, len(program.ops), 8)
    step = Step(span, Everything(), {}, DEVICE)
    tried = Trial(session(DEVICE), network, program)
    written, checked = [], []
    real = trial.Replay.write
    monkeypatch.setattr(
        trial.Replay, "write",
        lambda self, value, rows: written.append(value.name) or real(self, value, rows),
    )
    fault = Trial._fault
    monkeypatch.setattr(
        Trial, "_fault", lambda *parts: checked.append(parts) or fault(*parts)
    )
    for _ in range(3):
        tried.measure([step], program.outputs)
    assert sorted(written) == ["ts", "xs"]
    assert len(checked) == 1
    other = Step(span, Everything(), {"a": 2}, DEVICE)
    tried.measure([other], program.outputs)
    assert sorted(written) == ["ts", "xs"]
    assert len(checked) == 2


# Text -----------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 8])
def test_the_history_knows_the_plan(monkeypatch, batch):
    plain = partial(plan_training, tune=False, variants=PLAIN)
    monkeypatch.setattr(training, "plan_training", plain)
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
        Trial, "measure", lambda self, steps, outputs: Timing(1e-5, 1e-5, 0.0)
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
    monkeypatch.setattr(training, "plan_training", training_planner.plan_training)
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

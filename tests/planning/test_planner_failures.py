"""The planner: candidates that fail, and plans on a device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bounds import assert_right
from planner_lab import CPU, GPU, NETWORK, OPS, Broken, inputs, names

from clnet import Dense, Network
from clnet.errors import BuildError, ClnetWarning, DeviceError, OutOfMemoryError
from clnet.planning import inference
from clnet.planning.tuning import times
from clnet.planning.tuning.calls import CallTrial
from clnet.planning.tuning.oracle import WrongResultError
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Generic, Host

pytestmark = pytest.mark.usefixtures("own_store")


# Failures -----------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        BuildError("kernel naive.cl does not build on gpu: expected ;", "log", "text"),
        WrongResultError("naive differs from the oracle by 3"),
        DeviceError("gpu has no room for 7 bytes: 5 are left"),
    ],
)
def test_failing_candidates_are_left_out_and_reported(lab, error):
    lab.rule = lambda steps: (
        error if any(s.variant.name == "naive" for s in steps) else 1e-3
    )
    with pytest.warns(ClnetWarning, match="^naive is left out: ") as warned:
        plan = lab.plan(device=GPU, variants=["naive", "local"])
    assert names(plan) == ["local"] * 3
    assert len(warned) == 1
    assert f"naive: failed: {error}".replace("\n", " ") in " ".join(plan.text.split())


def test_failures_are_not_remembered(lab):
    lab.rule = lambda steps: DeviceError("busy")
    with pytest.warns(ClnetWarning), pytest.raises(DeviceError):
        lab.plan(device=GPU, variants=["naive"])
    lab.rule = lambda steps: 1e-3
    assert names(lab.plan(device=GPU, variants=["naive"])) == ["naive"] * 3


def test_a_cover_that_fails_whole_is_left_out(lab):

    def rule(steps):
        if len(steps) == 1 and steps[0].variant.name == "naive":
            return 1e-9
        whole = sum(len(step.span.ops) for step in steps) == OPS
        if whole and len(steps) > 1 and steps[0].variant.name == "naive":
            return WrongResultError("naive differs")
        return 1e-3

    lab.rule = rule
    with pytest.warns(ClnetWarning, match="naive, all ops is left out: naive differs"):
        plan = lab.plan(device=GPU, variants=["naive", "fused"])
    assert names(plan) == ["fused"]
    assert "naive, all ops: failed: naive differs" in plan.text


def test_no_cover_is_an_error_with_the_failures(lab):
    lab.rule = lambda steps: DeviceError(f"{steps[0].variant.name} is broken")
    with pytest.warns(ClnetWarning), pytest.raises(DeviceError) as caught:
        lab.plan(device=GPU, variants=["naive", "host", "cpu"])
    sentence = str(caught.value)
    assert sentence.startswith("no cover of this network on gpu by naive, cpu, host: ")
    for part in (
        "cpu: it is a CPU-only kernel, and gpu is a gpu",
        "naive: failed: naive is broken", "host: failed: host is broken",
    ):
        assert part in sentence


def test_a_restriction_that_cannot_cover_is_an_error_with_its_reasons(lab):
    softmax = Network(4, [Dense(5, "softmax")], seed=0)
    with pytest.raises(DeviceError, match="no cover of this network on gpu by naive"):
        lab.plan(softmax, GPU, variants=["naive"])
    double = Network.mlp([4, 5], seed=0, dtype="float64")
    with pytest.raises(DeviceError, match="cpu: it computes in float32 only"):
        lab.plan(double, CPU, variants=["cpu"])
    single = dataclasses.replace(GPU, fp64=False)
    with pytest.raises(DeviceError, match="generic: gpu has no float64"):
        lab.plan(double, single, variants=["generic"])
    mixed = Network(4, [Dense(2, ["tanh", "relu"])], seed=0)
    with pytest.raises(DeviceError, match="naive: it applies one activation per layer"):
        lab.plan(mixed, GPU, variants=["naive"])


@dataclasses.dataclass(frozen=True)
class Spaceless(Naive):
    """Naive, with no configuration."""

    name: str = "spaceless"

    def space(self, span, device):
        return ()


def test_an_empty_space_is_a_refusal(lab, monkeypatch):
    monkeypatch.setattr(inference, "VARIANTS", (Spaceless(), Naive()))
    plan = lab.plan(device=GPU)
    assert names(plan) == ["naive"] * 3
    assert "spaceless (1-3): it has no configuration for this size" in plan.text


def test_a_batch_is_measured_where_its_power_of_two_is_too_large(lab):
    lab.rule = lambda steps: (
        OutOfMemoryError("gpu has no room for 9 bytes: 8 are left")
        if steps[0].span.batch > 700 and steps[0].variant.name == "local" else 1e-3
    )
    plan = lab.plan(device=GPU, batch=700, variants=["naive", "local"])
    assert "failed" not in plan.text
    assert {steps[0].span.batch for steps in lab.measured} == {700, 1024}
    last = max(i for i, steps in enumerate(lab.measured) if steps[0].span.batch == 1024)
    assert all(steps[0].span.batch == 700 for steps in lab.measured[last + 1 :])
    assert {s.span.batch for s in plan.steps} == {700}
    lab.measured.clear()
    again = lab.plan(device=GPU, batch=700, variants=["naive", "local"])
    assert [s.variant for s in again.steps] == [s.variant for s in plan.steps]
    assert len(lab.measured) <= 1  # failures are not remembered


def test_candidates_out_of_memory_are_left_out(lab):
    lab.rule = lambda steps: (
        OutOfMemoryError("gpu has no room for 9 bytes: 8 are left")
        if steps[0].variant.name == "local" else 1e-3
    )
    plan = lab.plan(device=GPU, batch=700, variants=["naive", "local"])  # no warning
    assert names(plan) == ["naive"] * 3
    assert "local: failed: gpu has no room for 9 bytes: 8 are left" in plan.text
    with pytest.raises(OutOfMemoryError, match=r"^gpu has no room for 9 bytes"):
        lab.plan(device=GPU, batch=700, variants=["local"])


def test_host_covers_what_a_device_lacks(lab):
    single = dataclasses.replace(GPU, fp64=False)
    plan = lab.plan(Network.mlp([4, 5], seed=0, dtype="float64"), single)
    assert names(plan) == ["host", "host"]
    assert "gpu has no float64" in plan.text
    with pytest.raises(DeviceError, match=r"on gpu alone, as device arrays need"):
        plan.device_steps()


# On PoCL --------------------------------------------------------------------------


@pytest.mark.parametrize("tune", [None, False])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"defines": {"ACTIVATION": "act_relu"}}, "differs from the oracle by"),
        ({"defines": {"HAS_BIAS": "no such name ("}}, "does not build on"),
        ({"kernel": "no_such_kernel"}, "INVALID_KERNEL_NAME"),
        ({"arguments": ()}, "INVALID_KERNEL_ARGS"),
        ({"local_size": (1 << 20, 1), "global_size": (1 << 20, 1)},
         "INVALID_WORK_"),  # GROUP or ITEM
    ],
    ids=["wrong", "unbuilt", "unnamed", "unbound", "too large"],
)
def test_a_broken_variant_is_left_out_and_the_plan_works(
    monkeypatch, change, sentence, tune
):
    network = Network.mlp([5, 7, 3], "tanh", seed=1)
    network.parameters = network.parameters + np.float32(0.1)
    monkeypatch.setattr(inference, "VARIANTS", (Broken(change=change), Naive()))
    with pytest.warns(ClnetWarning, match="^broken(, all ops)? is left out: ") as seen:
        plan = network.compile(CPU, 2, tune=tune)
    assert all(sentence in str(warning.message) for warning in seen)
    assert names(plan) == ["naive", "naive"]
    assert "broken: failed: " in " ".join(plan.explain().split())
    x = inputs(network, 2)
    assert_right(network, x, plan(x))


def test_a_failing_build_is_an_error_without_tuning(monkeypatch):
    broken = Broken(change={"defines": {"HAS_BIAS": "no such name ("}})
    monkeypatch.setattr(inference, "VARIANTS", (broken,))
    sentence = r"kernel dense/naive.cl does not build"
    with (
        pytest.warns(ClnetWarning, match=sentence),
        pytest.raises(DeviceError, match=sentence),
    ):
        NETWORK.compile(CPU, tune=False)


@pytest.mark.parametrize(
    "layers",
    [
        [Dense(9, "sigmoid", steepness=1e5)] * 3,
        [Dense(9, "sin_symmetric", steepness=300.0)] * 4,
        [Dense(9, "threshold"), Dense(9, "threshold_symmetric"), Dense(3)],
        [Dense(9, "tanh_stepwise", steepness=50.0)] * 2,
    ],
    ids=["steep", "waves", "steps", "pieces"],
)
def test_networks_that_magnify_roundings_are_measured(
    monkeypatch, layers
):
    """Right kernels then differ from the oracle, and from each other."""
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Generic(), Host()))
    network = Network(30, layers, seed=3)
    plan = network.compile(CPU, 17)  # warnings are errors
    assert "failed" not in plan.explain()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38, -1e38])
def test_networks_that_overflow_are_measured(monkeypatch, value):
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Generic()))
    network = Network.mlp([8, 9, 9, 3], ["identity", "identity", "sigmoid"], seed=3)
    network.parameters = np.full(network.parameters.shape, value)
    plan = network.compile(CPU, 2)
    assert "failed" not in plan.explain()
    assert plan(inputs(network, 2)).shape == (2, 3)


@pytest.mark.parametrize("tune", [None, True, False])
def test_plans_are_right_with_every_tuning(monkeypatch, tune):
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Generic(), Host()))
    plan = NETWORK.compile("cpu", 3, tune=tune)
    x = inputs(NETWORK, 3)
    assert_right(NETWORK, x, plan(x))


def test_only_the_variants_that_were_named_are_used():
    for name in ("naive", "generic", "host"):
        plan = NETWORK.compile(CPU, variants=[name], tune=False)
        assert set(names(plan)) == {name}
        x = inputs(NETWORK, 1)
        assert_right(NETWORK, x, plan(x))


def test_compiling_twice_measures_once_on_a_real_device(monkeypatch):
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))
    measured = []
    real = CallTrial.ready
    monkeypatch.setattr(
        CallTrial, "ready", lambda *a, **k: measured.append(a) or real(*a, **k)
    )
    NETWORK.compile(CPU, 2)
    assert measured
    measured.clear()
    times.store_of.cache_clear()
    NETWORK.compile(CPU, 2)
    assert measured == []

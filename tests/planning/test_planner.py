"""The planner: the choice of covers by measured and modelled times."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
from planner_lab import CPU, GPU, NETWORK, OPS, by_name, names

from clnet import Dense, Local, Network, Sparse
from clnet.variants import STUDY_VARIANTS

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.mark.parametrize("name", ["split", "gemm"])
def test_the_fastest_layers_are_chosen(lab, name):
    lab.rule = by_name({name: 1e-6})
    plan = lab.plan(device=GPU, tune=True)
    assert names(plan) == [name] * 3
    assert {step.device for step in plan.steps} == {GPU}


@pytest.mark.parametrize("name", ["fused", "fused_local"])
def test_a_run_is_chosen_where_it_is_fastest(lab, name):
    lab.rule = by_name({name: 1e-6})
    plan = lab.plan(device=GPU, variants=["split", name])
    assert names(plan) == [name]
    assert len(plan.steps[0].span.ops) == OPS


def test_the_host_wins_where_it_is_fastest(lab):
    lab.rule = by_name({"host": 1e-7})
    plan = lab.plan(device=GPU, tune=True)
    assert names(plan) == ["host"] * OPS
    assert {step.device for step in plan.steps} == {None}


def test_each_layer_has_its_best_variant(lab):
    """A wide layer on the device, small ones on the host."""
    network = Network.mlp([4, 300, 300, 4], seed=0)

    def rule(steps):
        total = 0.0
        for step in steps:
            wide = max(value.width for op in step.span.ops for value in op.writes)
            on_host = step.device is None
            total += 1e-6 * (wide * wide if on_host else 2000) * len(step.span.ops)
        return total

    lab.rule = rule
    plan = lab.plan(network, GPU, tune=True, variants=["naive", "host"])
    assert names(plan) == ["naive", "naive", "host", "host"]


RUNGS = {variant.name for variant in STUDY_VARIANTS}


@pytest.mark.parametrize("tune", [None, True, False])
def test_rungs_are_not_searched(lab, tune):
    lab.rule = by_name(dict.fromkeys(RUNGS, 1e-12))
    network = Network(9, [Local(3, "tanh"), Dense(4, "tanh"), Dense(2)], seed=1)
    plan = lab.plan(network, GPU, tune=tune)
    tried = {step.variant.name for steps in lab.measured for step in steps}
    assert not RUNGS & (tried | set(names(plan)))
    assert not any(f"{name} " in plan.text for name in ("naive", "stencil_reduction"))


@pytest.mark.parametrize("name", sorted(RUNGS))
def test_a_rung_that_is_named_is_planned(lab, name):
    network = Network(9, [Local(3, "tanh")], seed=1)
    if name != "stencil_reduction":
        network = NETWORK
    plan = lab.plan(network, GPU, variants=[name, "host"], tune=False)
    assert name in plan.text
    lab.rule = by_name({name: 1e-9})
    assert set(names(lab.plan(network, GPU, variants=[name, "host"]))) == {name}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize(
    "layers",
    [
        [Dense(7, "tanh")], [Dense(2, ["tanh", "relu"])], [Dense(5, "softmax")],
        [Local(3, "tanh"), Local(2)], [Local(3, bias="neuron"), Dense(4, "tanh")],
        [Sparse(20, density=0.3, format="hyb", seed=1)],
    ],
    ids=["dense", "mixed", "softmax", "local", "biases", "hyb"],
)
def test_a_device_plans_every_network_without_rungs_and_host(
    lab, device, layers, dtype
):
    network = Network(30, layers, seed=1, dtype=dtype)
    device = dataclasses.replace(device, fp64=True)
    plan = lab.plan(network, device, tune=False)
    chosen = {step.device for step in plan.device_steps()}
    assert chosen <= {device, *device.companions}


@pytest.mark.parametrize(("slower", "chosen"), [(1.04, "fused"), (1.2, "naive")])
def test_of_ties_the_cover_of_fewest_steps_is_taken(lab, slower, chosen):
    def rule(steps):
        ops = sum(len(step.span.ops) for step in steps)
        return 1e-4 * ops * (slower if steps[0].variant.name == "fused" else 1)

    lab.rule = rule
    plan = lab.plan(device=GPU, variants=["naive", "fused"], tune=True)
    assert set(names(plan)) == {chosen}


def test_a_pause_lies_between_the_host_and_a_device(lab, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: lab.measured.append(None))
    lab.plan(device=GPU, variants=["naive", "host"], tune=True)
    on_host = [
        None if steps is None else any(step.device is None for step in steps)
        for steps in lab.measured
    ]
    assert on_host.count(True) > 1
    for before, after in itertools.pairwise(on_host):
        assert (before, after) != (True, False)


@pytest.mark.skipif(CPU.type != "cpu", reason="the device is no CPU")
@pytest.mark.parametrize(("tune", "group"), [(None, 8), (False, 4)])
def test_other_configurations_without_a_build_are_measured(lab, tune, group):
    lab.rule = lambda steps: 1e-4 / steps[0].config.get("group", 1e-3)
    plan = lab.plan(variants=["cpu", "naive"], tune=tune)
    (step,) = plan.steps
    assert (step.variant.name, step.config["group"]) == ("cpu", group)


@pytest.mark.skipif(not CPU.companions, reason="the device has no companion")
def test_companions_are_searched(lab):
    lab.rule = lambda steps: 1e-6 if steps[0].device in CPU.companions else 1e-3
    plan = lab.plan(variants=["naive", "host"], tune=True)
    assert {step.device for step in plan.steps} == {CPU.companions[0]}


def test_device_arrays_take_the_device_alone(lab):
    lab.rule = lambda steps: 1e-3 if steps[0].device == CPU else 1e-6
    plan = lab.plan(variants=["naive", "host"], tune=True)
    assert CPU not in {step.device for step in plan.steps}
    assert {step.device for step in plan.device_steps()} == {CPU}


def test_device_arrays_take_the_cover_that_was_measured_whole(lab):
    """Where it runs on the device alone: the sum of its spans may be larger."""
    def rule(steps):
        name, ops = steps[0].variant.name, sum(len(step.span.ops) for step in steps)
        return 1e-6 * ops if name == "naive" and ops < OPS else {
            "naive": 9e-6, "fused": 7e-6,
        }[name]

    lab.rule = rule
    plan = lab.plan(device=GPU, variants=["naive", "fused"], tune=True)
    assert names(plan) == ["fused"]
    assert plan.device_steps() == plan.steps


@pytest.mark.skipif(not CPU.companions, reason="the device has no companion")
@pytest.mark.parametrize("fastest", ["companion", "caller"])
def test_device_arrays_take_a_companion_where_the_calling_thread_helps(lab, fastest):
    """Helpers would keep a call with other arrays waiting until they return."""
    ranks = {"companion": 1e-5, "caller": 1e-5, fastest: 1e-6}
    lab.rule = lambda steps: (
        ranks["companion"] if steps[0].device in CPU.companions
        else ranks["caller"] if steps[0].config.get("caller") else 1e-4
    )
    plan = lab.plan(variants=["cpu"], tune=True)
    assert {step.device for step in plan.device_steps()} == {CPU.companions[0]}


def test_softmax_divides_runs(lab):
    network = Network(
        4, [Dense(8, "tanh"), Dense(5, "softmax"), Dense(6, "relu"), Dense(2)], seed=0
    )
    lab.rule = by_name({"fused": 1e-6, "generic": 1e-5})
    plan = lab.plan(network, GPU, tune=True, variants=["fused", "generic"])
    assert names(plan) == ["fused", "generic", "fused"]
    assert [len(step.span.ops) for step in plan.steps] == [4, 1, 4]

"""The planner's times: remembered, measured anew, or modelled."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_lab import CPU, GPU, NETWORK, OPS, Broken, by_name, names
from threadpoolctl import threadpool_limits

from clnet import Network
from clnet.opencl.store import Timing
from clnet.planning import inference
from clnet.planning.planner import Planner
from clnet.planning.tuning import fingerprint, times
from clnet.planning.tuning.budget import Budget
from clnet.runtime.binding import PlanStep
from clnet.variants import ALL_VARIANTS, VARIANTS
from clnet.variants.dense.naive import Naive, Split, Staged
from clnet.variants.reference.generic import Host

pytestmark = pytest.mark.usefixtures("own_store")


def test_remembered_times_are_not_measured_again(lab):
    first = lab.plan()
    assert lab.measured
    lab.measured.clear()
    times.store_of.cache_clear()  # as in another process
    again = lab.plan()
    assert lab.measured == []
    assert [s.config for s in again.steps] == [s.config for s in first.steps]
    assert again.text == first.text


def test_an_expired_search_measures_nothing(lab):
    plan = lab.plan(device=GPU, budget=Budget(0.0))
    assert lab.measured == []
    assert "limit of 0 s was over" in " ".join(plan.text.split())
    assert "modelled, nothing measured" in " ".join(plan.text.split())


def test_a_search_that_expires_measures_one_cover(lab, monkeypatch):
    monkeypatch.setattr(Budget, "pays", lambda self, seconds: not lab.measured)
    lab.plan(device=GPU, variants=["naive", "local"])
    layers = [steps[0] for steps in lab.measured if len(steps) == 1]
    assert sum(len(step.span.ops) for step in layers) == OPS
    assert len({step.variant.name for step in layers}) == 1


@pytest.mark.parametrize("tune", [None, True])
def test_pruned_candidates_are_measured_only_by_tuning(lab, tune):
    lab.rule = by_name({"naive": 1e-12})
    lab.plan(device=GPU, variants=["naive", "generic"], tune=tune)
    assert any(names(SimpleNamespace(steps=s)) == ["naive"] for s in lab.measured)
    generic = any("generic" in names(SimpleNamespace(steps=s)) for s in lab.measured)
    assert generic == (tune is True)


def test_a_search_shows_its_progress(lab, monkeypatch, capsys):
    monkeypatch.setattr("clnet.planning.tuning.budget.PROGRESS_DELAY", 0.0)
    for progress in (False, None):  # stderr is no terminal here
        with Budget(progress=progress) as budget:
            lab.plan(device=GPU, budget=budget)
    assert capsys.readouterr() == ("", "")
    with Budget(progress=True) as budget:
        budget._line._timer.join()
        lab.plan(device=GPU, batch=2, budget=budget)
    out, err = capsys.readouterr()
    assert "measuring kernels: " in err
    assert not out
    assert err.endswith("\r")  # and is wiped away


def test_progress_is_drawn_during_a_long_build(monkeypatch, capsys):
    monkeypatch.setattr("clnet.planning.tuning.budget.PROGRESS_DELAY", 0.01)
    with Budget(progress=True) as budget:
        budget.show("epoch")
        budget._line._timer.join()  # nothing is shown again
        shown = capsys.readouterr().err
        assert re.search(r"measuring kernels: 1 in \d\d:\d\d, epoch", shown)
    capsys.readouterr()
    monkeypatch.setattr("clnet.planning.tuning.budget.PROGRESS_DELAY", 1e3)
    with Budget(progress=True) as budget:
        budget.show("epoch")
    assert capsys.readouterr().err == ""


def test_a_power_of_two_represents_batches_down_to_its_half(lab):
    lab.plan(batch=8)
    lab.measured.clear()
    for batch in (5, 6, 7, 8):
        lab.plan(batch=batch)
    assert lab.measured == []
    lab.plan(batch=9)
    assert {step.span.batch for steps in lab.measured for step in steps} == {16}


@pytest.mark.parametrize(
    "change",
    [
        {"driver": "2"}, {"name": "other"}, {"platform_version": "9"},
        {"compute_units": 3},
    ],
)
def test_another_device_or_driver_is_measured_anew(lab, change):
    lab.plan(device=GPU)
    lab.measured.clear()
    lab.plan(device=dataclasses.replace(GPU, index="1:7", notes=("a note",)))
    assert lab.measured == []
    lab.plan(device=dataclasses.replace(GPU, **change))
    assert lab.measured


def measured_again(lab, **arguments):
    """Names of the variants that are measured a second time."""
    lab.measured.clear()
    times.store_of.cache_clear()  # as in another process
    lab.plan(device=GPU, tune=True, **arguments)
    return {steps[0].variant.name for steps in lab.measured if len(steps) == 1}


def test_another_kernel_source_is_measured_anew(lab, monkeypatch):
    names = ["split", "gemm"]
    lab.plan(device=GPU, variants=names, tune=True)
    assert measured_again(lab, variants=names) == set()
    real = fingerprint.source_hash
    monkeypatch.setattr(
        fingerprint, "source_hash",
        lambda source: "new" if source == "dense/split.cl" else real(source),
    )
    assert measured_again(lab, variants=names) == {"split"}


@pytest.mark.parametrize(
    ("module", "anew"),
    [
        ("clnet.variants.dense.naive", {"split"}),  # such as a group's size
        ("clnet.variants.dense.chain", {"split"}),  # a helper that it imports
        ("clnet.variants.base", {"split", "gemm"}),
        ("clnet.variants.macros", {"split", "gemm"}),
        ("clnet.nn.storage.dense", {"split", "gemm"}),
        ("clnet.variants.sparse.sparse", set()),
        ("clnet.planning.planner", set()),
    ],
)
def test_other_python_that_describes_launches_is_measured_anew(
    lab, monkeypatch, module, anew
):
    names = ["split", "gemm", "host"]
    lab.plan(device=GPU, variants=names, tune=True)
    real = fingerprint._text
    monkeypatch.setattr(
        fingerprint, "_text", lambda name: real(name) + "# " * (name == module)
    )
    fingerprint._code.cache_clear()
    found = measured_again(lab, variants=names)
    fingerprint._code.cache_clear()
    assert found == anew


def test_another_capability_is_measured_anew(lab):
    """As where the table of quirks has changed."""
    lab.plan(device=GPU, variants=["split"])
    lab.measured.clear()
    edited = dataclasses.replace(GPU, operator_math=True)
    lab.plan(device=edited, variants=["split"])
    assert lab.measured


def test_a_variant_of_the_same_name_and_other_launches_is_measured_anew():
    span = NETWORK.program.span(0, 2, 1)
    keys = {
        times.key_of(PlanStep(span, variant, {}, CPU))
        for variant in (
            Naive(), Broken(name="naive"),
            Broken(name="naive", change={"local_size": (8,)}),
        )
    }
    assert len(keys) == 3


@pytest.mark.parametrize(
    "change", [{"version": "0.1"}, {"num_threads": 99}, {"internal_api": "mkl"}],
    ids=str,
)
def test_numpy_with_another_blas_or_other_threads_is_measured_anew(
    lab, monkeypatch, change
):
    names = ["split", "host"]
    lab.plan(device=GPU, variants=names, tune=True)
    other = [{**(fingerprint._libraries().info() or [{}])[0], **change}]
    monkeypatch.setattr(
        fingerprint, "_libraries", lambda: SimpleNamespace(info=lambda: other)
    )
    assert measured_again(lab, variants=names) == {"host"}


def test_the_host_key_follows_thread_limits():
    span = NETWORK.program.span(0, 1, 1)
    host = PlanStep(span, Host(), {}, None)
    assert "numpy" in times.key_of(host)
    if any(library["num_threads"] > 1 for library in fingerprint._libraries().info()):
        before = times.key_of(host)
        with threadpool_limits(1):
            assert times.key_of(host) != before
        assert times.key_of(host) == before


def test_another_numpy_is_measured_anew(lab, monkeypatch):
    lab.plan(device=GPU, variants=["host"], tune=True)
    monkeypatch.setattr(np, "__version__", "9.9")
    assert measured_again(lab, variants=["host"]) == {"host"}


def test_equal_layers_have_one_key_for_every_variant():
    """Offsets of their weights do not matter."""
    network = Network.mlp([64] * 4, "tanh", seed=1)
    for variant in ALL_VARIANTS:
        for device in (GPU, CPU):
            ops = 1 if variant.reach == "op" else 2
            spans = [network.program.span(i, i + ops, 64) for i in (0, 2, 4)]
            if any(variant.refuse(span, device) for span in spans):
                continue
            config = next(iter(variant.space(spans[0], device)))
            keys = {times.key_of(PlanStep(span, variant, config, device))
            for span in spans}
            assert len(keys) == 1


def test_another_network_is_measured_anew_and_an_equal_one_is_not(lab):
    lab.plan()
    lab.measured.clear()
    lab.plan(Network.mlp([5, 7, 6, 3], seed=2))
    assert lab.measured == []
    lab.plan(Network.mlp([5, 7, 6, 4], seed=2))
    assert lab.measured


def test_without_tuning_nothing_is_measured(lab):
    plan = lab.plan(tune=False)
    assert lab.measured == []
    assert "modelled, nothing measured" in " ".join(plan.text.split())


def test_without_tuning_remembered_times_are_used(lab):
    lab.rule = by_name({"gemm": 1e-7})
    lab.plan(device=GPU, tune=True)
    lab.measured.clear()
    assert names(lab.plan(device=GPU, tune=False)) == ["gemm"] * 3
    assert lab.measured == []


def test_tuning_measures_the_whole_space(lab):
    gemm = next(variant for variant in VARIANTS if variant.name == "gemm")
    network = Network.mlp([30, 70, 20], seed=1)
    space = list(gemm.space(network.program.span(0, 2, 64), GPU))
    assert len(space) > 1

    def configs():
        return [
            steps[0].config for steps in lab.measured
            if len(steps) == 1 and steps[0].span.outputs[0].width == 70
        ]

    lab.plan(network, GPU, 64, variants=["gemm"])
    assert configs() == space[:1]
    lab.plan(network, GPU, 64, variants=["gemm"], tune=True)
    measured = configs()  # the first one was remembered
    assert len(measured) == len(space)
    assert all(config in measured for config in space)


def test_equal_layers_are_measured_once(lab):
    lab.plan(Network.mlp([8] * 12, seed=0), GPU, variants=["naive"])
    layer, whole = lab.measured
    assert (len(layer), len(whole)) == (1, 11)


def test_the_remembered_best_configuration_is_taken_without_tuning(lab):
    lab.rule = lambda steps: sum(
        1e-6 if step.config["tile_m"] == 16 else 1e-3 for step in steps
    )
    lab.plan(device=GPU, batch=16, variants=["gemm"], tune=True)
    plan = lab.plan(device=GPU, batch=16, variants=["gemm"])
    assert {step.config["tile_m"] for step in plan.steps} == {16}


def remember(device, variant, seconds, spans):
    """Put times of a variant's spans into the store, as another process might."""
    planned = Planner(NETWORK, device, 1, False, (variant,))
    for found in planned.candidates():
        if (found.start, found.stop) in spans:
            span = planned.times.span(found.start, found.stop)
            times.store_of(device).put(
                span.signature, times.key_of(found.step), Timing(seconds, seconds, 0)
            )


LAYERS = [(0, 2), (2, 4), (4, 6)]


def test_a_measured_time_is_never_ranked_against_a_modelled_one(lab):
    """A second, but measured: no model of microseconds may beat it."""
    remember(GPU, Split(), 1.0, LAYERS)
    plan = lab.plan(device=GPU, tune=False)
    assert names(plan) == ["split"] * 3
    assert "the sum of measured spans" in plan.text


def test_measured_times_that_make_no_cover_do_not_count(lab):
    def plan():
        return lab.plan(device=GPU, tune=False, variants=["naive", "local"])

    modelled = names(plan())
    slower = Naive() if modelled[0] == "local" else Staged()
    remember(GPU, slower, 1e-9, LAYERS[:2])
    assert names(plan()) == modelled


THREE = ("naive", "local", "split")


@given(st.sets(st.tuples(st.sampled_from(LAYERS), st.sampled_from(THREE))))
def test_no_cover_mixes_measured_and_modelled(known):
    variants = inference._variants_of(THREE)
    planned = Planner(NETWORK, GPU, 1, False, variants)
    candidates = [
        dataclasses.replace(c, timing=Timing(1e-3, 1e-3, 0))
        if ((c.start, c.stop), c.step.variant.name) in known else c
        for c in planned.candidates()
    ]
    covers = planned._covers(candidates)
    measured = {tuple(c.timing is not None for c in x.candidates) for x in covers}
    complete = {span for span, _ in known} == set(LAYERS)
    assert measured == {(complete,) * 3}


def given(monkeypatch, seconds):
    """Times of a file for every device, by the variant's name."""
    class Spans(dict):
        def get(self, span, default=None):
            return {
                f"{name}() device": Timing(time, time, 0.0)
                for name, time in seconds.items()
            }

    monkeypatch.setattr(times, "given_times", lambda device: Spans())


def test_times_of_a_file_choose_and_are_not_measured_again(lab, monkeypatch):
    given(monkeypatch, {"naive": 1e-9, "generic": 1e-3})
    plan = lab.plan(device=GPU, variants=["naive", "generic"])
    assert set(names(plan)) == {"naive"}
    assert not any(len(steps[0].span.ops) < OPS and len(steps) == 1
                   for steps in lab.measured)


def test_own_times_go_before_those_of_a_file(lab, monkeypatch):
    lab.rule = by_name({"naive": 1e-3, "generic": 1e-6})
    lab.plan(device=GPU, variants=["naive", "generic"], tune=True)
    given(monkeypatch, {"naive": 1e-9})
    plan = lab.plan(device=GPU, variants=["naive", "generic"])
    assert set(names(plan)) == {"generic"}


def test_tuning_and_first_answers_take_no_times_of_a_file(lab, monkeypatch):
    given(monkeypatch, {"naive": 1e-9, "generic": 1e-9})
    lab.rule = by_name({"naive": 1e-3, "generic": 1e-6})
    plan = lab.plan(device=GPU, variants=["naive", "generic"], tune=True)
    assert set(names(plan)) == {"generic"}
    times.store_of(GPU).path.unlink()
    times.store_of.cache_clear()
    assert not Planner(NETWORK, GPU, 1, False, VARIANTS, file_times=False).remembers
    assert Planner(NETWORK, GPU, 1, False, (Naive(),)).remembers

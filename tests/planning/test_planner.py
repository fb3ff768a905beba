"""The planner: measured and modelled times, pruning, failures."""

from __future__ import annotations

import dataclasses
import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
from bounds import assert_right
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import clnet
from clnet import Dense, Local, Network, Sparse
from clnet.errors import BuildError, ClnetWarning, DeviceError, OutOfMemoryError
from clnet.opencl.device import Device
from clnet.opencl.store import Timing
from clnet.planning import inference, planner
from clnet.planning.planner import Planner
from clnet.planning.tuning import fingerprint, times
from clnet.planning.tuning.measure import Check, WrongResultError
from clnet.planning.tuning.search import Search
from clnet.runtime.binding import Step
from clnet.variants import ALL_VARIANTS, STUDY_VARIANTS, VARIANTS
from clnet.variants.dense.local import Local as LocalMemory
from clnet.variants.dense.naive import Naive
from clnet.variants.dense.split import Split
from clnet.variants.reference.generic import Generic
from clnet.variants.reference.host import Host

pytestmark = pytest.mark.usefixtures("own_store")

NETWORK = Network.mlp([5, 7, 6, 3], seed=1)
OPS = len(NETWORK.program.ops)
CPU = clnet.device("cpu")


def inputs(network, batch, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (batch, network.n_in)).astype(network.dtype)


# With faked times -----------------------------------------------------------------


class Lab:
    """A fake of measuring and of plans: times by a rule, and a list of the requests.

    `rule` takes the steps and returns seconds, or an exception to raise.
    """

    def __init__(self, monkeypatch):
        self.rule = lambda steps: 1e-3
        self.measured = []
        monkeypatch.setattr(times, "session", lambda device: None)
        monkeypatch.setattr(times, "measure", self.measure)
        monkeypatch.setattr(times, "check", lambda *parts: Check(True, False))
        monkeypatch.setattr(
            planner, "Plan", lambda *parts: SimpleNamespace(
                steps=parts[3], device_steps=parts[4], text=parts[-1]
            ),
        )

    def measure(self, session, network, steps, inputs, outputs, *, on_device, alike=()):
        assert {step.span.batch for step in steps} == {steps[0].span.batch}
        self.measured.append(tuple(steps))
        found = self.rule(steps)
        if isinstance(found, Exception):
            raise found
        return Timing(found, found, 0.0)

    def plan(
        self, network=NETWORK, device=CPU, batch=1, tune=None, variants=None,
        search=None,
    ):
        chosen = inference._variants_of(variants)
        return Planner(
            network, device, batch, tune, chosen, search=search
        ).plan()


@pytest.fixture
def lab(monkeypatch):
    return Lab(monkeypatch)


def by_name(seconds, otherwise=1e-3):
    """Seconds by the variants' names, an op or layer or run alike."""
    return lambda steps: sum(seconds.get(s.variant.name, otherwise) for s in steps)


def names(plan):
    return [step.variant.name for step in plan.steps]


GPU = Device("gpu", compute_units=100, local_memory=48 << 10, simd_width=32, fp64=True)


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
    plan = lab.plan(network, device, tune=False)
    assert {step.device for step in plan.device_steps()} == {device}


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


def test_softmax_divides_runs(lab):
    network = Network(
        4, [Dense(8, "tanh"), Dense(5, "softmax"), Dense(6, "relu"), Dense(2)], seed=0
    )
    lab.rule = by_name({"fused": 1e-6, "generic": 1e-5})
    plan = lab.plan(network, GPU, tune=True, variants=["fused", "generic"])
    assert names(plan) == ["fused", "generic", "fused"]
    assert [len(step.span.ops) for step in plan.steps] == [4, 1, 4]


def test_remembered_times_are_not_measured_again(lab):
    first = lab.plan()
    assert lab.measured
    lab.measured.clear()
    times.store_of.cache_clear()  # as in another process
    again = lab.plan()
    assert lab.measured == []
    assert [s.config for s in again.steps] == [s.config for s in first.steps]
    assert again.text == first.text


def test_an_expired_search_measures_one_cover(lab):
    plan = lab.plan(device=GPU, search=Search(0.0))
    assert sum(len(step.span.ops) for steps in lab.measured for step in steps) == OPS
    assert "limit of 0 s was over" in " ".join(plan.text.split())
    least = len(lab.measured)
    lab.plan(device=GPU, search=Search())
    assert len(lab.measured) > 2 * least


@pytest.mark.parametrize("tune", [None, True])
def test_pruned_candidates_are_measured_only_by_tuning(lab, tune):
    lab.rule = by_name({"naive": 1e-12})
    lab.plan(device=GPU, variants=["naive", "generic"], tune=tune)
    assert any(names(SimpleNamespace(steps=s)) == ["naive"] for s in lab.measured)
    generic = any("generic" in names(SimpleNamespace(steps=s)) for s in lab.measured)
    assert generic == (tune is True)


def test_a_search_shows_its_progress(lab, monkeypatch, capsys):
    monkeypatch.setattr("clnet.planning.tuning.search.PROGRESS_DELAY", 0.0)
    lab.plan(device=GPU, search=Search())
    assert capsys.readouterr() == ("", "")
    with Search(progress=True) as search:
        lab.plan(device=GPU, batch=2, search=search)
    out, err = capsys.readouterr()
    assert "measuring kernels: " in err
    assert not out
    assert err.endswith("\r")  # and is wiped away


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
        ("clnet.variants.dense.split", {"split"}),  # such as a group's size
        ("clnet.variants.team", {"split"}),  # a helper that it imports
        ("clnet.variants.base", {"split", "gemm"}),
        ("clnet.variants.macros", {"split", "gemm"}),
        ("clnet.nn.storage.dense", {"split", "gemm"}),
        ("clnet.variants.sparse.csr", set()),
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
        times.key_of(Step(span, variant, {}, CPU))
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
    host = Step(span, Host(), {}, None)
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
            keys = {times.key_of(Step(span, variant, config, device)) for span in spans}
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
    assert len(lab.measured) == 1


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
    for found in planned._candidates():
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
    slower = Naive() if modelled[0] == "local" else LocalMemory()
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
        for c in planned._candidates()
    ]
    covers = planned._covers(candidates)
    measured = {tuple(c.timing is not None for c in x.candidates) for x in covers}
    complete = {span for span, _ in known} == set(LAYERS)
    assert measured == {(complete,) * 3}


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
    with pytest.warns(ClnetWarning, match="local is left out: gpu has no room"):
        plan = lab.plan(device=GPU, batch=700, variants=["naive", "local"])
    assert names(plan) == ["naive"] * 3


def test_host_covers_what_a_device_lacks(lab):
    single = dataclasses.replace(GPU, fp64=False)
    plan = lab.plan(Network.mlp([4, 5], seed=0, dtype="float64"), single)
    assert names(plan) == ["host", "host"]
    assert "gpu has no float64" in plan.text
    with pytest.raises(DeviceError, match=r"on gpu alone, as device arrays need"):
        plan.device_steps()


# On PoCL --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Broken(Naive):
    """Naive, with something wrong in its launches."""

    name: str = "broken"
    change: dict = dataclasses.field(default_factory=dict, hash=False)

    def launches(self, span, config, device):
        (launch,) = super().launches(span, config, device)
        change = dict(self.change)
        defines = {**launch.defines, **change.pop("defines", {})}
        return (dataclasses.replace(launch, defines=defines, **change),)


@pytest.mark.parametrize("tune", [None, False])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"defines": {"ACTIVATION": "act_relu"}}, "differs from the oracle by"),
        ({"defines": {"HAS_BIAS": "no such name ("}}, "does not build on"),
        ({"kernel": "no_such_kernel"}, "INVALID_KERNEL_NAME"),
        ({"arguments": ()}, "INVALID_KERNEL_ARGS"),
        ({"local_size": (1 << 20, 1), "global_size": (1 << 20, 1)},
         "INVALID_WORK_GROUP_SIZE"),
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
    real = times.measure
    monkeypatch.setattr(
        times, "measure", lambda *a, **k: measured.append(a) or real(*a, **k)
    )
    NETWORK.compile(CPU, 2)
    assert measured
    measured.clear()
    times.store_of.cache_clear()
    NETWORK.compile(CPU, 2)
    assert measured == []

"""Data parallelism: the results of one device, whatever the shares."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from bounds import assert_right
from children import child_environment, run_python
from hypothesis import given
from hypothesis import strategies as st
from variant_cases import selected

import clnet
from clnet import Dense, Network
from clnet.errors import DeviceError, InputError
from clnet.opencl.discovery import device_list
from clnet.planning import inference, predictions
from clnet.runtime import data_parallel, device_sums
from clnet.runtime.data_parallel import MIN_SHARE, ParallelPlan, alike, shares_of
from clnet.runtime.executable import Executable
from clnet.runtime.plan import Plan
from clnet.training.group import Group
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Host

CPU = clnet.device("cpu")
TWINS = [CPU, replace(CPU, index="9:1"), replace(CPU, index="9:2")]
OTHER = replace(CPU, index="9:3", fine_svm=False)  # with copies, as GPUs
GROUPS = {"two": TWINS[:2], "three": TWINS, "unlike": [CPU, OTHER],
          "copies": [OTHER, replace(OTHER, index="9:4")],
          "alone": [replace(one, companions=()) for one in (CPU, OTHER)]}
X = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)
T = np.random.default_rng(1).uniform(0, 1, (50, 3)).astype(np.float32)

devices = pytest.mark.parametrize("devices", GROUPS.values(), ids=GROUPS)


def net(**options):
    return Network.mlp([5, 7, 3], "tanh", seed=1, **options)


@pytest.fixture
def simple(monkeypatch):
    """Use two variants only: plans are then made quickly."""
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))


# Shares ---------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_shares_add_up_and_are_proportional(n, speeds):
    found = shares_of(n, speeds)
    assert sum(found) == n
    total = sum(s for s in speeds if s >= MIN_SHARE * sum(speeds))
    for count, speed in zip(found, speeds, strict=True):
        slow = speed < MIN_SHARE * sum(speeds)
        assert abs(count - (0 if slow else n * speed / total)) <= 1


def test_alike_devices_differ_in_their_index_only():
    assert alike(TWINS)
    assert not alike([CPU, OTHER])
    helper = replace(CPU, serial=True)
    assert alike([replace(CPU, index=str(i), companions=(helper,)) for i in (1, 2)])
    assert not alike([CPU, replace(CPU, companions=(helper,), index="9:1")])


# Predict --------------------------------------------------------------------------


@devices
def test_devices_use_the_parameters_of_one_moment(simple, devices, monkeypatch):
    network = net()
    before = network.predict(X[:7], devices)
    start = Plan.start

    def replace_after(self, *arguments):
        start(self, *arguments)
        network.parameters = network.parameters * 2

    monkeypatch.setattr(Plan, "start", replace_after)
    np.testing.assert_array_equal(network.predict(X[:7], devices), before)


@devices
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_several_devices_predict_as_one(simple, devices, batch):
    network = net()
    assert_right(network, X[:batch], network.predict(X[:batch], devices))
    assert network.predict(X[0], devices).shape == (3,)


def test_many_samples_make_several_calls(simple, monkeypatch):
    monkeypatch.setattr(predictions, "CHUNK", 4)
    network = net()
    assert_right(network, X[:19], network.predict(X[:19], TWINS[:2]))
    assert network.plan_for(TWINS[:2], 8).shares == [4, 4]


CARDS = [
    replace(CPU, type="gpu", fine_svm=False, companions=(), index=f"9:{i}")
    for i in (5, 6)
]


@pytest.mark.parametrize("devices", [CARDS[0], CARDS], ids=["one", "two"])
def test_calls_alternate_between_two_plans(simple, monkeypatch, devices):
    monkeypatch.setattr(predictions, "CHUNK", 4)
    network, started, fails = net(), [], 0
    start = Executable.start

    def noted_start(self, *parameters):
        started.append(self)
        if len(started) == fails:
            raise MemoryError("none left")
        start(self, *parameters)

    monkeypatch.setattr(Executable, "start", noted_start)
    for fails in (0, 5, 0):
        started.clear()
        if fails:
            with pytest.raises(DeviceError, match="none left"):
                network.predict(X[:35], devices)
            continue
        assert_right(network, X[:35], network.predict(X[:35], devices))
        # Devices take the nine parts in turn, in threads: one has three or more.
        by_device = Counter(one.session.device for one in started)
        (device, _), = by_device.most_common(1)
        of_one = [one for one in started if one.session.device == device]
        assert of_one[0] is of_one[2] is not of_one[1]


def test_all_is_every_device(simple):
    assert device_list("all") == clnet.devices()
    assert net().predict(X[:2], "all").shape == (2, 3)


def test_faster_devices_have_larger_shares(simple, monkeypatch):
    seconds = iter((1.0, 3.0))
    monkeypatch.setattr(data_parallel, "_seconds", lambda plan: next(seconds))
    network = net()
    plan = network.plan_for([CPU, OTHER], 8)
    assert plan.shares == [6, 2]
    lines = plan.explain().split("\n\n")[0].splitlines()
    assert lines[0] == "shared among devices"
    assert lines[1] == f"  6 of 8 samples on {CPU.index} {CPU.name}"
    assert lines[2].startswith("  2 of 8 samples on 9:3")
    assert_right(network, X[:8], plan(X[:8]))


def test_a_failed_call_leaves_the_plan_usable(simple, monkeypatch):
    network = net()
    plan = network.plan_for(TWINS[:2], 4)
    y = plan(X[:4])

    def fail(self, *parameters):
        raise MemoryError("none left")

    for name in ("start", "finish"):
        with monkeypatch.context() as patch:
            patch.setattr(Executable, name, fail)
            with pytest.raises(DeviceError, match="failed while running: none left"):
                plan(X[:4])
        np.testing.assert_array_equal(plan(X[:4]), y)
    with pytest.raises(InputError, match=r"x has shape \[3, 5\], expected 4 samples"):
        plan(X[:3])
    with pytest.raises(InputError, match=r"x has shape \[\], expected 4 samples"):
        plan(np.zeros((), np.float32))
    one = network.plan_for(CPU, 4)
    with pytest.raises(InputError, match=r"x has shape \[5, 5\]"):
        one.start(X[:5])
    one.start(X[:4])
    assert one.finish().shape == (4, 3)


@pytest.mark.parametrize("samples", [1, 2, 3, 4])
def test_a_started_call_may_have_fewer_samples(simple, samples):
    """As the last part of many samples has; a device without any of them rests."""
    network = net()
    for plan in (network.plan_for(TWINS[:2], 4), network.plan_for(CPU, 4)):
        y = plan(X[:4])
        plan.start(X[4 : 4 + samples])
        few = plan.finish()
        assert few.shape == (samples, 3)
        assert_right(network, X[4 : 4 + samples], few)
        np.testing.assert_array_equal(plan(X[:4]), y)
    plan.start(X[:samples])
    with pytest.raises(InputError, match=f"out has 5 rows, expected {samples}"):
        plan.finish(np.empty((5, 3), np.float32))


@pytest.mark.parametrize(("spec", "sentence"), [
    ([], 'the list of devices is empty: name one, or say "all"'),
    ([CPU, CPU], "is in the list twice, expected each once"),
    (3, "devices are given as a list"),
    ([3], "a device is given as text"),
])
def test_bad_lists_of_devices(spec, sentence):
    for call in (device_list, lambda s: net().predict(X, s),
                 lambda s: net().fit(X, T, devices=s)):
        with pytest.raises(InputError, match=sentence):
            call(spec)


# Fit ------------------------------------------------------------------------------


# Values of few digits: float32 sums and products of them are exact in any order, so
# several devices and one have the same bits.
FEW = np.random.default_rng(2)
STEPS = 5  # after which weights have 24 digits


def few_digits(shape, per_unit=1, most=1):
    return (FEW.integers(-most * per_unit, most * per_unit, shape, endpoint=True)
            / per_unit).astype(np.float32)


def linear(sizes):
    network = Network.mlp(sizes, "identity", seed=0)
    network.parameters = few_digits(network.parameters.shape, 4, 0.5)
    return network


XS, TS = few_digits((48, 5)), few_digits((48, 4), 4)


RULES = {
    "rprop": {"optimiser": clnet.optimisers.Rprop(delta_zero=0.125),
              "validation": (XS[:7], TS[:7])},
    "sarprop": {"optimiser": "sarprop"},
    "adam": {"optimiser": "adam", "batch_size": 48, "sample_weight": np.arange(48) % 3,
             "clip_norm": 0.1, "l2": 1e-3},
    "batches": {"optimiser": clnet.optimisers.SGD(learning_rate=0.25), "batch_size": 8},
}


@pytest.mark.parametrize(("devices", "options"), selected(
    GROUPS, RULES, quick=lambda group, rule: group % len(RULES) == rule
))
def test_several_devices_train_as_one(devices, options, monkeypatch):
    """The remaining errors are an update's roundings, and those of squared errors."""
    monkeypatch.setattr(device_sums, "CHUNK_BYTES", 100)
    batch, n, n_out = options.get("batch_size", 48), 48, 4
    if batch < n:
        n, n_out = STEPS * batch, 1  # of one layer, for which the digits suffice
    x, t = XS[:n], TS[:n, :n_out]
    one = linear([5, n_out] if n_out == 1 else [5, 7, n_out])
    several = Network(5, one.layers, parameters=one.parameters)
    start = one.parameters
    alone = one.fit(x, t, epochs=1, seed=1, device=CPU, **options)
    shared = several.fit(x, t, epochs=1, seed=1, devices=devices, **options)
    u = np.finfo(np.float32).eps / 2
    allowed = 0 if batch < n else 16 * u * (abs(start) + abs(one.parameters))
    assert (abs(several.parameters - one.parameters) <= allowed).all()
    assert (one.parameters != start).any()
    np.testing.assert_allclose(shared.loss, alone.loss, rtol=(n + 8) * u)
    np.testing.assert_allclose(
        shared.validation_loss, alone.validation_loss, rtol=(n + 8) * u
    )
    assert [e.bit_fail for e in shared] == [e.bit_fail for e in alone]
    assert shared.state.count == alone.state.count == n // batch
    assert f" of {batch} samples of a batch on " in shared.plan


@pytest.mark.parametrize("devices", [TWINS, GROUPS["unlike"], GROUPS["alone"]],
                         ids=["alike", "unlike", "alone"])
def test_parameters_stay_equal_on_all_devices(devices):
    found = []

    def record(training, epoch):
        states = training._segments._train_state
        found.append([train_state.values()[0] for train_state in states])

    net(dropout=0.2).fit(
        X, T, optimiser="adam", batch_size=25, epochs=2, devices=devices,
        callbacks=[record],
    )
    for one, *others in found:
        for other in others:
            np.testing.assert_array_equal(other, one)


def test_resumed_training_equals_uninterrupted_training():
    options = {"optimiser": "adam", "batch_size": 16, "seed": 3, "devices": TWINS[:2]}
    whole, parts = net(), net()
    whole.fit(X, T, epochs=4, **options)
    state = parts.fit(X, T, epochs=2, **options).state
    parts.fit(X, T, epochs=2, state=state, **options)
    np.testing.assert_array_equal(parts.parameters, whole.parameters)


def test_a_callback_replaces_the_parameters_on_all_devices():
    start = net().parameters

    def reset(training, epoch):
        training.parameters = start

    network = net()
    history = network.fit(X, T, epochs=3, devices=TWINS[:2], callbacks=[reset],
                          optimiser="batch")
    np.testing.assert_array_equal(network.parameters, start)
    assert history.loss[1] == history.loss[2]


def test_a_batch_needs_samples_for_each_device():
    sentence = "a batch has 2 samples, expected one or more for each of 3 devices"
    with pytest.raises(InputError, match=sentence):
        net().fit(X, T, batch_size=2, devices=TWINS, optimiser="adam")
    with pytest.raises(InputError, match="give device or devices, not both"):
        net().fit(X, T, device=CPU, devices=TWINS)


def test_a_failing_device_is_named(monkeypatch):
    def fail(self, *arguments):
        raise MemoryError("none left")

    monkeypatch.setattr(Group, "_step", fail)
    name = re.escape(CPU.name)
    with pytest.raises(DeviceError, match=f"{name} or {name} failed while running"):
        net().fit(X, T, devices=TWINS[:2])


# Real devices ---------------------------------------------------------------------

SCRIPT = """
import numpy as np, clnet
from functools import partial
from clnet.planning import inference, predictions
from clnet.training import plans
from clnet.planning.training_planner import plan_training
from clnet.variants.dense.naive import Naive
inference.VARIANTS = (Naive(),)
plans.plan_training = partial(plan_training, tune=False)
found = [d for d in clnet.devices() if d.platform == "Portable Computing Language"]
assert len(found) == 2, found
network = clnet.Network.mlp([5, 7, 3], seed=1)
x = np.ones((9, 5), np.float32)
np.testing.assert_allclose(  # the first answer of one device is NumPy's
    network.predict(x, found), network.predict(x, found[0]), rtol=1e-6
)
t = np.full((9, 4), 0.25, np.float32)
fits = []
for where in found, found[:1]:
    one = clnet.Network.mlp([5, 4], "identity")
    one.parameters = np.zeros_like(one.parameters)
    one.fit(x, t, epochs=1, devices=where)
    fits.append(one.parameters)
assert fits[0].any()
np.testing.assert_array_equal(*fits)  # sums of few digits are exact
print("equal")
"""


@pytest.mark.skipif(CPU.platform != "Portable Computing Language", reason="PoCL only")
def test_two_devices_of_one_platform():
    run = run_python(
        "-c", SCRIPT, env=child_environment(POCL_DEVICES="pthread pthread")
    )
    assert run.stdout.strip() == "equal", run.stderr


def test_a_plan_of_mixed_activations(simple):
    network = Network(5, [Dense(4, "relu"), Dense(3, "softmax")], seed=0)
    plan = ParallelPlan(
        network, TWINS[:2], 5, lambda device, n: network.compile(device, n, tune=False)
    )
    y = plan(X[:5])
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)

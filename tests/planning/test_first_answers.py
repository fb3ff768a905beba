"""First answers do not wait: what is measured when, by `fit` and by `predict`."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from bounds import assert_right
from training_lab import PLAIN
from waits import HANG_SECONDS, join, until

import clnet
from clnet import Dense, Network
from clnet.errors import InputError
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Rprop
from clnet.opencl.child_trial import child_environment
from clnet.opencl.store import Store, Timing
from clnet.planning import background, inference, planner, training_planner
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning import budget as budgeting
from clnet.planning.tuning import times
from clnet.planning.tuning.budget import CANDIDATE_SECONDS, SHARE, Budget
from clnet.planning.tuning.calls import CallTrial
from clnet.planning.tuning.times import Times
from clnet.planning.tuning.trial import StepTrial
from clnet.training import plans
from clnet.variants.dense.naive import Naive
from clnet.variants.reference.generic import Host

pytestmark = pytest.mark.usefixtures("own_store")

CPU = clnet.device("cpu")
RNG = np.random.default_rng(0)
SAMPLES = RNG.uniform(-1, 1, (20, 4)), RNG.uniform(0, 1, (20, 2))


def net(seed=1):
    return Network(4, [Dense(5, "tanh"), Dense(2)], seed=seed)


# Budget ---------------------------------------------------------------------------


def test_measuring_pays_within_the_limit_and_a_share_of_all_runs(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(budgeting.time, "perf_counter", lambda: clock[0])
    assert Budget().pays(1e-9)
    assert not Budget(0.0).pays(1e9)
    enough = CANDIDATE_SECONDS / SHARE
    assert Budget(runs=10).pays(enough / 10)
    assert not Budget(runs=10).pays(0.99 * enough / 10)
    budget = Budget(runs=30)
    clock[0] = 1.9 * CANDIDATE_SECONDS
    assert budget.pays(enough / 10)
    clock[0] = 2.1 * CANDIDATE_SECONDS
    assert not budget.pays(enough / 10)


# fit ------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch):
    """The steps that trials measure, each a second; plans of few variants."""
    found = []

    def ready(self, steps, inputs, outputs, **options):
        self.check(steps, inputs, outputs)
        found.append(tuple(steps))
        return Timing(1.0, 1.0, 0.0)

    monkeypatch.setattr(StepTrial, "ready", ready)
    monkeypatch.setattr(plans, "plan_training", plan_training)
    monkeypatch.setattr(training_planner, "TRAINING_VARIANTS", PLAIN)
    return found


def planned(runs, network=None, tune=None):
    network = network or net()
    program = lower_training(network, loss_function("mse"), Rprop())
    return plan_training(
        network, program, CPU, 20, tune=tune, budget=Budget(runs=runs))


def test_a_short_training_is_compared_and_not_measured(measured, monkeypatch):
    checked, check = [], StepTrial.check

    def counted(self, *parts):
        checked.append(parts)
        return check(self, *parts)

    monkeypatch.setattr(StepTrial, "check", counted)
    history = net().fit(*SAMPLES, epochs=3, validation=SAMPLES, device=CPU)
    assert not measured
    assert len(checked) == 2  # the step of training, and that of validation
    text = " ".join(history.plan.split())
    if CPU.companions:  # which have candidates too
        assert "the training is too short to measure them" in text
    assert "modelled, nothing measured" in text


def test_a_long_training_measures_and_short_ones_keep_their_plan(measured):
    short = planned(10)
    assert not measured
    long = planned(1e12)
    assert measured
    del measured[:]
    assert planned(10, net(seed=2)).explain() == short.explain()
    assert planned(1e12, net(seed=2)).explain() == long.explain()
    assert long.explain() != short.explain()
    times.store_of.cache_clear()  # as in another process, which has times
    assert planned(10).steps == planned(1e12).steps
    assert not measured


def test_short_trainings_take_the_plan_of_who_has_tuned(measured):
    short = planned(10)
    tuned = planned(10, tune=True)
    assert measured and tuned.explain() != short.explain()
    assert planned(10).explain() == planned(1e12).explain() == tuned.explain()


def test_a_cover_that_takes_longer_than_modelled_is_measured_against_others(
    measured, monkeypatch
):
    """Where the model is near the limit, one whole step decides."""
    seconds = []
    pays = Budget.pays
    monkeypatch.setattr(
        Budget, "pays", lambda self, one: seconds.append(one) or pays(self, one)
    )
    planned(10)
    runs = 0.5 * CANDIDATE_SECONDS / SHARE / seconds[0]
    times.store_of.cache_clear()
    planned(runs)
    whole, *others = measured
    assert len(whole) > 1 and others


def test_a_measurement_may_say_that_no_other_pays(measured, monkeypatch):
    monkeypatch.setattr(planner, "MAX_ERROR", 1e12)
    monkeypatch.setattr(
        StepTrial, "ready",
        lambda self, steps, *parts, **options:
        measured.append(steps) or Timing(1e-9, 1e-9, 0.0),
    )
    plan = planned(10)
    assert len(measured) == 1
    assert tuple(step.variant for step in measured[0]) == tuple(
        step.variant for step in plan.steps
    )
    times.store_of.cache_clear()
    planned(10)
    assert len(measured) == 1  # remembered


def test_tune_of_fit(measured):
    net().fit(*SAMPLES, epochs=1, tune=False)
    assert not measured
    history = net().fit(*SAMPLES, epochs=1, tune=True)
    assert measured and "too short" not in history.plan
    for tune in (0, "yes"):
        with pytest.raises(InputError, match="tune must be True, False or None, not"):
            net().fit(*SAMPLES, tune=tune)


@pytest.mark.parametrize("tune", [None, False])
def test_short_trainings_are_bit_equal_whatever_was_measured_between(measured, tune):
    found = []
    for _ in range(2):
        network = net()
        network.fit(*SAMPLES, epochs=3, seed=3, tune=tune)
        found.append(network.parameters)
        planned(1e12)
    np.testing.assert_array_equal(*found)


# predict --------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """The variants of each measurement; the third call of a batch is the last free."""
    found = []

    def ready(self, steps, *parts, **options):
        found.append({step.variant.name for step in steps})
        seconds = 1.0 if steps[0].device is None else 1e-3
        return Timing(seconds, seconds, 0.0)

    monkeypatch.setattr(CallTrial, "ready", ready)
    monkeypatch.setattr(inference, "VARIANTS", (Naive(), Host()))
    monkeypatch.setattr(inference, "SEARCH_SECONDS", 3.5 * inference.CALL_SECONDS)
    monkeypatch.setattr(budgeting, "CANDIDATE_SECONDS", 0.0)
    return found


def variants(network, batch=3):
    return {step.variant.name for step in network.plan_for(CPU, batch).steps}


def test_first_calls_build_and_measure_nothing(calls, monkeypatch):
    monkeypatch.setattr(Budget, "pays", lambda self, seconds: True)
    network, x = net(), SAMPLES[0][:3]
    for _ in range(3):
        assert_right(network, x, network.predict(x, CPU))
        assert not calls
    network.predict(x, CPU)
    assert {"naive"} in calls
    assert variants(network) == {"naive"}
    del calls[:]
    for _ in range(9):
        network.predict(x, CPU)
    other = net(seed=2)
    assert_right(other, x, other.predict(x, CPU))
    assert variants(other) == {"naive"}  # by the remembered times
    assert not calls


def test_a_plan_of_compile_measures_at_once(calls):
    plan = net().compile(CPU, 3)
    assert calls and {step.variant.name for step in plan.steps} == {"naive"}


def test_calls_that_take_long_measure_at_once(calls, monkeypatch):
    monkeypatch.setattr(inference, "SEARCH_SECONDS", 5.0)
    monkeypatch.setattr(inference, "CALL_SECONDS", 10.0)
    net().predict(SAMPLES[0][:3], CPU)
    assert calls


# A search beside the calls ------------------------------------------------------


@pytest.fixture
def no_search():
    """Searches of earlier tests end with their networks, which form cycles."""
    gc.collect()
    assert background.BackgroundSearch.is_free()


@pytest.fixture
def beside(no_search, monkeypatch):
    """Searches of a child process for the CPU's plans; what this process measures."""
    measured = []
    monkeypatch.setattr(inference, "searches_beside", lambda device: True)
    monkeypatch.setattr(inference, "LOOK_SECONDS", inference.CALL_SECONDS)
    monkeypatch.setattr(
        Times, "measured", lambda self, candidate: measured.append(candidate))
    return measured


def predict_until_searched(network, x):
    """Predict until the last plan answers."""
    def answered():
        assert_right(network, x, network.predict(x, CPU))
        plan = network.plan_for(CPU, len(x))
        return plan.calls_left == np.inf

    assert until(answered)


def test_a_child_measures_beside_the_calls(beside):
    network, x = net(), SAMPLES[0][:3]
    assert_right(network, x, network.predict(x, CPU))
    assert not network._plans._searches
    assert variants(network) == {"host"}  # this is the second call
    (search,) = network._plans._searches.values()
    predict_until_searched(network, x)
    assert search.ended and not beside
    assert network.plan_for(CPU, 3).calls_left == np.inf
    other = net(seed=2)  # the search is known to have ended
    assert_right(other, x, other.predict(x, CPU))
    assert variants(other) == variants(network)
    assert other.plan_for(CPU, 3).calls_left == np.inf


def test_long_calls_are_answered_by_kernels_from_the_first_on(beside, monkeypatch):
    monkeypatch.setattr(inference, "HOST_SECONDS", 0.0)
    network, x = net(), SAMPLES[0][:3]
    assert_right(network, x, network.predict(x, CPU))
    assert variants(network) != {"host"} and not beside


@pytest.mark.parametrize(
    "fault", ["no interpreter", "an application", "no network", "no file"]
)
@pytest.mark.usefixtures("no_search")
def test_calls_measure_themselves_where_no_child_can(calls, monkeypatch, fault):
    monkeypatch.setattr(Budget, "pays", lambda self, seconds: True)
    monkeypatch.setattr(inference, "searches_beside", lambda device: True)
    monkeypatch.setattr(inference, "LOOK_SECONDS", inference.CALL_SECONDS)
    if fault == "no interpreter":
        monkeypatch.setattr(sys, "executable", str(Path("none", "python")))
    elif fault == "an application":
        monkeypatch.setattr(sys, "executable", str(Path("bin", "qgis")))
    elif fault == "no file":
        monkeypatch.setattr(Store, "can_remember", lambda self: False)
    else:
        monkeypatch.setattr(pickle, "dumps", lambda order: b"none")
    network, x = net(), SAMPLES[0][:3]
    network.predict(x, CPU)
    assert not calls
    for _ in range(9):
        assert_right(network, x, network.predict(x, CPU))
        if network._plans._searches:
            (search,) = network._plans._searches.values()
            assert until(lambda child=search._child: child.poll() is not None)
    assert calls and variants(network) == {"naive"} and not network._plans._searches


@pytest.mark.usefixtures("no_search")
def test_a_search_ends_with_its_network_and_not_with_a_fork():
    search = background.BackgroundSearch(time.sleep, net)
    child = search._child
    assert not background.BackgroundSearch.is_free()
    assert background.BackgroundSearch(time.sleep, net).ended  # one at a time
    background._end(child, os.getpid() + 1)
    assert child.poll() is None and search.take() is None
    del search
    gc.collect()
    assert child.wait(HANG_SECONDS) < 0
    assert background.BackgroundSearch.is_free()


@pytest.mark.usefixtures("no_search")
def test_a_child_that_dies_leaves_the_plan_of_what_it_has_measured():
    plans = iter(("first", "second"))
    search = background.BackgroundSearch(time.sleep, lambda: next(plans))
    assert until(lambda: search.take() == "first")
    search._child.kill()
    assert until(lambda: search.take() or search.ended)
    assert search.understood and background.BackgroundSearch.is_free()


def test_calls_without_end_wait_for_the_search(calls, monkeypatch):
    monkeypatch.setattr(Budget, "pays", lambda self, seconds: True)
    monkeypatch.setattr(inference, "searches_beside", lambda device: True)
    network, x = net(), SAMPLES[0][:3]
    network.predict(x, CPU)
    plan = network._plans.plan(CPU, 3, "highest", np.inf)
    assert calls and plan.calls_left == np.inf and not network._plans._searches


def test_threads_look_at_one_search(beside):
    network, x = net(), SAMPLES[0][:3]
    network.predict(x, CPU)
    threads = [threading.Thread(target=predict_until_searched, args=(network, x))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    join(threads)
    assert not network._plans._searches and not beside


def test_a_search_among_some_variants_is_not_one_among_all(monkeypatch):
    monkeypatch.setattr(inference, "searches_beside", lambda device: True)
    net().compile(CPU, 3, variants=["generic"])
    network, x = net(), SAMPLES[0][:3]
    network.predict(x, CPU)
    assert network.plan_for(CPU, 3).calls_left < np.inf


ENDS = """
import sys, time
import numpy as np
import clnet
from clnet.planning import inference

inference.searches_beside = lambda device: True
inference.LOOK_SECONDS = inference.CALL_SECONDS
network = clnet.Network.mlp([4, 5, 2], seed=0)
while not network._plans._searches:
    network.predict(np.zeros((3, 4)), "cpu")
(search,) = network._plans._searches.values()
print(search._child.pid, flush=True)
if sys.argv[1] == "killed":
    time.sleep(1000)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
@pytest.mark.parametrize("end", ["returns", "killed"])
def test_a_search_ends_with_the_process(end):
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", ENDS, end], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=child_environment(), text=True,
    ) as process:
        child = int(process.stdout.readline())
        if end == "killed":
            process.kill()
        _, errors = process.communicate(timeout=HANG_SECONDS)
    assert not errors
    assert until(lambda: not _runs(child))


def _runs(pid):
    """Return whether a process runs: one that has ended may wait to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] not in "ZX"
    except FileNotFoundError:
        return False

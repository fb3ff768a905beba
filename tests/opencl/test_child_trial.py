"""Child trials: a kernel that kills its process costs a candidate or a capability."""

import os
import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from children import child_environment

import clnet
from clnet import Cascade, Dense, Network, Population
from clnet.errors import ClnetWarning, DeviceError
from clnet.ir.lowering import lower_training
from clnet.nn.losses import LOSSES
from clnet.nn.optimisers import SGD
from clnet.opencl import child_trial, probes
from clnet.opencl.child_trial import run_child
from clnet.opencl.discovery import device as find_device
from clnet.opencl.store import Store
from clnet.planning.planner import Planner
from clnet.planning.training_planner import TRAINING_VARIANTS, plan_training
from clnet.training import member_training
from clnet.training.cascade import training
from clnet.variants import Generic
from clnet.variants.cascade.cascade import NeuronsTraining
from clnet.variants.members.members import TrainMembers
from clnet.variants.reference.generic import GenericBackward

NETWORK = Network.mlp([3, 5, 2], seed=1)
# Another driver: the child finds the device itself, and may remember its answers.
DEVICE = clnet.device()
UNTESTED = replace(
    DEVICE, untested=True, driver=f"{DEVICE.driver}, untested", emulated=False
)
# As a step, or as a cover: "killer, all ops".
LEFT_OUT = "killer.* is left out: .* as it did a child process"
IN_CHILD = sys.modules["__main__"].__spec__
IN_CHILD = IN_CHILD is not None and IN_CHILD.name == child_trial.__name__


class Kills:
    """Launches that kill a child process."""

    def cost(self, span, config, device):
        return replace(super().cost(span, config, device), launches=0)

    def launches(self, span, config, device):
        if IN_CHILD:
            os.abort()
        return super().launches(span, config, device)


class Killer(Kills, Generic):
    pass


class TrainingKiller(Kills, GenericBackward):
    pass


def kills(device):
    """A probe, all of whose launches kill a child process."""
    assert IN_CHILD, "the probe ran in the process itself"
    os.abort()


@pytest.fixture(autouse=True)
def importable_in_child(own_store, monkeypatch):
    path = child_environment()["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{path}")


def plan(tune):
    variants = (Killer("killer"), Generic())
    return Planner(NETWORK, UNTESTED, 4, tune, variants).plan()


@pytest.mark.parametrize("tune", [None, False])
def test_a_variant_that_kills_its_process_is_left_out(tune, monkeypatch):
    with pytest.warns(ClnetWarning, match=LEFT_OUT):
        found = plan(tune)
    assert {step.variant.name for step in found.steps} == {"generic"}
    assert found(np.zeros((4, 3), np.float32)).shape == (4, 2)
    # The outcome is remembered.
    monkeypatch.setattr(child_trial, "run_child", None)
    with pytest.warns(ClnetWarning, match=LEFT_OUT):
        found = plan(tune)
    assert {step.variant.name for step in found.steps} == {"generic"}


def test_each_program_is_tried(monkeypatch):
    """A compiler may take a program of a variant, and crash for another network."""
    tried = []
    monkeypatch.setattr(
        child_trial, "run_child",
        lambda command, call, seconds: tried.append(call) or "",
    )
    for network in (NETWORK, NETWORK, Network.mlp([3, 5, 2], "sin", seed=1)):
        Planner(network, UNTESTED, 4, False, (Generic(),)).plan()
    assert len(tried) == 3  # the first has one program for both layers


def test_a_call_that_a_child_cannot_make_is_tried_again(tmp_path):
    store, missing = Store(UNTESTED, tmp_path), replace(UNTESTED, index="9:9")
    assert not child_trial.survives(store, "key", print, missing)
    assert store.fact("survives key") is None
    assert child_trial.survives(store, "key", print, UNTESTED)
    assert store.fact("survives key")


def test_a_step_of_training():
    program = lower_training(NETWORK, LOSSES["mse"], SGD())
    names = ("generic", "generic_backward", "optimisers")
    others = [variant for variant in TRAINING_VARIANTS if variant.name in names]
    variants = (TrainingKiller("killer"), *others)
    with pytest.warns(ClnetWarning, match=LEFT_OUT):
        found = plan_training(
            NETWORK, program, UNTESTED, 4, tune=False, variants=variants
        )
    assert "killer" not in {step.variant.name for step in found.steps}


def test_tested_runtimes_start_no_child(monkeypatch):
    monkeypatch.setattr(child_trial, "run_child", None)
    Planner(NETWORK, replace(UNTESTED, untested=False), 4, None, (Generic(),)).plan()
    assert mapped_host_memory(replace(UNTESTED, untested=False)) in (True, False)


def mapped_host_memory(device):
    """Probe a device as a new process does."""
    probes.mapped_host_memory.cache_clear()
    return find_device(replace(device, mapped_host_memory=None)).mapped_host_memory


def test_a_probe_that_kills_its_process_costs_the_capability(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(probes, "_stores_seen", kills)
        with pytest.warns(ClnetWarning, match="used without mapped_host_memory: its"):
            assert mapped_host_memory(UNTESTED) is False
    # The outcome is remembered.
    monkeypatch.setattr(child_trial, "run_child", None)
    with pytest.warns(ClnetWarning, match="used without mapped_host_memory: its"):
        assert mapped_host_memory(UNTESTED) is False


def test_a_probe_that_leaves_its_process_alive_is_tried_once(monkeypatch):
    children = []
    monkeypatch.setattr(
        child_trial, "run_child",
        lambda *given: children.append(run_child(*given)) or children[-1],
    )
    found = [mapped_host_memory(UNTESTED) for _ in range(2)]
    assert found[0] is found[1] is mapped_host_memory(replace(UNTESTED, untested=False))
    assert children == [""]


def in_this_process(calls):
    """Return a `run_child` that makes the calls here, and adds their results."""
    def run(command, call, seconds):
        function, arguments = pickle.loads(call)
        calls.append(function(*arguments))
        return ""

    return run


class MembersKiller(TrainMembers):
    """Its launches kill a child process."""

    def launches(self, span, config, device):
        if IN_CHILD:
            os.abort()
        return super().launches(span, config, device)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="members is a kernel of CPUs")
def test_a_kernel_of_populations(monkeypatch):
    """A survivor trains all; one that kills is left out, and each trains alone."""
    x, t = np.zeros((4, 3), np.float32), np.ones((4, 2), np.float32)
    options = {"device": UNTESTED, "epochs": 2, "seed": [1, 2], "validation": (x, t)}
    found, calls = Population(NETWORK, 2), []

    with monkeypatch.context() as patch:
        patch.setattr(child_trial, "run_child", in_this_process(calls))
        assert "2 networks together" in found.fit(x, t, **options)[0].plan
    assert len(calls) == 2  # the training, and the validation
    monkeypatch.setattr(
        member_training, "members_variants", lambda *given: (MembersKiller(2, False),)
    )
    left_out = Population(NETWORK, 2)
    with pytest.warns(ClnetWarning, match="members is left out: .* as it did a child"):
        histories = left_out.fit(x, t, **options)
    assert "networks together" not in histories[0].plan
    for number, seed in enumerate(options["seed"]):
        alone = Population(NETWORK, 2)[number]
        alone.fit(x, t, **(options | {"seed": seed}))
        np.testing.assert_array_equal(left_out[number].parameters, alone.parameters)


class CascadeKiller(NeuronsTraining):
    """Its launches kill a child process."""

    def launch(self, device):
        if IN_CHILD:
            os.abort()
        return super().launch(device)


def test_kernels_of_cascade_training(monkeypatch):
    """Survivors train; those that kill are left out, and NumPy trains."""
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    few = Cascade(activation_functions=["tanh"], max_out_epochs=3, max_cand_epochs=3)
    options = {"optimiser": few, "device": UNTESTED, "max_neurons": 1, "seed": 0}
    calls = []

    def plan():
        return Network(3, [Dense(2)], seed=1).fit(x, x[:, :2], **options).plan

    with monkeypatch.context() as patch:
        patch.setattr(child_trial, "run_child", in_this_process(calls))
        assert "cascade of" in plan()
    assert len(calls) == 1
    monkeypatch.setattr(training, "NeuronsTraining", CascadeKiller)
    options["device"] = replace(UNTESTED, driver="another")
    for _ in range(2):  # the outcome is remembered
        with pytest.warns(ClnetWarning, match="cascade is left out: .* as it did a ch"):
            assert plan().startswith("NumPy: ")
        monkeypatch.setattr(child_trial, "run_child", None)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on Windows")
@pytest.mark.parametrize(("work", "outcome"), [
    ("while True: pass", "killed by SIGXCPU"), ("time.sleep(3)", ""),
])
def test_a_trial_is_limited_by_its_own_processor_time(work, outcome):
    """Beside other programs a call takes longer, and is no killer of processes."""
    code = (
        "import time; from clnet.opencl import child_trial as trial\n"
        "trial.PROCESSOR_SECONDS = 2 + int(time.process_time())\n"
        f"trial._limit_processor_time()\n{work}"
    )
    assert run_child((sys.executable, "-c", code)) == outcome


@pytest.mark.parametrize("number", range(4))
def test_a_device_is_found_again(number):
    devices = [UNTESTED, replace(UNTESTED, forward_progress=True), *UNTESTED.companions]
    with suppress(DeviceError):  # not all drivers split
        devices.append(find_device(UNTESTED, units=1))
    if number >= len(devices):
        pytest.skip("the driver does not split, or there is no companion")
    device = devices[number]
    again = pickle.loads(pickle.dumps(device))
    assert again == device
    assert again.forward_progress is device.forward_progress
    assert again.handle.name == device.handle.name
    assert again.handle.max_compute_units == device.compute_units


# The outcome of a child in words


def python(code):
    return (sys.executable, "-c", code)


def test_the_outcome_of_a_child():
    assert run_child(python("pass")) == ""
    assert run_child(python("import os; os.abort()")) == "killed by SIGABRT"
    assert (
        run_child(python("raise SystemExit('a\\nlast words\\n')")) == "last words"
    )
    assert run_child(python("raise SystemExit(3)")) == "exit status 3"
    code = "import os; raise SystemExit(os.environ['ANSWER'])"
    assert run_child(python(code), ANSWER="an answer") == "an answer"
    assert "no answer" in run_child(python("import time; time.sleep(60)"), seconds=0.2)


def test_standard_input():
    code = "import sys; raise SystemExit(sys.stdin.read())"
    assert run_child(python(code), b"given") == "given"

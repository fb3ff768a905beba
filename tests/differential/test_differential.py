"""A short run of the differential tester, and checks of the tester itself."""

from __future__ import annotations

import dataclasses
import secrets
import time
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from bounds import activation_bound
from devices import H200

from clnet import Dense
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.cascade import Shortcut
from clnet.nn.optimisers import SGD, Rprop
from clnet.opencl.discovery import device
from clnet.runtime.executable import Executable
from clnet.runtime.replay import Replay
from clnet.training.member_training import MemberTraining
from clnet.variants.cascade.cascade import NeuronsTraining, NeuronValues

from . import pytorch
from .__main__ import _todo
from .cases import (
    CASCADES,
    FAMILY,
    POPULATIONS,
    SEASON,
    TASKS,
    Case,
    Options,
    Outcome,
    Palette,
    family,
)
from .covers import candidates
from .runner import Runner
from .shrink import _simpler, shrunk
from .workers import Job, Result, Worker, jobs, run_job

# Also of what PoCL's optimiser makes of kernels.
pytestmark = pytest.mark.optimised
FRESH_SECONDS = 2.0
SIMPLE = Case(
    1, "predict", 5, (Dense(4, "tanh"), Dense(3)), batch=3, only=("naive", {})
)


@pytest.fixture(scope="module")
def runner():
    return Runner(device())


def check(runner, cases):
    for case in cases:
        outcome = runner.run(case)
        assert outcome.fault is None, (
            f"seed {case.seed}: {outcome.fault}; python -m tests.differential "
            f"--seed {case.seed} --cases 1"
        )


@pytest.mark.parametrize("number", [
    3, pytest.param(11, marks=pytest.mark.sweep), 27, 93,
])
def test_fixed_seeds(runner, number):
    check(runner, list(family(number))[:4])


def test_a_saturated_sigmoid(runner):
    """Its slope rounds to 0, which SARPROP tells from any small one."""
    seed = 1003723
    check(runner, [list(family(seed // FAMILY))[seed % FAMILY]])


def test_a_population_that_ended_pocls_compiler(runner):
    check(runner, [next(iter(family(757_861)))])


def test_fresh_seeds(runner):
    """Others in each run; the message of a failure names the seed."""
    stop = time.monotonic() + FRESH_SECONDS
    while time.monotonic() < stop:
        for case in list(family(secrets.randbelow(POPULATIONS)))[:8]:
            check(runner, [case])
            if time.monotonic() > stop:
                break


@pytest.mark.parametrize("number", [0, 5, pytest.param(8, marks=pytest.mark.sweep)])
def test_fixed_seeds_of_cascades(runner, number):
    cases = list(family(CASCADES + number))[:4]
    check(runner, cases)
    for case in cases:
        steps = runner.run(case).steps
        assert [name for name, _ in steps] in (["cascade"], ["group_cascade"])


def test_a_seed_makes_one_case():
    for number in (0, 5, 77, CASCADES + 3):
        for one, other in zip(family(number), family(number), strict=True):
            assert one.seed // FAMILY == number
            assert repr(one) == repr(other)
            if number >= CASCADES:
                continue
            np.testing.assert_array_equal(
                one.inputs(3, one.n_in), other.inputs(3, other.n_in)
            )


def test_palettes_have_every_activation():
    palettes = map(Palette.of, range(len(ACTIVATIONS)))
    found = {name for palette in palettes for name in palette.activations}
    assert found == set(ACTIVATIONS)


def test_families_have_every_task():
    tasks = {next(iter(family(number))).task for number in range(6 * SEASON // FAMILY)}
    assert tasks == set(TASKS)


def test_covers_of_equal_devices_are_equal():
    """`fit` has new records of its other devices in each case."""
    program = SIMPLE.network().program
    one, other = (
        candidates(program, 3, dataclasses.replace(H200)) for _ in range(2)
    )
    assert one == other
    assert all("generic" in found for found in one.values())


with_pytorch = pytest.mark.skipif(
    not pytorch.AVAILABLE, reason="PyTorch is not installed"
)


@with_pytorch
def test_pytorchs_activations_are_as_exact_as_the_oracles():
    import torch

    v = np.linspace(-8, 8, 4001)
    for name, function in pytorch.functions().items():
        off = np.abs(function(torch.from_numpy(v)).numpy() - ACTIVATIONS[name].value(v))
        assert (off <= activation_bound(name, v, 0.0, "float64")).all(), name


@with_pytorch
@pytest.mark.parametrize("v", [-1.0, 0.0, 1.0])
def test_slopes_at_kinks_are_pytorchs(v):
    """Both sides agree on a value at a kink, such as the sum of no weights."""
    import torch

    for name, function in pytorch.functions().items():
        at = torch.tensor([v], dtype=torch.float64, requires_grad=True)
        function(at).sum().backward()
        row, z = ACTIVATIONS[name], np.array([v])
        np.testing.assert_allclose(
            row.gradient(z, row.value(z)), at.grad.numpy(), atol=1e-15, err_msg=name
        )


def check_found(monkeypatch, case, owner, name, wrong, words="times its bound"):
    """Check that a case is right, and is not with a wrong function of clnet's."""
    assert Runner(device()).run(case).fault is None
    monkeypatch.setattr(owner, name, wrong)
    assert words in Runner(device()).run(case).fault


def test_a_wrong_output_is_found(monkeypatch):
    run = Executable.run

    def wrong(self):
        run(self)
        for name, rows in self.host.values.items():
            if name not in self.x:
                rows[-1, 0] *= 1.0001

    check_found(monkeypatch, SIMPLE, Executable, "run", wrong)


def test_a_missing_output_is_found(monkeypatch):
    def wrong(self):
        pass

    check_found(monkeypatch, SIMPLE, Executable, "run", wrong, "is nan, expected")


def test_a_write_behind_a_buffer_is_found(monkeypatch):
    run = Executable.run

    def wrong(self):
        run(self)
        buffer = next(iter(self.bound.buffers.values()))
        content = buffer.read(self.session, buffer.size + 1, "uint8")
        content[-1] = 0  # alone: the numbers stay right
        buffer.write(self.session, content)

    check_found(monkeypatch, SIMPLE, Executable, "run", wrong, "were written")


def test_a_wrong_gradient_is_found(monkeypatch):
    case = dataclasses.replace(
        SIMPLE, task="gradients", options=Options(SGD(), "mse", samples=7)
    )
    read = Replay.read_gradients

    def wrong(self):
        flat = read(self)
        flat[np.nanargmax(np.abs(flat))] *= 1.0001
        return flat

    check_found(monkeypatch, case, Replay, "read_gradients", wrong)


@pytest.mark.parametrize("variant", ["members", "vector_members", "group_members"])
def test_a_wrong_network_of_a_population_is_found(monkeypatch, variant):
    options = Options(
        SGD(), "mse", 7, members=3, subsets=variant != "vector_members", rates=True,
        epochs=2,
    )
    case = dataclasses.replace(
        SIMPLE, task="population", options=options, only=(variant, {})
    )
    fit = MemberTraining.fit

    def wrong(self, *arguments, **options):
        finite = fit(self, *arguments, **options)
        self.parameters[-1] *= 1.0001
        return finite

    outcome = Runner(device()).run(case)
    assert outcome.fault is None
    if device().type == "cpu" or variant == "group_members":
        assert {name for name, _ in outcome.steps} == {variant}
    monkeypatch.setattr(MemberTraining, "fit", wrong)
    assert "times its bound" in Runner(device()).run(case).fault


def test_jobs_cover_the_seeds_once():
    found = [s for job in jobs(5, 3 * FAMILY) for s in range(job.first, job.last)]
    assert found == list(range(5, 3 * FAMILY + 5))


def test_jobs_of_few_cases_a_network():
    assert list(jobs(0, 25, 10)) == [
        Job(0, 0, 10), Job(1, FAMILY, FAMILY + 10), Job(2, 2 * FAMILY, 2 * FAMILY + 5)
    ]


def test_a_run_goes_on_where_it_was():
    wanted = list(jobs(0, 2 * FAMILY))
    done = [Result(0, 0, FAMILY), Result(1, FAMILY, FAMILY + 10)]
    assert _todo(wanted, done) == [Job(1, FAMILY + 10, 2 * FAMILY)]
    assert _todo(wanted[:1], done) == []


def test_a_case_that_ended_a_process_is_left_out():
    class Fake:
        ran: ClassVar[list[int]] = []

        def run(self, case):
            self.ran.append(case.seed)
            return Outcome()

    run_job(Fake(), Job(0, 1, 4, left_out=(0, 2)), SimpleNamespace())
    assert Fake.ran == [1, 3]
    worker = Worker.__new__(Worker)
    worker.job, worker._now = Job(0, 1, 4), SimpleNamespace(value=0)
    worker._process = SimpleNamespace(exitcode=-11)
    worker.close = worker._start = lambda: None
    result, = worker._ended("the process ended")  # by a case before the job's
    assert result.faults == {0: "the process ended with code -11"}
    assert worker.job == Job(0, 1, 4, left_out=(0,))


@pytest.mark.parametrize(("fails", "known"), [
    (False, "after the cases of its network before it neither: it fails now and then"),
    (True, "after the cases of its network before it it does"),
])
def test_a_case_that_does_not_fail_again_alone(monkeypatch, fails, known):
    first, case = (dataclasses.replace(SIMPLE, seed=seed) for seed in (1, 2))

    class Fake:
        ran: ClassVar[list[int]] = []

        def run(self, one):
            self.ran.append(one.seed)
            wrong = fails and self.ran[-2:] == [1, 2]
            return Outcome("WrongError: far off" if wrong else None)

    monkeypatch.setattr(shrunk.__module__ + ".family", lambda _: [first, case])
    assert shrunk(2, Fake()) == f"run again alone it does not fail; {known}"
    assert Fake.ran == [2, 1, 2]


def test_cases_are_shrunk(monkeypatch):
    """A fault of layers with more than 2 neurons, in batches of more than 3."""
    class Fake:
        def run(self, case):
            large = any(layer.n_out > 2 for layer in case.layers)
            wrong = large and case.batch > 3 and case.task == "predict"
            return Outcome("WrongError: far off" if wrong else None,
                           steps=(("gemm", "{'tile': 1}"),))

    case = dataclasses.replace(SIMPLE, batch=64)
    monkeypatch.setattr(shrunk.__module__ + ".family", lambda _: [case])
    text = shrunk(case.seed, Fake())
    assert "batch=4" in text
    assert "n_out=3" in text
    assert "n_in=1" in text
    assert "only=('gemm', {'tile': 1})" in text


def test_layers_of_a_steepness_each_are_shrunk():
    layer = Dense(3, steepness=(0.5, 1.0, 2.0))
    assert {one.steepness for one in _simpler(layer)} == {layer.steepness, 1.0}


def cascade():
    """Return a cascade training with a rule and functions that tests below change."""
    case = next(iter(family(CASCADES)))
    chosen = dataclasses.replace(
        case.options.chosen, rule=Rprop(), activation_functions=("tanh",),
        max_out_epochs=3, max_cand_epochs=3,
    )
    return dataclasses.replace(case, seed=8, options=dataclasses.replace(
        case.options, chosen=chosen, neurons=1, samples=40, kernel="gpu",
    ))


@pytest.mark.parametrize(("kind", "wrong", "what"), [
    (NeuronsTraining, {"INCREASE_FACTOR": "1.20001f"}, "the weights of "),
    (NeuronsTraining, {"DECREASE_FACTOR": "0.50001f"}, "the weights of "),
    (NeuronValues, {"act_tanh": "1.0001f * act_tanh"}, "a neuron's values"),
], ids=["step", "turn", "values"])
def test_a_wrong_launch_of_a_cascade_is_found(kind, wrong, what, monkeypatch):
    launch = kind.launch

    def changed(self, device):
        found = launch(self, device)
        defines = {
            name: next((
                text.replace(old, new) for old, new in wrong.items()
                if isinstance(text, str) and old in text
            ), text)
            for name, text in found.defines.items()
        }
        known = {name: text for name, text in wrong.items() if name in defines}
        return dataclasses.replace(found, defines={**defines, **known})

    check_found(monkeypatch, cascade(), kind, "launch", changed, what)


def test_a_wrong_network_of_a_cascade_is_found(monkeypatch):
    grown = Shortcut.network

    def wrong(self, like):
        found = grown(self, like)
        found.parameters = found.parameters * np.float32(1.0001)
        return found

    case = cascade()
    options = dataclasses.replace(case.options, validation=30)
    case = dataclasses.replace(case, options=options)
    words = "validation[] is off by"
    check_found(monkeypatch, case, Shortcut, "network", wrong, words)

"""The planner of populations: its choice, its measurements, and its words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from devices import DEVICE, H200

from clnet import Network, Population
from clnet.errors import WIDTH, DeviceError, InputError
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam, Rprop
from clnet.opencl.store import Timing
from clnet.opencl.times_file import plain_key
from clnet.planning.planner import Planner
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning import times
from clnet.planning.tuning.trial import StepTrial
from clnet.runtime.member_replay import MemberReplay
from clnet.training import member_training
from clnet.variants.members import members_variants
from clnet.variants.members.group_members import GroupMembers
from clnet.variants.members.members import TrainMembers
from clnet.variants.training.whole_step import LANES

RNG = np.random.default_rng(0)
N, SAMPLES = 10, 21
X = RNG.uniform(-1, 1, (SAMPLES, 3)).astype(np.float32)
T = RNG.uniform(0, 1, (SAMPLES, 2)).astype(np.float32)
LONG = 10**7  # epochs of a training that pays to measure for

# The rows of `benchmarks/results/population*.csv`: sizes, samples, rule.
CASES = {
    "xor": ([2, 4, 1], 4, Rprop()),
    "parity": ([8, 32, 1], 256, Rprop()),
    "iris": ([4, 16, 3], 150, Adam()),
    "robot": ([48, 96, 3], 374, Rprop()),
    "gene": ([120, 4, 2, 3], 1588, Rprop()),
    "mushroom": ([125, 32, 2], 4062, Rprop()),
    "digits": ([64, 128, 10], 1797, Adam()),
    "fold": ([64, 100, 10], 1437, Adam()),
}
NETWORKS = [1, 10, 100, 1000, 10_000, 100_000]
TWO_CORES = replace(
    DEVICE, type="cpu", compute_units=2, companions=(), compute_capability=None,
    simd_width=1, vector_width=8, measured=None,
)
DEVICES = {
    "two cores": TWO_CORES,
    "16 cores": replace(TWO_CORES, compute_units=16),
    "matrix units": H200,
    "no matrix units": replace(
        H200, compute_capability=None, simd_width=64, compute_units=104
    ),
}
DEVICES = {  # with room for all: the choice is by the model
    name: replace(one, global_memory=1 << 40, largest_buffer=1 << 40)
    for name, one in DEVICES.items()
}
BY_LANES = {"xor", "parity", "iris"}  # on GPUs, whatever their number
BY_VECTORS = {"xor", "iris"}  # on CPUs, where there are enough for all lanes


def planner(case, members, device, tune=False):
    sizes, samples, rule = CASES[case]
    network = Network.mlp(sizes, "tanh", seed=0)
    program = lower_training(network, loss_function("mse"), rule)
    variants = members_variants(device, members, samples, False, True)
    return Planner(
        network, device, samples, tune, variants, program, trial=StepTrial
    )


@pytest.mark.parametrize("members", NETWORKS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("own_store")
def test_the_choice_without_a_measurement(case, device, members):
    """By the cost model alone, the kernels of the committed rows."""
    place = DEVICES[device]
    (step,) = planner(case, members, place)._find_cover().steps
    assert step.config == next(iter(step.variant.space(step.span, place)))
    if place.type != "cpu":
        name = "lane_members" if case in BY_LANES else "group_members"
    elif case in BY_VECTORS and members >= LANES * place.compute_units:
        name = "vector_members"
    else:
        name = "members"
    assert step.variant.name == name


def test_every_candidate_has_a_price():
    """Many networks cost more than few."""
    for case, device in (("parity", "matrix units"), ("iris", "two cores")):
        few, many = (
            planner(case, members, DEVICES[device], tune=True).candidates()
            for members in (16, 10_000)
        )
        assert len(few) == len(many) > (1 if device == "two cores" else 20)
        assert all(c.modelled > 0 for c in few)
        assert min(c.modelled for c in many) > 10 * min(c.modelled for c in few)


@pytest.fixture
def timed(own_store, monkeypatch):
    """The kernels that are timed; each is compared, and takes what a table says."""
    seconds, seen = {}, []

    def ready(self, steps, inputs, outputs, **rest):
        (step,) = steps
        seen.append(step.variant.name)
        found = seconds.get(step.variant.name, 1e-3)
        return Timing(found, found, 0.0)

    monkeypatch.setattr(StepTrial, "ready", ready)
    return seconds, seen


def population_of(count=N):
    return Population(Network.mlp([3, 4, 2], "tanh", seed=0), count)


def fit(count=N, **options):
    made = population_of(count)
    return made, made.fit(X, T, **{
        "optimiser": "rprop", "seed": 1, "desired_error": 1e9, **options
    })


def chosen(text):
    """The kernel of an explanation."""
    return re.search(r"^1-2 +(\w+)", text, re.MULTILINE)[1]


@pytest.fixture
def two_kernels(monkeypatch):
    """Kernels that every device runs, without one that its model prefers."""
    monkeypatch.setattr(
        member_training, "members_variants",
        lambda device, n, samples, subsets, alike: (
            GroupMembers(n, subsets), Other(n, subsets)
        ),
    )


@dataclass(frozen=True)
class Other(GroupMembers):
    """The same kernel by another name."""

    name: str = "other"


@pytest.mark.usefixtures("two_kernels")
@pytest.mark.parametrize("faster", ["group_members", "other"])
def test_a_long_training_measures_and_remembers(timed, faster):
    seconds, seen = timed
    seconds[faster] = 1e-4
    _, histories = fit(epochs=LONG)
    assert set(seen) == {"group_members", "other"}
    assert chosen(histories[0].plan) == faster
    assert "measured whole" in " ".join(histories[0].plan.split())
    times.store_of.cache_clear()  # another process
    seen.clear()
    for again in (LONG, 2):  # a short one takes what is known
        assert chosen(fit(epochs=again)[1][0].plan) == faster
    assert not seen


@pytest.mark.usefixtures("two_kernels")
def test_a_short_training_measures_nothing_unless_asked(timed):
    seconds, seen = timed
    seconds["other"] = 1e-4
    assert "too short" in fit(epochs=2)[1][0].plan
    assert not seen
    assert chosen(fit(epochs=2, tune=False)[1][0].plan) == "group_members"
    assert not seen
    assert chosen(fit(epochs=2, tune=True)[1][0].plan) == "other"
    assert len(seen) > 2  # configurations too
    with pytest.raises(InputError, match="tune must be True, False or None, not 'no'"):
        fit(tune="no")


@pytest.mark.usefixtures("own_store", "two_kernels")
def test_measuring_changes_nothing(monkeypatch):
    """The networks end as by the same kernel without a measurement, bit for bit."""
    options = {"epochs": 3, "desired_error": None, "validation": (X[:9], T[:9])}
    plain, histories = fit(**options, tune=False)
    seen, ready = [], StepTrial.ready

    def noted(self, steps, *parts, **options):
        seen.append(steps[0].variant.members)
        return ready(self, steps, *parts, **options)

    monkeypatch.setattr(StepTrial, "ready", noted)
    made = population_of()
    made.explain(X, T, **{**options, "optimiser": "rprop", "tune": True})
    assert set(seen) == {N}
    np.testing.assert_array_equal(made.parameters, population_of().parameters)
    monkeypatch.setattr(  # the kernel of before, in the configuration of before
        GroupMembers, "space", lambda self, span, device, first=GroupMembers.space: (
            next(iter(first(self, span, device))),
        )
    )
    monkeypatch.setattr(
        member_training, "members_variants",
        lambda device, n, samples, subsets, alike: (GroupMembers(n, subsets),),
    )
    tuned, others = fit(**options, tune=True)
    np.testing.assert_array_equal(tuned.parameters, plain.parameters)
    np.testing.assert_array_equal(others[3].loss, histories[3].loss)
    np.testing.assert_array_equal(
        others[3].validation_loss, histories[3].validation_loss
    )


@pytest.mark.usefixtures("own_store", "two_kernels")
@pytest.mark.parametrize("call", [1, 2, 4])
def test_an_interrupt_leaves_all_as_it_was(monkeypatch, call):
    calls, run = [], MemberReplay.run_members

    def interrupted(self, *given):
        calls.append(given)
        if len(calls) == call:
            raise KeyboardInterrupt
        return run(self, *given)

    made = population_of()
    before = made.parameters
    with monkeypatch.context() as patch:
        patch.setattr(MemberReplay, "run_members", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.fit(X, T, optimiser="rprop", epochs=2, seed=1, tune=True)
    assert made.parameters is before
    np.testing.assert_array_equal(before, population_of().parameters)
    made.fit(X, T, optimiser="rprop", epochs=2, seed=1, tune=False)
    np.testing.assert_array_equal(
        made.parameters, fit(epochs=2, tune=False, desired_error=None)[0].parameters
    )


def test_a_choice_can_be_forced():
    network = Network.mlp([3, 4, 2], "tanh", seed=0)
    program = lower_training(network, loss_function("mse"), Rprop())

    def forced(*variants):
        return plan_training(
            network, program, DEVICE, SAMPLES, tune=False, variants=variants
        )

    (step,) = forced(GroupMembers(N)).steps
    assert step.variant == GroupMembers(N)
    gpu = replace(DEVICE, type="gpu", companions=())
    with pytest.raises(DeviceError, match="members: it is a CPU-only kernel"):
        plan_training(
            network, program, gpu, SAMPLES, tune=False, variants=[TrainMembers(N)]
        )


@pytest.mark.usefixtures("own_store")
def test_names_of_times_have_all_that_they_depend_on():
    """Also without the fingerprint, as in files of times."""
    network = Network.mlp([3, 4, 2], "tanh", seed=0)
    names = {}
    for members in (N, N + 1):
        for samples in (SAMPLES, 2 * SAMPLES):
            for subsets in (False, True):
                for rule in (Rprop(), Adam()):
                    program = lower_training(
                        network, loss_function("mse"), rule, samples=samples
                    )
                    made = Planner(
                        network, DEVICE, 8, True, (GroupMembers(members, subsets),),
                        program, trial=StepTrial,
                    )
                    for c in made.candidates():
                        span = made.times.span(c.start, c.stop)
                        name = (
                            made.times.trial.signature(c.step, span),
                            plain_key(made.times.key_of(c.step)),
                        )
                        what = members, samples, subsets, rule, repr(c.step.config)
                        assert names.setdefault(name, what) == what
    assert len(names) == len(set(names.values()))


OPTIONS = [
    {"optimiser": "rprop"},
    {"optimiser": "adam", "batch_size": 8},
    {"optimiser": "rprop", "rows": [RNG.permutation(SAMPLES)[:15] for _ in range(N)]},
    {"optimiser": ["rprop"] * 4 + ["batch"] * 6, "l2": 0.1},
    {"optimiser": "rprop", "validation": (X, T)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("tune", [False, None])
def test_explain_and_history_agree(options, tune):
    options = {"epochs": 2, "seed": 1, "tune": tune, **options}
    made = population_of()
    text = made.explain(X, T, **options)
    found = made.fit(X, T, **options)
    plans = list(dict.fromkeys(one.plan for one in found))
    assert text == "\n\n".join(plans)
    for plan in plans:
        assert all(len(line) <= WIDTH for line in plan.splitlines())
        words = " ".join(plan.split())
        assert re.match(r"\d+ networks together, 3-4-2, float32, batch \d+, on ", words)
        for part in ("expected: ", "launches: one for 4096 epochs", "memory: "):
            assert part in words
        assert "samples" in words and "a step of training, modelled" in words


def test_explain_says_why_kernels_cannot():
    double = Population(Network.mlp([3, 4, 2], "tanh", seed=0, dtype="float64"), N)
    text = double.explain(X, T, optimiser="rprop")
    words = " ".join(text.split())
    assert words.startswith(f"{N} networks one after the other: no cover of this")
    assert "it computes in float32 only" in words
    assert all(len(line) <= WIDTH for line in text.splitlines())
    with pytest.raises(InputError, match="leave out comm"):
        double.explain(X, T, comm=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        double.explain(X, T, epoch=3)


def test_explain_leaves_the_network_as_it_is():
    made = Population(Network.mlp([3, 4, 2], output="softmax", seed=0), N)
    made.explain(X, np.array(["a", "b"])[(X[:, 0] > 0).astype(int)])
    assert made.network.classes is None

"""Kernels of populations are compared with the oracle before they train, once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from variant_cases import selected

from clnet import Network, Population
from clnet.errors import ClnetWarning
from clnet.opencl.discovery import device
from clnet.planning.tuning import times
from clnet.planning.tuning.trial import MOST, StepTrial
from clnet.runtime.member_replay import MemberReplay
from clnet.training import member_training
from clnet.variants.members.group_members import GroupMembers, LaneMembers
from clnet.variants.members.members import TrainMembers, VectorMembers

pytestmark = pytest.mark.usefixtures("own_store")
N, SAMPLES = 10, 21
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (SAMPLES, 3)).astype(np.float32)
T = RNG.uniform(0, 1, (SAMPLES, 2)).astype(np.float32)
ROWS = [RNG.permutation(SAMPLES)[: 12 + i % 3] for i in range(N)]
KERNELS = {
    "group_members": lambda n, samples, subsets, alike: GroupMembers(n, subsets),
    "lane_members": lambda n, samples, subsets, alike: LaneMembers(n, samples, subsets),
    **({
        "members": lambda n, samples, subsets, alike: TrainMembers(n, subsets),
        "vector_members": lambda n, samples, subsets, alike: VectorMembers(
            2, alike and not subsets
        ),
    } if device().type == "cpu" else {}),
}
OPTIONS = [
    {"optimiser": "rprop"}, {"optimiser": "adam", "batch_size": 8},
    {"optimiser": "sarprop"}, {"optimiser": "incremental"},
    {"optimiser": "rprop", "sample_weight": RNG.uniform(0, 1, (N, SAMPLES))},
    {"optimiser": "sgd", "batch_size": 8, "sample_weight": RNG.uniform(0, 1, SAMPLES)},
    {"optimiser": "quickprop", "rows": ROWS, "validation": "rest"},
]


def corrupted(kind, defines):
    """Return a kind of variant whose kernel has other constants."""
    @dataclasses.dataclass(frozen=True)
    class Wrong(kind):
        name: str = "wrong"

        def launches(self, span, config, device):
            return tuple(
                dataclasses.replace(one, defines={**one.defines, **defines(one)})
                for one in super().launches(span, config, device)
            )

    return Wrong


def rprop(launch):
    """RPROP's constant, of launches that train."""
    trains = "INCREASE_FACTOR" in launch.defines
    return {"INCREASE_FACTOR": "1.3f"} if trains else {}


def forced(monkeypatch, *kernels):
    monkeypatch.setattr(
        member_training, "members_variants",
        lambda device, *given: tuple(kernel(*given) for kernel in kernels),
    )


def fit(**options):
    made = Population(Network.mlp([3, 4, 2], "tanh", seed=0), N)
    options = {"epochs": 2, "optimiser": "rprop", "seed": 1, **options}
    return made, made.fit(X, T, **options)


@pytest.fixture
def compared(monkeypatch):
    """The variants that were compared, and whether they could be."""
    seen, fault = [], StepTrial._fault

    def counted(self, steps, *parts):
        found = fault(self, steps, *parts)
        seen.append((steps[0].variant.name, found[1]))
        return found

    monkeypatch.setattr(StepTrial, "_fault", counted)
    return seen


@pytest.mark.parametrize(("name", "options"), selected(
    {name: name for name in KERNELS},
    {str(number): options for number, options in enumerate(OPTIONS)},
    quick=lambda kernel, options: kernel == 0 or options < 2,
))
def test_right_kernels_train(name, options, monkeypatch, compared):
    forced(monkeypatch, KERNELS[name])
    _, histories = fit(**options)
    if name not in histories[0].plan:
        pytest.skip("the kernel takes no such training")
    assert set(compared) == {(name, True)}
    assert len(compared) == (2 if "validation" in options else 1)


def test_a_wrong_kernel_is_left_out(monkeypatch):
    right = KERNELS["group_members"]
    wrong = corrupted(GroupMembers, rprop)
    forced(monkeypatch, lambda n, samples, subsets, alike: wrong(n, subsets), right)
    with pytest.warns(ClnetWarning, match="^wrong is left out: wrong differs from the"):
        found, histories = fit()
    assert "group_members" in histories[0].plan
    forced(monkeypatch, right)
    np.testing.assert_array_equal(found.parameters, fit()[0].parameters)


@pytest.mark.parametrize("where", ["training", "validation"])
def test_without_a_right_kernel_networks_train_one_by_one(where, monkeypatch):
    def defines(launch):
        if bool(launch.defines["UPDATE"]) != (where == "training"):
            return {}
        functions = launch.defines["FUNCTIONS(X)"]
        return {"FUNCTIONS(X)": functions.replace("act_tanh", "act_elu")}

    wrong = corrupted(GroupMembers, defines)
    forced(monkeypatch, lambda n, samples, subsets, alike: wrong(n, subsets))
    with pytest.warns(ClnetWarning, match="^wrong is left out: wrong differs from the"):
        found, histories = fit(validation=(X[:9], T[:9]))
    assert "networks together" not in histories[0].plan
    single = Population(Network.mlp([3, 4, 2], "tanh", seed=0), N)[N - 1]
    single.fit(X, T, epochs=2, optimiser="rprop", seed=1)
    np.testing.assert_array_equal(found.parameters[N - 1], single.parameters)


def test_a_kernel_that_does_not_build_is_left_out(monkeypatch):
    broken = corrupted(GroupMembers, lambda launch: {"TILE": "no number"})
    forced(
        monkeypatch, lambda n, samples, subsets, alike: broken(n, subsets),
        KERNELS["group_members"],
    )
    with pytest.warns(ClnetWarning, match="^wrong is left out: "):
        assert "group_members" in fit()[1][0].plan


@pytest.mark.parametrize("member", [0, MOST - 2, MOST - 1])
def test_one_wrong_network_is_found(member, monkeypatch):
    run = MemberReplay.run_members

    def wrong(self, *given):
        launch = run(self, *given)
        launch.last[member, 1] *= 1.001
        return launch

    monkeypatch.setattr(MemberReplay, "run_members", wrong)
    forced(monkeypatch, KERNELS["group_members"])
    with pytest.warns(ClnetWarning, match=f"differs .* in row {member},"):
        fit()


def test_a_kernel_is_compared_once_per_device(monkeypatch, compared):
    forced(monkeypatch, KERNELS["group_members"])

    def count(**options):
        compared.clear()
        fit(**options)
        return len(compared)

    assert count() == 1
    assert count() == count(seed=2) == count(epochs=3) == 0
    times.store_of.cache_clear()  # another process
    assert count() == 0
    assert count(optimiser="adam") == 1
    assert count(optimiser="adam", batch_size=SAMPLES) == 0
    assert count(optimiser="adam", batch_size=5) == 1
    assert count(rows=ROWS) == 1


def test_large_trainings_are_compared_at_a_smaller_size(monkeypatch):
    steps = []
    monkeypatch.setattr(
        StepTrial, "_fault", lambda self, found, *parts:
        steps.extend(found) or (None, True)
    )
    forced(monkeypatch, KERNELS["group_members"])
    n = 10007
    x, t = np.zeros((n, 40), np.float32), np.zeros((n, 9), np.float32)
    made = Population(Network.mlp([40, 60, 9], "tanh", seed=0), 2)
    for batch in (None, 100):
        made.fit(x, t, epochs=1, optimiser="adam", batch_size=batch or n, seed=0,
                 tune=False)
    whole, part = (step.span for step in steps)
    assert 256 <= whole.batch < n
    assert part.batch == 100
    assert part.ops[0].samples == 107  # a whole step, and one as large as the last

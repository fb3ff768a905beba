"""A short run of the differential tester's cascade trainings, and checks of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clnet.nn.optimisers import Rprop
from clnet.opencl.discovery import device
from clnet.variants.cascade.cascade import NeuronsTraining, NeuronValues

from .cases import CASCADES, FAMILY, Case, family
from .runner import Runner

# Also of what PoCL's optimiser makes of kernels.
pytestmark = pytest.mark.optimised


@pytest.fixture(scope="module")
def runner():
    return Runner(device())


@pytest.mark.parametrize("number", [0, 5, pytest.param(8, marks=pytest.mark.sweep)])
def test_fixed_seeds(runner, number):
    for case in list(family(CASCADES + number))[:4]:
        outcome = runner.run(case)
        assert [name for name, _ in outcome.steps] in (["cascade"], ["group_cascade"])
        assert outcome.fault is None, (
            f"seed {case.seed}: {outcome.fault}; python -m tests.differential "
            f"--seed {case.seed} --cases 1"
        )


def test_a_seed_makes_one_case():
    number = CASCADES + 3
    for one, other in zip(family(number), family(number), strict=True):
        assert one.seed // FAMILY == number
        assert one == other


def simple() -> Case:
    """Return a case with a rule and functions that the tests below change."""
    case = next(iter(family(CASCADES)))
    chosen = replace(
        case.options.chosen, rule=Rprop(), activation_functions=("tanh",),
        max_out_epochs=3, max_cand_epochs=3,
    )
    return replace(case, seed=8, options=replace(
        case.options, chosen=chosen, neurons=1, samples=40, kernel="gpu",
    ))


@pytest.mark.parametrize(("kind", "wrong", "what"), [
    (NeuronsTraining, {"INCREASE_FACTOR": "1.20001f"}, "the weights of "),
    (NeuronsTraining, {"DECREASE_FACTOR": "0.50001f"}, "the weights of "),
    (NeuronValues, {"act_tanh": "1.0001f * act_tanh"}, "a neuron's values"),
], ids=["step", "turn", "values"])
def test_a_wrong_launch_is_found(kind, wrong, what, monkeypatch):
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
        return replace(found, defines={**defines, **known})

    assert Runner(device()).run(simple()).fault is None
    monkeypatch.setattr(kind, "launch", changed)
    fault = Runner(device()).run(simple()).fault
    assert fault is not None
    assert what in fault
    assert "times its bound" in fault


def test_a_wrong_network_is_found(monkeypatch):
    from clnet.nn.cascade import Shortcut

    grown = Shortcut.network

    def wrong(self, like):
        found = grown(self, like)
        found.parameters = found.parameters * np.float32(1.0001)
        return found

    case = replace(simple(), options=replace(simple().options, validation=30))
    assert Runner(device()).run(case).fault is None
    monkeypatch.setattr(Shortcut, "network", wrong)
    assert "validation[] is off by" in Runner(device()).run(case).fault

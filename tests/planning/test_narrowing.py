"""Comparisons of programs with many sparse inputs, at fewer of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import clnet
from clnet import Dense, Network
from clnet.ir.lowering import lower, lower_training
from clnet.ir.sparse_input import SparseShape
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam
from clnet.nn.regularisation import Regularisation
from clnet.planning.training_planner import plan_training
from clnet.planning.tuning import narrowing, oracle
from clnet.planning.tuning.narrowing import narrowed
from clnet.planning.tuning.oracle import WrongResultError
from clnet.planning.tuning.trial import StepTrial
from clnet.variants.sparse.sparse_outer import SparseInput

DEVICE = clnet.device()
SHAPE = SparseShape(50, 500)


def network(n_in, second=4):
    layers = [Dense(6, "tanh"), Dense(second, bias=False), Dense(3, sources=(0, 2))]
    return Network(n_in, layers, seed=1)


def program_of(net):
    return lower_training(
        net, loss_function("mse"), Adam(), samples=50, shuffled=True, sparse=SHAPE,
        regularisation=Regularisation(l2=0.1, clip_norm=1.0),
    )


def test_a_narrowed_program_is_that_of_a_narrower_network(monkeypatch):
    monkeypatch.setattr(narrowing, "INPUTS", 64)
    wide, narrow = network(1501), network(64)
    found = narrowed(wide, program_of(wide))
    assert found.program == program_of(narrow)
    assert found.storages == narrow.storages
    given = Network(64, narrow.layers)
    given.parameters = found.parameters
    for layer, columns in enumerate((64, 6, 64 + 4)):
        expected = wide.weights(layer)
        if layer != 1:
            expected = np.concatenate([expected[:, :64], expected[:, 1501:]], axis=1)
        assert expected.shape[1] == columns
        np.testing.assert_array_equal(given.weights(layer), expected)
        np.testing.assert_array_equal(given.biases(layer), wide.biases(layer))


def test_programs_of_few_or_dense_inputs_are_not_narrowed():
    net = network(1501)
    assert narrowed(net, program_of(net)) is None
    assert narrowed(network(5000), lower(network(5000))) is None


def test_oracles_have_few_inputs_and_find_faults(monkeypatch):
    monkeypatch.setattr(narrowing, "INPUTS", 64)
    sizes = []

    def counted(op, values, parameters, *given):
        sizes.append(parameters.size)
        return run_perturbed(op, values, parameters, *given)

    run_perturbed = oracle.run_perturbed
    monkeypatch.setattr(oracle, "run_perturbed", counted)
    net = network(3000, 5)  # another than in the store
    plan = plan_training(net, program_of(net), DEVICE, 16, tune=False)
    tried = StepTrial(net, program_of(net), DEVICE)
    tried.check(plan.steps, (), plan.program.outputs)
    assert max(sizes) < 1500

    steps = [
        replace(step, variant=Halved()) if step.variant == SparseInput() else step
        for step in plan.steps
    ]
    with pytest.raises(WrongResultError, match="sparse_input"):
        tried.check(steps, (), plan.program.outputs)


class Halved(SparseInput):
    """Takes half of the batch's samples."""

    def launches(self, span, config, device):
        *others, last = super().launches(span, config, device)
        arguments = tuple(
            span.batch // 2 if argument == span.batch else argument
            for argument in last.arguments
        )
        return *others, replace(last, arguments=arguments)

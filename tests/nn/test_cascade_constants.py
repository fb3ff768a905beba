"""Cascade training's constants, and shortcut networks that grow."""

import numpy as np
import pytest

import clnet
from clnet.nn.cascade import Cascade, Row, Shortcut, cascade_of
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.optimisers import Quickprop, Rprop


def test_defaults_are_fanns():
    cascade = Cascade()
    assert cascade.candidates == 80
    assert cascade.update == Rprop()
    assert FannParameters(**cascade.as_fann()) == FannParameters()


def test_of_fann_and_back():
    parameters = FannParameters(
        training_algorithm="quickprop", quickprop_mu=2.0, cascade_max_cand_epochs=7,
        cascade_activation_functions=("tanh", "gaussian"),
        cascade_activation_steepnesses=(0.5,), cascade_num_candidate_groups=3,
    )
    cascade = Cascade.of_fann(parameters)
    assert cascade.update == Quickprop(mu=2.0)
    assert cascade.candidates == 6
    assert FannParameters(**cascade.as_fann()) == parameters


def test_candidates_are_in_fanns_order():
    cascade = Cascade(
        activation_functions=["sigmoid", "tanh"], activation_steepnesses=[0.25, 1.0]
    )
    found = [(one.activation, one.steepness, one.limit) for one in cascade.neurons()]
    assert found == [
        ("sigmoid", 0.5, 600.0), ("sigmoid", 0.5, 600.0),
        ("sigmoid", 2.0, 150.0), ("sigmoid", 2.0, 150.0),
        ("tanh", 0.25, 600.0), ("tanh", 0.25, 600.0),
        ("tanh", 1.0, 150.0), ("tanh", 1.0, 150.0),
    ]


@pytest.mark.parametrize("wrong, words", [
    ({"rule": "adam"}, "one of rprop, quickprop, sarprop, not by adam"),
    ({"rule": "incremental"}, "not by incremental"),
    ({"activation_functions": ["gelu"]}, "FANN has no activation"),
    ({"activation_functions": []}, "needs candidates"),
    ({"num_candidate_groups": 0}, "needs candidates"),
    ({"max_out_epochs": 0}, "max_out_epochs of cascade training must be at least 1"),
    ({"weight_multiplier": "much"}, "weight_multiplier"),
])
def test_wrong_constants(wrong, words):
    with pytest.raises(clnet.errors.InputError, match=words):
        Cascade(**wrong)


def test_by_name_the_networks_parameters_are_taken():
    net = clnet.Network(2, [clnet.Dense(1)], fann=FannParameters(
        cascade_num_candidate_groups=5
    ))
    found = cascade_of(net, "cascade")
    assert found.num_candidate_groups == 5
    assert found.update == Rprop(moves_at_zero=True)
    net.fann = None
    assert cascade_of(net, "cascade") == Cascade()


def test_a_network_grows_and_keeps_its_outputs():
    net = clnet.Network(2, [
        clnet.Dense(3, "tanh", sources=(0,)), clnet.Dense(2, "sigmoid", sources=(0, 1)),
    ], seed=0)
    shortcut = Shortcut.of(net)
    assert shortcut.read == 6
    np.testing.assert_array_equal(shortcut.output.weights[:, 2], net.biases(1))
    row = Row(clnet.Dense(1, "sin", 0.5), np.full((1, 6), 0.25, np.float32))
    weights = np.insert(shortcut.output.weights, 6, 0, axis=1)
    grown = shortcut.grown(row, weights).network(net)
    assert grown.sizes == (2, 3, 1, 2)
    assert [layer.sources for layer in grown.layers] == [(0,), (0, 1), (0, 1, 2)]
    x = np.random.default_rng(0).normal(size=(9, 2))
    np.testing.assert_allclose(grown.predict(x), net.predict(x), rtol=1e-6)
    assert Shortcut.of(grown).network(net).layers == grown.layers


@pytest.mark.parametrize("layers, options, words", [
    ([clnet.Dense(3), clnet.Dense(1)], {}, "layer 1 that does not read all earlier"),
    ([clnet.Dense(1)], {"dtype": "float64"}, "is in float64"),
    ([clnet.Dense(2, "softmax")], {}, "has softmax outputs"),
    ([clnet.Dense(1, bias=False)], {}, "without biases"),
    ([clnet.Sparse(1, density=0.5)], {}, "has a Sparse layer"),
    ([clnet.Dense(2, dropout=0.5), clnet.Dense(1, sources=(0, 1))], {}, "dropout"),
])
def test_other_networks_are_refused(layers, options, words):
    net = clnet.Network(4, layers, seed=0, **options)
    with pytest.raises(clnet.errors.InputError, match=words):
        net.fit([[0, 0, 0, 1]], [[1] * net.n_out], optimiser="cascade")

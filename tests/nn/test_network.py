"""Networks: description, initial values, parameters, and what is refused."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnet import Dense, Network
from clnet.errors import InputError
from clnet.nn.initialisers import INITIALISERS, initialiser

# Description ------------------------------------------------------------------------


def test_what_a_network_says_of_itself():
    network = Network(3, [Dense(5, "relu"), Dense(2, "softmax", bias=False)], seed=0)
    assert (network.n_in, network.n_out, network.sizes) == (3, 2, (3, 5, 2))
    assert (network.dtype, network.fann_compatible, network.fann) == (
        "float32", False, None,
    )
    assert network.layers == (Dense(5, "relu"), Dense(2, "softmax", bias=False))
    assert [storage.signature for storage in network.storages] == [
        "dense[5,3]", "dense[2,5]",
    ]
    assert network.layout.biases[1] is None
    assert repr(network) == "<Network 3-5-2 float32>"


def test_mlp():
    network = Network.mlp([4, 3, 2], "tanh", dtype="float64", seed=1)
    assert network.layers == (Dense(3, "tanh"), Dense(2, "tanh"))
    assert network.dtype == "float64"
    several = Network.mlp((4, 3, 2), ["relu", "softmax"])
    assert [layer.activation for layer in several.layers] == ["relu", "softmax"]
    assert [layer.activation for layer in Network.mlp([4, 3]).layers] == ["sigmoid"]


def test_a_layer_takes_one_value_or_one_a_neuron():
    layer = Dense(2, ["tanh", "relu"], np.array([0.5, 2]))
    assert layer.activation == ("tanh", "relu")
    assert layer.steepness == (0.5, 2.0)
    assert layer == Dense(2, ("tanh", "relu"), (0.5, 2.0))
    assert hash(layer) == hash(Dense(2, ("tanh", "relu"), [0.5, 2]))


def test_layers_may_come_from_a_generator():
    assert Network(2, (Dense(n) for n in (3, 4))).sizes == (2, 3, 4)


def test_numpys_numbers_are_numbers():
    network = Network(np.int64(2), [Dense(np.int32(3), steepness=np.float32(0.5))])
    assert network.sizes == (2, 3)
    assert type(network.n_in) is int


BAD_DENSE = [
    ({"n_out": 0}, "n_out must be a whole number of at least 1, not 0"),
    ({"n_out": -3}, "n_out"),
    ({"n_out": 2.0}, "n_out"),
    ({"n_out": True}, "n_out"),
    ({"n_out": "3"}, "n_out"),
    ({"n_out": None}, "n_out"),
    ({"n_out": 2, "activation": "tahn"}, "did you mean 'tanh'"),
    ({"n_out": 2, "activation": None}, "activation"),
    ({"n_out": 2, "activation": 3}, "activation"),
    ({"n_out": 2, "activation": ("tanh",)}, "activation has 1 entries for 2 neurons"),
    ({"n_out": 2, "activation": ("tanh", "softmax")}, "softmax"),
    ({"n_out": 2, "activation": ("tanh", 7)}, "unknown activation 7"),
    ({"n_out": 2, "steepness": math.nan}, "finite"),
    ({"n_out": 2, "steepness": math.inf}, "finite"),
    ({"n_out": 2, "steepness": (1.0, math.nan)}, "finite"),
    ({"n_out": 2, "steepness": (1.0, 2.0, 3.0)}, "steepness has 3 entries"),
    ({"n_out": 2, "steepness": ()}, "steepness has 0 entries"),
    ({"n_out": 2, "steepness": "steep"}, "steepness"),
    ({"n_out": 2, "steepness": None}, "steepness"),
    ({"n_out": 2, "steepness": (1.0, "2")}, "steepness"),
    ({"n_out": 2, "steepness": 1j}, "steepness"),
    ({"n_out": 2, "initialiser": "golrot"}, "did you mean 'glorot'"),
    ({"n_out": 2, "initialiser": None}, "initialiser"),
    ({"n_out": 2, "initialiser": ["glorot"]}, "initialiser"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_DENSE)
def test_layers_that_cannot_be(arguments, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        Dense(**arguments)
    assert "\n" not in str(caught.value)


BAD_NETWORK = [
    ((0, [Dense(1)]), {}, "n_in"),
    ((2.5, [Dense(1)]), {}, "n_in"),
    (("2", [Dense(1)]), {}, "n_in"),
    ((2, []), {}, "at least one layer"),
    ((2, None), {}, "layer"),
    ((2, Dense(3)), {}, "layer"),
    ((2, "tanh"), {}, "layer"),
    ((2, [3]), {}, "3 is not a layer"),
    ((2, [Dense]), {}, "is not a layer"),
    ((2, [Dense(1)]), {"dtype": "float16"}, "did you mean 'float"),
    ((2, [Dense(1)]), {"dtype": np.float32}, "unknown dtype"),
    ((2, [Dense(1)]), {"dtype": ["float32"]}, "unknown dtype"),
    ((2, [Dense(1)]), {"seed": -1}, "seed"),
    ((2, [Dense(1)]), {"seed": "one"}, "seed"),
    ((2, [Dense(1)]), {"seed": 1.5}, "seed"),
    ((2, [Dense(1)]), {"parameters": [1, 2, 3]}, r"shape \[3\], expected \[64\]"),
    ((2, [Dense(1)]), {"parameters": "many"}, "parameters"),
]


@pytest.mark.parametrize(("arguments", "options", "sentence"), BAD_NETWORK)
def test_networks_that_cannot_be(arguments, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        Network(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "activation", "sentence"),
    [
        ([3], "tanh", r"at least one layer, not \[3\]"),
        ([], "tanh", "at least one layer"),
        (5, "tanh", "sizes"),
        (None, "tanh", "sizes"),
        ([3, 0], "tanh", "n_out"),
        ([0, 3], "tanh", "n_in"),
        ([3, 2.5], "tanh", "n_out"),
        ([3, 4, 5], ["tanh"], "1 activations for 2 layers"),
        ([3, 4], 7, "activation"),
        ([3, 4], "nothing", "unknown activation"),
    ],
)
def test_mlps_that_cannot_be(sizes, activation, sentence):
    with pytest.raises(InputError, match=sentence):
        Network.mlp(sizes, activation)


# Initial values ---------------------------------------------------------------------


def test_seeds():
    def made(seed):
        return np.array(Network.mlp([20, 30, 10], seed=seed).parameters)

    np.testing.assert_array_equal(made(3), made(3))
    assert (made(3) != made(4)).any()
    assert (made(None) != made(None)).any()


N_IN, N_OUT = 300, 400


@pytest.mark.parametrize(
    ("name", "deviation", "largest", "bias_deviation"),
    [
        ("glorot", math.sqrt(2 / (N_IN + N_OUT)), math.sqrt(6 / (N_IN + N_OUT)), 0),
        ("he", math.sqrt(2 / N_IN), math.inf, 0),
        ("uniform", 1 / math.sqrt(3 * N_IN), 1 / math.sqrt(N_IN),
         1 / math.sqrt(3 * N_IN)),
        ("fann", 0.1 / math.sqrt(3), 0.1, 0.1 / math.sqrt(3)),
    ],
)
def test_statistics_of_initialisers(name, deviation, largest, bias_deviation):
    network = Network(N_IN, [Dense(N_OUT, initialiser=name)], seed=5, dtype="float64")
    weights, biases = network.weights(0), network.biases(0)
    n = weights.size
    assert abs(weights.mean()) < 5 * deviation / math.sqrt(n)
    # Both distributions have a fourth moment of at most 3 deviations to the fourth.
    assert abs(weights.std() / deviation - 1) < 5 / math.sqrt(2 * n)
    assert np.abs(weights).max() <= largest
    if math.isfinite(largest):
        assert np.abs(weights).max() > 0.999 * largest
    assert abs(biases.std() - bias_deviation) <= 0.2 * bias_deviation


def test_every_initialiser_has_its_statistics():
    assert set(INITIALISERS) == {"glorot", "he", "uniform", "fann"}
    with pytest.raises(InputError, match="unknown initialiser"):
        initialiser("")


def test_widrow_nguyen_as_fann_has_it():
    """f = (0.7 H)^(1/I) / (high - low): biases within ±f, weights from 0 to f."""
    network = Network.mlp([3, 40, 30, 2], "tanh", seed=1)
    x = np.array([[-1.0, 0, 0], [0, 3, 1]])
    network.initialise("widrow_nguyen", x, seed=4)
    limit = (0.7 * 70) ** (1 / 3) / 4
    for number in range(3):
        weights = network.weights(number)
        assert weights.min() >= 0
        assert 0.9 * limit < weights.max() <= limit * (1 + 1e-6)
    biases = np.concatenate([network.biases(number) for number in range(3)])
    assert np.abs(biases).max() <= limit * (1 + 1e-6)
    assert biases.min() < 0 < biases.max()
    first = network.parameters
    network.initialise("widrow_nguyen", x, seed=4)
    assert np.array_equal(network.parameters, first)
    network.initialise("widrow_nguyen", x, seed=5)
    assert not np.array_equal(network.parameters, first)


def test_initialising_anew():
    network = Network.mlp([3, 4, 2], "tanh", seed=1)
    version = network.version
    network.initialise(seed=7)
    assert np.array_equal(
        network.parameters, Network.mlp([3, 4, 2], "tanh", seed=7).parameters
    )
    assert network.version > version
    network.initialise("fann", seed=7)
    other = Network.mlp([3, 4, 2], "tanh", initialiser="fann", seed=7)
    assert np.array_equal(network.parameters, other.parameters)


@pytest.mark.parametrize(("name", "x", "sentence"), [
    ("widrow_nguyen", None, "reads the inputs' range: give x"),
    ("he", [[1.0, 2, 3]], "leave out x"),
    (None, [[1.0, 2, 3]], "leave out x"),
    ("widrow", None, "did you mean 'widrow_nguyen'"),
    ("widrow_nguyen", [[1.0, 2]], r"shape \[1, 2\], expected \[samples, 3\]"),
    ("widrow_nguyen", [[1.0, 1, 1]], "inputs of a finite range, found one of 0"),
    ("widrow_nguyen", [[1.0, np.nan, 1]], "a finite range"),
    ("widrow_nguyen", np.zeros((0, 3)), "a finite range"),
    ("widrow_nguyen", [["a", "b", "c"]], "expected numbers"),
])
def test_initialising_wrongly(name, x, sentence):
    network = Network.mlp([3, 4, 2], "tanh", seed=1)
    with pytest.raises(InputError, match=sentence):
        network.initialise(name, x)


def test_widrow_nguyen_needs_data_and_hidden_neurons():
    with pytest.raises(InputError, match=r'call network.initialise\("widrow_nguyen"'):
        Dense(3, initialiser="widrow_nguyen")
    with pytest.raises(InputError, match="spreads hidden neurons"):
        Network.mlp([3, 2], seed=1).initialise("widrow_nguyen", [[0.0, 1, 2]])


# Parameters -------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    bias=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_padding_is_zero_from_the_start_and_stays_zero(sizes, bias, dtype):
    layers = [Dense(n, bias=bias, initialiser="fann") for n in sizes[1:]]
    network = Network(sizes[0], layers, seed=1, dtype=dtype)
    live = sum(w.size for w in map(network.weights, range(len(layers))))
    live += sum(b.size for b in map(network.biases, range(len(layers))))
    assert np.count_nonzero(network.parameters) == live
    network.parameters = np.full(network.parameters.shape, 7)
    assert np.count_nonzero(network.parameters) == live
    assert network.parameters.dtype == dtype
    network.parameters = np.full(network.parameters.shape, np.nan)
    assert np.isnan(network.parameters).sum() == live


def test_parameters_are_replaced_not_changed():
    network = Network.mlp([3, 2], seed=1)
    before = network.parameters
    kept = np.array(before)
    assert network.version == 0
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 1
    mine = np.ones(before.shape, np.float32)
    network.parameters = mine
    mine[:] = 2  # the network has its own copy
    assert network.version == 1
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_array_equal(network.weights(0), np.ones((2, 3)))
    np.testing.assert_array_equal(network.biases(0), [1, 1])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (np.zeros(63), r"shape \[63\], expected \[64\]"),
        (np.zeros((1, 64)), r"shape \[1, 64\], expected \[64\]"),
        (1.0, r"shape \[\], expected \[64\]"),
        ([], r"shape \[0\]"),
        (np.zeros(64, complex), "complex128"),
        (["a"] * 64, "expected numbers"),
        ([None] * 64, "expected numbers"),
        ([[1, 2], [3]], "rectangular"),
        (None, "expected numbers"),
    ],
)
def test_parameters_that_do_not_fit(values, sentence):
    network = Network.mlp([3, 2], seed=1)
    kept = np.array(network.parameters)
    with pytest.raises(InputError, match=sentence):
        network.parameters = values
    np.testing.assert_array_equal(network.parameters, kept)
    assert network.version == 0


def test_layers_are_set_and_read():
    network = Network(3, [Dense(2), Dense(4, bias=False)], seed=1)
    weights = np.arange(6).reshape(2, 3)
    other = np.array(network.weights(1))
    network.set_layer(0, weights, [5, 6])
    np.testing.assert_array_equal(network.weights(0), weights)
    np.testing.assert_array_equal(network.biases(0), [5, 6])
    network.set_layer(0, -weights)
    np.testing.assert_array_equal(network.weights(0), -weights)
    np.testing.assert_array_equal(network.biases(0), [5, 6])
    np.testing.assert_array_equal(network.weights(1), other)
    assert network.biases(1).shape == (0,)
    network.set_layer(1, other, [])
    assert network.version == 3
    for array in (network.weights(0), network.biases(0), network.biases(1)):
        assert array.size == 0 or not array.flags.writeable


@pytest.mark.parametrize(
    ("layer", "weights", "biases", "sentence"),
    [
        (2, np.zeros((2, 3)), None, "layer 2 of 2 does not exist"),
        (-1, np.zeros((2, 3)), None, "layer -1 of 2"),
        ("0", np.zeros((2, 3)), None, "layer '0' of 2"),
        (0.0, np.zeros((2, 3)), None, "layer 0.0 of 2"),
        (0, np.zeros((3, 2)), None, r"shape \[3, 2\], expected \[2, 3\]"),
        (0, np.zeros(6), None, r"shape \[6\]"),
        (0, "weights", None, "expected numbers"),
        (0, np.zeros((2, 3)), [1], r"shape \[1\], expected \[2\]"),
        (0, np.zeros((2, 3)), [[1, 2]], r"shape \[1, 2\]"),
        (1, np.zeros((4, 2)), [1, 2, 3, 4], r"expected \[0\]"),
    ],
)
def test_layers_that_do_not_fit(layer, weights, biases, sentence):
    network = Network(3, [Dense(2), Dense(4, bias=False)], seed=1)
    with pytest.raises(InputError, match=sentence):
        network.set_layer(layer, weights, biases)
    assert network.version == 0
    if sentence.startswith("layer"):
        for read in (network.weights, network.biases):
            with pytest.raises(InputError, match=sentence):
                read(layer)


def test_numbers_of_other_types_are_converted():
    network = Network.mlp([3, 2], seed=1)
    for values in (np.ones(64, bool), np.ones(64, np.int8), np.ones(64), [1] * 64):
        network.parameters = values
        assert network.parameters.dtype == np.float32
        np.testing.assert_array_equal(network.weights(0), np.ones((2, 3)))


def test_given_parameters_are_taken():
    one = Network.mlp([3, 2], seed=1)
    other = Network(3, one.layers, parameters=one.parameters)
    np.testing.assert_array_equal(one.parameters, other.parameters)
    assert one.parameters.base is not other.parameters.base


def test_descriptions_can_be_pickled():
    layers = (Dense(2, "relu"), Dense(2, ("tanh", "sin"), (1, 2)))
    assert pickle.loads(pickle.dumps(layers)) == layers

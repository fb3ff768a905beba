"""Descriptions of networks: sizes, layers, and those that are refused."""

import math
import pickle

import numpy as np
import pytest

from clnet import Dense, Network
from clnet.errors import InputError


def test_attributes_of_a_network():
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


def test_a_layer_takes_one_value_or_one_per_neuron():
    layer = Dense(2, ["tanh", "relu"], np.array([0.5, 2]))
    assert layer.activation == ("tanh", "relu")
    assert layer.steepness == (0.5, 2.0)
    assert layer == Dense(2, ("tanh", "relu"), (0.5, 2.0))
    assert hash(layer) == hash(Dense(2, ("tanh", "relu"), [0.5, 2]))


def test_layers_may_come_from_a_generator():
    assert Network(2, (Dense(n) for n in (3, 4))).sizes == (2, 3, 4)


BAD_DENSE = [
    ({"n_out": 0}, "n_out must be a whole number of at least 1, not 0"),
    ({"n_out": None}, "n_out"),
    ({"n_out": 2, "activation": "tahn"}, "did you mean 'tanh'"),
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
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_DENSE)
def test_bad_layers(arguments, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        Dense(**arguments)
    assert "\n" not in str(caught.value)


BAD_NETWORK = [
    ((0, [Dense(1)]), {}, "n_in"),
    ((2, []), {}, "at least one layer"),
    ((2, Dense(3)), {}, "layer"),
    ((2, [3]), {}, "3 is not a layer"),
    ((2, [Dense]), {}, "is not a layer"),
    ((2, [Dense(1)]), {"dtype": "float16"}, "did you mean 'float"),
    ((2, [Dense(1)]), {"dtype": np.float32}, "unknown dtype"),
    ((2, [Dense(1)]), {"parameters": [1, 2, 3]}, r"shape \[3\], expected \[64\]"),
    ((2, [Dense(1)]), {"parameters": "many"}, "parameters"),
]


@pytest.mark.parametrize(("arguments", "options", "sentence"), BAD_NETWORK)
def test_bad_networks(arguments, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        Network(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("sizes", "activation", "sentence"), [
    ([3], "tanh", r"at least one layer, not \[3\]"),
    ([], "tanh", "at least one layer"),
    ([3, 0], "tanh", "n_out"),
    ([0, 3], "tanh", "n_in"),
    ([3, 2.5], "tanh", "n_out"),
    ([3, 4, 5], ["tanh"], "1 activations for 2 layers"),
    ([3, 4], "nothing", "unknown activation"),
])
def test_bad_mlps(sizes, activation, sentence):
    with pytest.raises(InputError, match=sentence):
        Network.mlp(sizes, activation)


def test_the_output_of_an_mlp_has_an_activation_of_its_own():
    network = Network.mlp([3, 5, 4, 2], "relu", output="softmax", seed=1)
    assert [layer.activation for layer in network.layers] == ["relu", "relu", "softmax"]
    with pytest.raises(InputError, match="unknown activation"):
        Network.mlp([3, 2], output="nothing")


def test_descriptions_can_be_pickled():
    layers = (Dense(2, "relu"), Dense(2, ("tanh", "sin"), (1, 2)))
    assert pickle.loads(pickle.dumps(layers)) == layers

"""State dicts of PyTorch, which need not be installed: arrays and files."""

import numpy as np
import pytest
import safetensors.numpy
from children import run_python

import clnet
from clnet import Dense, FormatError, InputError, Network

RNG = np.random.default_rng(7)
STATE = {
    "0.weight": RNG.normal(size=(5, 3)).astype(np.float32),
    "0.bias": RNG.normal(size=5).astype(np.float32),
    "3.weight": RNG.normal(size=(2, 5)).astype(np.float32),
    "3.bias": RNG.normal(size=2).astype(np.float32),
}


def changed(**tensors):
    renamed = {name.replace("_", ".", 1): tensor for name, tensor in tensors.items()}
    found = {**STATE, **renamed}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def is_state(network):
    for number, name in enumerate(("0", "3")):
        np.testing.assert_array_equal(network.weights(number), STATE[f"{name}.weight"])
        np.testing.assert_array_equal(network.biases(number), STATE[f"{name}.bias"])


def test_a_state_dict_of_arrays():
    network = Network.from_state_dict(STATE, activation="ReLU")
    assert network.layers == (Dense(5, "relu"), Dense(2))
    is_state(network)


def test_pytorch_is_not_imported():
    code = "import sys, numpy, clnet; clnet.Network.from_state_dict({'a.weight': " \
        "numpy.ones((2, 3))}, ['tanh']); assert 'torch' not in sys.modules"
    run_python("-c", code, check=True)


def test_activations_are_of_the_hidden_layers_or_one_a_layer():
    network = Network.from_state_dict(STATE, ["tanh", "softmax"])
    assert [layer.activation for layer in network.layers] == ["tanh", "softmax"]
    one = {"weight": np.ones((1, 2)), "bias": np.ones(1)}  # of a Linear alone
    network = Network.from_state_dict(one, ["sigmoid"])
    assert (network.n_in, network.dtype) == (2, "float64")
    for found, activation, why in (
        (STATE, ["relu"], "1 activation for 2 layers: give one for the hidden"),
        (STATE, 3, "unknown activation 3"),
        (one, "relu", r"one layer: give a list of one, as \['relu'\]"),
    ):
        with pytest.raises(InputError, match=why):
            Network.from_state_dict(found, activation)


@pytest.mark.parametrize(("names", "order"), [
    (["10", "2"], [1, 0]), (["net.0", "net.4"], [0, 1]), (["fc2", "fc1"], [1, 0]),
    (["hidden", "out"], [0, 1]), (["module.encoder.0", "module.head"], [0, 1]),
])
def test_names_of_any_kind(names, order):
    pairs = [(STATE["0.weight"], STATE["0.bias"]), (STATE["3.weight"], STATE["3.bias"])]
    found = {}
    for name, number in zip(names, order, strict=True):
        found[f"{name}.weight"], found[f"{name}.bias"] = pairs[number]
    is_state(Network.from_state_dict(found, "relu"))


WRONG = [
    ({}, "the state dict is empty"),
    ({"model": STATE, "epoch": 3}, "'model' is a dict, expected a tensor: if it is"),
    ({3: np.ones((1, 1))}, "3 is no parameter of a linear module"),
    (changed(**{"1_running_mean": np.ones(5)}), "'1.running_mean' is of a batch norm"),
    (changed(**{"0_weight": None}), "module '0' has no weight"),
    (changed(**{"0_weight": np.ones((5, 3, 3, 3))}), r"shape \[5, 3, 3, 3\], expected"),
    (changed(**{"1_weight": np.ones(5)}), r"module '1' has a weight of shape \[5\]"),
    (changed(**{"0_weight": np.ones((0, 3))}), r"weight of shape \[0, 3\]"),
    (changed(**{"3_bias": np.ones(3)}), r"bias of shape \[3\], expected \[2\]"),
    (changed(**{"3_weight": np.ones((2, 4))}), "'3' takes 4 inputs, and '0' before it "
                                               "has 5 outputs"),
    (changed(**{"0_weight": np.ones((5, 3), int)}), "'0.weight' is of int64, expected"),
    (changed(**{"0_weight": [[1, 2], [3]]}), "'0.weight' must be a rectangular array"),
    (changed(**{"0_weight": object()}), "'0.weight' is of object, expected floats"),
    ({"rnn.weight_ih_l0": np.ones((4, 4))}, "'rnn.weight_ih_l0' is no parameter of"),
]


@pytest.mark.parametrize(("found", "why"), WRONG)
def test_other_state_dicts_are_refused(found, why):
    with pytest.raises(InputError, match=why) as caught:
        Network.from_state_dict(found, "relu")
    assert "\n" not in str(caught.value)


# Files ------------------------------------------------------------------------------


def saved(path, tensors):
    safetensors.numpy.save_file(tensors, path)
    return path


def test_a_safetensors_file_of_pytorch(tmp_path):
    path = saved(tmp_path / "a.safetensors", STATE)
    is_state(Network.from_state_dict(path, "relu"))
    is_state(Network.from_state_dict(str(path), "relu"))
    with pytest.raises(FormatError, match=r"are read by Network\.from_state_dict"):
        clnet.load(path)


def test_numbers_order_the_names_of_a_file(tmp_path):
    tensors = {f"{k}.weight": np.full((4, 4), k, np.float32) for k in range(0, 24, 2)}
    network = Network.from_state_dict(saved(tmp_path / "a.safetensors", tensors), "elu")
    assert [network.weights(k)[0, 0] for k in range(12)] == list(range(0, 24, 2))


def test_shapes_order_other_names_of_a_file(tmp_path):
    renamed = {name.replace("0.", "stem.").replace("3.", "head."): tensor
               for name, tensor in STATE.items()}
    path = saved(tmp_path / "a.safetensors", renamed)
    is_state(Network.from_state_dict(path, "relu"))
    alike = {f"{name}.weight": np.ones((4, 4)) for name in ("stem", "head")}
    with pytest.raises(FormatError, match="tell the order of head, stem, which a file"):
        Network.from_state_dict(saved(path, alike), "relu")
    assert len(Network.from_state_dict(alike, "relu").layers) == 2
    many = {f"{'a' * n}.weight": np.ones((n, n + 1)) for n in range(1, 10)}
    with pytest.raises(FormatError, match="tell the order of"):
        Network.from_state_dict(saved(path, many), "relu")


def test_files_of_half_precision(tmp_path):
    half = {name: tensor.astype(np.float16) for name, tensor in STATE.items()}
    network = Network.from_state_dict(saved(tmp_path / "a.safetensors", half), "relu")
    assert network.dtype == "float32"
    np.testing.assert_array_equal(network.weights(0), half["0.weight"])


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    Network.mlp([2, 1], seed=1).save(path)
    with pytest.raises(FormatError, match=r"clnet wrote: clnet\.load reads it"):
        Network.from_state_dict(path, "relu")
    for content in (b"", b"\0" * 7, b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"is empty|not a complete safetensors"):
            Network.from_state_dict(path, "relu")
    with pytest.raises(FormatError, match=r"give torch\.load\(path, weights_only=True"):
        Network.from_state_dict(tmp_path / "a.pt", "relu")
    with pytest.raises(FormatError, match=r"a\.safetensors"):
        Network.from_state_dict(tmp_path / "none" / "a.safetensors", "relu")
    with pytest.raises(InputError, match="a file name must be text"):
        Network.from_state_dict(3, "relu")
    with pytest.raises(FormatError, match=r"a\.safetensors: 'a.weight' is of int64"):
        Network.from_state_dict(saved(path, {"a.weight": np.ones((2, 2), int)}), "relu")


def test_damaged_files_are_read_or_refused(tmp_path):
    path = saved(tmp_path / "a.safetensors", STATE)
    content = path.read_bytes()
    for _ in range(150):
        damaged = bytearray(content[: RNG.integers(1, len(content) + 1)])
        for at in RNG.integers(0, len(damaged), 3):
            damaged[at] = RNG.integers(0, 256)
        path.write_bytes(damaged)
        try:
            Network.from_state_dict(path, "relu")
        except FormatError as error:
            assert "\n" not in str(error)

"""clnet's own network files."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_files import changed, rewrite

import clnet
from clnet import Dense, FormatError, Network, Scaling
from clnet.formats import safetensors as own
from clnet.nn.activations import ACTIVATIONS, SOFTMAX
from clnet.nn.fann_parameters import FannParameters

NAMES = list(ACTIVATIONS)
SCALING = dataclasses.asdict(Scaling(*[[1.0]] * 8))
REALS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def fann_parameters(draw):
    return FannParameters(
        learning_rate=draw(REALS),
        training_algorithm=draw(st.sampled_from(["batch", "quickprop"])),
        cascade_max_out_epochs=draw(st.integers(0, 1000)),
        cascade_activation_functions=draw(
            st.lists(st.sampled_from(["relu", "tanh"]), max_size=3)),
        bit_fail_limit=draw(REALS),
    )


@st.composite
def scalings(draw, n_in, n_out):
    sides = [st.lists(REALS, min_size=n, max_size=n) for n in (n_in, n_out)]
    return Scaling(*[draw(side) for side in sides for _ in range(4)])


@st.composite
def networks(draw):
    """Networks of every description, with parameters of every bit pattern."""
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 5))
        name, steepness = st.sampled_from([*NAMES, SOFTMAX]), REALS
        if draw(st.booleans()):
            name = st.lists(st.sampled_from(NAMES), min_size=n, max_size=n)
        if draw(st.booleans()):
            steepness = st.lists(REALS, min_size=n, max_size=n)
        layers.append(Dense(n, draw(name), draw(steepness), draw(st.booleans()),
                            draw(st.sampled_from(["he", "fann"]))))
    network = Network(
        draw(st.integers(1, 5)), layers,
        dtype=draw(st.sampled_from(["float32", "float64"])),
        fann_compatible=draw(st.booleans()),
        fann=draw(st.none() | fann_parameters()), seed=0,
    )
    size = network.layout.size * network.parameters.itemsize
    seed = draw(st.integers(0, 2**32))
    bits = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    parameters = bits.view(network.dtype).copy()
    parameters[:: draw(st.integers(1, 9))] = np.nan
    network.scaling = draw(st.none() | scalings(network.n_in, network.n_out))
    network.parameters = parameters
    return network


def test_round_trip_bit_for_bit(tmp_path):
    @settings(max_examples=40)
    @given(networks())
    def check(network):
        network.save(tmp_path / "x.safetensors")
        back = clnet.load(tmp_path / "x.safetensors")
        assert back.parameters.tobytes() == network.parameters.tobytes()
        assert back.layers == network.layers
        assert (back.n_in, back.dtype) == (network.n_in, network.dtype)
        assert back.scaling == network.scaling
        assert (back.fann_compatible, back.fann) == (
            network.fann_compatible, network.fann)
        back.save(tmp_path / "y.safetensors")
        assert (tmp_path / "x.safetensors").read_bytes() == (
            tmp_path / "y.safetensors").read_bytes()

    check()


def test_fanns_networks_survive(fann_datasets, tmp_path):
    for name in ("act_all_s0.net", "scaled.net"):
        original = fann_datasets / "nets" / name
        clnet.load(original).save(tmp_path / "x.safetensors")
        clnet.load(tmp_path / "x.safetensors").save(tmp_path / "x.net")
        assert (tmp_path / "x.net").read_bytes() == original.read_bytes()


def test_tensors_have_the_names_of_a_sequential(tmp_path):
    network = Network(2, [Dense(3, "relu"), Dense(1, bias=False)], seed=0)
    network.save(tmp_path / "x.safetensors")
    tensors = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "0.weight": (3, 2), "0.bias": (3,), "2.weight": (1, 3)}
    assert np.array_equal(tensors["0.weight"], network.weights(0))
    assert np.array_equal(tensors["0.bias"], network.biases(0))


# --- malformed files -----------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    """The file of a small network."""
    Network(2, [Dense(3, "relu"), Dense(1)], seed=0, fann=FannParameters()).save(
        tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


def refusal(path):
    with pytest.raises(FormatError) as caught:
        clnet.load(path)
    sentence = str(caught.value)
    assert "x.safetensors" in sentence
    assert "\n" not in sentence
    return sentence


def test_truncation_at_many_bytes(path):
    content = path.read_bytes()
    for end in (*range(9), *range(9, len(content), 13), len(content) - 1):
        path.write_bytes(content[:end])
        sentence = refusal(path)
        assert "is not a complete safetensors" in sentence or "is empty" in sentence


@pytest.mark.parametrize("content", [
    b"FANN_FLO_2.1\n", b"\0" * 64, b"PK\3\4 a zip", b"\xff" * 100,
    b"\x80\x04\x95 a pickle", b"\2" + 7 * b"\0" + b"{}",
])
def test_foreign_files(path, content):
    path.write_bytes(content)
    refusal(path)


def test_safetensors_of_others(path):
    rewrite(path, metadata={})
    assert "holds no description of a network" in refusal(path)
    rewrite_with = {"format": "pt"}
    safetensors.numpy.save_file({"0.weight": np.zeros((1, 1))}, path, rewrite_with)
    assert "holds no description of a network" in refusal(path)


@pytest.mark.parametrize(("tensors", "message"), [
    ({"0.weight": None}, "'0.weight' is missing, expected float32 [3, 2]"),
    ({"2.bias": None}, "'2.bias' is missing, expected float32 [1]"),
    ({"0.weight": np.zeros((2, 3), np.float32)},
     "'0.weight' is float32 [2, 3], expected float32 [3, 2]"),
    ({"0.bias": np.zeros((3, 1), np.float32)}, "'0.bias' is float32 [3, 1]"),
    ({"0.bias": np.zeros(3)}, "'0.bias' is float64 [3], expected float32 [3]"),
    ({"0.bias": np.zeros(3, np.int32)}, "'0.bias' is int32 [3], expected float32"),
    ({"1.weight": np.zeros(3)}, "holds the tensor '1.weight'"),
])
def test_wrong_tensors(path, tensors, message):
    rewrite(path, tensors)
    assert message in refusal(path)


@pytest.mark.parametrize(("describe", "message"), [
    (changed(version=2), "a description of version 2, expected 1"),
    (changed(version="1"), "a description of version '1', expected 1"),
    (lambda d: d.pop("version"), "not clnet's: KeyError: 'version'"),
    (lambda d: d.pop("layers"), "KeyError: 'layers'"),
    (lambda d: d.pop("fann_compatible"), "KeyError: 'fann_compatible'"),
    (changed(more=1), "unknown more"),
    (changed(n_in="2"), "n_in must be a whole number"),
    (changed(n_in=10**9), "'0.weight' is float32 [3, 2], expected float32 [3, 10000"),
    (changed(n_in=2**31), "at most 2147483647, not 2147483648"),
    (changed(n_in=10**400), "at most 2147483647, not a number of about"),
    (changed(fann_compatible=1), "TypeError: fann_compatible is neither true nor"),
    (changed(dtype="float16"), "unknown dtype 'float16': did you mean"),
    (changed(layers=[]), "holds the tensor '0.bias'"),
    (changed(layers=3), "TypeError"),
    (changed(fann=3), "TypeError"),
    (changed(scaling=3), "TypeError"),
    (changed(scaling={"mean_in": [1]}), "TypeError"),
    (changed(scaling=SCALING), "the scaling is for 1 input and 1 output"),
    (lambda d: d["layers"][0].update(type="other"), "KeyError: 'other'"),
    (lambda d: d["layers"][0].update(type=[]), "TypeError"),
    (lambda d: d["layers"][0].update(activation="rleu"), "did you mean 'relu'"),
    (lambda d: d["layers"][0].update(activation=7), "unknown activation 7"),
    (lambda d: d["layers"][0].update(n_out=0), "n_out must be"),
    (lambda d: d["layers"][0].update(n_out=10**9), "expected float32 [1000000000, 2]"),
    (lambda d: d["layers"][0].update(n_out=2**40), "of at most 2147483647"),
    (lambda d: d["layers"][0].update(steepness=10**400), "found dtype object"),
    (lambda d: d["layers"][0].update(steepness=[[1], [1], [1]]), "one finite number"),
    (lambda d: d["layers"][0].update(steepness=1e300), "of float32's range"),
    (lambda d: d["layers"][0].update(activation="x" * 10**4), "unknown activation"),
    (lambda d: d["layers"][0].update(activation="\x1b[2J"), "activation '\\x1b[2J'"),
    (lambda d: d["fann"].update(learning_rate=10**400), "within float32's range"),
    (lambda d: d["layers"][0].update(steepness="x"), "expected numbers"),
    (lambda d: d["layers"][0].update(window=3), "TypeError"),
    (lambda d: d["layers"][1].update(sources=[0, 7]), "has the sources (0, 7), expec"),
    (lambda d: d["layers"][1].update(sources=[-1]), "of the sources must be a whole"),
    (lambda d: d["fann"].update(learning_rate="x"), "learning_rate must be a number"),
    (lambda d: d["fann"].update(momentum=1), "TypeError"),
])
def test_wrong_descriptions(path, describe, message):
    rewrite(path, describe=describe)
    assert message in refusal(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"', "{}"])
def test_a_description_of_nothing(path, text):
    rewrite(path, metadata={"clnet": text})
    assert "a description that is not clnet's" in refusal(path)


def test_the_library_reads_what_is_written():
    tensors = {
        f"{kind} {shape}": np.ones(shape, kind)
        for kind in ("float32", "float64", "float16", "int8", "uint64", "bool", ">i4")
        for shape in ((), (3,), (2, 0), (2, 5))
    }
    content = b"".join(own._encoded(tensors, {"clnet": "{}"}))
    found = safetensors.numpy.load(content)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype.newbyteorder("<")
        assert found[name].shape == tensor.shape
        np.testing.assert_array_equal(found[name], tensor)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert header.pop("__metadata__") == {"clnet": "{}"}
    assert size % 8 == 0
    for name, entry in header.items():
        assert entry["data_offsets"][0] % tensors[name].itemsize == 0
    with pytest.raises(TypeError, match="complex64"):
        list(own._encoded({"a": np.ones(1, "complex64")}, {}))

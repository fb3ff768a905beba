"""FANN's network files, with their training parameters and scaling."""

import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clnet
from clnet import Dense, FormatError, InputError, Local, Network, Scaling, Sparse
from clnet.ir.reference import run
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.fann_parameters import OPTIONAL, FannParameters

FANN_NAMES = [row.name for row in ACTIVATIONS.values() if row.fann is not None]
SCALING = Scaling([1.5, 2], [0.5, 0], [-1, -1], [1, 1], [1000], [0.25], [0], [0.5])
OLD = """FANN_FLO_1.1
3 0.700000 1.000000 0 5 3 0.5 0.25
3 4 2
0 0 0 3 3 3 0 4 0
(0 1.5) (1 -2) (2 0.25) (0 1) (1 2) (2 3) (0 4) (1 5) (2 6) (3 7) (4 8) (5 9) (6 nan)
"""


def small(**options):
    """A 2-3-2-1 network with mixed activations; parameter i is i / 8."""
    network = Network(
        2,
        [Dense(3, "tanh", 0.5), Dense(2, ["sigmoid", "cos"], [1, 0.25]), Dense(1)],
        fann_compatible=True,
        **options,
    )
    network.parameters = np.arange(network.layout.size) / 8
    return network


@pytest.fixture
def text(tmp_path):
    """The file of a small network with scaling."""
    small(scaling=SCALING).save(tmp_path / "whole.net")
    return (tmp_path / "whole.net").read_text()


@pytest.fixture
def parsed(read):
    """A function that reads a text as a network file."""
    return partial(read, clnet.load, name="file.net")


def refusal(parsed, content):
    """Return the error message for a text, one sentence."""
    with pytest.raises(FormatError) as caught:
        parsed(content)
    sentence = str(caught.value)
    assert re.search(r"file\.net, line \d+: |file\.net is empty", sentence)
    assert "\n" not in sentence
    return sentence


def same(a, b):
    """Whether two networks are equal to the bit, but for the initialisers."""
    if (a.sizes, a.dtype, a.fann_compatible) != (b.sizes, b.dtype, b.fann_compatible):
        return False
    layers = zip(a.layers, b.layers, strict=True)
    return a.parameters.tobytes() == b.parameters.tobytes() and all(
        np.array_equal(np.broadcast_to(x.activation, x.n_out),
                       np.broadcast_to(y.activation, y.n_out))
        and np.array_equal(np.broadcast_to(x.steepness, x.n_out),
                           np.broadcast_to(y.steepness, y.n_out))
        for x, y in layers
    )


# --- FANN's own files ----------------------------------------------------------------


def names_of_nets():
    algorithms = ("batch", "incremental", "quickprop", "rprop")
    stages = ("init", "float.epoch1", "float.epoch10")
    return ["xor.net", "act_all_s0.net", "scaled.net"] + [
        f"mushroom.{a}.{s}.net" for a in algorithms for s in stages
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", names_of_nets())
def test_fanns_files_are_written_byte_for_byte(fann_datasets, tmp_path, name, dtype):
    original = fann_datasets / "nets" / name
    clnet.load(original, dtype=dtype).save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == original.read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_activation_is_that_of_fann(fann_datasets, dtype):
    network = clnet.load(fann_datasets / "nets" / "act_all_s0.net", dtype=dtype)
    assert network.layers[0].activation == tuple(FANN_NAMES)
    rows = np.loadtxt(
        fann_datasets / "nets" / "act_all_s0.float.run.csv", delimiter=",", skiprows=1
    )
    y = run(network.program, rows[:, :4].astype(dtype), network.parameters)
    np.testing.assert_allclose(y, rows[:, 4:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_scaled_network_is_that_of_fann(fann_datasets, dtype):
    network = clnet.load(fann_datasets / "nets" / "scaled.net", dtype=dtype)
    rows = np.genfromtxt(
        fann_datasets / "nets" / "scaled.float.run.csv", delimiter=",", names=True
    )
    x, scaled = (
        np.stack([rows[f"{name}{i}"] for i in range(3)], axis=1)
        for name in ("in", "scaled")
    )
    raw, descaled, target, scaled_target = (
        rows[name].astype(np.float32).astype(np.float64)[:, None]
        for name in ("raw_out", "descaled_out", "target", "scaled_target")
    )
    y = run(network.program, scaled.astype(dtype), network.parameters)
    np.testing.assert_allclose(y, raw, rtol=1e-6, atol=1e-6)
    scaling = network.scaling
    # FANN computed with more than the six decimals that it wrote: mean and deviation
    # are off by up to half a unit of the last decimal.
    bound = 5e-7 / np.array(scaling.deviation_in) * (np.abs(scaled).max(axis=0) + 1)
    assert (np.abs(scaling.scale_input(x) - scaled) <= bound).all()
    bound = 5e-7 / scaling.deviation_out[0] * (np.abs(scaled_target).max() + 1)
    assert (np.abs(scaling.scale_output(target) - scaled_target) <= bound).all()
    near = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(scaling.descale_output(raw), descaled, **near)
    np.testing.assert_allclose(scaling.descale_input(scaling.scale_input(x)), x, **near)


@pytest.mark.parametrize("name", ["ok_2.0.net", "ok_1.1.net"])
def test_old_versions(fann_datasets, name):
    old = clnet.load(fann_datasets / "nets" / name)
    assert same(old, clnet.load(fann_datasets / "nets" / "xor.net"))
    assert old.fann == FannParameters(
        bit_fail_limit=old.fann.bit_fail_limit,
        cascade_weight_multiplier=old.fann.cascade_weight_multiplier,
    )


@pytest.mark.parametrize(("name", "message"), [
    ("missing_key.net", "line 11: found 'quickprop_mu=1.750000', expected "
                        "quickprop_decay="),
    ("truncated.net", r"line 36: found '\(5, 2\.', expected item 12 of 13, a "
                      r"connection \(source, weight\), within float32"),
])
def test_damaged_files(fann_datasets, name, message):
    with pytest.raises(FormatError, match=message):
        clnet.load(fann_datasets / "nets" / name)


def test_the_mushroom_network_scores_as_fann(fann_datasets):
    network = clnet.load(fann_datasets / "nets" / "mushroom.rprop.float.epoch10.net")
    x, t = clnet.load_data(fann_datasets / "mushroom.test.gz")
    result = network.compare(run(network.program, x, network.parameters), t)
    assert result.mse == pytest.approx(0.000061570, rel=1e-4)
    assert (result.bit_fail, result.accuracy) == (1, 1.0)


# --- round trips ---------------------------------------------------------------------


@st.composite
def networks(draw):
    """Networks that FANN can express, with steepnesses that its decimals hold."""
    dtype = draw(st.sampled_from(["float32", "float64"]))
    steepness = st.floats(-8, 8, width=32, allow_subnormal=False)
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 4))
        names, steep = st.sampled_from(FANN_NAMES), steepness
        if draw(st.booleans()):
            names = st.lists(names, min_size=n, max_size=n)
        if draw(st.booleans()):
            steep = st.lists(steep, min_size=n, max_size=n)
        layers.append(Dense(n, draw(names), draw(steep)))
    network = Network(draw(st.integers(1, 4)), layers, dtype=dtype,
                      fann_compatible=True)
    width = 8 * network.parameters.itemsize
    n = network.layout.size
    network.parameters = draw(
        st.lists(st.floats(width=width, allow_nan=False), min_size=n, max_size=n)
    )
    return network


def test_round_trip(tmp_path):
    @given(networks())
    def check(network):
        network.save(tmp_path / "x.net")
        back = clnet.load(tmp_path / "x.net", dtype=network.dtype)
        assert same(network, back)

    check()


def test_parameters_that_need_more_than_six_decimals(tmp_path):
    fann = FannParameters(
        learning_rate=1e-7, quickprop_decay=-1.25e-9, rprop_delta_max=2.0**100,
        learning_momentum=0.1, training_algorithm="sarprop",
        train_error_function="linear", train_stop_function="bit_fail",
        cascade_activation_functions=("relu",), cascade_activation_steepnesses=(),
        cascade_max_out_epochs=7, bit_fail_limit=0.25, cascade_weight_multiplier=0.5,
    )
    network = Network.mlp([2, 1], "tanh", fann=fann, fann_compatible=True)
    network.scaling = SCALING
    network.save(tmp_path / "x.net")
    back = clnet.load(tmp_path / "x.net")
    assert (back.fann, back.scaling) == (fann, SCALING)


def test_a_network_without_fann_parameters_gets_fanns_defaults(tmp_path):
    Network.mlp([2, 3, 1], "sigmoid", seed=0).save(tmp_path / "x.net")
    text = (tmp_path / "x.net").read_text()
    assert "\nlearning_rate=0.700000\n" in text
    assert "\nbit_fail_limit=3.49999994039535522461e-01\n" in text
    assert ") (3, 3, 5.00000000000000000000e-01) (0, 3, 0.0000" in text
    back = clnet.load(tmp_path / "x.net")
    assert back.fann_compatible
    assert back.layers[0] == Dense(3, "sigmoid", initialiser="fann")


def test_nan_and_infinite_weights(parsed, text):
    lines = text.splitlines(keepends=True)
    bad = lines[-1].replace("weight)=(0, 0.0", "weight)=(0, nan) (1, -inf) (2, 0x")
    lines[-1] = re.sub(r"\(2, 0x.*?\(0, ", "(2, 0x1p-2) (0, ", bad, count=1)
    network = parsed("".join(lines))
    assert np.isnan(network.weights(0)[0, 0])
    assert network.weights(0)[0, 1] == -np.inf
    assert network.biases(0)[0] == 0.25
    assert np.isnan(parsed(OLD).biases(1)).all()


def test_version_1_1(parsed):
    network = parsed(OLD)
    assert network.sizes == (2, 3, 1)
    assert network.weights(0).tolist() == [[1.5, -2], [1, 2], [4, 5]]
    assert network.biases(0).tolist() == [0.25, 3, 6]
    assert (network.layers[0].activation, network.layers[0].steepness) == ("tanh", 0.5)
    # FANN's sigmoid is twice as steep.
    assert (network.layers[1].activation, network.layers[1].steepness) == (
        "sigmoid", 0.5)
    assert network.fann == FannParameters()


def test_free_white_space(parsed, text):
    lines = text.split("\n", 1)
    loose = lines[0] + "\n\n" + lines[1].replace("\n", "\r\n \t").replace(
        "), (", "),(").replace(", ", ",\n")
    assert same(parsed(loose.replace("num_inputs,\n", "num_inputs, ")
                       .replace("function,\n", "function, ")
                       .replace("neuron,\n", "neuron, ")), parsed(text))
    assert same(parsed(text.rstrip()), parsed(text))


def test_keys_that_the_first_versions_lack(parsed, text):
    for key in OPTIONAL:
        text = re.sub(rf"\n{key}=\d+", "", text)
    fann = parsed(text).fann
    assert (fann.cascade_min_out_epochs, fann.cascade_min_cand_epochs) == (50, 50)


def test_version_2_0_has_no_scaling(parsed, text):
    old = text.replace("FLO_2.1", "FLO_2.0")
    assert "found 'scale_included=1'" in refusal(parsed, old)
    old = re.sub(r"\nscale_.*", "", old)
    assert parsed(old).scaling is None
    assert "expected scale_included=" in refusal(parsed, old.replace("2.0", "2.1", 1))


# --- malformed files -----------------------------------------------------------------


def test_truncation_at_every_line_and_many_bytes(parsed, text):
    lines = text.splitlines(keepends=True)
    ends = {len("".join(lines[:n])) for n in range(1, len(lines))}
    ends |= set(range(1, len(text.rstrip()), 13)) | set(
        range(len(text) - 80, len(text.rstrip())))
    for end in sorted(ends):
        refusal(parsed, text[:end])
    old = OLD.rstrip()
    for end in range(1, len(old)):
        refusal(parsed, old[:end])


def test_every_header_line_removed_moved_renamed_or_garbled(parsed, text):
    lines = text.splitlines(keepends=True)
    for n in range(1, len(lines)):
        key, value = lines[n].split("=", 1)
        optional = key in OPTIONAL
        if not optional:
            assert f"expected {key}=" in refusal(
                parsed, "".join(lines[:n] + lines[n + 1:]))
        if n + 1 < len(lines):
            swapped = [*lines[:n], lines[n + 1], lines[n], *lines[n + 2:]]
            refusal(parsed, "".join(swapped))
        for bad in (f"{key}s={value}", f"{key} = {value}", f"{key}=x{value}",
                    f"{key}=\n", f"{key}={value.rstrip()}x\n"):
            sentence = refusal(parsed, "".join([*lines[:n], bad, *lines[n + 1:]]))
            assert f"line {n + 1}: " in sentence or f"line {n + 2}: " in sentence


@pytest.mark.parametrize(("old", "new", "message"), [
    ("FANN_FLO_2.1", "FANN_FLO_2.2", "line 1: found 'FANN_FLO_2.2', expected FANN_"),
    ("FANN_FLO_2.1\n", "FANN_FLO_2.1\r\n", "expected FANN_FLO_2.1 (or 2.0, 1.1) alone"),
    ("FANN_FLO_2.1", "FANN_FIX_2.0", "a fixed-point network is not supported"),
    ("FANN_FLO_2.1", "hello", "found 'hello'"),
    ("connection_rate=1.000000", "connection_rate=0",
     "line 4: a connection_rate of 0 is not supported, only rates above 0"),
    ("connection_rate=1.000000", "connection_rate=nan", "a connection_rate of nan"),
    ("network_type=0", "network_type=1", "expected scale_mean_out 2 of 2"),
    ("network_type=0", "network_type=2", "line 5: found '2', expected network_type"),
    ("num_layers=4", "num_layers=1", "expected num_layers of at least 2"),
    ("num_layers=4", "num_layers=3", "line 33: found '2', expected scale_included"),
    ("num_layers=4", "num_layers=5", "line 34: found 'scale_included=1'"),
    ("num_layers=4", "num_layers=-4", "line 2: found '-4', expected num_layers"),
    ("num_layers=4", "num_layers=4.0", "line 2: found '4.0', expected num_layers"),
    ("num_layers=4", "num_layers=4294967296", "line 2: found"),
    ("num_layers=4", "num_layers=" + "9" * 9000, "line 2: found"),
    ("training_algorithm=2", "training_algorithm=5", "line 7: found '5', expected"),
    ("rprop_delta_max=50", "rprop_delta_max=1e39", "line 16: found '1e39.000000"),
    ("functions=3 5", "functions=3 20", "cascade_activation_functions 2 of 10, one of"),
    ("functions_count=10", "functions_count=11", "activation_functions 11 of 11"),
    ("functions_count=10", "functions_count=9", "found '17'"),
    ("sizes=3 4 3 2", "sizes=3 4 3 1", "expected a layer of at least one neuron"),
    ("sizes=3 4 3 2", "sizes=3 4 4 2", "item 13 of 13"),
    ("sizes=3 4 3 2", "sizes=3 3 3 2", "after 11 items, each a neuron"),
    ("sizes=3 4 3 2", "sizes=3 4 2 3", "expected scale_mean_out 2 of 2"),
    ("scale_included=1", "scale_included=2", "scale_included, one of 0, 1"),
    ("scale_mean_in=1.5", "scale_mean_in=x.5", "scale_mean_in 1 of 2, a number"),
    ("(3, 5, ", "(2, 5, ", "found '(2, 5, 5.0000"),
    ("(3, 5, ", "(3, 20, ", "expected neuron 3 with an activation from 0 to 19"),
    ("(3, 5, ", "(3, -1, ", "expected neuron 3 with an activation"),
    ("(3, 5, ", "(3, 5.5, ", "expected neuron 3 with an activation"),
    ("(3, 5, ", "(inf, 5, ", "3 connections into neuron 3, which a fully"),
    ("(3, 5, ", "(nan, 5, ", "3 connections into neuron 3, which a fully"),
    ("(3, 5, 5.0", "(3, 5, 1e38) (3, 5, 5.0", "found '(0, 0, 0."),
    ("(3, 5, 5.0", "(3, 5, inf) (3, 5, 5.0", "found '(0, 0, 0."),
    ("(3, 5, 5.00000000000000000000e-01)", "(3, 5, inf)", "and a finite steepness"),
    ("(3, 5, ", "3, 5, ", "a neuron (num_inputs"),
    ("(3, 5, ", "(3, 5 ", "a neuron (num_inputs"),
    ("connections (connected_to_neuron, weight)", "connections (a, b)",
     "expected connections (connected_to_neuron, weight)=…"),
    ("weight)=(0, ", "weight)=(1, ",
     "connection 1 of 20 from neuron 0, as in a fully connected network"),
    ("weight)=(0, ", "weight)=(0.5, ", "connection 1 of 20 from neuron 0"),
    ("weight)=(0, ", "weight)=(0, 1) (0, ", "end of the file after 20 items, each a c"),
    ("weight)=(0, ", "weight)=0, ", "item 1 of 20, a connection (source, weight)"),
    ("weight)=(0, ", "weight)=(0, 1e39) (0, ", "(source, weight), within float32"),
])
def test_malformed_files(parsed, text, old, new, message):
    assert text.count(old) >= 1
    assert message in refusal(parsed, text.replace(old, new, 1))


@pytest.mark.parametrize(("old", "new", "message"), [
    ("1.000000 0 5", "0.500000 1 5", "a sparse shortcut network is not supported"),
    ("1.000000 0 5", "1.000000 1 5", "which a shortcut network has"),
    ("5 3 0.5", "5 33 0.5", "activation of the output neurons, one of"),
    ("0.5 0.25", "0.5 inf", "steepness of the output neurons, a finite number"),
    ("3 4 2\n", "3 4 3\n", "number of connections"),
    ("3 4 2\n", "3 3 2\n", "after 8 items, each a number of connections"),
    ("0 0 0 3", "0 0 1 3", "expected 0 connections into neuron 2"),
    ("(0 1.5)", "(0, 1.5)", "item 1 of 13"),
    ("(0 1.5)", "(1 1.5)", "from neuron 0"),
    ("(6 nan)", "(6 nan) (7 1)", "found '(7 1)'"),
    ("(6 nan)", "", "item 13 of 13"),
    (OLD, "FANN_FLO_1.1\n2 0.7 0.5 0 5 3 0.5 0.5\n3 2\n0 0 0 1 0\n(2 1)\n",
     "layer 0 has only biases"),
])
def test_malformed_files_of_version_1_1(parsed, old, new, message):
    assert message in refusal(parsed, OLD.replace(old, new, 1))


def test_a_bad_weight_far_inside_a_large_file(parsed, text, monkeypatch):
    from clnet.formats import numbers

    monkeypatch.setattr(numbers, "_BLOCK", 50)
    assert same(parsed(text), small())
    start = text.rindex("(4, ")
    bad = text[:start] + "(4; " + text[start + 4:]
    assert "line 44: found '(4; " in refusal(parsed, bad)


# --- networks that FANN cannot express -----------------------------------------------


@pytest.mark.parametrize(("layers", "message"), [
    ([Dense(2), Dense(2, "softmax")], "layer 1 has the activation 'softmax'"),
    ([Dense(2, "log_softmax")], "layer 0 has the activation 'log_softmax'"),
    ([Dense(2, "gelu"), Dense(2)], "layer 0 has the activation 'gelu'"),
    ([Dense(2, ["tanh", "silu"])], "layer 0 has the activation 'silu'"),
    ([Dense(2, bias=False)], "layer 0 has no bias"),
    ([Sparse(2, density=0.5, bias=False)], "layer 0 has no bias"),
    ([Dense(2), Dense(2), Dense(1, sources=(1, 2))], r"layer 2 reads \(1, 2\), but"),
    ([Dense(2, sources=(0,)), Sparse(2, density=0.5, sources=(0, 1))],
     "layer 1 is sparse, but FANN's shortcut networks are not"),
    ([Local(2)], "one bias for all"),
])
@pytest.mark.parametrize("compatible", [False, True])
def test_networks_that_fann_cannot_express(tmp_path, layers, message, compatible):
    with pytest.raises(FormatError, match=message):
        Network(3, layers, fann_compatible=compatible).save(tmp_path / "x.net")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("field", "value"), [
    ("learning_rate", "fast"), ("learning_rate", None), ("learning_rate", 1e39),
    ("training_algorithm", "adam"), ("cascade_max_out_epochs", 1.5),
    ("cascade_max_out_epochs", -1), ("cascade_activation_functions", "tanh"),
    ("cascade_activation_functions", ["gelu"]),
    ("cascade_activation_steepnesses", 0.5), ("bit_fail_limit", True),
])
def test_bad_parameters(field, value):
    with pytest.raises(InputError):
        FannParameters(**{field: value})

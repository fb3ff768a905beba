"""FANN's sparse and shortcut networks: read, run, trained and written as by FANN.

FANN 2.2 wrote ``data/fann-*`` in float: the networks, their outputs for the samples,
and their weights after 1 and 10 epochs of each algorithm.
"""

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from bounds import FLOAT32, LAMBDA, assert_right
from deviations import deviations

import clnet
from clnet import Dense, FormatError, Network, Sparse
from clnet.formats.fann_structure import Structure
from clnet.ir.lowering import lower_training
from clnet.training.options import loss_of, rule_of

DATA = Path(__file__).parents[1] / "data"
KINDS = ("sparse", "shortcut")
_PAIR = re.compile(r"\((\d+), ([^)]*)\)")


def path(kind):
    return DATA / f"fann-{kind}.net"


def rows(name, kind):
    with (DATA / f"fann-{name}.csv").open() as file:
        return [row[1:] for row in csv.reader(file) if row[0] == kind]


def with_weights(kind, weights):
    """Return FANN's file with other weights, in the file's order."""
    text, connections = path(kind).read_text().rsplit("=", 1)
    found = iter(weights)
    return f"{text}={_PAIR.sub(lambda m: f'({m[1]}, {next(found)})', connections)}"


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_fann(kind):
    network = clnet.load(path(kind))
    x, _ = clnet.load_data(DATA / "fann-small.data")
    expected = np.array(rows("runs", kind), float)
    plan = network.compile(batch=len(x), tune=False)
    for y in (expected.astype("float32"), plan(x)):
        assert_right(network, x, y)


def test_the_networks_that_are_read():
    network = clnet.load(path("sparse"))
    assert network.sizes == (3, 6, 5, 2)
    assert all(isinstance(layer, Sparse) for layer in network.layers)
    assert network.layers[0].steepness[:2] == (0.75, 0.5)
    lengths = [layer.pattern.lengths.tolist() for layer in network.layers]
    assert lengths == [[1, 2, 1, 2, 1, 2], [3, 3, 3, 3, 3], [2, 3]]
    # Neuron 4 has connections from the bias 3 and from the input 2.
    np.testing.assert_allclose(network.weights(0)[0], [0, 0, -0.6377869], atol=1e-7)
    assert network.biases(0)[0] == pytest.approx(-0.4784893)
    network = clnet.load(path("shortcut"))
    assert network.sizes == (3, 4, 2, 2)
    assert [layer.sources for layer in network.layers] == [(0,), (0, 1), (0, 1, 2)]
    assert [m.n_in for m in network.matrices] == [3, 7, 9]
    np.testing.assert_allclose(  # of neuron 8: its connections from 0 to 7, bias 3
        [*network.weights(1)[0, :3], network.biases(1)[0], network.weights(1)[0, 3]],
        [-0.6016093, -0.2236990, 0.6199064, 0.0109488, 0.4755937], atol=1e-7,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ["batch", "rprop", "quickprop"])
def test_training_is_that_of_fann(kind, algorithm, tmp_path):
    """FANN rounds too: both are within the bound of the exact result."""
    x, t = clnet.load_data(DATA / "fann-small.data")
    first = clnet.load(path(kind))
    fann = dataclasses.replace(first.fann, training_algorithm=algorithm)
    network = Network(
        3, first.layers, fann_compatible=True, fann=fann, parameters=first.parameters
    )
    rule, n = rule_of(network, "fann"), len(x)
    program = lower_training(network, loss_of(network, "fann"), rule)
    state = np.broadcast_to(np.reshape(rule.initial, (-1, 1)),
                            (rule.slots, network.layout.size))
    inputs = {"x": x, "t": t, "state": state, "seed": 0, "rate": rule.rate}
    epochs, state = 0, None
    for name, epoch, *weights in rows("weights", kind):
        if name != algorithm:
            continue
        history = network.fit(
            x, t, optimiser="fann", epochs=int(epoch) - epochs, state=state
        )
        epochs, state = int(epoch), history.state
        (tmp_path / "expected.net").write_text(with_weights(kind, weights))
        expected = clnet.load(tmp_path / "expected.net").parameters
        exact, deviation = deviations(
            program.ops, inputs, first.parameters, FLOAT32,
            [{"samples": n, "seen": n, "count": count} for count in range(epochs)],
        )
        name = program.ops[-1].parameters.name
        for found in (network.parameters, expected):
            off = np.abs(found - exact[name])
            assert (off <= LAMBDA * deviation[name]).all()
    assert epochs == 10


def test_shortcut_files_are_written_byte_for_byte(tmp_path):
    clnet.load(path("shortcut")).save(tmp_path / "a.net")
    assert (tmp_path / "a.net").read_bytes() == path("shortcut").read_bytes()


def test_sparse_files_are_written_with_sorted_connections(tmp_path):
    network = clnet.load(path("sparse"))
    network.save(tmp_path / "a.net")
    back = clnet.load(tmp_path / "a.net")
    np.testing.assert_array_equal(back.parameters, network.parameters)
    assert back.layers == network.layers
    ours, fanns = (p.read_text().splitlines() for p in (tmp_path / "a.net",
                                                        path("sparse")))
    assert ours[:-1] == [  # 10.5 of 3 x 6, 30 and 10 connections are counted up
        line.replace("rate=0.500000", f"rate={29 / 58:f}") for line in fanns[:-1]
    ]
    assert sorted(_PAIR.findall(ours[-1])) == sorted(_PAIR.findall(fanns[-1]))
    assert ours[-1].split("=")[1].startswith("(3, -4.78489279747009277344e-01) (2, -6.")
    back.save(tmp_path / "b.net")
    assert (tmp_path / "b.net").read_bytes() == (tmp_path / "a.net").read_bytes()


def test_pruned_networks_are_written(tmp_path):
    full = Network.mlp([5, 4, 2], "tanh", seed=1, fann_compatible=True)
    network = full.prune(density=0.4, layers=[0], format="hyb")
    network.save(tmp_path / "a.net")
    assert "connection_rate=0.571429" in (tmp_path / "a.net").read_text()
    back = clnet.load(tmp_path / "a.net")
    for number in range(2):
        np.testing.assert_array_equal(back.weights(number), network.weights(number))
        np.testing.assert_array_equal(back.biases(number), network.biases(number))
    assert isinstance(back.layers[1], Dense)  # fully connected
    # One connection of very many is missing: the rate must not be rounded to 1.
    mask = np.ones((1100, 1000), bool)
    mask[7, 7] = False
    Network(1000, [Sparse(1100, pattern=mask)], seed=1).save(tmp_path / "b.net")
    assert "connection_rate=0.999999\n" in (tmp_path / "b.net").read_text()


def test_a_shortcut_network_of_one_layer(tmp_path):
    for sources, kind in (((0,), 1), (None, 0)):
        network = Network(3, [Dense(2, "tanh", sources=sources)], fann_compatible=True)
        network.save(tmp_path / "a.net")
        assert f"network_type={kind}\n" in (tmp_path / "a.net").read_text()
        back = clnet.load(tmp_path / "a.net")
        np.testing.assert_array_equal(back.parameters, network.parameters)
        assert back.layers[0].sources == sources


def test_old_files(tmp_path):
    """Version 1.1 has sparse and shortcut networks too."""
    (tmp_path / "a.net").write_text(
        "FANN_FLO_1.1\n3 0.7 0.5 0 5 3 0.5 0.5\n3 4 2\n0 0 0 2 3 2 0 2 0\n"
        "(2 1) (0 2) (2 3) (1 4) (0 5) (2 6) (1 7) (6 8) (3 9)\n"
    )
    network = clnet.load(tmp_path / "a.net")
    np.testing.assert_array_equal(network.weights(0), [[2, 0], [5, 4], [0, 7]])
    np.testing.assert_array_equal(network.biases(0), [1, 3, 6])
    np.testing.assert_array_equal(network.weights(1), [[9, 0, 0]])
    (tmp_path / "b.net").write_text(
        "FANN_FLO_1.1\n3 0.7 1 1 5 3 0.5 0.5\n2 1 1\n0 0 2 3\n"
        "(0 1) (1 2) (0 3) (1 4) (2 5)\n"
    )
    network = clnet.load(tmp_path / "b.net")
    np.testing.assert_array_equal(network.weights(1), [[3, 5]])
    np.testing.assert_array_equal(network.biases(1), [4])


def test_numbers_and_columns():
    layered = Structure((3, 4, 2))
    assert layered.widths == (2, 3, 1)
    assert layered.neurons(2).tolist() == [3, 4, 5, 6]
    assert layered.columns(2).tolist() == [0, 1, 2, 3]
    shortcut = Structure((3, 4, 2), shortcut=True)
    assert shortcut.widths == (2, 4, 2)
    assert shortcut.neurons(2).tolist() == list(range(7))
    assert shortcut.columns(2).tolist() == [0, 1, 6, 2, 3, 4, 5]


@pytest.mark.parametrize(("kind", "old", "new", "message"), [
    ("sparse", "rate=0.5", "rate=-0.5", "a connection_rate of -0.5 is not supported"),
    ("sparse", "rate=0.5", "rate=1.5", "expected 4 connections into neuron 4, which a"),
    ("sparse", "network_type=0", "network_type=1", "a sparse shortcut network is not"),
    ("sparse", ")=(0, 0, ", ")=(1, 0, ", "expected 0 connections into neuron 0"),
    ("sparse", "(2, 5, ", "(0, 5, ", "expected 1 to 4 connections into neuron 4"),
    ("sparse", "(2, 5, ", "(5, 5, ", "expected 1 to 4 connections into neuron 4"),
    ("sparse", "(2, 5, ", "(1.5, 5, ", "1 to 4 connections into neuron 4"),
    ("sparse", "(2, 5, ", "(1, 5, ", "the end of the file"),
    ("sparse", "weight)=(3, ", "weight)=(4, ", "1 of 42 from one of the neurons 0 to"),
    ("sparse", "weight)=(3, ", "weight)=(1.5, ", "from one of the neurons 0 to 3"),
    ("sparse", "weight)=(3, ", "weight)=(1, ",
     "connection 1 of 42 from the bias 3, which neuron 4 lacks"),
    ("sparse", "weight)=(3, ", "weight)=(2, ",
     "connection 2 of 42 from a neuron that is not connected yet"),
    ("shortcut", "network_type=1", "network_type=0", "0 connections into neuron 7"),
    ("shortcut", "sizes=4 4 2 2", "sizes=4 4 2 0", "layer of at least one neuron"),
    ("shortcut", "sizes=4 4 2 2", "sizes=1 4 2 2", "one neuron and the bias"),
    ("shortcut", "(8, 5, ", "(7, 5, ",
     "expected 8 connections into neuron 8, which a shortcut network has"),
    ("shortcut", "weight)=(0, ", "weight)=(1, ",
     "connection 1 of 52 from neuron 0, as in a shortcut network"),
])
def test_malformed_files(tmp_path, kind, old, new, message):
    text = path(kind).read_text()
    assert old in text
    (tmp_path / "a.net").write_text(text.replace(old, new, 1))
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        clnet.load(tmp_path / "a.net")
    assert re.search(r"a\.net, line \d+: ", str(caught.value))

"""The history of a training, and states to resume from."""

from __future__ import annotations

import dataclasses
import itertools
import sys

import numpy as np
import pytest
from test_training import net, spirals

import clnet
from clnet import Dense, Network, Sparse
from clnet.errors import ClnetError, ClnetWarning, FormatError, InputError
from clnet.nn.optimisers import Adam
from clnet.nn.storage.formats import FORMATS
from clnet.training.history import TrainingState
from clnet.training.passes import measures
from clnet.training.setup import _resumed_state


def test_a_sum_that_overflows_is_infinite():
    """Its rounding error is NaN."""
    nan, inf = np.nan, np.inf
    totals = np.array([[inf, 4, 3, nan, 0, 0], [nan, inf, nan, nan, nan, nan]], "f4")
    expected = [[inf, 0.5, 3], [nan, inf, 8]]
    np.testing.assert_array_equal(measures(totals, 2, 4), expected)


def test_the_history():
    x, t = spirals()
    history = net().fit(x, t, epochs=3, validation=(x, t))
    assert len(history) == len(history.loss) == len(history.bit_fail) == 3
    assert [epoch.loss for epoch in history] == history.loss
    assert "3 epochs, loss" in repr(history)
    pytest.importorskip("matplotlib")
    axes = history.plot()
    assert [line.get_label() for line in axes.lines] == ["training", "validation"]
    assert history.plot(axes=axes) is axes


def test_a_plot_without_matplotlib(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    x, t = spirals()
    with pytest.raises(ClnetError, match="needs matplotlib"):
        net().fit(x, t, epochs=1).plot()


@pytest.mark.parametrize("text", [b"", b"nonsense", b"PK\x03\x04zzz", b"\x93NUMPY"])
def test_damaged_states(tmp_path, text):
    path = tmp_path / "state.npz"
    path.write_bytes(text)
    with pytest.raises(FormatError, match=r"state\.npz"):
        TrainingState.load(path)


def test_states_that_do_not_match(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, x=np.zeros(3))
    with pytest.raises(FormatError, match="holds no training state"):
        TrainingState.load(path)
    x, t = spirals()
    state = net().fit(x, t, optimiser="adam", epochs=1).state
    with pytest.raises(InputError, match=r"optimiser Adam\(.*called with Rprop"):
        net().fit(x, t, optimiser="rprop", state=state)
    with pytest.raises(InputError, match="parameters, but this one has"):
        Network(2, [Dense(2)]).fit(x, t, optimiser="adam", state=state)
    with pytest.raises(InputError, match="the state's seed is"):
        net().fit(x, t, optimiser="adam", state=state, seed=(state.seed + 1) % 2**62)
    with pytest.raises(InputError, match="state must be"):
        net().fit(x, t, optimiser="adam", state=3)


def test_states_are_records():
    assert {f.name for f in dataclasses.fields(TrainingState)} == {
        "optimiser", "epoch", "count", "seed", "parameters", "values",
        "formats",
    }


PARAMETERS = net().parameters
ADAM = TrainingState(repr(Adam()), 1, 1, 0, PARAMETERS, np.zeros((2, PARAMETERS.size),
                                                                PARAMETERS.dtype))


def filled(array, value):
    return np.full_like(array, value)


@pytest.mark.parametrize(("changes", "message"), [
    ({"epoch": -1}, "epoch must be a whole number from 0 to 2147483646, not -1"),
    ({"epoch": 1.5}, r"epoch must be .*, not 1\.5"),
    ({"epoch": np.nan}, "epoch must be .*, not nan"),
    ({"epoch": "7"}, "epoch must be .*, not '7'"),
    ({"epoch": 2**62}, "epoch must be .*, not 4611686018427387904"),
    ({"epoch": [1, 2]}, "epoch must be a whole number"),
    ({"epoch": True}, "epoch must be .*, not True"),
    ({"count": -1}, "count must be a whole number"),
    ({"count": 2**31}, "count must be a whole number"),
    ({"count": 1e3}, "count must be a whole number"),
    ({"seed": -5}, "seed must be a whole number"),
    ({"seed": 2**63}, "seed must be a whole number"),
    ({"seed": np.datetime64(7, "ns")}, "seed must be a whole number"),
    ({"seed": "\x1b[2J" * 1000}, r"seed must be .*, not '\\x1b\[2J"),
    ({"optimiser": 3}, "optimiser must be text, not 3"),
    ({"parameters": filled(ADAM.parameters, np.nan)}, "parameters must be finite"),
    ({"values": filled(ADAM.values, np.inf)}, "values must be finite"),
    ({"values": ADAM.values[0]}, "values must be floats in 2 dimensions"),
    ({"values": ADAM.values.astype(int)}, "values must be floats"),
    ({"parameters": "text"}, "parameters must be floats in 1 dimensions, not <U4"),
    ({"parameters": ADAM.parameters + 1j}, "parameters must be floats"),
    ({"formats": ("ell", "x")}, "unknown format 'x'"),
    ({"formats": ("ell", "\x1b[2J" * 1000)}, r"unknown format '\\x1b\[2J"),
    ({"formats": np.zeros((1, 1), str)}, "formats must be a tuple of names"),
    ({"formats": np.zeros(2)}, r"unknown format 0\.0"),
    ({"more": 1}, "it has the arrays"),
])
def test_states_of_a_file_are_checked(tmp_path, changes, message):
    path = tmp_path / "state.npz"
    arrays = {f.name: getattr(ADAM, f.name) for f in dataclasses.fields(ADAM)}
    np.savez(path, **{**arrays, **changes})
    with pytest.raises(FormatError, match=message) as caught:
        TrainingState.load(path)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
    if "more" not in changes and all(np.ndim(v) < 1 for v in changes.values()):
        state = dataclasses.replace(ADAM, **changes)
        with pytest.raises(InputError, match=message):
            net().fit(*spirals(), optimiser="adam", state=state)


@pytest.mark.parametrize("code", [sys.maxunicode + 1, 2**31])
@pytest.mark.parametrize("order", "<>")
def test_a_state_whose_text_is_none(tmp_path, code, order):
    """Of characters beyond Unicode, for which Python raises a SystemError."""
    path = tmp_path / "state.npz"
    arrays = {f.name: getattr(ADAM, f.name) for f in dataclasses.fields(ADAM)}
    text = np.full(1, code, f"{order}u4").view(f"{order}U1")
    np.savez(path, **{**arrays, "optimiser": text})
    with pytest.raises(FormatError, match=r"damaged or not a .*beyond Unicode"):
        TrainingState.load(path)


@pytest.mark.parametrize(("changes", "message"), [
    ({"values": filled(ADAM.values, -1)}, "values 1 hold negative numbers"),
    ({"values": filled(ADAM.values.astype("float64"), 1e300)}, "must be finite"),
    ({"count": 2**31 - 2}, "after the 2147483646 steps of the state, are more than"),
])
def test_states_that_no_training_leaves(changes, message):
    state = dataclasses.replace(ADAM, **changes)
    with pytest.raises(InputError, match=message):
        net().fit(*spirals(), optimiser="adam", state=state, epochs=5)


def sparse_net(form, **options):
    """A network of a sparse layer of rows of equal length, and of one of others."""
    full = np.eye(64, dtype=bool) | np.eye(64, k=7, dtype=bool)
    full[57:, 0] = True
    ragged = np.tri(5, 64, k=-1, dtype=bool) | np.eye(5, 64, dtype=bool)
    return Network(64, [
        Sparse(64, "tanh", pattern=full, format=form), Sparse(5, pattern=ragged,
                                                              format=form),
    ], seed=0, **options)


def test_a_state_resumes_in_other_formats(tmp_path):
    """Formats order the values in their own ways, some in buffers of equal size."""
    path = tmp_path / "state.npz"
    for form, other in itertools.permutations(["auto", *FORMATS], 2):
        source, network = sparse_net(form), sparse_net(other)
        values = np.zeros((2, source.layout.size), "float32")
        for matrix in source.matrices:
            offsets = matrix.entries().slots
            values[:, offsets] = np.arange(2 * offsets.size).reshape(2, -1)
        TrainingState(
            repr(Adam()), 0, 0, 0, source.parameters, values, source.formats
        ).save(path)
        state = _resumed_state(network, Adam(), None, TrainingState.load(path))
        assert state.formats == (other, other)
        for old, new in zip(source.matrices, network.matrices, strict=True):
            for before, after in ((source.parameters, state.parameters),
                                  *zip(values, state.values, strict=True)):
                assert np.array_equal(old.live_values(before), new.live_values(after))


def test_states_of_other_sparse_layers():
    state = TrainingState(repr(Adam()), 0, 0, 0, PARAMETERS, ADAM.values, ("ell",))
    with pytest.raises(InputError, match="for 1 sparse layer, but this network has 0"):
        net().fit(*spirals(), optimiser="adam", state=state)
    source = sparse_net("csr")
    state = _resumed_state(source, Adam(), None, TrainingState(
        repr(Adam()), 0, 0, 0, source.parameters,
        np.zeros((2, source.layout.size), "float32"),
    ))
    state = dataclasses.replace(state, formats=("dense", "ell"))
    with pytest.raises(InputError, match=r"but this one has \d+ as dense, ell"):
        _resumed_state(source, Adam(), None, state)


def test_a_state_resumes_where_padding_exceeds_the_memory_limit(tmp_path):
    """The network is then stored without the padding, which the state has."""
    path, rng = tmp_path / "x.safetensors", np.random.default_rng(0)
    x, t = rng.random((8, 64)), rng.random((8, 5))
    network = sparse_net("dense")
    state = network.fit(x, t, optimiser="adam", epochs=2, seed=1).state
    network.save(path)
    with pytest.warns(ClnetWarning, match="with their padding"):
        smaller = clnet.load(path, memory_limit=9000)
    assert smaller.layout.size < network.layout.size
    history = smaller.fit(x, t, optimiser="adam", epochs=1, state=state)
    assert history.state.epoch == 3

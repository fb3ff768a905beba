"""The history of a training, and states to resume from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_training import net, spirals

from clnet import Dense, Network
from clnet.errors import ClnetError, FormatError, InputError
from clnet.nn.optimisers import Adam
from clnet.training.history import TrainingState


def test_the_history():
    x, t = spirals()
    history = net().fit(x, t, epochs=3, validation=(x, t))
    assert len(history) == len(history.loss) == len(history.bit_fail) == 3
    assert [epoch.loss for epoch in history] == history.loss
    assert "3 epochs, loss" in repr(history)
    pytest.importorskip("matplotlib")
    axes = history.plot()
    assert [line.get_label() for line in axes.lines] == ["training", "validation"]
    assert history.plot(axes) is axes


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
        "optimiser", "epoch", "count", "seed", "parameters", "values"
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


def test_a_state_whose_text_is_none(tmp_path):
    """Of characters beyond Unicode, for which NumPy raises a SystemError."""
    path = tmp_path / "state.npz"
    arrays = {f.name: getattr(ADAM, f.name) for f in dataclasses.fields(ADAM)}
    np.savez(path, **{**arrays, "optimiser": np.full(1, 2**31, "<u4").view("<U1")[0:1]})
    with pytest.raises(FormatError, match="damaged or not a"):
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

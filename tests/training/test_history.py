"""The history of a training, and states to resume from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_training import net, spirals

from clnet import Dense, Network
from clnet.errors import ClnetError, FormatError, InputError
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


@pytest.mark.parametrize("text", [b"", b"nonsense", b"PK\x03\x04zzz"])
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

"""Tables and pictures of notebooks."""

import sys
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

from clnet import Dense, Device, Local, Network
from clnet.nn.notebook import html_table
from clnet.training.history import SHOWN

X = np.linspace(-1, 1, 24).reshape(8, 3)
T = np.eye(2)[np.arange(8) % 2]


def cells(html):
    """The caption, and the rows of each table, header first."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    tables = [
        [[cell.text.strip() for cell in row] for row in table.iter("tr")]
        for table in root.iter("table")
    ]
    return [one.text for one in root.iter("p")], tables


def test_a_table_is_escaped():
    captions, tables = cells(html_table("<b> & co", ("a<", "b"), [("1", "<i>")]))
    assert captions == ["<b> & co"]
    assert tables == [[["a<", "b"], ["1", "<i>"]]]


def test_a_network_shows_its_layers():
    network = Network(6, [Local(3, "relu"), Dense(2, ("tanh", "sigmoid"), bias=False)])
    captions, (table,) = cells(network._repr_html_())
    assert captions == ["<Network 6-4-2 float32>: 21 parameters, 6 inputs"]
    assert table == [
        ["layer", "kind", "neurons", "activation", "parameters"],
        ["0", "Local", "4", "relu", "13"], ["1", "Dense", "2", "mixed", "8"],
    ]


def test_a_device_shows_its_record():
    device = Device("a <card>", index="1:0", compute_units=16)
    assert repr((device,)) == "(<Device 1:0 a <card>: gpu, 16 compute units>,)"
    captions, (table,) = cells(device._repr_html_())
    assert captions == [repr(device)]
    assert ["compute_units", "16"] in table


def test_a_plan_shows_its_steps(cpu):
    plan = Network.mlp([3, 4, 2], "sigmoid", seed=1).compile(cpu, tune=False)
    captions, (table,) = cells(plan._repr_html_())
    assert captions == [f"<Plan 3-4-2 float32, 1 sample, on {cpu.name}>"]
    assert table[0] == ["ops", "variant", "config", "device"]
    assert len(table) == 1 + len(plan.steps)


@pytest.mark.parametrize("validation", [None, (X, T)])
@pytest.mark.parametrize("epochs", [1, 3, 40])
def test_a_history_shows_some_epochs(epochs, validation):
    network = Network.mlp([3, 4, 2], "sigmoid", seed=1)
    history = network.fit(X, T, epochs=epochs, seed=1, validation=validation)
    captions, (table,) = cells(history._repr_html_())
    assert captions == [repr(history)]
    header = ["epoch", "loss", "mse", "validation loss"]
    assert table[0] == (header if validation else header[:3])
    assert len(table) == 1 + min(epochs, SHOWN)
    assert {len(row) for row in table} == {len(table[0])}
    assert [table[1][0], table[-1][0]] == ["1", str(epochs)]


def test_a_history_of_no_epoch_is_shown():
    from clnet.training.history import History, TrainingState

    state = TrainingState(
        optimiser="sgd", epoch=0, count=0, seed=1,
        parameters=np.zeros(3, np.float32), values=np.zeros((1, 3), np.float32),
    )
    captions, tables = cells(History(state)._repr_html_())
    assert captions == ["<History of no epoch>"]
    assert len(tables[0]) <= 1


def test_an_evaluation_shows_its_metrics_and_the_confusion():
    network = Network.mlp([3, 4, 2], "sigmoid", seed=1)
    _, (metrics, confusion) = cells(network.evaluate(X, T)._repr_html_())
    assert [row[0] for row in metrics] == ["metric", "mse", "bit_fail", "accuracy"]
    assert confusion[0] == ["class", "0", "1"]
    assert sum(int(n) for row in confusion[1:] for n in row[1:]) == len(X)
    network = Network.mlp([3, 4, 2], ["tanh", "identity"], seed=1)
    _, tables = cells(network.evaluate(X, X[:, :2])._repr_html_())
    assert len(tables) == 1


def test_a_notebook_shows_a_plot(monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    history = Network.mlp([3, 2], seed=1).fit(X, T, epochs=2)
    with monkeypatch.context() as patch:
        patch.setattr(pyplot, "figure", lambda **_: 1 / 0)  # opens a window elsewhere
        history.plot()
    pyplot.switch_backend("agg")
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    axes = history.plot()
    assert axes.figure.number in pyplot.get_fignums()
    pyplot.close(axes.figure)

"""Checkpoints, and trainings that go on from them as if uninterrupted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from test_training import DEVICE, spirals

from clnet import Dense, Network, Sparse, load
from clnet.errors import ClnetError, ClnetWarning, FormatError, InputError
from clnet.formats import safetensors as own
from clnet.nn.optimisers import SGD, Adam
from clnet.nn.schedules import Exponential
from clnet.opencl.store import Store
from clnet.planning import training_planner
from clnet.planning.format_planner import NetworkView
from clnet.training import plans
from clnet.training.callbacks import Checkpoint, CSVLogger, EarlyStopping, TensorBoard
from clnet.training.network_training import NetworkTraining
from clnet.training.saved import SavedTraining

X, T = spirals()
TWINS = [DEVICE, replace(DEVICE, index="9:1")]


class CrashError(Exception):
    pass


def crash(at):
    def crash(training, epoch):
        if epoch.number == at:
            raise CrashError

    return crash


def mlp(**options):
    return Network.mlp([2, 12, 2], ["tanh", "sigmoid"], seed=1, **options)


def sparse():
    return Network(2, [Dense(24), Sparse(24, density=0.3), Dense(2)], seed=1)


def whole_and_parts(make, path, epochs=11, at=8, **options):
    """Train at once, and with a crash after which another process would go on."""
    whole, parts, rest = make(), make(), make()
    options.setdefault("callbacks", list)
    made = options.pop("callbacks")
    every = options.pop("every", 3)
    seed = options.pop("seed", 5)
    expected = whole.fit(X, T, epochs=epochs, seed=seed, callbacks=made(), **options)
    with pytest.raises(CrashError):
        parts.fit(X, T, epochs=epochs, seed=seed,
                  callbacks=[*made(), Checkpoint(path, every), crash(at)], **options)
    rest.parameters = rest.parameters * 0
    found = rest.fit(X, T, epochs=epochs, resume=path,
                     callbacks=[*made(), Checkpoint(path, every)], **options)
    return whole, expected, rest, found


def assert_same(whole, expected, rest, found):
    np.testing.assert_array_equal(rest.parameters, whole.parameters)
    np.testing.assert_array_equal(found.state.values, expected.state.values)
    np.testing.assert_array_equal(
        found.epochs.rows[:, :-1], expected.epochs.rows[:, :-1]
    )
    for name in ("optimiser", "epoch", "count", "seed"):
        assert getattr(found.state, name) == getattr(expected.state, name)
    assert (found.stopped, found.best_epoch) == (expected.stopped, expected.best_epoch)


@pytest.mark.parametrize(("make", "options"), [
    (mlp, {"optimiser": "batch"}),
    (mlp, {"optimiser": "rprop"}),
    (mlp, {"optimiser": "rprop", "sample_weight": X[:, 0] ** 2}),
    (mlp, {"optimiser": "quickprop"}),
    (mlp, {"optimiser": "sarprop"}),
    (mlp, {"optimiser": "incremental"}),
    (mlp, {"optimiser": "adam", "batch_size": 16, "schedule": "cosine"}),
    (mlp, {"schedule": Exponential(0.9), "shuffle": False, "every": 1, "at": 2}),
    (mlp, {"schedule": lambda epoch: 1 / (1 + epoch), "sample_weight": X[:, 0] ** 2}),
    (lambda: mlp(dropout=0.2), {"validation": (X[:30], T[:30]), "every": 4}),
    (lambda: mlp(dtype="float64"),
     {"optimiser": SGD(0.1, 0.9), "batch_size": 50, "clip_norm": 1.0}),
    (sparse, {"batch_size": 40, "l2": 1e-4}),
    (mlp, {"devices": TWINS, "batch_size": 40, "validation": (X[:30], T[:30])}),
    (lambda: mlp(dropout=0.2), {"devices": TWINS, "optimiser": "rprop"}),
], ids=lambda value: value if isinstance(value, str) else None)
def test_a_resumed_training_ends_as_an_uninterrupted_one(make, options, tmp_path):
    """``tests/faults/test_kills.py`` kills processes."""
    assert_same(*whole_and_parts(make, tmp_path / "x.safetensors", **options))


def test_early_stopping_goes_on(tmp_path):
    """The best epoch is before the crash, and the patience ends after it."""
    found = whole_and_parts(
        mlp, tmp_path / "x.safetensors", epochs=100, at=9, every=4,
        callbacks=lambda: [EarlyStopping(patience=9, min_delta=1.0)],
        validation=(X[:30], T[:30]),
    )
    assert_same(*found)
    history = found[-1]
    assert (len(history), history.best_epoch) == (10, 1)


def test_the_plan_goes_on_whatever_would_be_planned_now(tmp_path, monkeypatch):
    def dense(network, device, planner):
        return planner(NetworkView(network, "dense"))

    options = {"epochs": 6, "seed": 1, "batch_size": 40}
    whole, rest, path = sparse(), sparse(), tmp_path / "x.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(training_planner, "best_format", dense)
        expected = whole.fit(X, T, **options)
        with pytest.raises(CrashError):
            sparse().fit(X, T, callbacks=[Checkpoint(path), crash(4)], **options)
    monkeypatch.setattr(plans, "plan_training", None)
    found = rest.fit(X, T, resume=path, **options)
    assert_same(whole, expected, rest, found)
    assert "The plan is that of the checkpoint." in found.plan


def test_another_device_is_told(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    mlp().fit(X, T, epochs=2, seed=1, callbacks=[Checkpoint(path)])
    store = training_planner.store_of(DEVICE)
    assert isinstance(store, Store)
    monkeypatch.setattr(store, "key", "another driver")
    with pytest.warns(ClnetWarning, match="the checkpoint's plan is none for these"):
        history = mlp().fit(X, T, epochs=4, resume=path)
    assert history.state.epoch == len(history) == 4


# The meaning of epochs, and of a training that has ended ----------------------------


@pytest.mark.parametrize("options", [
    {"epochs": 3}, {"epochs": 60, "desired_error": 0.2},
    {"epochs": 60, "callbacks": lambda: [EarlyStopping("loss", 2, min_delta=1)]},
    {"epochs": 60, "callbacks": lambda: [lambda training, epoch: epoch.number == 4]},
], ids=["done", "desired", "early", "callback"])
def test_a_training_that_has_ended_ends_there_again(options, tmp_path):
    path = tmp_path / "x.safetensors"
    options = {"callbacks": list, **options}
    made = options.pop("callbacks")
    first, again = mlp(), mlp()
    expected = first.fit(X, T, seed=1, callbacks=[*made(), Checkpoint(path, every=7)],
                         **options)
    found = again.fit(X, T, resume=path, callbacks=[*made(), Checkpoint(path)],
                      **options)
    assert_same(first, expected, again, found)


def test_epochs_are_those_of_the_whole_training(tmp_path):
    path = tmp_path / "x.safetensors"
    mlp().fit(X, T, epochs=3, seed=1, callbacks=[Checkpoint(path, every=9)])
    longer, whole = mlp(), mlp()
    found = longer.fit(X, T, epochs=7, resume=path)
    assert_same(whole, whole.fit(X, T, epochs=7, seed=1), longer, found)
    assert [epoch.number for epoch in found] == [1, 2, 3, 4, 5, 6, 7]
    sentence = "is of a training after 3 epochs, expected epochs of at least as many"
    with pytest.raises(InputError, match=sentence):
        mlp().fit(X, T, epochs=2, resume=path)


def test_a_checkpoint_of_a_training_that_began_with_a_state(tmp_path):
    path = tmp_path / "x.safetensors"
    state = mlp().fit(X, T, epochs=2, seed=1).state
    whole, rest = mlp(), mlp()
    expected = whole.fit(X, T, epochs=5, state=state)
    mlp().fit(X, T, epochs=2, state=state, callbacks=[Checkpoint(path)])
    found = rest.fit(X, T, epochs=7, resume=path)
    assert_same(whole, expected, rest, found)
    assert found[0].number == 3


def test_an_interrupted_training_goes_on(tmp_path):
    def interrupt(training, epoch):
        if epoch.number == 3:
            raise KeyboardInterrupt

    path = tmp_path / "x.safetensors"
    mlp().fit(X, T, epochs=6, seed=1, callbacks=[interrupt, Checkpoint(path, every=9)])
    whole, rest = mlp(), mlp()
    found = rest.fit(X, T, epochs=6, resume=path)
    assert_same(whole, whole.fit(X, T, epochs=6, seed=1), rest, found)


def test_a_training_that_diverges_keeps_the_checkpoint_before(tmp_path):
    path = tmp_path / "x.safetensors"
    network = Network.mlp([2, 12, 2], "identity", seed=1)
    with pytest.warns(ClnetWarning, match="diverged"):
        history = network.fit(
            X, T, optimiser=SGD(30.0), batch_size=120, epochs=900, seed=1,
            callbacks=[Checkpoint(path)],
        )
    assert SavedTraining.load(path).state.epoch in (len(history) - 1, len(history) - 2)


# Refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "sentence"), [
    ({"network": Network.mlp([2, 13, 2])}, "with network '2-12-2 float32', not"),
    ({"network": Network.mlp([2, 12, 2], "relu")}, "other layers or connections"),
    ({"network": mlp(dtype="float64")}, "with network '2-12-2 float32', not"),
    ({"optimiser": "rmsprop"}, "with optimiser 'Adam"),
    ({"optimiser": Adam(0.5)}, ", not 'Adam"),
    ({"loss": "mae"}, "with loss 'mse', not 'mae'"),
    ({"batch_size": 30}, "with batch size 32, not 30"),
    ({"shuffle": False}, "with shuffle True, not False"),
    ({"schedule": "step"}, "with schedule 'cosine', not 'step'"),
    ({"l2": 0.1}, "with regularisation"),
    ({"seed": 2}, "the state's seed is 1, not 2"),
    ({"x": X[1:], "t": T[1:]}, "with samples 120, not 119"),
    ({"x": -X}, "on samples or weights of other values"),
    ({"sample_weight": X[:, 0] ** 2}, "on samples or weights of other values"),
    ({"validation": (X, -T)}, "with another validation set"),
    ({"validation": None}, "with another validation set"),
    ({"state": "x"}, "give state or resume, not both"),
])
def test_other_trainings_are_refused(change, sentence, tmp_path):
    path = tmp_path / "x.safetensors"
    arguments = {"network": mlp(), "x": X, "t": T, "epochs": 2, "validation": (X, T),
                 "schedule": "cosine", "seed": 1}

    def fit(network, **options):
        network.fit(**options)

    fit(**arguments, callbacks=[Checkpoint(path)])
    with pytest.raises(InputError, match=sentence) as raised:
        fit(**{**arguments, **change}, resume=path)
    assert "\n" not in str(raised.value)


def test_another_pattern_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    layers = [Sparse(9, density=0.5), Dense(2)]
    Network(2, layers).fit(X, T, epochs=1, callbacks=[Checkpoint(path)])
    other = Network(2, [Sparse(9, density=0.5, seed=7), Dense(2)])
    with pytest.raises(InputError, match="other layers or connections"):
        other.fit(X, T, epochs=2, resume=path)
    other = Network(2, [Sparse(9, density=0.5, format="ell"), Dense(2)])
    with pytest.raises(InputError, match="with formats"):
        other.fit(X, T, epochs=2, resume=path)


def test_files_without_a_training_are_refused(tmp_path):
    network = mlp()
    for name, sentence in {
        "no.safetensors": "there is no",
        "x.net": "no suffix for checkpoints to resume from",
        "x.safetensors": "holds a network without a training, expected a checkpoint",
    }.items():
        path = tmp_path / name
        if not name.startswith("no"):
            network.save(path)
        with pytest.raises(FormatError, match=sentence):
            network.fit(X, T, epochs=1, resume=path)


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda d, a: d.update(version=2), "holds a training of version 2, expected 1"),
    (lambda d, a: d.pop("seed"), "not clnet's"),
    (lambda d, a: d.update(seed=-1), "not clnet's"),
    (lambda d, a: d.update(stopped=1), "not clnet's"),
    (lambda d, a: d.update(settings=[1]), "not clnet's"),
    (lambda d, a: d["plans"][0].update(more=1), "not clnet's"),
    (lambda d, a: d["plans"][0].update(steps=[{"ops": 1}]), "not clnet's"),
    (lambda d, a: d["callbacks"].clear(), "not clnet's"),
    (lambda d, a: a.pop("values"), "not clnet's"),
    (lambda d, a: a.update(values=a["values"] * np.nan), "not clnet's"),
    (lambda d, a: a.update(measures=a["measures"][:, :2]), "not clnet's"),
    (lambda d, a: a.update(more=a["measures"]), "not clnet's"),
])
def test_damaged_trainings_are_refused(change, sentence, tmp_path):
    path, network = tmp_path / "x.safetensors", mlp()
    network.fit(X, T, epochs=2, callbacks=[EarlyStopping("loss"), Checkpoint(path)])
    described, arrays = own.load_part(path, "training")
    change(described, arrays)
    own.save(network, path, training=(described, arrays))
    with pytest.raises(FormatError, match=sentence) as raised:
        SavedTraining.load(path)
    assert "\n" not in str(raised.value)
    assert load(path).sizes == (2, 12, 2)


def test_metadata_that_are_no_json(tmp_path):
    path, network = tmp_path / "x.safetensors", mlp()
    network.save(path)
    with safetensors.safe_open(path, "numpy") as file:
        metadata = {**file.metadata(), "clnet.training": "{"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert json.loads(metadata["clnet"])
    safetensors.numpy.save_file(tensors, path, metadata)
    with pytest.raises(FormatError, match="not clnet's"):
        SavedTraining.load(path)


# The state in the midst ---------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"optimiser": "rprop"}, {"optimiser": "adam", "batch_size": 40},
])
def test_the_state_is_that_of_the_epoch(options):
    """Also within epochs that were enqueued together."""
    states = []

    def read(training, epoch):
        if epoch.number in (1, 6, 7, 20):
            states.append(training.history.state)

    network = mlp()
    history = network.fit(X, T, epochs=20, seed=5, callbacks=[read], **options)
    for state in states:
        expected = mlp().fit(X, T, epochs=state.epoch, seed=5, **options).state
        assert (state.count, state.seed) == (expected.count, expected.seed)
        np.testing.assert_array_equal(state.parameters, expected.parameters)
        np.testing.assert_array_equal(state.values, expected.values)
    assert [state.epoch for state in states] == [1, 6, 7, 20]
    assert history.state is history.state


def test_the_state_is_not_read_unless_asked_for(monkeypatch):
    monkeypatch.setattr(
        NetworkTraining, "_state_now", lambda self: pytest.fail("read")
    )
    mlp().fit(X, T, epochs=3, callbacks=[lambda now, epoch: len(now.history) > 5])


# Callbacks ----------------------------------------------------------------------------


class Counter:
    def __init__(self):
        self.seen, self.last = [], np.zeros(1)

    def state_dict(self):
        return {"seen": self.seen, "last": self.last}

    def load_state_dict(self, state):
        self.seen, self.last = state["seen"], state["last"]

    def __call__(self, training, epoch):
        self.seen.append(epoch.number)
        self.last = np.array([epoch.loss])


def test_a_checkpoint_holds_the_state_of_other_callbacks(tmp_path):
    path, counters = tmp_path / "x.safetensors", []

    def made():
        counters.append([Counter(), Counter()])
        return counters[-1]

    _, _, _, history = whole_and_parts(mlp, path, callbacks=made)
    for one in counters[2]:
        assert one.seen == list(range(1, 12))
        assert one.last == history.loss[-1]


def test_a_state_that_no_file_holds(tmp_path):
    counter = Counter()
    counter.seen = [object()]
    with pytest.raises(InputError, match="must be arrays and plain values"):
        mlp().fit(X, T, epochs=1,
                  callbacks=[counter, Checkpoint(tmp_path / "x.safetensors")])


def linear():
    return Network(1, [Dense(1, "identity")], seed=0)


def overflowing(training, epoch):
    """Let Adam's mean squares overflow in epoch 4, and neither weights nor losses."""
    if epoch.number == 3:
        training.parameters = training.parameters * 0 + np.float32(1e15)


def test_a_state_that_overflows_is_not_written(tmp_path):
    path, network = tmp_path / "x.safetensors", linear()
    x, t = np.full((4, 1), 1e3), np.zeros((4, 1))
    with pytest.warns(ClnetWarning) as told:
        history = network.fit(x, t, optimiser=Adam(1e-3), epochs=4, seed=0,
                              callbacks=[overflowing, Checkpoint(path)])
    texts = [str(one.message) for one in told]
    assert sum("the optimiser's state is not finite after epoch 4" in text
               for text in texts) == 1, texts
    assert len(history) == 4
    assert np.isfinite(history.loss).all()
    assert len(SavedTraining.load(path).measures) == 3
    assert len(linear().fit(x, t, optimiser=Adam(1e-3), epochs=3, resume=path)) == 3
    with pytest.raises(InputError, match="a state's values must be finite"):
        history.state.save(tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


def test_a_network_whose_state_overflows_is_written(tmp_path):
    path, network = tmp_path / "x.net", linear()
    with pytest.warns(ClnetWarning, match="epoch 4 left a state"):
        network.fit(np.full((4, 1), 1e3), np.zeros((4, 1)), optimiser=Adam(1e-3),
                    epochs=4, seed=0, callbacks=[overflowing, Checkpoint(path)])
    np.testing.assert_array_equal(load(path).parameters, network.parameters)


def test_early_stopping_that_comes_later(tmp_path):
    path = tmp_path / "x.safetensors"
    mlp().fit(X, T, epochs=3, seed=1, callbacks=[Checkpoint(path)])
    with pytest.raises(InputError, match="written without this early stopping"):
        mlp().fit(X, T, epochs=9, resume=path,
                  callbacks=[EarlyStopping("loss", min_delta=1.0)])
    stop = EarlyStopping("loss")  # the last epoch is the best so far
    assert mlp().fit(X, T, epochs=9, resume=path, callbacks=[stop]).best_epoch == 9
    stop = EarlyStopping("loss", patience=2, min_delta=1.0, restore_best=False)
    history = mlp().fit(X, T, epochs=9, resume=path, callbacks=[stop])
    assert history.best_epoch == 1
    assert history.stopped.endswith("epoch 1 was the best by loss")


def test_early_stopping_that_comes_later_to_samples_of_no_known_number(tmp_path):
    """An epoch may have been one step: the parameters of its loss are not there."""
    path, samples = tmp_path / "x.safetensors", [(X[:50], T[:50]), (X[50:], T[50:])]
    options = {"optimiser": "batch", "batch_size": len(X), "buffer": 1 << 14}
    mlp().fit(samples, epochs=3, seed=1, callbacks=[Checkpoint(path)], **options)
    with pytest.raises(InputError, match="written without this early stopping"):
        mlp().fit(samples, epochs=9, resume=path, callbacks=[EarlyStopping("loss")],
                  **options)


@pytest.mark.parametrize("kept", [EarlyStopping("validation_loss"), None])
def test_early_stopping_by_the_loss_of_one_step_that_comes_later(kept, tmp_path):
    """The file has the parameters after the last step, and the loss of those before."""
    path = tmp_path / "x.safetensors"
    options = {"optimiser": "batch", "validation": (X[:30], T[:30])}
    mlp().fit(X, T, epochs=3, seed=1, **options,
              callbacks=[*([] if kept is None else [kept]), Checkpoint(path)])
    with pytest.raises(InputError, match="written without this early stopping"):
        mlp().fit(X, T, epochs=9, resume=path, **options,
                  callbacks=[EarlyStopping("loss")])
    stop = EarlyStopping("validation_loss")
    found = mlp().fit(X, T, epochs=9, resume=path, callbacks=[stop], **options)
    assert found.best_epoch == 9


@pytest.mark.filterwarnings("ignore::clnet.ClnetWarning")
def test_the_best_epoch_is_restored_after_a_divergence():
    network = Network.mlp([2, 12, 2], "identity", seed=1)
    kept = {0: network.parameters}

    def keep(training, epoch):
        kept[epoch.number] = training.parameters

    history = network.fit(
        X, T, optimiser=SGD(30.0), batch_size=120, epochs=900, seed=1,
        callbacks=[keep, EarlyStopping("loss", patience=900)],
    )
    assert "diverged" in history.stopped
    assert history.best_epoch == 1 + int(np.nanargmin(history.loss))
    before = kept[history.best_epoch - 1]  # an epoch is a step
    np.testing.assert_array_equal(network.parameters, before)


def table(path):
    header, *rows = path.read_text().splitlines()
    return header.split(","), [[float(n) for n in row.split(",")] for row in rows]


@pytest.mark.parametrize("validates", [False, True])
def test_a_table_of_the_learning_curve(validates, tmp_path):
    path = tmp_path / "curve.csv"
    validation = (X[:30], T[:30]) if validates else None
    whole = whole_and_parts(mlp, tmp_path / "x.safetensors", validation=validation,
                            callbacks=lambda: [CSVLogger(path)])
    header, rows = table(path)
    names = ["loss", "mse", "bit_fail"]
    more = [f"validation_{name}" for name in names] if validates else []
    assert header == ["epoch", "seconds", *names, *more]
    history = whole[-1]
    assert [row[0] for row in rows] == list(range(1, 12))
    np.testing.assert_array_equal(
        [[*row[2:], row[1]] for row in rows], history.epochs.rows
    )
    # One epoch more from the state, and none of a file that is no such table.
    network, state = mlp(), whole[1].state
    network.fit(X, T, epochs=1, state=state, callbacks=[CSVLogger(path)],
                validation=validation)
    assert [row[0] for row in table(path)[1]] == list(range(1, 13))
    path.write_text("a,b\n1,2\n")
    network.fit(X, T, epochs=1, state=state, callbacks=[CSVLogger(path)])
    assert [row[0] for row in table(path)[1]] == [12]


def test_a_table_that_cannot_be_written(tmp_path):
    with pytest.raises(FormatError, match="there is no"):
        mlp().fit(X, T, epochs=1, callbacks=[CSVLogger(tmp_path / "no" / "curve.csv")])


def test_tensorboard_without_its_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ClnetError, match="pip install 'clnet\\[tensorboard\\]'"):
        TensorBoard("runs")


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2

    folder = tmp_path / "run"
    history = whole_and_parts(
        mlp, tmp_path / "x.safetensors", validation=(X[:30], T[:30]),
        callbacks=lambda: [TensorBoard(folder)],
    )[-1]
    found = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns):
        content, start = file.read_bytes(), 0
        while start < len(content):  # a length, its checksum, a record, its checksum
            length = int.from_bytes(content[start : start + 8], "little")
            event = event_pb2.Event.FromString(
                content[start + 12 : start + 12 + length]
            )
            start += length + 16
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    assert {*found} == {
        f"{part}/{name}" for part in ("training", "validation")
        for name in ("loss", "mse", "bit_fail")
    }
    steps = found["validation/loss"]
    assert list(steps) == list(range(1, 12))
    np.testing.assert_allclose(list(steps.values()), history.validation_loss, 1e-6)
    (tmp_path / "file").touch()
    with pytest.raises(FormatError, match="cannot write to"):
        mlp().fit(X, T, epochs=1, callbacks=[TensorBoard(tmp_path / "file")])


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    history = mlp().fit(X, T, epochs=3)
    history.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"plots are \.png"):
        history.plot(tmp_path / "curve.txt")

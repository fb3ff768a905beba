"""Training: FANN's golden files, the oracle step by step, the contract of `fit`."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest

from clnet import Dense, Network, Population, load, load_data
from clnet.errors import ClnetWarning, InputError
from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import OPTIMISERS, SGD, Adam, Batch, Incremental
from clnet.nn.random import key
from clnet.nn.storage.layout import live_elements
from clnet.opencl import memory as memories
from clnet.opencl.discovery import device
from clnet.training import plans, segments
from clnet.training.callbacks import EarlyStopping
from clnet.training.history import TrainingState

DEVICE = device()


def spirals(n=120, seed=0):
    """Return two classes that no line divides, as x [n, 2] and one-hot t [n, 2]."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    inside = (x**2).sum(axis=1) < 0.5
    return x, np.stack([inside, ~inside], axis=1).astype(float)


def net(last="sigmoid", seed=1, **options):
    layers = [Dense(12, "tanh"), Dense(2, last)]
    return Network(2, layers, seed=seed, **options)


# FANN's own numbers -----------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["batch", "rprop", "quickprop", "incremental"])
def test_fann_itself(fann_datasets, algorithm):
    """Weights within 1e-5, MSE within 1e-4 relative, bit fails exactly.

    Incremental training magnifies roundings: FANN in float32 and the same rule in
    float64 differ by 1.5e-4 in weights, and by 6e-4 in the MSE from epoch 4 on.
    """
    x, t = load_data(fann_datasets / "mushroom.train.gz")
    file = f"nets/mushroom.{algorithm}"
    rows = np.loadtxt(
        fann_datasets / f"{file}.float.mse.csv", delimiter=",", skiprows=1
    )[:10]
    network = load(fann_datasets / f"{file}.init.net")
    incremental = algorithm == "incremental"

    def distance(epoch):
        other = load(fann_datasets / f"{file}.float.epoch{epoch}.net")
        return np.abs(network.parameters - other.parameters).max()

    first = network.fit(x, t, optimiser="fann", epochs=1)
    assert distance(1) < (2e-5 if incremental else 1e-5)
    rest = network.fit(x, t, optimiser="fann", epochs=9, state=first.state)
    assert distance(10) < (4e-4 if incremental else 1e-5)
    mse = np.array(first.mse + rest.mse)
    tolerance = np.where(np.arange(10) < 3, 1e-4, 2e-3 if incremental else 1e-4)
    assert (np.abs(mse - rows[:, 1]) <= tolerance * rows[:, 1]).all()
    assert first.bit_fail + rest.bit_fail == rows[:, 2].astype(int).tolist()


def test_fanns_parameters_stop_it(fann_datasets):
    x, t = load_data(fann_datasets / "mushroom.train.gz")
    network = load(fann_datasets / "nets/mushroom.rprop.init.net")
    history = network.fit(
        x, t, optimiser="fann", epochs=20, desired_error=100, stop="bit_fail"
    )
    assert len(history) < 12
    assert history.bit_fail[-1] <= 100 < history.bit_fail[-2]
    assert history.stopped.startswith("bit_fail ")


# The oracle -------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_every_step_is_the_oracles(optimiser, shuffle):
    """Three epochs of 50 samples in batches of 16, the last of 2."""
    x, t = spirals(50)
    network = net("softmax")
    rule = OPTIMISERS[optimiser](0.02)
    program = lower_training(
        network, loss_function("categorical_cross_entropy"), rule, samples=50,
        shuffled=shuffle,
    )
    parameters = network.parameters.astype(np.float64)
    values = {"batch": 16, "xs": x, "ts": t, "seed": 7, "rate": 0.02,
              "state": np.zeros((rule.slots, parameters.size))}
    losses = []
    for epoch in range(3):
        for step in range(4):
            first = 16 * step
            samples = min(16, 50 - first)
            values.update(first=first, samples=samples, seen=first + samples,
                          fresh=first == 0, count=4 * epoch + step,
                          key=key(7, epoch))
            reference.run_ops(program.ops, values, parameters)
        losses.append(values["totals"][0, 0] / 50)
    history = network.fit(
        x, t, optimiser=rule, epochs=3, batch_size=16, shuffle=shuffle, seed=7
    )
    np.testing.assert_allclose(history.loss, losses, rtol=1e-5)
    np.testing.assert_allclose(network.parameters, parameters, atol=2e-5)


# Transfers ---------------------------------------------------------------------------


class Transfers:
    """Counts the bytes copied between host and device."""

    def __init__(self, monkeypatch):
        self.bytes = []
        memory, copy = memories.Memory, cl.enqueue_copy
        read, write = memory.read, memory.write
        self.inside = False

        def counted(method, size):
            def call(*arguments):
                self.bytes.append(size(*arguments))
                self.inside = True
                try:
                    return method(*arguments)
                finally:
                    self.inside = False
            return call

        def enqueue_copy(queue, target, source, **options):
            if not self.inside:
                host = [a for a in (target, source) if isinstance(a, np.ndarray)]
                self.bytes += [a.nbytes for a in host]
            return copy(queue, target, source, **options)

        monkeypatch.setattr(memory, "read", counted(
            read, lambda _, s, count, dtype: count * np.dtype(dtype).itemsize
        ))
        monkeypatch.setattr(memory, "write", counted(
            write, lambda _, s, values: values.nbytes
        ))
        monkeypatch.setattr(cl, "enqueue_copy", enqueue_copy)


@pytest.mark.parametrize("options", [
    {"optimiser": "rprop"},
    {"optimiser": "adam", "batch_size": 32},
    {"optimiser": "sgd", "batch_size": 32, "shuffle": False},
    {"optimiser": "incremental"},
], ids=str)
def test_an_epoch_moves_one_record(monkeypatch, options):
    x, t = spirals()
    net().fit(x, t, epochs=1, seed=1, **options)  # so that all is measured
    monkeypatch.setattr(segments, "MAX_EPOCHS", 1)  # one record an epoch
    transfers = Transfers(monkeypatch)
    sizes = []
    for epochs in (2, 7):
        transfers.bytes.clear()
        net().fit(x, t, epochs=epochs, seed=1, **options)
        sizes.append(sorted(transfers.bytes))
    more = list(sizes[1])
    for size in sizes[0]:
        more.remove(size)
    assert more == [24] * 5
    # The data set is copied once.
    assert sizes[1].count(4 * x.size) <= 2  # x, and t of the same shape


def test_validation_moves_one_record_more(monkeypatch):
    x, t = spirals()
    net().fit(x, t, epochs=1, validation=(x[:50], t[:50]))  # so that all is measured
    monkeypatch.setattr(segments, "MAX_EPOCHS", 1)
    transfers = Transfers(monkeypatch)
    counts = []
    for epochs in (1, 3):
        transfers.bytes.clear()
        net().fit(x, t, epochs=epochs, validation=(x[:50], t[:50]))
        counts.append(len(transfers.bytes))
    assert counts[1] - counts[0] == 4


# Resuming ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"optimiser": "rprop"},
    {"optimiser": "adam", "batch_size": 16},
    {"optimiser": "sarprop"},
    {"optimiser": SGD(0.1, 0.9), "batch_size": 50},
], ids=str)
def test_a_resumed_training_is_bit_equal(options, tmp_path):
    x, t = spirals()
    whole = net()
    at_once = whole.fit(x, t, epochs=6, seed=5, **options)
    part = net()
    first = part.fit(x, t, epochs=2, seed=5, **options)
    first.state.save(tmp_path / "state.npz")
    state = TrainingState.load(tmp_path / "state.npz")
    other = net(seed=99)  # the state carries the parameters
    second = other.fit(x, t, epochs=4, state=state, **options)
    np.testing.assert_array_equal(other.parameters, whole.parameters)
    assert first.loss + second.loss == at_once.loss
    assert [epoch.number for epoch in second] == [3, 4, 5, 6]
    np.testing.assert_array_equal(second.state.values, at_once.state.values)


def test_seeds():
    x, t = spirals()
    found = []
    for seed in (1, 1, 2, None, None):
        network = net()
        network.fit(x, t, optimiser="adam", epochs=2, batch_size=16, seed=seed)
        found.append(network.parameters.tobytes())
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_without_progress_there_is_no_bar(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a bar")

    monkeypatch.setattr("tqdm.auto.tqdm", refuse)
    x, t = spirals()
    net().fit(x, t, epochs=1)
    with pytest.raises(AssertionError, match="a bar"):
        net().fit(x, t, epochs=1, progress=True)


# Convergence ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "options"),
    [
        ("sigmoid", {"optimiser": "rprop", "epochs": 60}),
        ("softmax", {"optimiser": Adam(0.05), "epochs": 30, "batch_size": 32}),
        ("sigmoid", {"optimiser": Adam(0.05), "loss": "binary_cross_entropy"}),
        ("tanh", {"optimiser": Incremental(0.1), "epochs": 40, "shuffle": True}),
        ("identity", {"optimiser": "quickprop", "loss": "huber", "epochs": 200}),
    ],
)
def test_it_learns(last, options):
    x, t = spirals(200)
    network = net(last)
    history = network.fit(x, t, seed=2, **options)
    assert history.loss[-1] < 0.5 * history.loss[0]
    assert network.evaluate(x, t).accuracy > 0.9
    assert "epochs are done" in history.stopped


def test_measures_are_those_of_evaluate():
    x, t = spirals()
    network = net("tanh")
    before = network.evaluate(x, t)
    history = network.fit(x, t, epochs=1, optimiser="rprop", validation=(x, t))
    after = network.evaluate(x, t)
    epoch = history[0]
    assert epoch.mse == pytest.approx(before.mse, rel=1e-5)
    assert epoch.bit_fail == before.bit_fail
    assert epoch.validation.mse == pytest.approx(after.mse, rel=1e-5)
    assert epoch.validation.bit_fail == after.bit_fail
    assert epoch.loss == pytest.approx(epoch.mse, rel=1e-5)


def test_large_validation_sets_go_in_batches(monkeypatch):
    x, t = spirals()
    whole = net().fit(x, t, epochs=2, seed=1, validation=(x, t))
    monkeypatch.setattr(plans, "VALIDATION_BATCH", 50)
    parts = net().fit(x, t, epochs=2, seed=1, validation=(x, t))
    np.testing.assert_allclose(parts.validation_loss, whole.validation_loss, rtol=1e-5)
    assert parts[0].validation.bit_fail == whole[0].validation.bit_fail


def test_a_schedule_scales_the_rate():
    x, t = spirals()
    a, b = net(), net()
    a.fit(x, t, optimiser=Batch(0.5), epochs=2, schedule=lambda epoch: 1 - epoch)
    b.fit(x, t, optimiser=Batch(0.5), epochs=1)
    np.testing.assert_array_equal(a.parameters, b.parameters)


def test_float64():
    x, t = spirals()
    network = net(dtype="float64")
    history = network.fit(x, t, epochs=5, seed=1)
    assert network.parameters.dtype == np.float64
    single = net()
    found = single.fit(x, t, epochs=5, seed=1)
    assert found.loss == pytest.approx(history.loss, rel=1e-4)


def test_padding_stays_zero():
    x, t = spirals()
    network = Network(2, [Dense(5, "tanh"), Dense(2)], seed=1)
    network.fit(x, t, epochs=20)
    live = live_elements(network.layout, network.storages)
    assert (network.parameters[~live] == 0).all()
    assert (~live).any()


# Stopping ---------------------------------------------------------------------------


def test_divergence_keeps_the_last_finite_parameters():
    x, t = spirals()
    network = Network(2, [Dense(6, "relu"), Dense(2)], seed=1)
    with pytest.warns(ClnetWarning, match="training diverged: the loss of epoch"):
        history = network.fit(100 * x, t, optimiser=SGD(1e4), epochs=50, batch_size=8)
    assert f"the loss of epoch {len(history)} is" in history.stopped
    assert len(history) < 50
    assert np.isfinite(network.parameters).all()
    assert np.isfinite(network.predict(x)).all()


def test_parameters_that_overflow_in_the_last_step():
    x, t = spirals()
    network = Network(2, [Dense(2)], seed=1)
    before = network.parameters.copy()
    with pytest.warns(ClnetWarning, match="epoch 1 left parameters that are not"):
        history = network.fit(
            1e10 * x, t, optimiser=SGD(1e38), batch_size=len(x), epochs=1, loss="mae"
        )
    assert "epoch 1 left" in history.stopped
    np.testing.assert_array_equal(network.parameters, before)


def test_ctrl_c_keeps_the_trained_parameters():
    x, t = spirals()

    def interrupt(training, epoch):
        if epoch.number == 3:
            raise KeyboardInterrupt

    network, other = net(), net()
    history = network.fit(x, t, epochs=50, seed=1, callbacks=[interrupt])
    other.fit(x, t, epochs=3, seed=1)
    assert history.stopped == (
        "interrupted after 3 epochs; the trained parameters are kept"
    )
    np.testing.assert_array_equal(network.parameters, other.parameters)


def test_a_desired_error():
    x, t = spirals()
    history = net().fit(x, t, optimiser="rprop", epochs=100, desired_error=0.2)
    assert history.mse[-1] <= 0.2 < min(history.mse[:-1])
    assert history.stopped.startswith("mse 0.1")
    for stop in ("mse", "bit_fail"):
        for large in (np.inf, 10**400):
            history = net().fit(x, t, epochs=9, desired_error=large, stop=stop)
            assert len(history) == 1


def test_progress(capsys):
    x, t = spirals()
    net().fit(x, t, epochs=3, progress=True)
    assert "3/3" in capsys.readouterr().err
    net().fit(x, t, epochs=3)
    assert capsys.readouterr().err == ""


# Bad arguments ----------------------------------------------------------------------

X, T = spirals(10)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": X[:, :1]}, r"x has shape \[10, 1\], expected \[samples, 2\]"),
        ({"x": X[0]}, "x has shape"),
        ({"t": T[:, 0] / 2}, "holds fractions, expected labels, or numbers"),
        ({"t": T[:, [0, 1, 1]]}, r"t has shape \[10, 3\], expected \[samples, 2\]"),
        ({"t": T[:9]}, "x has 10 samples and t 9"),
        ({"x": X[:0], "t": T[:0]}, "no sample"),
        ({"x": np.where(X[3, 1] == X, np.nan, X)}, r"x holds nan at \[3, 1\]"),
        ({"t": np.where(T[0, 0] == T, np.inf, T)}, "t holds inf"),
        ({"x": [["a", "b"]] * 10}, "expected numbers"),
        ({"optimiser": "fann"}, "this network carries none"),
        ({"optimiser": "adm"}, "did you mean 'adam'"),
        ({"loss": "mes"}, "did you mean 'mse'"),
        ({"loss": "categorical_cross_entropy"}, "needs a last layer of softmax"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 4, "optimiser": "incremental"}, "batch_size of 1, not 4"),
        ({"validation": X}, r"validation must be \(x, t\) or \(x, t, sample_weight\)"),
        ({"validation": (X, T[:, [0] * 3])}, "validation t has shape"),
        ({"validation": (X, T[:, 0] / 2)}, "validation t has shape"),
        ({"validation": (X, ["a", "b", "c"])}, "validation t holds 3 different labels"),
        ({"sample_weight": np.ones(9)}, r"sample_weight has shape \[9\]"),
        ({"sample_weight": np.full(10, np.nan)}, "sample_weight holds nan"),
        ({"callbacks": [3]}, "a callback must be callable, not 3"),
        ({"seed": -1}, "a seed must be"),
        ({"seed": 1.5}, "a seed must be"),
        ({"desired_error": -1}, "desired_error must be"),
        ({"stop": "msee"}, "did you mean 'mse'"),
        ({"callbacks": [EarlyStopping()]}, "needs a validation set"),
        ({"callbacks": EarlyStopping("mse")}, "callbacks must be a list"),
        ({"l2": -1}, "l2 must be a number of at least 0"),
        ({"clip_norm": 1, "clip_value": 1}, "not both"),
    ],
)
def test_bad_arguments(change, sentence):
    arguments = {"x": X, "t": T, "epochs": 1, **change}
    network = net()
    with pytest.raises(InputError, match=sentence):
        network.fit(arguments.pop("x"), arguments.pop("t"), **arguments)


@pytest.mark.parametrize(("layers", "sentence"), [
    ([Dense(3, "tanh"), Dense(1, "softmax")], "layer 1 is softmax of one neuron"),
    ([Dense(1, "log_softmax"), Dense(1)], "0 is log_softmax of one neuron, which is 0"),
])
def test_softmax_of_one_neuron_does_not_train(layers, sentence):
    with pytest.raises(InputError, match=sentence):
        Network(2, layers, seed=0).fit(X, T[:, :1])


@pytest.mark.parametrize(("activation", "low", "high", "sentence"), [
    ("sigmoid", 25, 346, "from 25 to 346, and its sigmoid reaches from 0 to 1: a last"),
    ("tanh", -1, 1.1, "from -1 to 1.1, and its tanh reaches from -1 to 1"),
    ("softmax", -1, 1, "its softmax reaches from 0 to 1"),
    ("relu", -3, 5, "from -3 to 5, and its relu reaches down to 0"),
    (("sigmoid", "gelu"), 0, 2, "of output 0 are from 0 to 2, and its sigmoid reaches"),
    (("identity", "elu"), -2, 2, "of output 1 are from -2 to 2, and its elu reaches"),
])
def test_targets_beyond_the_outputs_are_told_before_the_first_epoch(
    activation, low, high, sentence
):
    network, epochs = Network(2, [Dense(2, activation)], seed=0), []
    t = np.where(T > 0, high, low)
    with pytest.warns(ClnetWarning, match=sentence):
        network.fit(X, t, epochs=1, callbacks=[lambda *one: epochs.append(1)])
    assert epochs == [1]


@pytest.mark.parametrize(("activation", "low", "high"), [
    ("sigmoid", 0, 1), ("tanh", -1, 1), ("softmax", 0, 1), ("identity", -1e9, 1e9),
    ("relu", 0, 1e9), ("leaky_relu", -5, 5),
])
def test_targets_within_the_outputs_reach(activation, low, high):
    Network(2, [Dense(2, activation)], seed=0).fit(X, np.where(T > 0, high, low) * 1.0,
                                                  epochs=1, optimiser="rprop")


def test_whole_numbers_that_are_trained_as_numbers_are_told():
    labels = np.resize([3, 7, 12], len(X))
    sentence = r"t holds 3 different whole numbers, from 3 to 12, and is trained as a"
    network = Network(2, [Dense(1)], seed=0)
    with pytest.warns(ClnetWarning, match=sentence):
        network.fit(X, labels, epochs=1)
    with pytest.warns(ClnetWarning, match=sentence):
        Population(network, 2).fit(X, labels, epochs=1)
    with pytest.warns(ClnetWarning, match=sentence):
        Network(2, [Dense(1)], seed=0, fann_compatible=True).fit(
            X, labels, optimiser="cascade", max_neurons=0
        )
    network.fit(X, labels * 1.0, epochs=1)
    network.fit(X, np.arange(len(X)), epochs=1)  # different ones: no classes
    network.fit(X, labels % 2, epochs=1)
    Network(2, [Dense(3, "softmax")], seed=0).fit(X, labels, epochs=1)

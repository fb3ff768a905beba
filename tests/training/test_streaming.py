"""Training on samples that are read by parts."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from variant_cases import alternate

from clnet import Checkpoint, InputError, Network, optimisers
from clnet.formats.sources import ArraySource
from clnet.nn.random import keys
from clnet.opencl.discovery import device
from clnet.runtime.row_placement import RowPlacement
from clnet.training import group
from clnet.training.streaming import any_set

CPU = "cpu"
N, BATCH, ROWS = 1000, 32, 96
BUFFER = 6 * 4 * 10 * 100  # blocks of 96 samples: whole batches of 32
X = np.random.default_rng(0).normal(size=(N, 8)).astype(np.float32)
T = np.stack([X[:, 0] * X[:, 1], X[:, 2]], axis=1)
WEIGHT = np.random.default_rng(1).uniform(0.5, 2, N)


class Counting:
    """An array in a file that records what is read of it."""

    chunks = (10, 8)

    def __init__(self, array):
        self.array, self.parts = array, []
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows):
        self.parts.append(rows)
        return self.array[rows]


class Batches:
    """Batches that can be read again and again."""

    def __init__(self, size=50, stop=N, arrays=(X, T)):
        self.size, self.stop, self.arrays = size, stop, arrays

    def __iter__(self):
        for start in range(0, self.stop, self.size):
            rows = slice(start, min(start + self.size, self.stop))
            yield tuple(array[rows] for array in self.arrays)


def mapped(folder, name, array):
    np.save(folder / name, array)
    return np.load(folder / name, mmap_mode="r")


def trained(x, t=None, **options):
    network = Network.mlp([8, 6, 2], ["tanh", "identity"], seed=1)
    given = {
        "optimiser": "adam", "batch_size": BATCH, "epochs": 3, "seed": 5,
        "device": CPU, "tune": False, **options,
    }
    history = network.fit(x, t, **given)
    return network, history


def same(a, b):
    np.testing.assert_array_equal(a[0].parameters, b[0].parameters)
    assert [epoch.loss for epoch in a[1]] == [epoch.loss for epoch in b[1]]


@pytest.mark.parametrize("kind", ["map", "float64", "stored", "batches", "sparse"])
def test_in_order_the_bits_are_those_of_arrays_in_memory(tmp_path, kind):
    x, t = X, T
    if kind == "map":
        x, t = mapped(tmp_path, "x.npy", X), mapped(tmp_path, "t.npy", T)
    elif kind == "float64":
        x = mapped(tmp_path, "x.npy", X.astype(np.float64))
    elif kind == "stored":
        x, t = Counting(X), Counting(T)
    elif kind == "batches":
        x, t = Batches(), None
    else:
        x = pytest.importorskip("scipy.sparse").csr_array(X)
    found = trained(x, t, shuffle=False, buffer=BUFFER)
    same(found, trained(X, T, shuffle=False))
    if kind == "stored":  # N samples are looked at first
        assert {rows.stop - rows.start for rows in x.parts} == {ROWS, N % ROWS, N}


ONE = device(CPU)
COPIES = replace(ONE, fine_svm=False, companions=(), index="9:1")
GROUPS = {
    "two": [ONE, replace(ONE, index="9:2")],
    "copies": [COPIES, replace(COPIES, index="9:3"), replace(COPIES, index="9:4")],
    "unlike": [ONE, COPIES],
}
several = pytest.mark.parametrize("devices", GROUPS.values(), ids=GROUPS)


@pytest.fixture
def equal_speeds(monkeypatch):
    """Devices that are not alike have the same shares in each training."""
    monkeypatch.setattr(group, "_step_seconds", lambda worker, samples: 1.0)


@several
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_in_order_several_devices_have_the_bits_of_arrays(
    equal_speeds, devices, weight
):
    options = {
        "shuffle": False, "device": devices, "sample_weight": weight, "epochs": 2,
    }
    validation = (X[:700], T[:700])
    found = trained(
        Counting(X), Counting(T), buffer=BUFFER, **options,
        validation=tuple(map(Counting, validation)),
    )
    expected = trained(X, T, validation=validation, **options)
    same(found, expected)
    alone, _ = trained(X, T, **options | {"device": ONE})
    np.testing.assert_allclose(found[0].parameters, alone.parameters, atol=1e-5)
    np.testing.assert_allclose(
        found[1].validation_loss, expected[1].validation_loss, rtol=1e-6
    )


@several
def test_several_devices_share_blocks_as_one_has_them(equal_speeds, devices):
    """Exactly, where sums of few digits have no rounding: a sample left out shows."""
    rng = np.random.default_rng(2)
    x, t = (rng.integers(-1, 2, (40, width)).astype(np.float32) for width in (5, 1))
    found = []
    for where in ONE, devices:
        network = Network.mlp([5, 1], "identity", seed=0)
        network.parameters = np.zeros_like(network.parameters)
        history = network.fit(
            Batches(10, 40, (x, t)), optimiser=optimisers.SGD(0.25), batch_size=8,
            epochs=1, seed=3, device=where, tune=False, buffer=6 * 4 * 6 * 24,
        )
        found.append((network, history))
    (one, history), (shared, others) = found
    assert one.parameters.any()
    np.testing.assert_array_equal(shared.parameters, one.parameters)
    assert others.loss == pytest.approx(history.loss, rel=1e-6)


def test_blocks_and_samples_have_a_random_order_of_their_own():
    x = Counting(X)
    first = trained(x, T, buffer=BUFFER)
    starts = [rows.start for rows in x.parts if rows.stop - rows.start <= ROWS]
    epochs = np.reshape(starts, (3, -1))
    assert all(sorted(epoch) == list(range(0, N, ROWS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    same(first, trained(Counting(X), T, buffer=BUFFER))
    other = trained(Counting(X), T, buffer=BUFFER, seed=6)
    assert (other[0].parameters != first[0].parameters).any()
    assert first[1][-1].loss < first[1][0].loss


def test_every_sample_is_seen_once_an_epoch():
    network = Network.mlp([8, 6, 2], ["tanh", "identity"], seed=1)
    found, _, _ = any_set(
        network, (Counting(X), T, WEIGHT), None, None, None, BUFFER
    )
    found = found.balanced(BATCH)
    key = np.arange(8, dtype=np.uint32)
    rows = []
    for block in found.blocks(key):
        assert len(block) <= found.rows
        x, t, weight = (np.zeros((len(block), n), np.float32) for n in (8, 3, 1))
        targets = [([x, t, weight], block.places(None))]
        block.write_samples(targets)
        block.write_weights(targets)
        np.testing.assert_array_equal(t[:, 2], 0)
        np.testing.assert_array_equal(weight, block.weight[block.order].astype("f4"))
        rows.append(x)
        weights = block.weight[block.order]
        for start in range(0, len(block), BATCH):
            assert weights[start : start + BATCH].mean() == pytest.approx(1)
    seen = np.concatenate(rows)
    assert (seen != X).any()
    np.testing.assert_array_equal(np.unique(seen, axis=0), np.unique(X, axis=0))


@pytest.mark.parametrize("kind", ["stored", "sparse"])
def test_a_section_has_its_rows_alone(kind):
    x = Counting(X) if kind == "stored" else (
        pytest.importorskip("scipy.sparse").csr_array(X)
    )
    source = ArraySource(x, T, WEIGHT).section(slice(100, 900)).section(slice(5, 205))
    assert source.size(4) == 4 * 200 * 11
    parts = list(source.parts(ROWS, lambda count: range(count)[::-1]))
    assert [part.first for part in parts] == [105 + ROWS, 105, 105 + 2 * ROWS]
    for part in parts:
        rows = slice(part.first, part.first + len(part.x))
        for found, array in zip(part[1:], (X, T, WEIGHT), strict=True):
            np.testing.assert_array_equal(found, array[rows])
    np.testing.assert_array_equal(np.concatenate(list(source.targets(30))), T[105:305])
    assert len(list(source.parts(300, lambda count: range(count)))) == 1


def test_small_sources_are_read_whole(tmp_path):
    x, t = mapped(tmp_path, "x.npy", X), mapped(tmp_path, "t.npy", T)
    same(trained(x, t), trained(X, T))


@pytest.mark.parametrize(("source", "devices"), [
    ("map", CPU), ("batches", CPU), ("map", GROUPS["two"]),
], ids=["map", "batches", "devices"])
def test_resumed_trainings_have_the_bits_of_whole_ones(tmp_path, source, devices):
    samples = (Batches(), None) if source == "batches" else (
        mapped(tmp_path, "x.npy", X), T
    )
    options = {"buffer": BUFFER, "device": devices}
    whole = trained(*samples, epochs=4, **options)
    path = tmp_path / "c.safetensors"
    trained(*samples, epochs=2, callbacks=[Checkpoint(path)], **options)
    same(trained(*samples, epochs=4, resume=path, **options), whole)
    options["buffer"] *= 2
    with pytest.raises(InputError, match="block"):
        trained(*samples, epochs=4, resume=path, **options)


def test_validation_sets_are_read_by_parts():
    found = trained(X, T, validation=Batches(), buffer=BUFFER)[1]
    expected = trained(X, T, validation=(X, T))[1]
    for one, other in zip(found, expected, strict=True):
        assert one.validation.loss == pytest.approx(other.validation.loss, rel=1e-5)
        assert one.validation.bit_fail == other.validation.bit_fail
    both = trained(
        Batches(), validation=(Counting(X), T, WEIGHT), buffer=BUFFER,
        desired_error=1e9,
    )[1]
    assert len(both) == 1
    assert both[0].validation.loss == pytest.approx(both[0].loss, rel=1)


@pytest.mark.parametrize("options", [
    {"batch_size": 11}, {"batch_size": 2}, {"optimiser": "rprop"},
], ids=["eleven", "two", "all"])
def test_blocks_of_one_sample_do_not_shrink_the_batch(options):
    network, x = Network.mlp([32, 3], "tanh"), np.ones((33, 32))
    with pytest.raises(InputError, match="give a batch_size of at most 1, or a larger"):
        network.fit([(x, x[:, :3])], buffer=1000, device=CPU, **options)
    history = network.fit(
        [(x, x[:, :3])], optimiser="sgd", batch_size=1, buffer=1000, epochs=1,
        device=CPU,
    )
    assert history.state.count == 33


def test_a_step_may_take_a_whole_block():
    found = trained(Batches(), batch_size=100, epochs=1, buffer=BUFFER, shuffle=False)
    same(found, trained(X, T, batch_size=100, epochs=1, shuffle=False))


def weighted(weight=WEIGHT):
    return [
        (X[rows], T[rows], weight[rows])
        for rows in map(slice, (0, 70, 400, 401), (70, 400, 401, N))
    ]


@pytest.mark.parametrize("kind", ["stored", "batches"])
def test_weights_have_the_sets_mean_in_steps_of_one_sample(kind):
    weight = WEIGHT * np.linspace(1, 20, N)  # blocks differ
    samples = (weighted(weight), None) if kind == "batches" else (Counting(X), T)
    options = {"optimiser": "sgd", "batch_size": 1, "epochs": 1, "shuffle": False}
    found, history = trained(
        *samples, buffer=BUFFER, **options,
        sample_weight=None if kind == "batches" else weight,
    )
    expected, whole = trained(X, T, sample_weight=weight, **options)
    np.testing.assert_allclose(found.parameters, expected.parameters, rtol=1e-5)
    assert history.loss == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.parametrize("kind", ["stored", "batches"])
def test_weights_of_a_validation_have_the_sets_mean(kind):
    weight = WEIGHT * np.linspace(1, 20, N)
    validation = weighted(weight) if kind == "batches" else (Counting(X), T, weight)
    found = trained(X, T, validation=validation, buffer=BUFFER)[1]
    expected = trained(X, T, validation=(X, T, weight))[1]
    assert found.validation_loss == pytest.approx(expected.validation_loss, rel=1e-5)


def test_weights_that_are_wrong_are_told():
    parts = weighted()
    for samples, options, sentence in [
        (iter(parts), {"batch_size": 1, "optimiser": "sgd"},
         "a generator does not tell before: give batches that .* a batch_size above 1"),
        ([parts[0], parts[1][:2]], {}, "samples from 70 on have no sample_weight"),
        ([parts[0][:2], parts[1]], {}, "samples from 70 on have a sample_weight"),
        ([parts[0], parts[1][:2]], {"batch_size": 1}, "from 70 on have no sample"),
        (weighted(WEIGHT * 0), {"batch_size": 1}, "sample_weight is 0 for all samples"),
    ]:
        with pytest.raises(InputError, match=sentence):
            trained(samples, epochs=1, buffer=BUFFER, **options)
    with pytest.raises(InputError, match="validation sample_weight is divided"):
        trained(X, T, validation=iter(parts), epochs=1, buffer=BUFFER)


def test_weights_and_labels_come_in_parts_too():
    labels = np.where(X[:, 0] > 0, "right", "left")
    network = Network.mlp([8, 2], "softmax", seed=1)
    network.fit(
        Counting(X), labels, sample_weight=WEIGHT, epochs=2, batch_size=50, device=CPU,
        buffer=BUFFER, tune=False, seed=1, optimiser=optimisers.Adam(0.1),
    )
    assert network.classes == ("left", "right")
    assert network.evaluate(Counting(X), labels, CPU, buffer=BUFFER).accuracy > 0.8


def test_generators_train_one_epoch():
    one = trained(iter(Batches()), epochs=1, shuffle=False, buffer=BUFFER)
    same(one, trained(X, T, epochs=1, shuffle=False))
    with pytest.raises(InputError, match="read once: give epochs=1, or an object"):
        trained(iter(Batches()))
    with pytest.raises(InputError, match="read once"):
        trained(X, T, validation=iter(Batches()))


class Failing(Batches):
    def __iter__(self):
        yield from super().__iter__()
        raise OSError("the disk is gone")


def test_one_sentence_says_what_is_wrong_and_where():
    def wrong(array, row, value):
        found = array.copy()
        found[row, 1] = value
        return Counting(found)

    for x, t, options, sentence in [
        (wrong(X, 777, np.nan), T, {}, r"x holds nan at \[777, 1\], expected finite"),
        (Counting(X), wrong(T, 901, np.inf), {}, r"t holds inf at \[901, 1\]"),
        (Counting(X[:, :7]), T, {}, r"x has shape \[1000, 7\]|x has shape"),
        (Counting(X), T[:-1], {}, r"x has 1000 samples and t the shape \[999, 2\]"),
        (Counting(X), T, {"optimiser": "rprop", "batch_size": None},
         "steps of 1000 samples need a buffer of at least 240000 bytes, not 24000"),
        (Counting(X), T, {"batch_size": 101}, "101 samples need a buffer of at least"),
        (Batches(), None, {"optimiser": "rprop", "batch_size": None},
         "do not fit in a block: give a batch_size of at most 100, or a larger"),
        (Counting(X), None, {}, "t is missing"),
        (iter([]), None, {"epochs": 1}, "there is no batch"),
        ((x for x, _ in Batches()), None, {"epochs": 1}, "t is missing"),
        (Batches(), T, {}, "leave out t"),
        (iter([(X, T, WEIGHT, T)]), None, {"epochs": 1}, "a batch has 4 parts"),
        (Counting(X), T, {"sample_weight": -WEIGHT}, r"holds -.* at \[932\], expected"),
    ]:
        with pytest.raises(InputError, match=sentence):
            trained(x, t, **{"buffer": BUFFER, **options})
    with pytest.raises(OSError, match="the disk is gone"):
        trained(Failing(), buffer=BUFFER)
    assert not [one for one in threading.enumerate() if one.name == "clnet-read"]


def test_the_parameters_so_far_survive_a_fault():
    network = Network.mlp([8, 6, 2], ["tanh", "identity"], seed=1)
    before = network.parameters.copy()

    class Third(Batches):
        count = 0

        def __iter__(self):
            self.count += 1
            yield from super().__iter__()
            if self.count == 3:
                raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        network.fit(Third(), batch_size=BATCH, device=CPU, tune=False, buffer=BUFFER)
    assert np.isfinite(network.parameters).all()
    assert (network.parameters != before).any()


def test_pages_of_a_map_are_forgotten_in_any_order(tmp_path):
    # A short part amid the others would have each of these read again, once dropped.
    x, t = mapped(tmp_path, "x.npy", X), mapped(tmp_path, "t.npy", T)
    network = Network.mlp([8, 6, 2], ["tanh", "identity"], seed=1)
    found, _, _ = any_set(network, (x, t, None), None, None, None, BUFFER)
    found = found.balanced(BATCH)
    for key in keys(0, 0, 4):
        parts = [block.parts for block in found.blocks(key)]
        assert [len(one.x) for one, in parts] == [ROWS] * (N // ROWS) + [N % ROWS]
        assert all(np.shares_memory(one.x, x) for one, in parts)


def test_helpers_of_a_step_read_the_block_of_the_next(tmp_path):
    # On PoCL helpers wait for the next step in the launch of the one before: they kept
    # its block, where steps take so long that the next block is ready when they end.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1 << 15, 64)).astype(np.float32)
    t = x[:, :1] * x[:, 1:2]
    found = []
    for source in (x, Counting(x)):
        network = Network.mlp([64, 96, 96, 1], ["tanh", "tanh", "identity"], seed=0)
        history = network.fit(
            source, t, optimiser="adam", batch_size=1024, epochs=2, shuffle=False,
            device=CPU, tune=False, buffer=6 * 65 * 4 * 4096,
        )
        found.append((network, history))
    same(*found)


def test_the_first_sample_that_is_wrong_is_named_by_whichever_thread():
    found = X.copy()
    found[[333, 800]] = np.nan
    with pytest.raises(InputError, match=r"x holds nan at \[333, 0\]"):
        trained(Counting(found), T, shuffle=False, buffer=BUFFER)


@pytest.mark.parametrize("kind", ["float64", "columns", "wide"])
def test_rows_are_placed_whole_whatever_their_layout(kind):
    x = {
        "float64": X.astype(np.float64), "columns": np.asfortranarray(X),
        "wide": np.repeat(X, 2, axis=1)[:, ::2],
    }[kind]
    same(trained(Counting(x), T, buffer=BUFFER), trained(Counting(X), T, buffer=BUFFER))


def test_blocks_are_copied_to_devices_that_share_no_memory():
    apart = replace(device(CPU), fine_svm=False)
    found = trained(Counting(X), T, buffer=BUFFER, device=apart)
    same(found, trained(Counting(X), T, buffer=BUFFER))


@pytest.mark.parametrize(("width", "dtype", "order"), alternate(
    [8, 16, 19, 48],  # 16, 48: of whole cache lines
    ["float32", "float64", "int16", "uint8", "int64"], ["C", "F"],
))
def test_a_kernel_places_the_bits_that_the_host_does(monkeypatch, width, dtype, order):
    numbers = np.random.default_rng(2).normal(size=(N, width + 3)) * 50
    data = np.asarray(np.abs(numbers), dtype, order=order)
    x, t = data[:, :width], data[:, -2:].astype(np.float32, order="C")
    found, placed = [], []
    place = RowPlacement.place
    for by_kernel in (True, False):
        def one(self, *given, by_kernel=by_kernel):
            placed.append(by_kernel and place(self, *given))
            return placed[-1]

        monkeypatch.setattr(RowPlacement, "place", one)
        network = Network.mlp([width, 6, 2], ["tanh", "identity"], seed=1)
        history = network.fit(
            Counting(x), t, optimiser="adam", batch_size=BATCH, epochs=2, device=CPU,
            tune=False, buffer=6 * 4 * (width + 2) * ROWS, seed=5,
        )
        found.append((network, history))
    same(*found)
    if not placed:
        pytest.skip("the device's memory is not the host's")
    assert {True, False} == set(placed)
    assert placed == sorted(placed, reverse=True)


@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
@pytest.mark.parametrize("column", [0, 7, 15, 16, 17])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_kernel_finds_numbers_that_are_not_finite(wrong, column, order):
    data = np.concatenate([X, X, X[:, :1], T[:, :1]], axis=1).astype(np.float64)
    data[777, column] = wrong
    network = Network.mlp([17, 6, 1], ["tanh", "identity"], seed=1)
    name, at = ("t", 0) if column == 17 else ("x", column)
    with pytest.raises(InputError, match=rf"{name} holds -?\w+ at \[777, {at}\]"):
        network.fit(
            Counting(np.asarray(data[:, :17], order=order)), data[:, 17:],
            batch_size=BATCH, device=CPU,
            tune=False, buffer=BUFFER,
        )

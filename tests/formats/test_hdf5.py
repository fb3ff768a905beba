"""HDF5 files, read by parts."""

import numpy as np
import pytest

from clnet import FormatError, InputError, Network, open_data

h5py = pytest.importorskip("h5py")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5)).astype(np.float32)
T = np.sin(X[:, :2])
WORDS = [("low", "high")[int(row > 0)] for row in X[:, 0]]


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "a.h5"
    with h5py.File(found, "w") as file:
        file["x"], file["t"] = X, T
        file["deep/words"] = WORDS
        file.create_dataset(
            "deep/packed", data=np.hstack([X, T]), chunks=(32, 7), compression="gzip"
        )
        file["one"] = np.arange(300)
        file["pairs"] = np.zeros(300, [("a", "f4"), ("b", "f4")])
    return found


def fitted(net, samples, t=None, **options):
    net.fit(
        samples, t, epochs=2, batch_size=30, seed=1, tune=False, device="cpu", **options
    )
    return net.parameters


@pytest.mark.parametrize(
    ("given", "options"),
    [("{}", {}), ("{}:deep/packed", {"outputs": 2}), ("{}", {"t": "t"}),
     ("{}:x", {"t": "{}:t"})],
)
def test_parts_are_the_rows_in_memory(path, given, options):
    options = {
        name: one.format(path) if isinstance(one, str) else one
        for name, one in options.items()
    }
    source = open_data(given.format(path), **options)
    for rows in (1, 7, 32, 100, 299, 300, 400):
        for part in source.parts(rows):
            chosen = slice(part.first, part.first + len(part.x))
            assert len(part.x) == min(rows, len(X) - part.first)
            np.testing.assert_array_equal(part.x, X[chosen])
            np.testing.assert_array_equal(part.t, T[chosen])


def test_numbers_that_lie_as_in_an_array_are_mapped(path):
    with h5py.File(path, "a") as file:
        file["x"].attrs["later"] = 1
        file.create_dataset("swapped", data=X, dtype=">f8")
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_precision(24)  # of 32 bits in the file
        space = h5py.h5s.create_simple((300, 5))
        h5py.h5d.create(file.id, b"narrow", narrow, space).write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.full((300, 5), -3, np.int32)
        )
        file.create_dataset("empty", (300, 5), "f4")  # no room in the file yet
        file.create_dataset("flags", data=X > 0)
    for name, mapped, values in [
        ("x", True, X), ("swapped", True, X), ("narrow", False, np.full_like(X, -3)),
        ("deep/packed", False, np.hstack([X, T])), ("empty", False, np.zeros_like(X)),
        ("flags", None, X > 0),
    ]:
        source = open_data(f"{path}:{name}")
        assert mapped in (None, isinstance(source.x, np.memmap)), name
        np.testing.assert_array_equal(source.whole().x, values)


def test_texts_are_labels(path):
    source = open_data(path, "deep/words")
    net = Network.mlp([5, 4, 2], ["tanh", "softmax"], seed=0)
    fitted(net, source, buffer=8000)
    assert net.classes == ("high", "low")
    assert net.evaluate(source, device="cpu", buffer=8000).accuracy > 0.4


@pytest.mark.parametrize(("given", "options", "message"), [
    ("{}:y", {}, r"a\.h5 has no data set 'y', expected one of \['deep/packed', "),
    ("{}:deep", {}, "has no data set 'deep'"),
    ("{}", {"t": "y"}, "has no data set 'y'"),
    ("{}:pairs", {}, r"pairs is an array \[300\] of .*expected numbers \[samples"),
    ("{}:one", {}, r"a\.h5:one is an array \[300\], expected \[samples, columns\]"),
    ("{}:x", {"target": 6}, "has 5 columns, and none of number 6"),
    ("none.h5", {}, r"none\.h5"),
])
def test_wrong_names(path, given, options, message):
    with pytest.raises(FormatError, match=message):
        open_data(given.format(path), **options)


def test_wrong_arguments(path):
    with pytest.raises(InputError, match="categories, ignore, index, dates and col"):
        open_data(path, categories="x")
    with h5py.File(path, "a") as file:
        file["short"] = T[:10]
        file["empty"] = X[:, :0]
    with pytest.raises(FormatError, match="x has 300 samples and t the shape"):
        open_data(path, "short")
    with pytest.raises(FormatError, match=r"x has shape \[300, 0\], expected"):
        open_data(f"{path}:empty", "t")


def test_short_chunks(tmp_path):
    """HDF5 would read what lies behind them in memory."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        found = file.create_dataset("x", X.shape, X.dtype, chunks=(300, 5))
        found.id.write_direct_chunk((0, 0), X[:40].tobytes())
    with pytest.raises(FormatError, match="has 800 bytes in chunks of 6000"):
        open_data(path, outputs=2)


def test_damaged_rows_are_named(path):
    with h5py.File(path) as file:
        chunk = file["deep/packed"].id.get_chunk_info_by_coord((96, 0))
    content = bytearray(path.read_bytes())
    start = chunk.byte_offset + chunk.size // 2
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)
    source = open_data(f"{path}:deep/packed", outputs=2)
    with pytest.raises(FormatError, match=r"a\.h5:deep/packed, row 96: cannot be read"):
        list(source.parts(100))
    net = Network.mlp([5, 4, 2], ["tanh", "identity"], seed=0)
    with pytest.raises(FormatError, match="row 96"):
        fitted(net, source, shuffle=False, buffer=8000)


def test_a_mended_file_is_read_anew(path):
    """HDF5 takes a file that is still open for the same one."""
    whole = path.read_bytes()
    with h5py.File(path, "w") as file:
        file["other"] = X
    with pytest.raises(FormatError, match="no data set 'x'") as kept:
        open_data(path)
    path.write_bytes(whole)
    assert np.array_equal(next(open_data(path).parts(300)).x, X)
    assert kept.tb  # its frames had kept the file open

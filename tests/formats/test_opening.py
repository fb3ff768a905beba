"""Files whose samples are read by parts."""

import numpy as np
import pytest
from memory import peak_of

from clnet import FormatError, InputError, Network, open_data

TABLE = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
KINDS = {  # of files, and what is told of a part of one
    "npy": r"is not a \.npy file|ends in row", "h5": "is no whole HDF5 file",
    "parquet": "is no whole", "arrow": "is no whole", "feather": "is no whole",
}


def written(folder, kind):
    """Return the path of a file of the table."""
    found = folder / f"a.{kind}"
    if kind == "npy":
        np.save(found, TABLE)
    elif kind == "h5":
        with pytest.importorskip("h5py").File(found, "w") as file:
            file.create_dataset("x", data=TABLE, chunks=(32, 5), compression="gzip")
    else:
        pytest.importorskip("pyarrow")
        from test_arrow import write

        write(folder, kind, {f"c{at}": rows for at, rows in enumerate(TABLE.T)}, 64)
    return found


@pytest.fixture
def path(tmp_path):
    return written(tmp_path, "npy")


@pytest.mark.parametrize(
    ("given", "targets"),
    [({"outputs": 2}, [3, 4]), ({"target": 1}, [0]), ({"target": [2, -1]}, [1, 4])],
)
def test_targets_are_columns(path, given, targets):
    part = open_data(path, **given).whole()
    left = [at for at in range(5) if at not in targets]
    np.testing.assert_array_equal(part.x, TABLE[:, left])
    np.testing.assert_array_equal(part.t, TABLE[:, targets])


@pytest.mark.parametrize(("given", "error", "message"), [
    ({"target": 6}, FormatError, "has 5 columns, and none of number 6"),
    ({"target": 0}, FormatError, "has 5 columns, and none of number 0"),
    ({"target": "y"}, FormatError, "expected a number, not 'y'"),
    ({"outputs": 5}, FormatError, "expected one for inputs too"),
    ({"outputs": 1, "target": 2}, InputError, "give one of"),
])
def test_wrong_columns(path, given, error, message):
    with pytest.raises(error, match=message):
        open_data(path, **given)


def test_targets_of_a_file_of_their_own(path, tmp_path):
    np.save(tmp_path / "t.npy", TABLE[:, :2])
    source = open_data(path, tmp_path / "t.npy")
    part = source.whole()
    np.testing.assert_array_equal(part.x, TABLE)
    np.testing.assert_array_equal(part.t, TABLE[:, :2])
    network = Network.mlp([5, 2], "identity", seed=0)
    y = network.predict(source, device="cpu")
    np.testing.assert_array_equal(y, network.predict(TABLE, device="cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_training_by_parts_has_the_bits_of_memory(tmp_path, kind):
    source = open_data(written(tmp_path, kind), outputs=2)
    bits = []
    for data, options in (
        ((TABLE[:, :3], TABLE[:, 3:]), {}), ((source,), {"buffer": 5000}),
    ):
        net = Network.mlp([3, 4, 2], ["tanh", "identity"], seed=0)
        net.fit(*data, epochs=2, batch_size=30, seed=1, shuffle=False, tune=False,
                device="cpu", **options)
        bits.append(net.parameters)
    np.testing.assert_array_equal(*bits)


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_and_foreign_files(tmp_path, kind):
    path = written(tmp_path, kind)
    content = path.read_bytes()
    for part in (content[:3], content[:100], content[: len(content) // 2], b"another"):
        path.write_bytes(part)
        with pytest.raises(FormatError, match=rf"a\.{kind}.*({KINDS[kind]})"):
            open_data(path, outputs=2)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=r"is empty|is not a|is no whole"):
        open_data(path, outputs=2)


def test_damaged_files(path, tmp_path):
    content = path.read_bytes()
    path.write_bytes(content[: 128 + 20 * 7 + 3])
    with pytest.raises(FormatError, match="ends in row 7, expected 300 rows"):
        open_data(path)
    with pytest.raises(FormatError, match="none"):
        open_data(tmp_path / "none")


def test_text_is_no_input(tmp_path):
    np.save(tmp_path / "a.npy", np.array([["a", "b"]]))
    with pytest.raises(FormatError, match=r"array \[1, 2\] of <U1, expected numbers"):
        open_data(tmp_path / "a.npy", outputs=1)


def test_a_long_header_takes_no_memory(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\2\0\0\0\0\x20{}")  # of 512 MiB

    def read():
        with pytest.raises(FormatError, match=r"is not a \.npy file"):
            open_data(tmp_path / "a.npy")

    assert peak_of(read) < 1 << 20


def test_sizes_are_of_the_file(tmp_path, path):
    np.save(tmp_path / "t.npy", TABLE[:9])
    with pytest.raises(FormatError, match="x has 300 samples and t the shape"):
        open_data(path, tmp_path / "t.npy")

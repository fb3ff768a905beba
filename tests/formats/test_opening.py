"""Files whose samples are read by parts."""

import numpy as np
import pytest
from memory import peak_of

from clnet import FormatError, InputError, Network, open_data

TABLE = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "a.npy"
    np.save(found, TABLE)
    return found


@pytest.mark.parametrize(
    ("given", "targets"),
    [({"outputs": 2}, [3, 4]), ({"target": 1}, [0]), ({"target": [2, -1]}, [1, 4])],
)
def test_targets_are_columns(path, given, targets):
    part = open_data(path, **given).whole()
    left = [at for at in range(5) if at not in targets]
    np.testing.assert_array_equal(part.x, TABLE[:, left])
    np.testing.assert_array_equal(part.t, TABLE[:, targets])


def test_fit_and_predict_have_the_bits_of_arrays(path, tmp_path):
    np.save(tmp_path / "t.npy", TABLE[:, :2])
    x, t = TABLE, TABLE[:, :2]
    bits = []
    for data in ((x, t), (open_data(path, tmp_path / "t.npy"),)):
        net = Network.mlp([5, 4, 2], ["tanh", "identity"], seed=0)
        net.fit(*data, epochs=2, batch_size=60, tune=False, device="cpu")
        bits.append(net.predict(data[0], device="cpu"))
    np.testing.assert_array_equal(*bits)


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


def test_damaged_files(path, tmp_path):
    content = path.read_bytes()
    path.write_bytes(content[: 128 + 20 * 7 + 3])
    with pytest.raises(FormatError, match="ends in row 7, expected 60 rows"):
        open_data(path)
    path.write_bytes(b"no array")
    with pytest.raises(FormatError, match=r"is not a \.npy file"):
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
    with pytest.raises(FormatError, match="x has 60 samples and t the shape"):
        open_data(path, tmp_path / "t.npy")

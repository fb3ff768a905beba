"""Files that unpack to more than they hold, and the limit that callers can raise."""

import gzip
import io
import json
import warnings
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from memory import peak_of
from tensor_files import rewrite

import clnet
from clnet import (
    ClnetWarning,
    Dense,
    FormatError,
    InputError,
    Network,
    Pattern,
    Sparse,
    TrainingState,
)
from clnet.formats import files
from clnet.formats.files import MEMORY_FACTOR, MEMORY_FLOOR
from clnet.formats.safetensors import save as save_network
from clnet.nn.storage.formats import FORMATS

MANY = 30_000  # rows and columns: 0.9 GB in bytes, 3.6 GB in float32


def most(path):
    """Return the bytes that reading a file may take."""
    return MEMORY_FLOOR + 10 * MEMORY_FACTOR * path.stat().st_size


def refuses(path, load):
    def action():
        with pytest.raises(FormatError, match=r"unpacks to \d+ bytes.*memory limit"):
            load(path)

    assert peak_of(action) <= most(path)


@pytest.fixture
def padded(tmp_path, monkeypatch):
    """A function that writes a network of a few entries, in a format of much padding.

    Such a network is never made: its description is written as of format csr.
    """

    def write(pattern, form):
        network = Network(
            pattern.n_in, [Sparse(pattern.n_out, pattern=pattern, format="csr")], seed=0
        )
        path = tmp_path / "x.safetensors"
        save_network(network, path)
        content = path.read_bytes().replace(
            b'\\"format\\": \\"csr\\"', b'\\"format\\": \\"%s\\"' % form.encode()
        )
        header = int.from_bytes(content[:8], "little") + len(form) - 3
        path.write_bytes(header.to_bytes(8, "little") + content[8:])
        return path

    return write


def arrow(n):
    """Return a pattern whose first row and column, and diagonal, have entries."""
    mask = np.eye(n, dtype=bool)
    mask[0] = mask[:, 0] = True
    return Pattern.of(mask)


def loads_as_csr(path):
    """Load a network of one sparse layer, whose padding exceeds the limit."""
    with pytest.warns(ClnetWarning, match=r"with their padding.* stored as csr"):
        network = clnet.load(path)
    assert network.matrices[0].format == "csr"
    return network


@pytest.mark.parametrize(("form", "n"), [("ell", 6000), ("dia", 4000), ("dense", 9000)])
def test_padding_beyond_the_limit(padded, form, n):
    """Whatever the format, the file is loaded, in memory by its own bytes."""
    path = padded(arrow(n), form)
    assert peak_of(lambda: loads_as_csr(path)) <= most(path)
    network, expected = loads_as_csr(path), padded(arrow(n), "csr")
    assert np.array_equal(network.parameters, clnet.load(expected).parameters)
    assert clnet.load(padded(arrow(50), form)).matrices[0].format != "csr"


@pytest.mark.parametrize("form", FORMATS)
def test_a_saved_network_can_be_loaded(tmp_path, form):
    """Also one whose padding takes far more than its file."""
    network = Network(
        3500, [Sparse(3500, pattern=arrow(3500), format=form),
               Sparse(9, density=0.5, format=form, memory_limit=1 << 20)], seed=1
    )
    path = tmp_path / "x.safetensors"
    network.save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClnetWarning)
        back = clnet.load(path)
    for layer in (0, 1):
        assert np.array_equal(network.matrices[layer].live_values(network.parameters),
                              back.matrices[layer].live_values(back.parameters))
    assert back.matrices[1].format.startswith(("csr", network.matrices[1].format))


def test_layers_that_exceed_the_limit_without_padding(tmp_path):
    """Offsets of rows are repeated for each source."""
    n, sources = 20_000, range(11)
    pattern = Pattern(n, len(sources), np.arange(11), np.arange(11))
    network = Network(
        1, [*[Dense(1)] * 10, Sparse(n, pattern=pattern, sources=[*sources])], seed=0
    )
    path = tmp_path / "x.safetensors"
    network.save(path)
    assert len(clnet.load(path).matrices) == 11
    with pytest.raises(FormatError, match=r"unpacks to \d+ bytes.*at most 300000"):
        clnet.load(path, memory_limit=300_000)


@pytest.mark.parametrize("form", ["dense", "dia", "ell", "csr", "sell", "hyb"])
def test_a_small_file_of_many_inputs(padded, form):
    wide = Pattern(1, 2**31 - 1, [0], [2**31 - 2])
    path = padded(wide, form)
    if form == "dense":
        assert peak_of(lambda: loads_as_csr(path)) <= 1 << 20
    else:
        assert peak_of(lambda: clnet.load(path)) <= 1 << 20
        assert clnet.load(path).n_in == 2**31 - 1


def test_the_limit_can_be_raised_and_lowered(padded, tmp_path):
    path = padded(arrow(4000), "dia")
    assert clnet.load(path, memory_limit=1 << 30).matrices[0].format == "dia"
    data = tmp_path / "x.npz"
    np.savez_compressed(data, x=np.zeros((5000, 4000), np.float32))
    refuses(data, clnet.load_data)
    x, _ = clnet.load_data(data, memory_limit=1 << 30)
    assert x.shape == (5000, 4000)
    assert x.flags.writeable
    with pytest.raises(FormatError, match=r"expected at most 1000: .*memory limit"):
        clnet.load_data(data, memory_limit=1000)
    text = tmp_path / "x.csv"
    text.write_bytes(b"x,t\n" + b"1,2\n" * 99)
    with pytest.raises(FormatError, match=r"400 bytes.*expected at most 399"):
        clnet.load_data(text, memory_limit=399)
    assert len(clnet.load_data(text, memory_limit=400)[0]) == 99
    for limit in (0, -1, 1.5, "1"):
        with pytest.raises(InputError, match="memory_limit must be a whole number"):
            clnet.load_data(data, memory_limit=limit)
        with pytest.raises(InputError, match="memory_limit must be a whole number"):
            clnet.load(path, memory_limit=limit)


def test_sparse_layers_of_fanns_files_take_memory_by_connections(tmp_path):
    """Of each neuron's connections one is to the bias, and one to a neuron."""
    n = MANY
    neurons = "(0, 0, 0) " * (n + 1) + "(2, 3, 0.5) " * n + "(0, 3, 0) "
    pairs = "".join(f"({i}, 1) ({n}, 0) " for i in range(n))
    head = (path_of_sparse().read_text().split("layer_sizes=")[0]
            .replace("num_layers=4", "num_layers=2"))
    path = tmp_path / "x.net"
    path.write_text(
        f"{head}layer_sizes={n + 1} {n + 1} \nscale_included=0\n"
        f"neurons (num_inputs, activation_function, activation_steepness)={neurons}\n"
        f"connections (connected_to_neuron, weight)={pairs}\n"
    )
    assert peak_of(lambda: clnet.load(path)) <= 80 * path.stat().st_size
    network = clnet.load(path)
    assert network.matrices[0].count == n
    assert (network.matrices[0].entries().columns == np.arange(n)).all()


def path_of_sparse():
    from test_fann_structure import path

    return path("sparse")


def test_text_beyond_the_limit(tmp_path):
    path = tmp_path / "x.data.gz"
    path.write_bytes(gzip.compress(b"1 1 1\n" + b" " * (2 * MEMORY_FLOOR)))
    refuses(path, clnet.load_data)


def test_archives_beyond_the_limit(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros((2, MEMORY_FLOOR // 8)))
    refuses(path, clnet.load_data)
    refuses(path, TrainingState.load)


@pytest.mark.parametrize("declared", [0, 100, MEMORY_FLOOR])
def test_archives_whose_sizes_are_wrong(tmp_path, declared):
    """Of an array that announces 8 GB, and a member that announces other bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1, 10**9)}
    )
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + b"\0" * (MEMORY_FLOOR // 2))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\1\2") + 24
    content[at : at + 4] = declared.to_bytes(4, "little")
    path.write_bytes(content)

    def action():
        with pytest.raises(FormatError, match="damaged"):
            clnet.load_data(path)

    assert peak_of(action) <= 3 * MEMORY_FLOOR


@pytest.mark.parametrize("shape", [[0, 2**40], [2**62, 0, 4], [1] * 100, [10**400]])
def test_tensors_of_shapes_beyond_numpy(tmp_path, shape):
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * (0 not in shape)]}
    header = json.dumps({"__metadata__": {"clnet": "{}"}, "0.weight": tensor}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(FormatError, match=r"x\.safetensors"):
        clnet.load(path)


@pytest.mark.parametrize("starts", [
    [0, 2**31 - 1, -(2**31) + 1, 2], [0, 3, 1, 2], [1, 1, 1, 2], [0, 1, 2, 3],
])
def test_starts_of_rows_out_of_range(padded, starts):
    """The first ones pass where differences are taken in int32."""
    path = padded(Pattern(3, 2, [0, 2], [1, 1]), "csr")
    rewrite(path, {"0.weight.crow_indices": np.array(starts, np.int32)})
    with pytest.raises(FormatError, match="wrong crow_indices for 3 rows"):
        clnet.load(path)
    rewrite(path, {"0.weight.crow_indices": np.array([0, 1, 1, 2], np.uint64)})
    with pytest.raises(FormatError, match="must be int32"):
        clnet.load(path)


def test_a_description_nested_deeply(tmp_path):
    path = tmp_path / "x.safetensors"
    deep = "[" * 100_000 + "]" * 100_000
    safetensors.numpy.save_file({"0.weight": np.zeros(1)}, path, {"clnet": deep})
    with pytest.raises(FormatError, match="not clnet's: RecursionError"):
        clnet.load(path)


def test_many_layers_are_read_in_linear_time(tmp_path):
    """In time of the square of their number, this would take minutes."""
    network = Network(1, [clnet.Dense(1)] * 5000, seed=0)
    network.save(tmp_path / "x.safetensors")
    network.save(tmp_path / "x.net")
    for name in ("x.safetensors", "x.net"):
        back = clnet.load(tmp_path / name)
        assert np.array_equal(back.parameters, network.parameters)


def test_saved_data_of_much_repetition_can_be_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_FLOOR", 0)
    x = np.zeros((500, 40), np.float32)
    clnet.save_data(tmp_path / "x.data.gz", x, x[:, :1])
    assert np.array_equal(clnet.load_data(tmp_path / "x.data.gz")[0], x)
    clnet.save_data(tmp_path / "x.npz", x, x[:, :1])
    assert np.array_equal(clnet.load_data(tmp_path / "x.npz")[0], x)

"""Rows of memory maps that are read past the page cache."""

import os
from threading import Event

import numpy as np
import pytest

from clnet import open_data
from clnet.formats import pages
from clnet.formats.sources import ArraySource

DATA = np.random.default_rng(0).normal(size=(3000, 9)).astype(np.float32)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file that the page cache is said not to hold."""
    monkeypatch.setattr(pages, "SHARE", 0)
    np.save(tmp_path / "data.npy", DATA)
    return tmp_path / "data.npy"


@pytest.fixture
def reader(path):
    """A reader of two arrays of one map, and None."""
    found = np.load(path, mmap_mode="r")
    one = pages.direct_rows([found[:, :-1], found[:, -1:], None])
    if one is None:
        pytest.skip("the file system has no direct reads")
    yield one
    one.close()


@pytest.mark.parametrize(
    "rows", [slice(0, 1), slice(0, 3000), slice(1000, 2500), slice(2999, 3000)]
)
def test_rows_are_those_of_the_map(reader, rows):
    x, t, none = reader.read(rows)
    np.testing.assert_array_equal(x, DATA[rows, :-1])
    np.testing.assert_array_equal(t, DATA[rows, -1:])
    assert none is None
    assert x.strides == (36, 4)


def test_a_reader_that_is_dropped_closes_its_file(path):
    one = pages.direct_rows([np.load(path, mmap_mode="r")])
    if one is None:
        pytest.skip("the file system has no direct reads")
    handle = one._file.fileno()
    del one  # as an interrupt does before it has an owner
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)


def test_a_file_that_became_shorter_is_an_error(reader, path):
    os.truncate(path, 50_000)
    with pytest.raises(OSError, match="shorter"):
        reader.read(slice(2000, 3000))


def test_only_whole_maps_of_one_file_that_nobody_writes_to_are_read_so(path, tmp_path):
    np.save(tmp_path / "other.npy", DATA)
    found, other = (np.load(tmp_path / f"{name}.npy", mmap_mode="r")
                    for name in ("data", "other"))
    writable = np.load(path, mmap_mode="r+")
    for arrays in ([DATA], [found, other], [writable]):
        assert pages.direct_rows(arrays) is None


def test_small_files_are_left_to_the_page_cache(path, monkeypatch):
    monkeypatch.setattr(pages, "SHARE", 0.5)
    assert pages.direct_rows([np.load(path, mmap_mode="r")]) is None


def test_file_systems_without_such_reads_are_read_by_pages(path, monkeypatch):
    def refuse(*_):
        raise OSError("Invalid argument")

    monkeypatch.setattr(os, "preadv", refuse, raising=False)
    found = np.load(path, mmap_mode="r")
    parts = list(ArraySource(found[:, :-1], found[:, -1:]).parts(1000))
    assert all(np.shares_memory(part.x, found) for part in parts)


def test_parts_have_memory_of_their_own(reader, path):
    found = np.load(path, mmap_mode="r")
    parts = list(ArraySource(found[:, :-1], found[:, -1:]).parts(1000))
    assert not any(np.shares_memory(part.x, found) for part in parts)
    np.testing.assert_array_equal(np.concatenate([part.x for part in parts]),
                                  DATA[:, :-1])


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_files_are_read_so_too(tmp_path, monkeypatch, compression):
    """But for packed ones; columns of the first parts stay as they are."""
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "data.arrow"
    schema = pa.schema([(f"c{at}", pa.float32()) for at in range(DATA.shape[1])])
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, schema, options=options) as file:
        for rows in np.split(DATA, 3):
            file.write(pa.record_batch([*map(pa.array, rows.T)], schema))
    monkeypatch.setattr(pages, "SHARE", 0)
    source = open_data(path, outputs=1)
    if not source._file.is_direct(range(DATA.shape[1])):
        pytest.skip("the file system has no direct reads")
    fetched = source._file.fetch(0, range(DATA.shape[1]), Event())
    assert (fetched is None) == (compression is not None)
    parts = list(source.parts(700))
    np.testing.assert_array_equal(np.concatenate([p.x for p in parts]), DATA[:, :-1])
    np.testing.assert_array_equal(np.concatenate([p.t for p in parts]), DATA[:, -1:])

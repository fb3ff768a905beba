"""The tuning store: no loss and no crash, whatever happens to its file."""

import contextlib
import dataclasses
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import join, until

from clnet.errors import ClnetWarning
from clnet.opencl import store as stores
from clnet.opencl.device import Device
from clnet.opencl.store import Store, Timing, cache_directory

DEVICE = Device("some device", driver="1.0")
SPAN = "float32 batch 1: dense[3,4]-bias-tanh[3]"
KEY = "naive() device naive.cl:0123"
TIMING = Timing(1.5e-6, 2e-5, 0.25)


@pytest.fixture
def store(tmp_path):
    return Store(DEVICE, tmp_path)


@pytest.fixture
def path(store):
    """The store's file, with a time of SPAN."""
    store.put(SPAN, KEY, TIMING)
    return store.path


def reopened(store):
    """The store as another process opens it."""
    return Store(DEVICE, store.path.parent)


def query(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        return file.execute(statement, values).fetchall()


def test_a_new_store_is_empty_and_writes_nothing(store, tmp_path):
    assert store.get(SPAN, KEY) is None
    assert list(tmp_path.iterdir()) == []


def test_times_last_in_this_process_and_the_next(store):
    store.put(SPAN, KEY, TIMING)
    store.put(SPAN, "other", Timing(1, 2, 3))
    store.put("another span", KEY, Timing(4, 5, 6))
    for one in (store, reopened(store)):
        assert one.get(SPAN, KEY) == TIMING
        assert one.get(SPAN, "other") == Timing(1, 2, 3)
        assert one.get("another span", KEY) == Timing(4, 5, 6)
        assert one.get("another span", "other") is None


def test_the_last_time_is_stored(store):
    store.put(SPAN, KEY, TIMING)
    store.put(SPAN, KEY, Timing(9, 9, 0))
    assert reopened(store).get(SPAN, KEY) == Timing(9, 9, 0)


times = st.floats(0, 1e9)
texts = st.text(max_size=30)


@settings(max_examples=30)
@given(
    entries=st.dictionaries(
        st.tuples(texts, texts), st.builds(Timing, times, times, times), max_size=6
    )
)
def test_any_text_and_time_round_trips(tmp_path_factory, entries):
    store = Store(DEVICE, tmp_path_factory.mktemp("store"))
    for (span, key), timing in entries.items():
        store.put(span, key, timing)
    for (span, key), timing in entries.items():
        assert reopened(store).get(span, key) == timing


@pytest.mark.parametrize("change", [
    {"name": "other"}, {"driver": "1.1"}, {"platform": "other"},
    {"platform_version": "2"}, {"compute_units": 2},
])
def test_devices_and_drivers_do_not_share(store, tmp_path, change):
    store.put(SPAN, KEY, TIMING)
    other = Store(dataclasses.replace(DEVICE, **change), tmp_path)
    assert other.get(SPAN, KEY) is None
    other.put(SPAN, KEY, Timing(7, 7, 7))
    assert reopened(store).get(SPAN, KEY) == TIMING


def test_the_same_device_with_another_index_shares(store, tmp_path):
    store.put(SPAN, KEY, TIMING)
    moved = dataclasses.replace(DEVICE, index="3:1", notes=("quirk",))
    assert Store(moved, tmp_path).get(SPAN, KEY) == TIMING


def test_concurrent_writes_of_others_last(store):
    store.put(SPAN, KEY, TIMING)
    other = reopened(store)
    other.get(SPAN, KEY)
    store.put(SPAN, "second", Timing(2, 2, 2))
    other.put(SPAN, "third", Timing(3, 3, 3))
    for key in (KEY, "second", "third"):
        assert reopened(store).get(SPAN, key) is not None


def test_rows_name_device_span_and_date(path):
    ((device, span, key, *times, date),) = query(path, "SELECT * FROM times")
    assert "some device" in device
    assert (span, key, Timing(*times)) == (SPAN, KEY, TIMING)
    assert date.startswith("20")


def test_facts_belong_to_a_device(store, tmp_path):
    assert store.fact("groups meet") is None
    store.put_fact("groups meet", True)
    store.put_fact("others", False)
    assert reopened(store).fact("groups meet") is True
    assert reopened(store).fact("others") is False
    assert Store(Device("another"), tmp_path).fact("groups meet") is None


# The folder -----------------------------------------------------------------------


def test_the_cache_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("CLNET_CACHE_DIR", raising=False)
    assert cache_directory().name == "clnet"
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path
    assert Store(DEVICE).path.parent == tmp_path
    monkeypatch.setenv("CLNET_CACHE_DIR", "")
    assert cache_directory().name == "clnet"


def check_unwritable(store):
    """Check for one warning, and for times that last for the process."""
    assert store.get(SPAN, KEY) is None
    with pytest.warns(ClnetWarning, match="are not remembered: .* CLNET_CACHE_DIR"):
        store.put(SPAN, KEY, TIMING)
    store.put(SPAN, "second", TIMING)  # a second warning would be an error
    store.put("another span", KEY, TIMING)
    for span, key in ((SPAN, KEY), (SPAN, "second"), ("another span", KEY)):
        assert store.get(span, key) == TIMING


def test_a_cache_below_a_file_warns_once(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    check_unwritable(Store(DEVICE, tmp_path / "file"))


@pytest.mark.parametrize("reason", [PermissionError(13, "Permission denied"),
                                    OSError(30, "Read-only file system")])
def test_a_read_only_cache_warns_once(store, monkeypatch, reason):
    def refuse(*_, **__):
        raise reason

    monkeypatch.setattr(Path, "mkdir", refuse)
    check_unwritable(store)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_a_folder_without_write_permission_warns_once(tmp_path):
    tmp_path.chmod(0o500)
    try:
        check_unwritable(Store(DEVICE, tmp_path))
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_a_read_only_folder_is_read(store, path):
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        fresh = reopened(store)
        assert fresh.get(SPAN, KEY) == TIMING
        with pytest.warns(ClnetWarning, match="are not remembered: .*readonly"):
            fresh.put(SPAN, "second", TIMING)
        assert fresh.get(SPAN, "second") == TIMING
    finally:
        path.parent.chmod(0o700)


def test_a_full_disk_warns_once_and_loses_nothing(store):
    resource = pytest.importorskip("resource")
    store.put(SPAN, "old", TIMING)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (store.path.stat().st_size, limits[1])
    )
    try:
        with pytest.warns(ClnetWarning, match="are not remembered: .*CLNET_CACHE_DIR"):
            store.put("x" * 10_000, KEY, TIMING)
        store.put(SPAN, "second", TIMING)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.get("x" * 10_000, KEY) == TIMING
    assert reopened(store).get(SPAN, "old") == TIMING
    assert reopened(store).get("x" * 10_000, KEY) is None


def test_a_locked_file_warns_once(store, path, monkeypatch):
    monkeypatch.setattr(stores, "BUSY_SECONDS", 0.01)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        fresh = reopened(store)
        with pytest.warns(ClnetWarning, match="cannot be read: .*locked"):
            assert fresh.get(SPAN, KEY) is None
        assert fresh.get("another span", KEY) is None
        with pytest.warns(ClnetWarning, match="not remembered: .*locked"):
            fresh.put(SPAN, KEY, Timing(9, 9, 9))
        fresh.put(SPAN, "second", TIMING)
    assert reopened(store).get(SPAN, KEY) == TIMING


# Damage ---------------------------------------------------------------------------


def check_set_aside(store, path, content):
    path.write_bytes(content)
    fresh = reopened(store)
    with pytest.warns(ClnetWarning, match=r"are damaged \(.*set aside as"):
        assert fresh.get(SPAN, KEY) is None
    assert path.with_suffix(".damaged").read_bytes() == content
    fresh.put(SPAN, KEY, TIMING)
    assert reopened(store).get(SPAN, KEY) == TIMING


@pytest.mark.parametrize(
    "content",
    [b"\0" * 4096, b"\xff\xfe" * 99, b'{"format": 1}' * 99, b"times: none" * 99],
)
def test_foreign_files_are_set_aside(store, path, content):
    check_set_aside(store, path, content)


def test_an_empty_file_is_used(store, path):
    """A process killed before its first write leaves such a file."""
    path.write_bytes(b"")
    fresh = reopened(store)
    assert fresh.get(SPAN, KEY) is None
    fresh.put(SPAN, KEY, TIMING)
    assert reopened(store).get(SPAN, KEY) == TIMING


def test_a_truncated_file_is_never_fatal(store, path):
    whole = path.read_bytes()
    for length in range(0, len(whole), 499):
        path.write_bytes(whole[:length])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClnetWarning)
            fresh = reopened(store)
            assert fresh.get(SPAN, KEY) in (None, TIMING)
            fresh.put(SPAN, KEY, Timing(9, 9, 0))
        assert reopened(store).get(SPAN, KEY) == Timing(9, 9, 0)


def test_a_file_of_other_tables_is_set_aside(store, path):
    path.unlink()
    query(path, "CREATE TABLE times (day TEXT)")
    check_set_aside(store, path, path.read_bytes())


@pytest.mark.parametrize("name", ["times", "Times"])
def test_a_damaged_name_of_a_column_is_set_aside(store, path, name):
    """Also where the table's name is damaged, which has no case for SQLite."""
    content = path.read_bytes().replace(b"latency", b"lapency")
    content = content.replace(b"tabletimes", b"table" + name.encode())
    check_set_aside(store, path, content)


DIGITS = "9" * 400  # of a number that no float has
IMPOSSIBLE = [
    -1.0, math.inf, "text", b"blob", None, pytest.param(DIGITS, id="400 digits"),
    pytest.param(f"-{DIGITS}", id="-400 digits"),
]


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_impossible_rates_are_ignored(store, path, value):
    store.put_rates("1", {"bandwidth": 2.0, "clock": 3.0})
    query(path, "UPDATE rates SET value = ? WHERE name = 'clock'", value)
    assert reopened(store).rates("1") == {"bandwidth": 2.0}


@pytest.mark.parametrize("column", ["seconds", "latency", "spread"])
@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_impossible_times_are_ignored(store, path, column, value):
    store.put(SPAN, "second", TIMING)
    query(path, f"UPDATE times SET {column} = ? WHERE key = ?", value, KEY)
    fresh = reopened(store)
    assert fresh.get(SPAN, KEY) is None
    assert fresh.get(SPAN, "second") == TIMING


def test_damage_in_a_read_only_folder_warns(store, path, monkeypatch):
    path.write_bytes(b"{" * 999)

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.warns(ClnetWarning, match="cannot be read: .*not a database"):
        assert reopened(store).get(SPAN, KEY) is None


def test_damage_found_by_a_write_is_set_aside(store, path):
    path.write_bytes(b"{" * 999)
    with pytest.warns(ClnetWarning, match="set aside"):
        store.put(SPAN, "second", TIMING)
    assert reopened(store).get(SPAN, "second") == TIMING


@pytest.mark.skipif(
    sqlite3.sqlite_version_info < (3, 40), reason="earlier SQLites read past them"
)
def test_rows_out_of_order_are_set_aside(store):
    """SQLite searches by the order: it inserted a second row, and found the first."""
    for key in ("key a", "key b", "key c"):
        store.put(SPAN, key, TIMING)
    content = store.path.read_bytes()
    store.path.write_bytes(content.replace(b"key b", b"key z"))
    fresh, new = reopened(store), Timing(9, 9, 9)
    with pytest.warns(ClnetWarning, match="are damaged .*order.*set aside"):
        fresh.put(SPAN, "key c", new)
    assert reopened(store).get(SPAN, "key c") == new


@pytest.mark.parametrize("value", [
    pytest.param(DIGITS, id="400 digits"), 2, -1, 0.5, b"1", None,
])
def test_facts_that_are_neither_true_nor_false_are_asked_anew(store, path, value):
    store.put_fact("f", True)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE facts SET value = ?", (value,))
    assert reopened(store).fact("f") is None


def test_a_folder_instead_of_the_file_warns(store, path):
    path.unlink()
    path.mkdir()
    fresh = reopened(store)
    with pytest.warns(ClnetWarning, match="cannot be read"):
        assert fresh.get(SPAN, KEY) is None
    with pytest.warns(ClnetWarning, match="not remembered: "):
        fresh.put(SPAN, KEY, TIMING)
    assert fresh.get(SPAN, KEY) == TIMING


# Several processes ----------------------------------------------------------------

WRITER = """
import sys, pathlib
from clnet.opencl.device import Device
from clnet.opencl.store import Store, Timing
folder, first, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = Store(Device("some device", driver="1.0"), folder)
print("ready", flush=True)
i = first
while count < 0 or i < first + count:
    store.put(%r, f"key {i} " + "x" * 2000, Timing(i, i, 0))
    i += 1
""" % SPAN  # noqa: UP031


@contextmanager
def writer(folder, first, count):
    """Start a process that writes times; it is killed at the end."""
    command = [sys.executable, "-c", WRITER, str(folder), str(first), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL")
def test_a_process_killed_during_writes_loses_no_commit(tmp_path):
    written = []
    for attempt in range(5):
        store = Store(DEVICE, tmp_path)
        with writer(tmp_path, 1000 * attempt, -1):
            assert until(store.path.exists)
            time.sleep(0.02 + 0.013 * attempt)
        store.put(SPAN, f"after {attempt}", TIMING)  # a warning would be an error
        keys = [key for (key,) in query(store.path, "SELECT key FROM times")]
        assert set(written) < set(keys)
        written = keys
        assert query(store.path, "PRAGMA integrity_check") == [("ok",)]


def test_concurrent_writes_of_two_processes_last(tmp_path):
    def ended():
        Store(DEVICE, tmp_path).get(SPAN, KEY)  # damage would be an error
        return one.poll() is not None and other.poll() is not None

    with writer(tmp_path, 0, 30) as one, writer(tmp_path, 1000, 30) as other:
        assert until(ended)
    assert one.returncode == other.returncode == 0
    keys = query(Store(DEVICE, tmp_path).path, "SELECT key FROM times")
    known = {int(key.split()[1]) for (key,) in keys}
    assert known == {*range(30), *range(1000, 1030)}


def test_threads_may_share_a_store(store):
    def work(first):
        for i in range(first, first + 10):
            store.put(f"span {i % 3}", f"key {i}", Timing(i, i, 0))
            assert store.get("another", "key") is None

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    join(threads)
    for i in (*range(10), *range(100, 110), *range(200, 210)):
        assert reopened(store).get(f"span {i % 3}", f"key {i}") == Timing(i, i, 0)

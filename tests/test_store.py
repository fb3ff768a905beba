"""The tuning store: nothing lost, nothing fatal, whatever happens to its files."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clnet.device import Device
from clnet.errors import ClnetWarning
from clnet.tuning.store import Store, Timing, cache_directory

DEVICE = Device("some device", driver="1.0")
SPAN = "float32 batch 1: dense[3,4]-bias-tanh[3]"
KEY = "naive() device naive.cl:0123"
TIMING = Timing(1.5e-6, 2e-5, 0.25)


@pytest.fixture
def store(tmp_path):
    return Store(DEVICE, tmp_path)


@pytest.fixture
def path(store):
    """The one file that the store has for SPAN."""
    store.put(SPAN, KEY, TIMING)
    (path,) = store.directory.iterdir()
    return path


def again(store):
    """The store as another process sees it."""
    return Store(DEVICE, store.directory.parents[1])


def test_nothing_is_known_and_nothing_is_written_at_first(store, tmp_path):
    assert store.get(SPAN, KEY) is None
    assert list(tmp_path.iterdir()) == []


def test_what_was_put_is_there_in_this_process_and_the_next(store):
    store.put(SPAN, KEY, TIMING)
    store.put(SPAN, "other", Timing(1, 2, 3))
    store.put("another span", KEY, Timing(4, 5, 6))
    for one in (store, again(store)):
        assert one.get(SPAN, KEY) == TIMING
        assert one.get(SPAN, "other") == Timing(1, 2, 3)
        assert one.get("another span", KEY) == Timing(4, 5, 6)
        assert one.get("another span", "other") is None


def test_the_last_time_counts(store):
    store.put(SPAN, KEY, TIMING)
    store.put(SPAN, KEY, Timing(9, 9, 0))
    assert again(store).get(SPAN, KEY) == Timing(9, 9, 0)


times = st.floats(0, 1e9)
texts = st.text(max_size=30)


@given(
    entries=st.dictionaries(
        st.tuples(texts, texts), st.builds(Timing, times, times, times), max_size=6
    )
)
def test_every_text_and_time_comes_back(tmp_path_factory, entries):
    store = Store(DEVICE, tmp_path_factory.mktemp("store"))
    for (span, key), timing in entries.items():
        store.put(span, key, timing)
    for (span, key), timing in entries.items():
        assert again(store).get(span, key) == timing


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"}, {"driver": "1.1"}, {"platform": "other"},
        {"platform_version": "2"}, {"compute_units": 2},
    ],
)
def test_devices_and_drivers_do_not_share(store, tmp_path, change):
    store.put(SPAN, KEY, TIMING)
    other = Store(dataclasses.replace(DEVICE, **change), tmp_path)
    assert other.get(SPAN, KEY) is None
    other.put(SPAN, KEY, Timing(7, 7, 7))
    assert again(store).get(SPAN, KEY) == TIMING


def test_the_same_device_in_another_place_shares(store, tmp_path):
    store.put(SPAN, KEY, TIMING)
    moved = dataclasses.replace(DEVICE, index="3:1", notes=("quirk",))
    assert Store(moved, tmp_path).get(SPAN, KEY) == TIMING


def test_what_others_wrote_meanwhile_is_kept(store):
    store.put(SPAN, KEY, TIMING)
    other = again(store)
    other.get(SPAN, KEY)
    store.put(SPAN, "second", Timing(2, 2, 2))
    other.put(SPAN, "third", Timing(3, 3, 3))
    for key in (KEY, "second", "third"):
        assert again(store).get(SPAN, key) is not None


def test_a_file_says_what_it_is_of(path):
    data = json.loads(path.read_bytes())
    assert data["span"] == SPAN
    assert data["device"]["name"] == "some device"
    assert data["device"]["driver"] == "1.0"
    assert set(data["times"][KEY]) == {"seconds", "latency", "spread", "date"}


# The folder -----------------------------------------------------------------------


def test_the_folder_is_the_users_or_the_one_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv("CLNET_CACHE_DIR", raising=False)
    assert cache_directory().name == "clnet"
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path
    assert tmp_path in Store(DEVICE).directory.parents
    monkeypatch.setenv("CLNET_CACHE_DIR", "")
    assert cache_directory().name == "clnet"


def check_unwritable(store):
    """One warning, and times that last for the process."""
    assert store.get(SPAN, KEY) is None
    with pytest.warns(ClnetWarning, match="are not remembered: .* CLNET_CACHE_DIR"):
        store.put(SPAN, KEY, TIMING)
    store.put(SPAN, "second", TIMING)  # a second warning would be an error
    store.put("another span", KEY, TIMING)
    for span, key in ((SPAN, KEY), (SPAN, "second"), ("another span", KEY)):
        assert store.get(span, key) == TIMING


def test_a_cache_below_a_file_is_told_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    check_unwritable(Store(DEVICE, tmp_path / "file"))


@pytest.mark.parametrize("reason", [PermissionError(13, "Permission denied"),
                                    OSError(30, "Read-only file system")])
def test_a_read_only_cache_is_told_once(store, monkeypatch, reason):
    def refuse(*_, **__):
        raise reason

    monkeypatch.setattr(Path, "mkdir", refuse)
    check_unwritable(store)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_a_folder_without_write_permission_is_told_once(tmp_path):
    tmp_path.chmod(0o500)
    try:
        check_unwritable(Store(DEVICE, tmp_path))
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_told_once_and_nothing_is_lost(store, monkeypatch):
    store.put(SPAN, "old", TIMING)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(ClnetWarning, match="no space left on device"):
        store.put(SPAN, KEY, TIMING)
    store.put(SPAN, "second", TIMING)
    monkeypatch.undo()
    assert again(store).get(SPAN, "old") == TIMING
    assert [p.suffix for p in store.directory.iterdir()] == [".json"]


def test_files_that_cannot_be_read_are_told_once(store, path, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    other = again(store)
    with pytest.warns(ClnetWarning, match="cannot be read: .*Permission denied"):
        assert other.get(SPAN, KEY) is None
    assert other.get("another span", KEY) is None
    monkeypatch.undo()
    assert path.exists()


# Damage ---------------------------------------------------------------------------


def check_set_aside(store, path, content):
    path.write_bytes(content)
    fresh = again(store)
    with pytest.warns(ClnetWarning, match=r"are damaged \(.*set aside as"):
        assert fresh.get(SPAN, KEY) is None
    assert not path.exists()
    aside = path.with_suffix(".damaged")
    assert aside.read_bytes() == content
    fresh.put(SPAN, KEY, TIMING)
    assert again(store).get(SPAN, KEY) == TIMING


def with_time(**changes):
    entry = {"seconds": 1.0, "latency": 1.0, "spread": 0.0, "date": "now", **changes}
    return {KEY: {name: value for name, value in entry.items() if value is not ...}}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0", b"\xff\xfe", b"{", b"[]", b"null", b"7", b'"text"', b"{}",
        b"[" * 100_000, b'{"format": 1}', b"times: none", b"\x1f\x8b\x08",
    ],
)
def test_foreign_files_are_set_aside(store, path, content):
    check_set_aside(store, path, content)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0}, {"format": 2}, {"format": None}, {"span": "another"},
        {"times": None}, {"times": 3}, {"times": [1]}, {"times": {KEY: None}},
        {"times": {KEY: []}}, {"times": with_time(seconds=-1)},
        {"times": with_time(seconds=math.nan)}, {"times": with_time(latency=math.inf)},
        {"times": with_time(seconds="1")}, {"times": with_time(seconds=None)},
        {"times": with_time(spread=...)}, {"times": with_time(seconds=[1])},
        {"times": {**with_time(), "other": {"seconds": 1}}},
    ],
    ids=str,
)
def test_damaged_contents_are_set_aside(store, path, change):
    data = {**json.loads(path.read_bytes()), **change}
    check_set_aside(store, path, json.dumps(data).encode())


def test_a_file_cut_anywhere_is_set_aside(store, path):
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        check_set_aside(store, path, whole[:length])


@given(data=st.data())
def test_a_file_with_bytes_changed_is_never_fatal(tmp_path_factory, data):
    store = Store(DEVICE, tmp_path_factory.mktemp("store"))
    store.put(SPAN, KEY, TIMING)
    (path,) = store.directory.iterdir()
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.integers(0, 255)
        )
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClnetWarning)
        found = again(store).get(SPAN, KEY)
    assert found is None or all(
        0 <= value < math.inf for value in dataclasses.astuple(found)
    )


def test_damage_in_a_folder_that_cannot_be_written_is_only_told(
    store, path, monkeypatch
):
    path.write_bytes(b"{")

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.warns(ClnetWarning, match="it is ignored and they will be measured"):
        assert again(store).get(SPAN, KEY) is None


def test_damage_that_appears_before_a_write_is_set_aside(store, path):
    path.write_bytes(b"{")
    with pytest.warns(ClnetWarning, match="set aside"):
        store.put(SPAN, "second", TIMING)
    assert again(store).get(SPAN, "second") == TIMING


def test_a_folder_in_a_files_place_is_told(store, path):
    path.unlink()
    path.mkdir()
    fresh = again(store)
    with pytest.warns(ClnetWarning, match="cannot be read"):
        assert fresh.get(SPAN, KEY) is None
    with pytest.warns(ClnetWarning, match="not remembered: .*not a regular file"):
        fresh.put(SPAN, KEY, TIMING)
    assert fresh.get(SPAN, KEY) == TIMING


# Several processes ----------------------------------------------------------------

WRITER = """
import sys, pathlib
from clnet.device import Device
from clnet.tuning.store import Store, Timing
folder, first, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = Store(Device("some device", driver="1.0"), folder)
print("ready", flush=True)
i = first
while count < 0 or i < first + count:
    store.put(%r, f"key {i} " + "x" * 2000, Timing(i, i, 0))
    i += 1
""" % SPAN  # noqa: UP031


def start_writer(folder, first, count):
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(first), str(count)],
        stdout=subprocess.PIPE, text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
def test_a_process_killed_while_it_writes_leaves_a_whole_file(tmp_path):
    for attempt in range(5):
        child = start_writer(tmp_path, 1000 * attempt, -1)
        store = Store(DEVICE, tmp_path)
        while not any(store.directory.glob("*.json")):
            pass
        threading.Event().wait(0.02 + 0.013 * attempt)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        (path,) = store.directory.glob("*.json")
        data = json.loads(path.read_bytes())
        key = next(reversed(data["times"]))
        assert store.get(SPAN, key) is not None  # a warning would be an error


def test_two_processes_may_write_at_once(tmp_path):
    children = [start_writer(tmp_path, first, 30) for first in (0, 1000)]
    while any(child.poll() is None for child in children):
        Store(DEVICE, tmp_path).get(SPAN, KEY)  # damage would be an error
    for child in children:
        child.communicate()
        assert child.returncode == 0
    (path,) = Store(DEVICE, tmp_path).directory.iterdir()
    known = {int(key.split()[1]) for key in json.loads(path.read_bytes())["times"]}
    assert known & {29, 1029}  # the last write of one of them, whole
    assert len(known) >= 30


def test_threads_may_share_a_store(store):
    def work(first):
        for i in range(first, first + 10):
            store.put(f"span {i % 3}", f"key {i}", Timing(i, i, 0))
            assert store.get("another", "key") is None

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(store.directory.iterdir())) == 3

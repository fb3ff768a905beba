"""Probes: capabilities that only a launch can find."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pyopencl as cl
import pytest

from clnet.errors import BuildError, ClnetWarning, DeviceError
from clnet.opencl import probes, session
from clnet.opencl.discovery import device, device_list
from clnet.opencl.probes import forward_progress, mapped_host_memory
from clnet.opencl.store import Store

DEVICE = replace(device(), untested=False, emulated=False)  # its probes run here
ONE = replace(DEVICE, compute_units=1)
MANY = replace(DEVICE, compute_units=64 * DEVICE.compute_units)
CPU_ONLY = pytest.mark.skipif(DEVICE.type != "cpu", reason="groups may run all at once")


def clear_caches():
    """Forget answers as a new process does."""
    forward_progress.cache_clear()
    mapped_host_memory.cache_clear()


def answers(device):
    """The remembered answers of a device."""
    path = Store(device).path
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as file:
        return file.execute("SELECT name FROM facts").fetchall()


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    clear_caches()
    yield tmp_path
    clear_caches()


def test_forward_progress_is_remembered(store, monkeypatch):
    assert forward_progress(ONE)
    clear_caches()
    monkeypatch.setattr(probes, "_groups_met", lambda *_: pytest.fail("probed again"))
    assert forward_progress(ONE)
    with pytest.raises(pytest.fail.Exception, match="probed again"):
        forward_progress(replace(ONE, driver="another"))


@pytest.mark.parametrize("seen", [True, False])
def test_mapped_host_memory_is_remembered(store, monkeypatch, seen):
    monkeypatch.setattr(probes, "_stores_seen", lambda *_: seen)
    assert mapped_host_memory(DEVICE) is seen
    clear_caches()
    monkeypatch.setattr(probes, "_stores_seen", lambda *_: pytest.fail("probed again"))
    assert mapped_host_memory(DEVICE) is seen


@CPU_ONLY
def test_a_probe_that_times_out_has_no_answer(store):
    """The polls are bounded: the launch ends."""
    assert not forward_progress(MANY)
    assert not answers(MANY)


@pytest.mark.parametrize("error", [
    BuildError("no", "", ""), DeviceError("no"), cl.RuntimeError("no"),
], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("probe", [forward_progress, mapped_host_memory])
def test_a_probe_that_fails_has_no_answer(store, monkeypatch, probe, error):
    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(session, "build", fail)
        assert not probe(ONE)
        assert not answers(ONE)
    clear_caches()
    monkeypatch.setattr(probes, "_groups_met", lambda *_: True)
    monkeypatch.setattr(probes, "_stores_seen", lambda *_: True)
    assert probe(ONE)


def test_a_damaged_answer_is_probed_again():
    assert forward_progress(ONE)
    Store(ONE).path.write_bytes(b"{" * 999)
    clear_caches()
    with pytest.warns(ClnetWarning, match="set aside"):
        assert forward_progress(ONE)
    clear_caches()
    assert forward_progress(ONE)  # a warning would be an error


def test_named_devices_are_probed(monkeypatch):
    probed = []
    for name in ("forward_progress", "mapped_host_memory"):
        monkeypatch.setattr(probes, name, lambda d: probed.append(d) or True)
    unknown = replace(DEVICE, forward_progress=None, mapped_host_memory=None)
    assert device(unknown).forward_progress is True
    assert device(unknown).mapped_host_memory is True
    assert device(unknown) == unknown  # equality ignores the answers
    assert [d.forward_progress for d in device_list([unknown])] == [True]
    emulated = replace(unknown, emulated=True)
    assert not device(emulated).forward_progress
    assert probed == [unknown] * 8

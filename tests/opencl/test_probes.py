"""Probes: capabilities that only a launch can tell."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pyopencl as cl
import pytest

from clnet.errors import BuildError, ClnetWarning, DeviceError
from clnet.opencl import probes
from clnet.opencl.discovery import device, device_list
from clnet.opencl.probes import forward_progress, mapped_host_memory
from clnet.opencl.store import Store

DEVICE = device()
ONE = replace(DEVICE, compute_units=1)
MANY = replace(DEVICE, compute_units=64 * DEVICE.compute_units)
CPU_ONLY = pytest.mark.skipif(DEVICE.type != "cpu", reason="groups may run all at once")


def forget():
    """Do as a new process does."""
    forward_progress.cache_clear()
    mapped_host_memory.cache_clear()


def answers(device):
    """What is remembered of a device."""
    path = Store(device).path
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as file:
        return file.execute("SELECT name FROM facts").fetchall()


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def test_one_group_meets_itself_and_that_is_remembered(store, monkeypatch):
    assert forward_progress(ONE)
    forget()
    monkeypatch.setattr(probes, "_groups_met", lambda *_: pytest.fail("asked again"))
    assert forward_progress(ONE)
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        forward_progress(replace(ONE, driver="another"))


@pytest.mark.parametrize("seen", [True, False])
def test_what_the_host_sees_is_remembered(store, monkeypatch, seen):
    monkeypatch.setattr(probes, "_stores_seen", lambda *_: seen)
    assert mapped_host_memory(DEVICE) is seen
    forget()
    monkeypatch.setattr(probes, "_stores_seen", lambda *_: pytest.fail("asked again"))
    assert mapped_host_memory(DEVICE) is seen


@CPU_ONLY
def test_a_probe_that_times_out_is_no_answer(store):
    """And ends: the polls are counted."""
    assert not forward_progress(MANY)
    assert not answers(MANY)


@pytest.mark.parametrize("error", [
    BuildError("no", "", ""), DeviceError("no"), cl.RuntimeError("no"),
], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("probe", [forward_progress, mapped_host_memory])
def test_a_probe_that_fails_is_no_answer(store, monkeypatch, probe, error):
    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(probes, "build", fail)
        assert not probe(ONE)
        assert not answers(ONE)
    forget()
    monkeypatch.setattr(probes, "_groups_met", lambda *_: True)
    monkeypatch.setattr(probes, "_stores_seen", lambda *_: True)
    assert probe(ONE)


def test_a_damaged_answer_is_found_out_again():
    assert forward_progress(ONE)
    Store(ONE).path.write_bytes(b"{" * 999)
    forget()
    with pytest.warns(ClnetWarning, match="set aside"):
        assert forward_progress(ONE)
    forget()
    assert forward_progress(ONE)  # a warning would be an error


def test_a_device_that_is_named_is_probed(monkeypatch):
    asked = []
    for name in ("forward_progress", "mapped_host_memory"):
        monkeypatch.setattr(probes, name, lambda d: asked.append(d) or True)
    unknown = replace(DEVICE, forward_progress=None, mapped_host_memory=None)
    assert device(unknown).forward_progress is True
    assert device(unknown).mapped_host_memory is True
    assert device(unknown) == unknown  # it is the same device, probed or not
    assert [d.forward_progress for d in device_list([unknown])] == [True]
    emulated = replace(unknown, emulated=True)
    assert not device(emulated).forward_progress
    assert asked == [unknown] * 8

"""The question whether the groups of a launch run at the same time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clnet import meeting
from clnet.device import device, device_list
from clnet.errors import BuildError
from clnet.meeting import groups_meet
from clnet.tuning.store import Store

DEVICE = device()
CPU_ONLY = pytest.mark.skipif(DEVICE.type != "cpu", reason="groups may run all at once")


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNET_CACHE_DIR", str(tmp_path))
    groups_meet.cache_clear()
    yield tmp_path
    groups_meet.cache_clear()


def test_one_group_meets_itself_and_that_is_remembered(store, monkeypatch):
    one = replace(DEVICE, compute_units=1)
    assert groups_meet(one)
    groups_meet.cache_clear()
    monkeypatch.setattr(meeting, "_met", lambda *_: pytest.fail("asked again"))
    assert groups_meet(one)
    (file,) = store.rglob("groups-meet-*.json")
    assert json.loads(file.read_text())["device"]["driver"] == DEVICE.driver


@CPU_ONLY
def test_groups_one_after_the_other_say_no():
    """And end: the looks are counted."""
    assert not groups_meet(replace(DEVICE, compute_units=64 * DEVICE.compute_units))


def test_what_does_not_build_does_not_meet(monkeypatch):
    def fail(*_):
        raise BuildError("no", "", "")

    monkeypatch.setattr("clnet.asking.build", fail)
    assert not groups_meet(DEVICE)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1, "value": 3}'])
def test_a_damaged_answer_is_found_out_again(store, text):
    one = replace(DEVICE, compute_units=1)
    assert groups_meet(one)
    (file,) = store.rglob("groups-meet-*.json")
    file.write_text(text)
    groups_meet.cache_clear()
    assert groups_meet(one)
    assert json.loads(file.read_text())["value"] is True
    name = json.loads(file.read_text())["fact"]
    assert Store(one).fact(name) is True


def test_who_names_a_device_has_it_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(meeting, "groups_meet", lambda d: asked.append(d) or True)
    unknown = replace(DEVICE, concurrent_groups=None)
    assert device(unknown).concurrent_groups is True
    assert device(unknown) == unknown  # it is the same device, asked or not
    assert [d.concurrent_groups for d in device_list([unknown])] == [True]
    emulated = replace(unknown, emulated=True)
    assert not device(emulated).concurrent_groups
    assert asked == [unknown] * 3

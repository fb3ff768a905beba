"""The watch over a thread: it tells one that stands still from one that does not."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from waits import HANG_SECONDS, POLL_SECONDS

from clnet.opencl.child_process import SECONDS
from clnet.runtime import watch
from clnet.runtime.watch import OWN_SECONDS, RUNNING, Place, Watch

STATES = watch._states
TURNS = 10_000  # of a watch, each of a second by its count


@pytest.fixture(autouse=True)
def sleeping(monkeypatch):
    """All other threads sleep, as the system tells it: those of the machine may not."""
    monkeypatch.setattr(watch, "_states", lambda but: iter("SSS"))


def watched(limit=8.0, end=lambda turn: False):
    """Return the turn in which this thread is found to hang, and the sentence."""
    found, watching = [], Watch(limit)

    def watch_it():
        for turn in range(TURNS):
            sentence = watching.hangs(1.0)
            if sentence or end(turn):
                found.append((turn, sentence))
                return

    thread = threading.Thread(target=watch_it)
    thread.start()
    thread.join(HANG_SECONDS)
    return found[0]


def test_a_thread_that_stands_still_is_found_with_its_place():
    turn, sentence = watched()
    assert turn > 8
    assert " s it has stood still in watched (test_watch.py, line " in sentence


@pytest.mark.parametrize("states", ["SRS", "R"])
def test_a_process_that_waits_for_a_core_does_not_hang(monkeypatch, states):
    monkeypatch.setattr(watch, "_states", lambda but: iter(states))
    assert watched(end=lambda turn: turn > 100)[1] is None


def test_a_thread_that_wakes_up_does_not_hang(monkeypatch):
    turns = iter(range(TURNS))
    monkeypatch.setattr(watch, "_wake_ups", lambda thread: str(next(turns)))
    assert watched(end=lambda turn: turn > 100)[1] is None


def test_a_rank_that_waits_for_others_does_not_hang(monkeypatch):
    def poll(turn):
        Watch.polls += 1
        return turn > 100

    assert watched(end=poll)[1] is None


@pytest.mark.parametrize("states", ["SDS", ""])
def test_disks_and_systems_that_tell_nothing_have_the_long_limit(monkeypatch, states):
    monkeypatch.setattr(watch, "_states", lambda but: iter(states))
    assert watched()[0] > OWN_SECONDS


def test_a_wait_of_clnet_in_any_thread_has_the_long_limit(monkeypatch):
    monkeypatch.setattr(Place, "of", lambda frame: Place("a wait", True))
    assert watched()[0] > OWN_SECONDS


def test_a_child_process_ends_before_its_caller_counts_as_hung():
    assert OWN_SECONDS > SECONDS


def frame_of(*packages):
    """Return a frame of the last package, called from those before it."""
    call = sys._getframe
    for package in reversed(packages):
        space = {"__name__": f"{package}.module", "call": call}
        exec("def function(): return call()", space)
        call = space["function"]
    return call()


@pytest.mark.parametrize(("packages", "own"), [
    (["program", "clnet"], True),
    (["program", "clnet", "pyopencl"], True),
    (["program", "clnet", "subprocess", "selectors"], True),
    (["program", "clnet", "concurrent", "threading"], False),
    (["program", "clnet", "callback"], False),
    (["program", "clnet", "callback", "numpy"], False),
])
def test_waits_are_clnets_or_the_callers(packages, own):
    assert Place.of(frame_of(*packages)).own == own


def test_a_thread_of_libraries_alone_is_the_callers():
    assert Place.of(None) == Place("a library", False)


@pytest.mark.skipif(not watch.TASKS.exists(), reason="they are files of Linux")
def test_the_system_tells_the_states_and_wake_ups_of_threads():
    own = threading.get_native_id()
    assert RUNNING in STATES(set())
    before = watch._wake_ups(own)
    assert before
    time.sleep(POLL_SECONDS)
    assert watch._wake_ups(own) != before

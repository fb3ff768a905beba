"""Faults at every call of OpenCL, of files and of memory; interrupts at every point.

Each fault ends in one clear error, or in the right result; nothing leaks, and the next
call is right. ``-m sweep`` runs every scenario, the others a few of each kind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from clnet.opencl.session import session
from faults.injection import Injector, Resources, is_clear, leaks_since, outcome
from faults.scenarios import SCENARIOS, same
from faults.setting import APART, CPU, GROUPS

QUICK = {
    "opencl": ("naive apart", "cpu", "called", "chunks"),
    "file": ("save .net", "save .safetensors", "data .npz", "store", "predict a file"),
    "memory": ("naive", "csr", "called on two", "save .net"),
    "interrupt": ("buffer", "called", "called apart", "called on two", "started",
                  "new parameters", "chunks apart", "store", "data .npz"),
}
MOST_POINTS = 1000
KEPT = 9  # calls after which no more plans of trainings are kept
# A file that cannot be deleted stays.
SAME_FOLDER = {"os.unlink"}


@pytest.fixture
def injector() -> Iterator[Injector]:
    with pytest.MonkeyPatch.context() as patch:
        yield Injector(patch)


def chosen(names: list[str]) -> list[tuple[int, str]]:
    """Return the points to try: all; of very many, a random one of each name."""
    points = list(enumerate(names))
    if len(points) <= MOST_POINTS:
        return points
    Random(0).shuffle(points)
    return sorted((at, name) for name, at in {name: at for at, name in points}.items())


def swept(injector: Injector, kind: str, name: str, folder: Path) -> list[str]:
    """Return what goes wrong with a fault at each point of a scenario."""
    def failing(at: int = -1):
        if kind == "interrupt":
            return injector.interrupted(at)
        return injector.failing(kind, at)

    run = SCENARIOS[name](folder)
    expected = outcome(run)
    assert not isinstance(expected, BaseException), expected
    for _ in range(KEPT):
        assert same(outcome(run), expected)
    with failing():
        outcome(run)
    points = chosen(injector.calls)
    problems = []
    gc.collect()
    gc.freeze()  # what there is already: collections are many
    sessions = tuple(map(session, (CPU, APART, GROUPS)))
    before = Resources(sessions, folder)
    for at, point in points:
        with failing(at):
            found = outcome(run)
        where = f"{point} ({at})"
        if isinstance(found, BaseException):
            if not is_clear(found, kind):
                problems.append(f"{where}: {type(found).__name__}: {found}")
        elif not same(found, expected):
            problems.append(f"{where}: a wrong result")
        found = None  # an error's frames hold buffers
        again = outcome(run)
        if isinstance(again, BaseException) or not same(again, expected):
            problems.append(f"{where}: the next call gives {again!r}")
        again = None
        before, leaks = leaks_since(before, sessions, folder)
        if leaks and point not in SAME_FOLDER:
            problems += [f"{where}: {leak}" for leak in leaks]
    gc.unfreeze()
    return problems


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in QUICK for name in QUICK[kind]]
)
def test_a_fault_anywhere_is_one_clear_error(injector, kind, name, tmp_path):
    assert swept(injector, kind, name, tmp_path) == []


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", QUICK)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_anywhere_in_any_scenario(injector, kind, name, tmp_path):
    assert swept(injector, kind, name, tmp_path) == []

"""The page of the architecture: its types are there, and its walks are those taken."""

import configparser
import importlib
import json
import re
import sys
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from children import child_environment, run_python

import clnet
from clnet import Network

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
PACKAGE = str(ROOT / "clnet")
STATION = re.compile(r"^\d+\. `(clnet[\w.]+)`", re.MULTILINE)
TYPE = re.compile(r"^\| \*\*\w+\*\* \| `(clnet[\w.]+)`", re.MULTILINE)
# Calls from a folder into one above it, as function arguments allow them.
MOST_CLIMBS = {"predict": 2, "fit": 4}


def named(path):
    """The object of a dotted path."""
    names = path.split(".")
    for stop in range(len(names), 0, -1):
        try:
            module = importlib.import_module(".".join(names[:stop]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, names[stop:], module)
    raise AssertionError(f"{path} is nowhere")


def floors():
    """The floor of each folder, the highest first."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    rows = config["importlinter:contract:layers"]["layers"].split("\n")
    return {
        name.strip().removeprefix("clnet."): number
        for number, row in enumerate(filter(None, rows)) for name in row.split("|")
    }


class Walk:
    """The package's functions in the order of their first calls, and the climbs."""

    def __init__(self, function):
        self.codes, self.climbs, self._floors = {}, set(), floors()
        sys.setprofile(self._record)
        try:
            function()
        finally:
            sys.setprofile(None)

    def _floor(self, code):
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return None
        return self._floors.get(path.relative_to(PACKAGE).parts[0])

    def _record(self, frame, event, _):
        if event != "call" or (floor := self._floor(frame.f_code)) is None:
            return
        self.codes.setdefault(frame.f_code, len(self.codes))
        caller = frame.f_back
        while caller is not None and (above := self._floor(caller.f_code)) is None:
            caller = caller.f_back
        if caller is not None and floor < above:
            self.climbs.add((caller.f_code.co_name, frame.f_code.co_name))


def walk_of(method, stations):
    """The numbers of the stations in a method's first call, and the climbs."""
    x = np.linspace(-1, 1, 96, dtype="float32").reshape(32, 3)
    network = Network.mlp([3, 5, 2], "tanh", seed=0)
    walk = Walk({
        "predict": lambda: network.predict(x),
        # One epoch: a kernel may compute several, without a step of the group.
        "fit": lambda: network.fit(x, x[:, :2], epochs=1),
    }[method])
    numbers = [walk.codes.get(named(station).__code__) for station in stations]
    return numbers, sorted(walk.climbs)


@pytest.mark.parametrize("method", MOST_CLIMBS)
def test_a_walk_passes_its_stations_in_order(method, tmp_path):
    section = PAGE.split(f"## The walk of `{method}`")[1].split("\n## ")[0]
    stations = STATION.findall(section)
    assert len(stations) > 6
    # In a process of its own: caches of this one skip stations, and their ends climb.
    shown = run_python(
        __file__, method, *stations, env=child_environment(CLNET_CACHE_DIR=tmp_path)
    )
    assert shown.returncode == 0, shown.stderr
    order, climbs = json.loads(shown.stdout.splitlines()[-1])
    assert None not in order, dict(zip(stations, order, strict=True))
    assert order == sorted(order), dict(zip(stations, order, strict=True))
    assert len(climbs) <= MOST_CLIMBS[method], climbs


def test_the_types_are_there():
    types = TYPE.findall(PAGE)
    assert len(types) == 10
    assert all(isinstance(named(path), type) for path in types)


def test_no_two_classes_have_the_same_name():
    names = re.findall(r"^class (\w+)", "\n".join(
        path.read_text(encoding="utf-8")
        for path in Path(clnet.__file__).parent.rglob("*.py")
    ), re.MULTILINE)
    assert len(names) == len(set(names)), {n for n in names if names.count(n) > 1}


if __name__ == "__main__":
    print(json.dumps(walk_of(sys.argv[1], sys.argv[2:])))

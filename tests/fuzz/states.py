"""Files of a process's own state: trainings to resume, and the store of times."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

from clnet import InputError, Network
from clnet.nn.optimisers import Adam
from clnet.opencl import times_file
from clnet.opencl.store import Store, Timing
from clnet.planning.cover import SavedPlan
from clnet.training.history import TrainingState
from clnet.training.saved import SavedTraining

from . import mutations
from .oracle import MEMORY_LIMIT, same


def state_seeds() -> list[bytes]:
    found = []
    for dtype in ("float32", "float64"):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "x.npz"
            TrainingState(
                repr(Adam()), 3, 12, 7, np.ones(64, dtype), np.zeros((2, 64), dtype),
                ("ell", "auto"),
            ).save(path)
            found.append(path.read_bytes())
    return found


def state_load(path: Path) -> TrainingState:
    return TrainingState.load(path, memory_limit=MEMORY_LIMIT)


def state_check(content: bytes, state: TrainingState) -> None:
    state.check()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for field in dataclasses.fields(state):
            if field.name in arrays or state.formats:  # 0.1.0 wrote no formats
                same(getattr(state, field.name), arrays[field.name])


def checkpoint_seeds() -> list[bytes]:
    step = {"ops": 3, "variant": "naive", "config": {"rows": 4}, "place": 0}
    network = Network.mlp([3, 4, 2], seed=0)
    size = network.parameters.size
    found = []
    for columns, stopped in ((4, ""), (7, "a callback stopped after epoch 2")):
        state = TrainingState(
            repr(Adam()), 2, 8, 7, network.parameters,
            np.zeros((2, size), np.float32), ("ell",),
        )
        saved = SavedTraining(
            state, np.ones((2, columns)), stopped, {"loss": "mse", "samples": 9},
            [SavedPlan("d", 32, None, [step]), SavedPlan("d", 9, "csr", [step, step])],
            [("EarlyStopping", {"best_epoch": 1, "parameters": network.parameters})],
        )
        with TemporaryDirectory() as folder:
            path = Path(folder) / "x.safetensors"
            saved.save(network, path)
            found.append(path.read_bytes())
    return found


def checkpoint_load(path: Path) -> SavedTraining:
    return SavedTraining.load(path)


def checkpoint_check(content: bytes, saved: SavedTraining) -> None:
    saved.state.check()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    described = json.loads(header["__metadata__"]["clnet.training"])
    for name in ("optimiser", "epoch", "count", "seed"):
        assert getattr(saved.state, name) == described[name]
    for name, array in (("measures", saved.measures), ("values", saved.state.values)):
        begin, end = header[f"training.{name}"]["data_offsets"]
        assert array.tobytes() == content[8 + length + begin : 8 + length + end]
    with suppress(InputError):
        saved.check_settings("x", {"loss": "mse", "samples": 9})


DEVICE = SimpleNamespace(name="d", platform="p", platform_version="1", driver="1",
                         compute_units=4)


def store_seeds() -> list[bytes]:
    with TemporaryDirectory() as folder:
        store = Store(DEVICE, Path(folder))
        for span in ("a", "b"):
            for key in ("k", "l"):
                store.put(span, key, Timing(1e-6, 2e-6, 0.1))
        store.put_fact("f", True)
        return [store.path.read_bytes()]


def store_mutation(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change bytes, or values by SQL."""
    if rng.random() < 0.5:
        return mutations.binary(rng, content, others)
    with TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / "x.sqlite3"
        path.write_bytes(content)
        value = rng.choice((
            None, 0, -1, 1.5, float("inf"), "text", "9" * 400, b"\0\xff", 2**62, "\x1b",
        ))
        column = rng.choice(("seconds", "latency", "spread", "key", "span", "date"))
        statement = rng.choice((
            f"UPDATE OR REPLACE times SET {column} = ?", "UPDATE facts SET value = ?",
            f"UPDATE OR REPLACE times SET {column} = ? WHERE key = 'k'",
        ))
        try:
            with closing(sqlite3.connect(path)) as file, file:
                file.execute(statement, (value,))
        except (sqlite3.DatabaseError, UnicodeError):
            return mutations.binary(rng, content, others)
        return path.read_bytes()


def store_load(path: Path) -> list[Any]:
    """Read, write and read again; what is damaged is set aside."""
    with TemporaryDirectory(dir=_memory()) as folder:
        store = Store(DEVICE, Path(folder))
        shutil.copyfile(path, store.path)
        found = [store.get(span, key) for span in "ab" for key in "kl"]
        fact = store.fact("f")
        assert fact in (None, True, False)
        assert fact is None or isinstance(fact, bool)
        new = Timing(3e-6, 4e-6, 0.2)
        store.put("a", "k", new)
        assert store.get("a", "k") == new
        assert Store(DEVICE, Path(folder)).get("a", "k") == new
        return found


def store_check(content: bytes, found: list[Any]) -> None:
    for timing in found:
        if timing is not None:
            times = dataclasses.astuple(timing)
            assert all(isinstance(t, float) and 0 <= t < np.inf for t in times)


TIMES = Path(times_file.__file__).parents[1] / "times"  # tests ship others
SHIPPED = sorted(TIMES.glob("*.json"))[0]  # of any device


def times_seeds() -> list[bytes]:
    content = json.loads(SHIPPED.read_text())
    content["times"] = dict(list(content["times"].items())[:3])
    return [json.dumps(content).encode()]


def times_mutation(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change a value, mostly; or numbers, lines and bytes."""
    if rng.random() < 0.3:
        return mutations.text(rng, content, others)
    try:
        tree = json.loads(content)
        mutations.change(rng, tree)
        return json.dumps(tree).encode()
    except (ValueError, TypeError, LookupError, RecursionError):
        return mutations.binary(rng, content, others)


def times_load(path: Path) -> dict[str, Any]:
    """Import them, and read them as plans do."""
    with TemporaryDirectory(dir=_memory()) as folder:
        os.environ["CLNET_CACHE_DIR"] = folder
        target, content = times_file.import_times(path)
        assert target.read_bytes() == path.read_bytes()
        device: Any = SimpleNamespace(**json.loads(SHIPPED.read_text())["device"])
        times_file.given_times.__wrapped__(device)
        return content


def times_check(content: bytes, found: dict[str, Any]) -> None:
    assert found == json.loads(content)


def _memory() -> str | None:
    """Return a folder in memory, if the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None

"""The tuning store: measured times, remembered between processes.

One SQLite file of all devices in the user's cache directory. Each measurement is
committed at once: nothing is lost when a process is killed or others write. The journal
is SQLite's rollback journal: a write-ahead log needs shared memory, which network file
systems lack.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from contextlib import closing
from dataclasses import astuple, dataclass
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from clnet.errors import reason, warn
from clnet.nn.copies import Cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clnet.opencl.device import Device

SCHEMA = 1  # version of the file's tables; each has a file of its own
PLANS = 64  # of trainings that a process keeps
BUSY_SECONDS = 10.0  # maximum wait for writes of other processes
_CREATE = """
CREATE TABLE IF NOT EXISTS times (
    device TEXT, span TEXT, key TEXT,
    seconds REAL, latency REAL, spread REAL, date TEXT,
    PRIMARY KEY (device, span, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (
    device TEXT, name TEXT, value INTEGER, date TEXT, PRIMARY KEY (device, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rates (
    device TEXT, version TEXT, name TEXT, value REAL, date TEXT,
    PRIMARY KEY (device, version, name)
) WITHOUT ROWID;
"""
_TABLES = "SELECT lower(name), sql FROM sqlite_master WHERE type = 'table'"


def cache_directory() -> Path:
    """Return the folder of the store: ``$CLNET_CACHE_DIR``, else the user's cache."""
    chosen = os.environ.get("CLNET_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("clnet"))


@dataclass(frozen=True)
class Timing:
    """A measured time."""

    seconds: float  # Time of one run among many, back to back
    latency: float  # Time of one run alone, until the host has seen its end
    spread: float  # Interquartile range of the rounds' times, relative to the median


class Store:
    """Remembered times of one device."""

    def __init__(self, device: Device, directory: Path | None = None) -> None:
        self.path: Path = (directory or cache_directory()) / f"tuning-{SCHEMA}.sqlite3"
        self.key: str = json.dumps({
            "name": device.name,
            "platform": device.platform,
            "platform_version": device.platform_version,
            "driver": device.driver,
            "compute_units": device.compute_units,
        })
        self._spans: dict[str, dict[str, Timing]] = {}
        self._facts: dict[str, bool] = {}
        self.plans: Cache = Cache(PLANS)  # of trainings, by what they follow from
        self._readable = self._writable = True
        self._checked = False

    def get(self, span: str, key: str) -> Timing | None:
        """Return the remembered time of `key` for a span's signature, or None."""
        return self.times_of(span).get(key)

    def can_remember(self) -> bool:
        """Return whether times outlast this process; warns as `put` does."""
        self.put_fact("is written", True)
        return self._readable and self._writable

    def refresh(self) -> None:
        """Read times anew when they are needed: other processes measure too."""
        if self._readable and self._writable:  # else they are of this process alone
            self._spans = {}

    def times_of(self, span: str) -> dict[str, Timing]:
        """Return the remembered times of a span by their keys, read once."""
        spans = self._spans  # another thread may refresh them
        if span not in spans:
            rows = self._read(
                "SELECT key, seconds, latency, spread FROM times "
                "WHERE device = ? AND span = ?", span,
            )
            spans[span] = {
                key: Timing(*times) for key, *times in rows
                if all(isinstance(t, float) and 0 <= t < math.inf for t in times)
            }
        return spans[span]

    def put(self, span: str, key: str, timing: Timing) -> None:
        """Remember a time, at once.

        Warns
        -----
        ClnetWarning
            Once, if the file cannot be written: times then last for this process.
        """
        self.times_of(span)[key] = timing
        self._write("times", span, key, *map(float, astuple(timing)))

    def fact(self, name: str) -> bool | None:
        """Return a probe's remembered answer, or None."""
        if name not in self._facts:
            query = "SELECT value FROM facts WHERE device = ? AND name = ?"
            for (value,) in self._read(query, name):
                if value in (0, 1):  # a damaged one is asked anew
                    self._facts[name] = bool(value)
        return self._facts.get(name)

    def put_fact(self, name: str, value: bool) -> None:
        """Remember a probe's answer; warns as `put` does."""
        self._facts[name] = value
        self._write("facts", name, value)

    def all_times(self) -> list[tuple[str, str, Timing]]:
        """Return the span, the key and the time of each row, the oldest first."""
        query = (
            "SELECT span, key, seconds, latency, spread FROM times WHERE device = ? "
            "ORDER BY date"
        )
        return [(span, key, Timing(*times)) for span, key, *times in self._read(query)]

    def rates(self, version: str) -> dict[str, float]:
        """Return the remembered rates by their names, of a version of the probes."""
        query = "SELECT name, value FROM rates WHERE device = ? AND version = ?"
        return {
            name: rate for name, rate in self._read(query, version)
            if isinstance(rate, float) and 0 <= rate < math.inf
        }

    def put_rates(self, version: str, rates: Mapping[str, float]) -> None:
        """Remember rates by their names; warns as `put` does."""
        for name, rate in rates.items():
            self._write("rates", version, name, float(rate))

    def _read(self, query: str, *names: str) -> list[tuple[Any, ...]]:
        """Return the rows of this device and of names."""
        if not self._readable:
            return []
        try:
            if not self.path.exists():
                return []
            return self._run(query, self.key, *names)
        except (OSError, sqlite3.DatabaseError) as error:
            self._readable = False
            warn(f"measured times cannot be read: {self.path}: {reason(error)}")
        return []

    def _write(self, table: str, *row: float | str) -> None:
        if not self._writable:
            return
        values = (self.key, *row, datetime.now(timezone.utc).isoformat())
        marks = ", ".join("?" * len(values))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._run(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", *values)
        except (OSError, sqlite3.DatabaseError) as error:
            self._writable = False
            warn(
                f"measured times are not remembered: {self.path}: {reason(error)}; set "
                "CLNET_CACHE_DIR to a folder that can be written"
            )

    def _run(self, statement: str, *values: float | str) -> list[tuple[Any, ...]]:
        """Execute a statement; a damaged file is set aside for a new one first."""
        try:
            return self._executed(statement, values)
        except (sqlite3.DatabaseError, UnicodeError) as error:
            waits = isinstance(error, sqlite3.OperationalError)  # for a lock, for room
            if waits and str(error) != "unsupported file format":
                raise
            self._set_aside(error)
        return self._executed(statement, values)

    def _executed(
        self, statement: str, values: tuple[float | str, ...]
    ) -> list[tuple[Any, ...]]:
        # One connection per statement serves threads and forked processes.
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as file:
            # A damaged key matches no step.
            file.text_factory = partial(str, encoding="utf-8", errors="replace")
            if not self._checked:  # rows out of order are neither found nor replaced
                ((integrity,),) = file.execute("PRAGMA integrity_check(1)").fetchall()
                if integrity != "ok":
                    raise sqlite3.DatabaseError(integrity)
                tables = dict(file.execute(_TABLES))
                if any(tables.get(name, sql) != sql for name, sql in _tables()):
                    raise sqlite3.DatabaseError("its tables have other columns")
                self._checked = True
            # Not synchronous: a killed process damages nothing, and times lost in a
            # power failure are measured again.
            file.executescript(f"PRAGMA synchronous = OFF; {_CREATE}")
            with file:
                return file.execute(statement, values).fetchall()

    def _set_aside(self, error: Exception) -> None:
        aside = self.path.with_suffix(".damaged")
        try:
            self.path.replace(aside)
            # The journal belongs to the damaged file.
            Path(f"{self.path}-journal").unlink(missing_ok=True)
        except OSError:
            raise sqlite3.OperationalError(str(error)) from error
        warn(
            f"measured times in {self.path} are damaged ({reason(error)}): it was set "
            f"aside as {aside.name} and they will be measured again"
        )


@cache
def _tables() -> set[tuple[str, str]]:
    """Return the names and the definitions of a new file's tables."""
    with closing(sqlite3.connect(":memory:")) as file:
        file.executescript(_CREATE)
        return set(file.execute(_TABLES))


@cache
def store_of(device: Device) -> Store:
    """Return the process's store of a device."""
    return Store(device)

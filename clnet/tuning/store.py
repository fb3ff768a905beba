"""The tuning store: measured times, remembered between processes.

One small JSON file a device and span, in the user's cache directory. A file is written
whole or not at all, and each measurement is saved at once, so that nothing is lost when
a process is killed, and two processes can only make each other measure again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import platformdirs

from clnet.device import Device
from clnet.errors import ClnetWarning, FormatError
from clnet.formats.files import write

FORMAT = 1  # of the files; others are set aside


def cache_directory() -> Path:
    """Return where clnet remembers: ``$CLNET_CACHE_DIR``, else the user's cache."""
    chosen = os.environ.get("CLNET_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("clnet"))


@dataclass(frozen=True)
class Timing:
    """How long something takes.

    Attributes
    ----------
    seconds : float
        Time of one run among many, back to back.
    latency : float
        Time of one run alone, until the host has seen it finish.
    spread : float
        Middle half of the rounds' times, as a share of the median.
    """

    seconds: float
    latency: float
    spread: float


_TIMES = tuple(field.name for field in fields(Timing))


class Store:
    """Remembered times of one device.

    Parameters
    ----------
    device : Device
        Name, driver and platform version together are the key: another driver
        measures anew.
    directory : Path, optional
        Instead of `cache_directory`.
    """

    def __init__(self, device: Device, directory: Path | None = None) -> None:
        self._identity = {
            "name": device.name,
            "platform": device.platform,
            "platform_version": device.platform_version,
            "driver": device.driver,
            "compute_units": device.compute_units,
        }
        name = _digest(self._identity)
        self.directory = (directory or cache_directory()) / "times" / name
        self._spans: dict[str, dict[str, dict[str, Any]]] = {}
        self._readable = self._writable = True

    def get(self, span: str, key: str) -> Timing | None:
        """Return the remembered time of `key` for a span's signature, or None.

        Parameters
        ----------
        span : str
            `Span.signature`.
        key : str
            What computes it: variant, config, place, hash of the kernel's source.
        """
        entry = self._load(span).get(key)
        if entry is None:
            return None
        return Timing(*(float(entry[name]) for name in _TIMES))

    def put(self, span: str, key: str, timing: Timing) -> None:
        """Remember a time, at once.

        Warns
        -----
        ClnetWarning
            Once, if the directory cannot be written: times then last for this process.
        """
        # Another process may have added some since.
        known = self._read(span) if self._writable else self._load(span)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        entries = {**known, key: {**asdict(timing), "date": now}}
        self._spans[span] = entries
        self._save(
            self._path(span),
            {"format": FORMAT, "device": self._identity, "span": span,
             "times": entries},
        )

    def _save(self, path: Path, content: Mapping[str, Any]) -> None:
        if not self._writable:
            return
        text = json.dumps(content, indent=1, sort_keys=True)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write(path, [text.encode()])
        except (OSError, FormatError) as error:
            self._writable = False
            why = error if isinstance(error, FormatError) else (
                f"{self.directory} cannot be made ({error.strerror or error})"
            )
            _warn(
                f"measured times are not remembered: {why}; set CLNET_CACHE_DIR to "
                "a folder that can be written"
            )

    def fact(self, name: str) -> bool | None:
        """Return what was found out about the device, or None.

        A damaged file is as none: what it held is found out again.
        """
        try:
            data = json.loads(self._fact_path(name).read_bytes())
            found = data["value"] if data["format"] == FORMAT else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return found if isinstance(found, bool) else None

    def put_fact(self, name: str, value: bool) -> None:
        """Remember what was found out about the device; warns as `put` does."""
        self._save(
            self._fact_path(name),
            {"format": FORMAT, "device": self._identity, "fact": name, "value": value},
        )

    def _fact_path(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.json"

    def _path(self, span: str) -> Path:
        return self.directory / f"{_digest(span)}.json"

    def _load(self, span: str) -> dict[str, dict[str, Any]]:
        if span not in self._spans:
            self._spans[span] = self._read(span)
        return self._spans[span]

    def _read(self, span: str) -> dict[str, dict[str, Any]]:
        path = self._path(span)
        try:
            data = json.loads(path.read_bytes())
            if data["format"] != FORMAT or data["span"] != span:
                raise ValueError("it is of another format or span")
            entries = dict(data["times"])
            for entry in entries.values():
                if not all(0 <= entry[name] < math.inf for name in _TIMES):
                    raise ValueError("it holds an impossible time")
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            if self._readable:
                self._readable = False
                _warn(f"measured times cannot be read: {error}")
            return {}
        except KeyError as error:
            self._set_aside(path, f"it has no {error}")
            return {}
        except (ValueError, TypeError, RecursionError) as error:
            self._set_aside(path, str(error))
            return {}
        return entries

    def _set_aside(self, path: Path, reason: str) -> None:
        aside = path.with_suffix(".damaged")
        try:
            path.replace(aside)
            where = f"it was set aside as {aside.name}"
        except OSError:
            where = "it is ignored"
        _warn(
            f"measured times in {path} are damaged ({reason}); {where} and they will "
            "be measured again"
        )


def _warn(sentence: str) -> None:
    warnings.warn(sentence, ClnetWarning, stacklevel=3)


def _digest(content: str | Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]

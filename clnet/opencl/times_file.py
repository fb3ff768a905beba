"""Files of measured times and rates of one device: shipped, exported, imported.

A file has no fingerprints: its times hold for the same device with any driver, and rank
kernels that are compared with the oracle before they answer. Those of the user's own
store go before imported ones, and these before the shipped ones.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, fields
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clnet
from clnet.errors import FormatError, InputError, quoted
from clnet.opencl.device import Rates, with_rates
from clnet.opencl.store import Store, Timing, cache_directory

if TYPE_CHECKING:
    from clnet.opencl.device import Device

FORMAT = 1  # version of the files
KIND = "clnet times"
SHIPPED = Path(__file__).resolve().parents[1] / "times"
NEAR = 2.0  # times the best of a span, up to which a time is exported
MOST = 8  # times of a span
MOST_NAME = 100  # characters of a file's name
_FINGERPRINT = re.compile(r" [0-9a-f]{16}$")
_HOST = " host "  # in keys: NumPy's times are the host's, not the device's
_WHOLE = re.compile(r"\d+-\d+ ")  # of covers: their times are of the host too

Times = Mapping[str, Mapping[str, Timing]]
"""Times by the span's signature and the key without its fingerprint."""


def plain_key(key: str) -> str:
    """Return a step's key in the store without its fingerprint."""
    return _FINGERPRINT.sub("", key)


@cache
def given_times(device: Device) -> Times:
    """Return the imported and shipped times of a device, by span and key."""
    spans: dict[str, dict[str, Timing]] = {}
    for content in _contents(device):  # the user's last
        for span, times in content["times"].items():
            known = spans.setdefault(span, {})
            known.update({key: Timing(*numbers) for key, numbers in times.items()})
    return spans


def given_rates(device: Device) -> Device:
    """Return a device with its imported or shipped rates, if there are any."""
    for content in _contents(device):
        if len(content["rates"]) == len(device.places):
            device = with_rates(device, [Rates(**row) for row in content["rates"]])
    return device


def export_times(device: Device, path: str | Path) -> int:
    """Write a device's times and rates of the user's store to a file."""
    from clnet.formats.files import as_path, write

    spans: dict[str, dict[str, Timing]] = {}
    for span, key, timing in Store(device).all_times():
        of_device = _FINGERPRINT.search(key) and _HOST not in key
        if of_device and not _WHOLE.match(key):
            spans.setdefault(span, {})[plain_key(key)] = timing
    if not spans:
        raise InputError(
            f"no times of {device.name} are stored: `clnet tune NET` measures them"
        )
    kept = {span: dict(_best(times)) for span, times in sorted(spans.items())}
    content = {
        KIND: FORMAT, "clnet": clnet.__version__, "device": _identity(device),
        "driver": device.driver, "platform_version": device.platform_version,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "rates": [
            asdict(place.measured) for place in device.places
            if place.measured is not None
        ],
        "times": kept,
    }
    write(as_path(path), [json.dumps(content, indent=0).encode()])
    return sum(map(len, kept.values()))


def import_times(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """Copy a file of times to the user's cache, where plans find it."""
    from clnet.formats.files import as_path, read, write

    source = as_path(path)
    text = read(source)
    content = _parsed(source, text)
    name = re.sub(r"\W+", "-", content["device"]["name"].lower()).strip("-")[:MOST_NAME]
    target = cache_directory() / "times" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write(target, [text])
    given_times.cache_clear()
    return target, content


def _best(times: Mapping[str, Timing]) -> Iterable[tuple[str, tuple[float, ...]]]:
    """Return the times near a span's best, rounded, the best first."""
    ranked = sorted(times.items(), key=lambda pair: pair[1].seconds)
    for key, timing in ranked[:MOST]:
        if timing.seconds <= NEAR * ranked[0][1].seconds:
            yield key, tuple(float(f"{number:.4g}") for number in astuple(timing))


def _identity(device: Device) -> dict[str, Any]:
    """Return what must be equal for times to hold."""
    return {
        "name": device.name, "platform": device.platform,
        "compute_units": device.compute_units,
    }


def _contents(device: Device) -> Iterator[dict[str, Any]]:
    """Yield the files of a device, shipped ones first."""
    identity = _identity(device)
    for folder in (SHIPPED, cache_directory() / "times"):
        try:
            paths = sorted(folder.glob("*.json"))
        except OSError:  # times are a help only
            continue
        for path in paths:
            content = _readable(path, json.dumps(device.name).encode())
            if content is not None and content["device"] == identity:
                yield content


def _readable(path: Path, name: bytes) -> dict[str, Any] | None:
    """Return a file's content, or None without a name or of another version."""
    try:
        text = path.read_bytes()
        return _parsed(path, text) if name in text else None
    except (OSError, FormatError):
        return None


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    """Return a file's content."""
    try:
        content = json.loads(text)
        form, version = content[KIND], content["clnet"]
        names = {field.name for field in fields(Rates)}
        numbers = [rate for rates in content["rates"] for rate in rates.values()]
        for times in content["times"].values():
            for timing in times.values():
                Timing(*timing)
                numbers += timing
        right = (
            form == FORMAT and isinstance(version, str)
            and all(rates.keys() == names for rates in content["rates"])
            and all(isinstance(n, float) and 0 <= n < math.inf for n in numbers)
            and set(content["device"]) == {"name", "platform", "compute_units"}
            and isinstance(content["device"]["name"], str)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        right = False
    if not right:
        raise FormatError(
            f"{path} is no file of times: expected one of `clnet tune --export`"
        )
    if version != clnet.__version__:
        raise FormatError(
            f"{path} has times of clnet {quoted(version)}, expected those of "
            f"{clnet.__version__}"
        )
    parsed: dict[str, Any] = content
    return parsed

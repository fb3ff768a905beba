"""The results of commands as JSON, for scripts: ``--json``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from clnet.nn.metrics import Evaluation
    from clnet.opencl.device import Device

_HANDLES = ("handle", "companions", "environment")  # of a device, of this process


def add_argument(sub: argparse.ArgumentParser) -> None:
    """Add the option."""
    sub.add_argument(
        "--json", action="store_true",
        help="print one JSON object for scripts, and nothing else, on stdout",
    )


def show(content: Mapping[str, object]) -> None:
    """Print an object; numbers that are not finite are null."""
    print(json.dumps(_plain(content), ensure_ascii=False, allow_nan=False))


def figures(found: Evaluation | None) -> dict[str, object]:
    """Return the figures of an evaluation that apply."""
    if found is None:
        return {}
    every = {field.name: getattr(found, field.name) for field in fields(found)}
    return {name: value for name, value in every.items() if value is not None}


def device_fields(device: Device) -> dict[str, object]:
    """Return a device's record."""
    return {
        field.name: getattr(device, field.name) for field in fields(device)
        if field.name not in _HANDLES
    }


def _plain(value: Any) -> Any:
    """Return a value of JSON's own types."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)

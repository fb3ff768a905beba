"""The results of commands as JSON, for scripts: ``--json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.cli.summary import layer_fields

if TYPE_CHECKING:
    from clnet.cli.samples import FileSamples
    from clnet.network import Network
    from clnet.opencl.device import Device

_HANDLES = ("handle", "companions", "environment")  # of a device, of this process


def show(content: Mapping[str, object]) -> None:
    """Print an object; numbers that are not finite are null."""
    print(json.dumps(_plain(content), ensure_ascii=False, allow_nan=False))


def device_fields(device: Device) -> dict[str, object]:
    """Return a device's record."""
    return {
        **{
            field.name: getattr(device, field.name) for field in fields(device)
            if field.name not in _HANDLES
        },
        "measured": device.measured is not None, "rates": asdict(device.rates),
    }


def network_fields(network: Network) -> dict[str, object]:
    """Return a network's sizes and layers, and what else its file holds."""
    columns, fann, layers = network.columns, network.fann, layer_fields(network)
    totals = ("parameters", "bytes")
    return {
        "network": network.sizes, "dtype": network.dtype,
        **{name: sum(layer[name] for layer in layers) for name in totals},
        "fann_compatible": network.fann_compatible,
        "scaling": network.scaling is not None, "classes": network.classes,
        "columns": None if columns is None else columns.as_dict(), "layers": layers,
        "fann": None if fann is None else asdict(fann),
    }


def data_fields(data: FileSamples) -> dict[str, object]:
    """Return the sizes of data, and the range of the finite numbers."""
    outputs: dict[str, object] = (
        {"classes": dict(zip(*np.unique(data.t, return_counts=True), strict=True))}
        if data.labelled else {"outputs": _numbers(data.t)}
    )
    return {
        "samples": len(data), "table": data.notes, "inputs": _numbers(data.x),
        **outputs,
    }


def _numbers(values: NDArray[Any]) -> dict[str, object]:
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if finite.size else (None, None)
    return {
        "columns": values.shape[1], "least": ends[0], "largest": ends[1],
        "not_finite": values.size - finite.size,
    }


def _plain(value: Any) -> Any:
    """Return a value of JSON's own types."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)

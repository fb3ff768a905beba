"""csr: one layer in compressed sparse rows, in the shape that CPU cores like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clnet.device import Device
from clnet.ops import LayerOps, Span
from clnet.storage import CsrStorage, Pattern
from clnet.variants.base import (
    Config,
    Cost,
    Launch,
    Parameters,
    Reach,
    Table,
    layer_defines,
    span_bytes,
    span_flops,
    unsupported_dtype,
)

RUNS = (4, 1, 16)  # a core, the usually best first


@dataclass(frozen=True)
class Csr:
    """Work-items take runs of rows of equally many entries (``csr.cl``).

    Config: ``runs``, the work-items.
    """

    name: str = "csr"
    reach: Reach = "layer"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse other storages, other devices, and activations that differ."""
        if span.layers is None:
            return "it computes whole layers, and these ops are none"
        layer, _ = _parts(span)
        if not isinstance(layer.apply.storage, CsrStorage):
            return f"it reads csr layers, not {layer.apply.storage.name}"
        if device.type != "cpu":
            return f"it is shaped for CPU cores, and {device.name} is none"
        if not layer.act.nonlinearity.uniform:
            return "it applies one activation a layer, and here neurons differ"
        return unsupported_dtype(span, device)

    def space(self, span: Span, device: Device) -> Iterable[Config]:
        """As many runs as cores, or more, to even out what takes longer."""
        _, storage = _parts(span)
        cores = 1 if device.serial else device.compute_units
        factors = (1,) if device.serial else RUNS
        runs = dict.fromkeys(min(cores * factor, storage.n_out) for factor in factors)
        return tuple({"runs": n} for n in runs)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Entries and their columns are read once, and stay for all samples."""
        _, storage = _parts(span)
        moved = span_bytes(span) + storage.nbytes(0)
        units = min(config["runs"], device.compute_units)
        # Loads of x come one at a time: about a quarter of what vectors do.
        return Cost(span_flops(span), moved, 1, 0, units, 0.25)

    def launches(
        self, span: Span, config: Config, device: Device
    ) -> tuple[Launch, ...]:
        """Return the layer's one launch."""
        layer, storage = _parts(span)
        x, y, bias = layer.apply.x, layer.act.y, layer.act.bias
        key = f"csr {storage.signature}@{layer.apply.weights.offset}"
        runs = config["runs"]
        pattern = storage.pattern
        narrow = storage.indices["columns"].dtype == np.uint16
        return (
            Launch(
                "csr.cl", "csr",
                {**layer_defines(span, layer), "COLUMN": "ushort" if narrow else "int"},
                (runs,), (1,),
                (
                    Parameters(), layer.apply.weights.offset,
                    0 if bias is None else bias.offset,
                    Table(f"{key} starts", lambda: storage.indices["starts"]),
                    Table(f"{key} columns", lambda: storage.indices["columns"]),
                    Table(f"{key} bounds {runs}", lambda: bounds(pattern, runs)),
                    x, x.stride, y, y.stride, span.batch,
                ),
            ),
        )


def bounds(pattern: Pattern, runs: int) -> NDArray[np.int32]:
    """Return where runs of rows [runs + 1] start, each of about as much work.

    A row's work is its entries, and one for the row itself.
    """
    work = pattern.starts + np.arange(pattern.n_out + 1)
    return np.searchsorted(work, np.linspace(0, work[-1], runs + 1)).astype(np.int32)


def _parts(span: Span) -> tuple[LayerOps, CsrStorage]:
    assert span.layers is not None
    (layer,) = span.layers
    storage = layer.apply.storage
    return layer, storage  # type: ignore[return-value]  # refused otherwise

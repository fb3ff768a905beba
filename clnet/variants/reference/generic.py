"""generic: one forward op of any storage and activation, on any device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct, Nonlinearity, Softmax
from clnet.ir.product import Apply
from clnet.nn.storage.dense import DenseStorage, MaskedStorage
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import LocalStorage
from clnet.opencl.launch import PARAMETERS, Launch, Launches, Table
from clnet.variants.base import GROUP, Config, Reach, Untuned, unsupported_dtype
from clnet.variants.cost import Cost, span_cost
from clnet.variants.macros import kernel_function, real

if TYPE_CHECKING:
    from collections.abc import Callable

    from clnet.ir.program import Span
    from clnet.nn.storage.base import Storage
    from clnet.opencl.device import Device

Columns = tuple[NDArray[np.int32], ...]

MAX_ENTRIES = 1 << 20  # listed entries of a local layer, at most


@dataclass(frozen=True)
class Generic(Untuned):
    """Kernels over `Storage.entries()`, one work-item an element of the result."""

    name: str = "generic"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse the ops of training, and a dtype that the device lacks."""
        if not isinstance(span.ops[0], (Apply, BiasAct, Softmax)):
            return "it computes the forward ops, and this is none"
        if isinstance(span.ops[0], Apply):
            refusal = refuse_entries(span.ops[0].storage)
            return refusal or unsupported_dtype(span, device)
        return unsupported_dtype(span, device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count two indices read with every value; no load is shared."""
        (op,) = span.ops
        indices = 0
        if isinstance(op, Apply):
            indices = op.storage.size * span.batch * 16
        return span_cost(span, device, indices, device.compute_units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the op's one launch."""
        (op,) = span.ops
        group = min(GROUP, device.largest_group)
        defines: dict[str, int | str] = {"REAL": real(span)}
        if isinstance(op, Apply):
            storage = op.storage
            if isinstance(storage, MaskedStorage):  # zeros count, as elsewhere
                storage = DenseStorage(storage.n_out, storage.n_in)
            key = f"{storage.signature}@{op.weights.offset}"
            return (
                Launch(
                    "reference/generic.cl", "apply", defines,
                    (round_up(storage.n_out, group) * span.batch,), (group,),
                    (
                        PARAMETERS, op.weights.offset,
                        *entry_tables(
                            key, row_entries, storage, "starts", "slots", "columns"
                        ),
                        op.x, op.x.stride, op.z, op.z.stride, storage.n_out,
                        int(op.accumulate), round_up(storage.n_out, group),
                    ),
                ),
            )
        if isinstance(op, BiasAct):
            width = op.y.width
            cases = " ".join(
                f"X({code}, {kernel_function(name)})"
                for code, name in enumerate(distinct_activations(op.nonlinearity))
            )
            return (
                Launch(
                    "reference/generic.cl", "bias_act",
                    {**defines, "ACTIVATIONS(X)": cases},
                    (round_up(width, group) * span.batch,), (group,),
                    (
                        PARAMETERS, -1 if op.bias is None else op.bias.offset,
                        int(not op.shared),
                        *function_tables(op.nonlinearity, width, span.dtype),
                        op.z, op.z.stride, op.y, op.y.stride, width,
                        round_up(width, group),
                    ),
                ),
            )
        if isinstance(op, Softmax):
            return (
                Launch(
                    "reference/generic.cl", "log_softmax" if op.log else "softmax",
                    defines,
                    (round_up(span.batch, group),), (group,),
                    (op.x, op.x.stride, op.y, op.y.stride, op.y.width, span.batch),
                ),
            )
        raise NotImplementedError(f"no generic kernel for {type(op).__name__}")


def refuse_entries(storage: Storage) -> str | None:
    """Refuse a large local storage: its own kernels need no tables of entries."""
    if isinstance(storage, LocalStorage) and storage.size > MAX_ENTRIES:
        return (
            f"it would list {storage.size} entries of a local layer, more than "
            f"{MAX_ENTRIES}"
        )
    return None


def entry_tables(
    key: str, make: Callable[[Storage], Columns], storage: Storage, *names: str
) -> tuple[Table, ...]:
    """Return the tables of a storage's live entries."""

    def column(i: int) -> NDArray[np.int32]:
        return make(storage)[i]

    return tuple(
        Table(f"{key} {name}", partial(column, i)) for i, name in enumerate(names)
    )


def distinct_activations(function: Nonlinearity) -> list[str]:
    """Return the distinct activations of a layer; their indices are their codes."""
    return sorted(set(function.names))


def function_tables(
    function: Nonlinearity, width: int, dtype: str
) -> tuple[Table, Table, Table]:
    """Return the tables [width] of a layer's codes, steepnesses and limits."""
    names = distinct_activations(function)
    codes = [names.index(name) for name in function.names]

    def table(what: str, values: Any, dtype: str) -> Table:
        return Table(
            f"{function!r} {width} {what}",
            # `numpy.resize` takes seconds for millions of neurons.
            lambda: np.broadcast_to(np.asarray(values, dtype), width).copy(),
        )

    return (
        table("codes", codes, "int32"),
        table("steepness", function.steepness, dtype),
        table("limits", function.limits or (np.inf,), dtype),
    )


def row_entries(
    storage: Storage,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return starts [n_out + 1], slots and columns [entries] of the live entries."""
    entries = storage.entries()
    slots = np.flatnonzero(entries.live)
    slots = slots[np.argsort(entries.rows[slots], kind="stable")]
    counts = np.bincount(entries.rows[slots], minlength=storage.n_out)
    starts = np.concatenate(([0], np.cumsum(counts)))
    columns = entries.columns[slots]
    return starts.astype(np.int32), slots.astype(np.int32), columns.astype(np.int32)

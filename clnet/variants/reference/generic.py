"""generic, generic_backward, host: any one op, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX
from clnet.ir.activation import ActGrad, BiasAct, BiasGrad, Nonlinearity, Softmax
from clnet.ir.batch import Gather
from clnet.ir.loss import RECORD, Loss, Tally
from clnet.ir.product import Apply, ApplyT, Contraction, Outer
from clnet.nn.random import half_bits
from clnet.nn.storage.dense import DenseStorage, MaskedStorage
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import LocalStorage
from clnet.opencl.device import Device
from clnet.opencl.launch import (
    GRADIENTS,
    KEY,
    PARAMETERS,
    Argument,
    Constant,
    Launch,
    Launches,
    Scalar,
    Scratch,
)
from clnet.opencl.quirks import host_memory
from clnet.variants.base import (
    GROUP,
    Config,
    Reach,
    Untuned,
    team_group,
    unsupported_dtype,
)
from clnet.variants.cost import (
    UNCOALESCED,
    Cost,
    gpu_kernel_efficiency,
    modelled,
    span_cost,
)
from clnet.variants.macros import (
    gradient_defines,
    gradient_function,
    kernel_function,
    loss_defines,
    real,
    rows_macro,
)

if TYPE_CHECKING:
    from clnet.ir.op import Op
    from clnet.ir.program import Span
    from clnet.nn.storage.base import Storage

FORWARD, BACKWARD = "reference/generic.cl", "reference/generic_backward.cl"
MAX_ENTRIES = 1 << 20  # listed entries of a local layer, at most
INDEX_BYTES = 16  # of two indices read with every value, and the value again
BLOCK = 64  # samples of a partial sum
TALLY_GROUP = 256  # work-items of a group that sums records
RECORDS_PER_ITEM = 8  # at least, where several groups sum records
MAX_ARRAYS = 3  # of a gather: inputs, targets, weights
SHARED_BIAS_GROUPS = 8  # groups a compute unit that sum a shared bias's gradient
GATHER_GROUP = 256  # work-items of a group that copies rows
GATHER_GROUPS = 4  # such groups a compute unit
MAX_ROWS = 64  # of such a group


@dataclass(frozen=True)
class Generic(Untuned):
    """Forward ops over `Storage.entries()`, one work-item an element of the result."""

    name: str = "generic"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse the ops of training, and a dtype that the device lacks."""
        if type(span.ops[0]) not in _FORWARD:
            return "it computes the forward ops, and this is none"
        return _refuse(span, device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count two indices read with every value; no load is shared."""
        return span_cost(span, device, _index_bytes(span), device.compute_units)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the op's one launch."""
        (op,) = span.ops
        return _FORWARD[type(op)](op, span, device)


@dataclass(frozen=True)
class GenericBackward(Untuned):
    """The ops of training, likewise."""

    name: str = "generic_backward"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse all but the ops of training, and a dtype that the device lacks."""
        if type(span.ops[0]) not in _BACKWARD:
            return "it computes training's ops, and this is none"
        return _refuse(span, device)

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count the indices read with every value; no load is shared."""
        (op,) = span.ops
        reads = span.bytes + _index_bytes(span)
        if isinstance(op, Gather):  # reads a mini-batch, not the whole data set
            reads = 2 * span.item_size * span.batch * sum(v.width for v in op.batch)
        units, launches, scratch = device.compute_units, 1, 0
        if isinstance(op, Loss) and device.type != "cpu":
            reads *= min(UNCOALESCED, op.y.width)
        if isinstance(op, Tally):
            units = _tally_parts(span, device)
            launches += units > 1
            scratch = span.item_size * len(RECORD) * units
        if isinstance(op, BiasGrad) and op.shared:
            launches = 2
            scratch = span.item_size * math.prod(_shared_partials(op, span, device))
        return Cost(
            span.flops, reads, launches, scratch, units,
            gpu_kernel_efficiency(device)
        )

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return the op's one launch; two where partial sums of groups are reduced."""
        (op,) = span.ops
        return _BACKWARD[type(op)](op, span, device)


def _refuse(span: Span, device: Device) -> str | None:
    """Refuse a large local storage: its own kernels need no tables of entries."""
    storage = getattr(span.ops[0], "storage", None)
    if isinstance(storage, LocalStorage) and storage.size > MAX_ENTRIES:
        return (
            f"it would list {storage.size} entries of a local layer, more than "
            f"{MAX_ENTRIES}"
        )
    return unsupported_dtype(span, device)


def _index_bytes(span: Span) -> int:
    (op,) = span.ops
    if isinstance(op, Contraction):
        return op.storage.size * span.batch * INDEX_BYTES
    return 0


def _launch(
    source: str, kernel: str, span: Span, device: Device, items: int,
    arguments: tuple[Argument, ...], **defines: int | str,
) -> Launches:
    """Return one launch of so many work-items, or more."""
    group = _group(device)
    macros: dict[str, int | str] = {"REAL": real(span)}
    if source == BACKWARD:
        macros["BLOCK"] = BLOCK
    size = (round_up(items, group),)
    return (Launch(source, kernel, macros | defines, size, (group,), arguments),)


def _group(device: Device) -> int:
    return min(GROUP, device.largest_group)


def _apply(op: Apply, span: Span, device: Device) -> Launches:
    storage = op.storage
    if isinstance(storage, MaskedStorage):  # zeros count, as elsewhere
        storage = DenseStorage(storage.n_out, storage.n_in)
    row_items = round_up(storage.n_out, _group(device))
    return _launch(
        FORWARD, "apply", span, device, row_items * span.batch,
        (
            PARAMETERS, op.weights.offset,
            *_entry_tables(op, storage, "rows", "starts", "slots", "columns"),
            op.x, op.x.stride, op.z, op.z.stride, storage.n_out,
            int(op.accumulate), row_items,
        ),
    )


def _bias_act(op: BiasAct, span: Span, device: Device) -> Launches:
    width, row_items = op.y.width, round_up(op.y.width, _group(device))
    names = _distinct_activations(op.nonlinearity)
    functions = rows_macro((kernel_function(name),) for name in names)
    return _launch(
        FORWARD, "bias_act", span, device, row_items * span.batch,
        (
            PARAMETERS, -1 if op.bias is None else op.bias.offset,
            int(not op.shared),
            *_function_tables(op.nonlinearity, width, span.dtype),
            op.z, op.z.stride, op.y, op.y.stride, width, row_items,
        ),
        **{"ACTIVATIONS(X)": functions},
    )


def _softmax(op: Softmax, span: Span, device: Device) -> Launches:
    return _launch(
        FORWARD, "log_softmax" if op.log else "softmax", span, device, span.batch,
        (op.x, op.x.stride, op.y, op.y.stride, op.y.width, span.batch),
    )


def _act_grad(op: ActGrad, span: Span, device: Device) -> Launches:
    function, width = op.nonlinearity, op.dz.width
    cases = []
    for name in _distinct_activations(function):
        gradient, by_v = gradient_function(name, function.fann_compatible)
        cases.append((gradient, "v" if by_v else "y"))
    sums, y = op.z or op.dy, op.y or op.dy
    row_items = round_up(width, _group(device))
    return _launch(
        BACKWARD, "act_grad", span, device, row_items * span.batch,
        (
            PARAMETERS, -1 if op.bias is None else op.bias.offset,
            int(not op.shared),
            *_function_tables(function, width, span.dtype),
            op.dy, op.dy.stride, sums, sums.stride, y, y.stride, op.dz,
            op.dz.stride, width, row_items,
        ),
        READS_Z=int(op.z is not None), READS_Y=int(op.y is not None),
        **gradient_defines(span), **{"DERIVATIVES(X)": rows_macro(cases)},
    )


def _apply_t(op: ApplyT, span: Span, device: Device) -> Launches:
    storage = op.storage
    row_items = round_up(storage.n_in, _group(device))
    return _launch(
        BACKWARD, "apply_t", span, device, row_items * span.batch,
        (
            PARAMETERS, op.weights.offset,
            *_entry_tables(op, storage, "columns", "starts", "slots", "rows"),
            op.dz, op.dz.stride, op.dx, op.dx.stride, storage.n_in,
            int(op.accumulate), row_items,
        ),
    )


def _outer(op: Outer, span: Span, device: Device) -> Launches:
    storage = op.storage
    entries = storage.count
    return _launch(
        BACKWARD, "outer", span, device, entries,
        (
            GRADIENTS, op.weights.offset,
            *_entry_tables(op, storage, "slots", "slots", "rows", "columns"),
            op.dz, op.dz.stride, op.x, op.x.stride, entries, span.batch,
            int(op.accumulate),
        ),
    )


def _bias_grad(op: BiasGrad, span: Span, device: Device) -> Launches:
    if op.shared:
        return _shared_bias_grad(op, span, device)
    return _launch(
        BACKWARD, "bias_grad", span, device, op.dz.width,
        (
            GRADIENTS, op.bias.offset, op.dz, op.dz.stride, op.dz.width, span.batch,
            int(op.accumulate),
        ),
    )


def _shared_bias_grad(op: BiasGrad, span: Span, device: Device) -> Launches:
    group = _group(device)
    columns, rows = _shared_partials(op, span, device)
    partials = columns * rows
    team = team_group(TALLY_GROUP, device)
    defines: dict[str, int | str] = {
        "REAL": real(span), "BLOCK": BLOCK, "PARTIALS": partials, "TEAM": team,
    }
    partial = Scratch("partial", span.item_size * partials)
    return (
        Launch(
            BACKWARD, "shared_bias_parts", defines, (partials,), (group,),
            (op.dz, op.dz.stride, partial, op.dz.width, span.batch, columns),
        ),
        Launch.of_groups(
            BACKWARD, "shared_bias_grad", defines, 1, team,
            GRADIENTS, op.bias.offset, partial, int(op.accumulate),
        ),
    )


def _shared_partials(op: BiasGrad, span: Span, device: Device) -> tuple[int, int]:
    """Return the columns and rows of partial sums of a shared bias's gradient."""
    group = _group(device)
    most = SHARED_BIAS_GROUPS * device.compute_units * group
    columns = min(round_up(op.dz.width, group), most)
    return columns, max(1, min(span.batch, most // columns))


def _loss(op: Loss, span: Span, device: Device) -> Launches:
    width, dtype = op.y.width, span.dtype
    error_scales = np.where(op.halved, 0.5, 1.0)
    return _launch(
        BACKWARD, "loss", span, device, span.batch,
        (
            op.y, op.y.stride, op.t, op.t.stride, op.weight or op.t,
            Constant(
                f"error scales {op.halved} {width}",
                lambda: np.broadcast_to(error_scales.astype(dtype), width).copy(),
            ),
            op.dy, op.dy.stride, op.record, width, span.batch,
            float(op.bit_fail_limit), Scalar("samples"),
        ),
        **loss_defines(op, span),
    )


def _tally(op: Tally, span: Span, device: Device) -> Launches:
    group, parts = team_group(TALLY_GROUP, device), _tally_parts(span, device)
    defines: dict[str, int | str] = {"REAL": real(span), "BLOCK": BLOCK, "GROUP": group}

    def total(record: Argument, rows: int) -> Launch:
        return Launch.of_groups(
            BACKWARD, "tally", defines, 1, group,
            record, op.totals, rows, Scalar("fresh"),
        )

    if parts == 1:
        return (total(op.record, span.batch),)
    partial = Scratch("records", span.item_size * len(RECORD) * parts)
    return (
        Launch.of_groups(
            BACKWARD, "tally_parts", defines, parts, group,
            op.record, partial, span.batch,
        ),
        total(partial, parts),
    )


def _tally_parts(span: Span, device: Device) -> int:
    """Return the number of groups that sum records."""
    each = RECORDS_PER_ITEM * team_group(TALLY_GROUP, device)
    return max(1, min(device.compute_units, span.batch // each))


def _gather(op: Gather, span: Span, device: Device) -> Launches:
    group = min(GATHER_GROUP, device.largest_group)
    groups = GATHER_GROUPS * device.compute_units
    widest = max(data.width for data in op.data)
    rows = max(1, min(MAX_ROWS, span.batch // groups, INT_MAX // widest))
    arrays: list[Argument] = []
    for data, batch in zip(op.data, op.batch, strict=True):
        arrays += [data, data.stride, batch, batch.stride, data.width]
    for _ in range(MAX_ARRAYS - len(op.data)):
        arrays += [op.data[0], 0, op.batch[0], 0, 0]
    launch = Launch.of_groups(
        BACKWARD, "gather",
        {
            "REAL": real(span), "BLOCK": BLOCK, "ROWS": rows,
            "SHUFFLED": int(op.shuffled),
        },
        -(-span.batch // rows), group,
        *arrays, span.batch, Scalar("first"), op.samples, half_bits(op.samples), *KEY,
        gathers=op.batch[0],
    )
    return (launch,)


_FORWARD: dict[type[Op], Callable[..., Launches]] = {
    Apply: _apply, BiasAct: _bias_act, Softmax: _softmax,
}
_BACKWARD: dict[type[Op], Callable[..., Launches]] = {
    ActGrad: _act_grad, ApplyT: _apply_t, BiasGrad: _bias_grad, Gather: _gather,
    Loss: _loss, Outer: _outer, Tally: _tally,
}


def _entry_tables(
    op: Contraction, storage: Storage, by: str, *names: str
) -> tuple[Constant, ...]:
    """Return tables of a storage's live entries, by their rows, columns or slots.

    ``starts``, of each row or column and the end; of each entry ``slots``, ``rows``,
    ``columns``.
    """
    def table(name: str) -> NDArray[np.int32]:
        entries = storage.entries()
        order = np.argsort(entries.slots, kind="stable")  # the order of sums
        lists: dict[str, NDArray[Any]] = {
            key: entry[order] for key, entry in entries._asdict().items()
        }
        if by != "slots":
            order = np.argsort(lists[by], kind="stable")
            count = storage.n_out if by == "rows" else storage.n_in
            counts = np.bincount(lists[by], minlength=count)
            lists = {key: entry[order] for key, entry in lists.items()}
            lists["starts"] = np.concatenate(([0], np.cumsum(counts)))
        return lists[name].astype(np.int32)

    key = f"{storage.signature}@{op.weights.offset} by {by}"
    return tuple(Constant(f"{key} {name}", partial(table, name)) for name in names)


def _distinct_activations(function: Nonlinearity) -> list[str]:
    """Return the distinct activations of a layer; their indices are their codes."""
    return sorted(set(function.names))


def _function_tables(
    function: Nonlinearity, width: int, dtype: str
) -> tuple[Constant, Constant, Constant]:
    """Return the tables [width] of a layer's codes, steepnesses and limits."""
    names = _distinct_activations(function)
    codes = [names.index(name) for name in function.names]

    def table(what: str, values: Any, dtype: str) -> Constant:
        return Constant(
            f"{function!r} {width} {what}",
            # `numpy.resize` takes seconds for millions of neurons.
            lambda: np.broadcast_to(np.asarray(values, dtype), width).copy(),
        )

    return (
        table("codes", codes, "int32"),
        table("steepness", function.steepness, dtype),
        table("limits", function.limits or (np.inf,), dtype),
    )


CORE = Device("a core of the host", "cpu", vector_width=8)  # its rates are estimates
COPIES = 3  # of an op's values, at most: NumPy's operations make new arrays
CALL_SECONDS = 5e-6  # of an op in NumPy, besides: some calls of Python


@dataclass(frozen=True)
class Host(Untuned):
    """The op by `clnet.ir.reference`, in the network's dtype."""

    name: str = "host"
    reach: Reach = "op"

    def refuse(self, span: Span, device: Device) -> str | None:
        """Refuse values larger than a part of the host's memory."""
        values = {value for op in span.ops for value in (*op.reads, *op.writes)}
        size = span.batch * sum(value.stride for value in values) * span.item_size
        if size * COPIES <= host_memory():
            return None
        return f"its values need {size * COPIES} bytes of the host's {host_memory()}"

    def cost(self, span: Span, config: Config, device: Device) -> Cost:
        """Count one pass over the parameters on a core: the device's if it is a CPU."""
        cost = Cost(span.flops, span.bytes, 0, 0, 1)
        core = min(device.places, key=lambda unit: unit.compute_units)
        busy = CALL_SECONDS + modelled(cost, core if device.type == "cpu" else CORE)
        return replace(cost, efficiency=math.inf, busy=busy)

    def launches(self, span: Span, config: Config, device: Device) -> Launches:
        """Return none: the runtime computes the op in NumPy."""
        return ()

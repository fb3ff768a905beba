"""Predictions for samples of any number and kind, read and answered by parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import PRECISIONS, as_array, as_numbers, is_sparse
from clnet.errors import InputError
from clnet.formats.named_table import named_inputs
from clnet.formats.sources import (
    BatchSource,
    Part,
    Source,
    check_buffer,
    check_columns,
    forget,
    grouped,
    is_stored,
    joined,
    read_ahead,
    rows_of,
    source_of,
)
from clnet.nn.labels import encoded
from clnet.nn.metrics import metrics_of
from clnet.planning.inference import (
    PlanFor,
    chunk_length,
    pipelined,
    predict,
    resolve_devices,
)

if TYPE_CHECKING:
    from clnet.nn.metrics import Evaluation
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling
    from clnet.opencl.discovery import Devices

Array = NDArray[Any]


def predict_any(
    network: Model,
    plan_for: PlanFor,
    x: Any,
    device: Devices,
    scaling: Scaling | None,
    precision: str,
    out: Array | None = None,
    buffer: int | None = None,
) -> Array:
    """Return the outputs for inputs of any kind; see `Network.predict`."""
    room = check_buffer(buffer)
    source = source_of(x)
    if source is not None:
        check_columns(source, network.columns)
    if source is not None and (is_sparse(x) or _fits(source, network, room)):
        x = x if is_sparse(x) or is_stored(x) else source.whole().x
        source = None
    if source is None:
        x, _ = named_inputs(network.columns, x)
        if out is not None:
            shape = (*np.shape(x)[:-1], network.n_out)
            check_out(out, network, shape)
        return predict(network, plan_for, x, device, scaling, precision, out)
    if out is not None:
        check_out(out, network, (source.samples, network.n_out))
    elif source.samples is not None:
        out = np.empty((source.samples, network.n_out), network.dtype)
    found, first = [], 0
    ys = predicted(
        network, plan_for, predicted_parts(source, network, room, device), device,
        scaling, precision,
    )
    for y, _ in ys:
        if out is None:
            found.append(y)
            continue
        last = first + len(y)
        if last > len(out):
            raise InputError(f"out has {len(out)} rows, and x more samples")
        out[first:last] = y
        forget(out[first:last])
        first = last
    if out is None:
        return np.concatenate(found)
    if first < len(out):
        raise InputError(f"out has {len(out)} rows, and x {first} samples")
    return out


def predicted(
    network: Model, plan_for: PlanFor, parts: Iterable[Part], device: Devices,
    scaling: Scaling | None, precision: str,
) -> Iterator[tuple[Array, Any]]:
    """Yield the outputs of parts with their targets, if any, in order.

    Inputs are read while devices compute those of the part before.
    """
    targets: deque[Any] = deque()

    def chunks() -> Iterator[tuple[Array, None]]:
        for part in parts:
            x, _ = named_inputs(network.columns, part.x)
            x = as_numbers("x", x)
            if x.ndim != 2 or x.shape[1] != network.n_in:
                raise InputError(
                    f"x has shape {list(x.shape)}, expected [batch, {network.n_in}]"
                )
            if scaling is not None:
                x = scaling.scale_input(as_numbers("x", x, "float64"))
            targets.append(part.t)
            yield x, None

    for y in pipelined(network, plan_for, chunks(), device, precision):
        yield (
            y if scaling is None else scaling.descale_output(y), targets.popleft()
        )


def predicted_parts(
    source: Source, network: Model, buffer: int, device: Devices
) -> Iterator[Part]:
    """Yield the samples of a source in parts of one call of the devices each.

    Raises
    ------
    InputError
        If there is no sample.
    """
    width = network.n_in + network.n_out
    rows = rows_of(buffer, width, np.dtype(network.dtype).itemsize)
    length = min(
        rows, chunk_length(network, resolve_devices(device), source.samples)
    )
    # A memory map is read where it is used.
    lazy = isinstance(getattr(source, "x", None), np.memmap)
    parts = source.parts(length if lazy else rows // length * length)
    if isinstance(source, BatchSource):
        parts = _numbers(parts, network)
    empty = True
    for held in grouped(parts if lazy else read_ahead(parts), length):
        empty = False
        yield joined(held)
    if empty:
        raise InputError(f"{source.name}x has no sample: give at least one")


def _numbers(parts: Iterator[Part], network: Model) -> Iterator[Part]:
    """Yield the samples of batches as arrays."""
    for part in parts:
        x, _ = named_inputs(network.columns, part.x)
        numbers = as_numbers("x", x)
        if numbers.ndim != 2 or numbers.shape[1] != network.n_in:
            raise InputError(
                f"a batch of x, at sample {part.first}, has shape "
                f"{list(numbers.shape)}, expected [samples, {network.n_in}]"
            )
        t = None if part.t is None else as_array("t", part.t)
        yield Part(part.first, numbers, t)


def _fits(source: Source, network: Model, buffer: int) -> bool:
    size = source.size(np.dtype(network.dtype).itemsize)
    return size is not None and size <= buffer


def check_out(out: Any, network: Model, shape: tuple[int | None, ...]) -> None:
    """Raise InputError unless an array can hold outputs; None: any size."""
    if not isinstance(out, np.ndarray):
        raise InputError(f"out is of type {type(out).__name__}, expected an ndarray")
    fits = out.ndim == len(shape) and all(
        size in (None, found) for size, found in zip(shape, out.shape, strict=True)
    )
    if not fits or not np.can_cast(network.dtype, out.dtype, "same_kind"):
        raise InputError(
            f"out is an array {list(out.shape)} of {out.dtype}, expected "
            f"{['samples' if size is None else size for size in shape]} of "
            f"{network.dtype}"
        )
    if not out.flags.writeable:
        raise InputError("out is read-only, expected an array to write to")


def evaluate_any(
    network: Model,
    plan_for: PlanFor,
    x: Any,
    t: Any,
    device: Devices,
    scaling: Scaling | None,
    buffer: int | None = None,
) -> Evaluation:
    """Return the metrics of samples of any kind; see `Network.evaluate`."""
    room = check_buffer(buffer)
    source = source_of(x, t)
    if source is not None:
        check_columns(source, network.columns)
    if source is None and t is None:
        raise InputError("t is missing: only sources have targets of their own")
    precision = PRECISIONS[0]
    metrics = metrics_of(network, scaling)
    if source is None or is_sparse(x):
        y = predict_any(
            network, plan_for, x, device, scaling, precision, buffer=buffer
        )
        pairs = iter([(y, t)])
    else:
        parts = predicted_parts(source, network, room, device)
        pairs = predicted(
            network, plan_for, map(_with_targets, parts), device, scaling, precision
        )
    for y, given in pairs:
        expected, _ = encoded(network, given, network.classes) if y.ndim == 2 else (
            given, None
        )
        metrics.add(y, expected)
    return metrics.evaluation()


def _with_targets(part: Part) -> Part:
    if part.t is None:
        raise InputError("the batches have no targets to compare the outputs with")
    return part

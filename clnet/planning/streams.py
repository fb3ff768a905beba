"""Predictions for samples of any number and kind, read and answered by parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX, PRECISIONS, as_array, as_numbers, is_sparse
from clnet.errors import InputError
from clnet.formats.data_frame import named_inputs
from clnet.formats.pages import forget
from clnet.formats.sources import (
    BLOCKS,
    ArraySource,
    BatchSource,
    Part,
    Source,
    check_buffer,
    check_columns,
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
    in_turn,
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
    parts, calls = predicted_parts(source, network, room, device)
    ys = predicted(network, plan_for, parts, calls, device, scaling, precision)
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
    network: Model, plan_for: PlanFor, parts: Iterable[Part], calls: float,
    device: Devices, scaling: Scaling | None, precision: str,
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

    for y in pipelined(network, plan_for, chunks(), device, precision, calls):
        yield (
            y if scaling is None else scaling.descale_output(y), targets.popleft()
        )


def predicted_parts(
    source: Source, network: Model, buffer: int, device: Devices
) -> tuple[Iterator[Part], float]:
    """Return the samples of a source in parts of one call each, and the calls.

    Parts raise InputError if there is no sample. Unknown calls count as many.
    """
    width, samples = network.n_in + network.n_out, source.samples
    rows = rows_of(buffer, width, np.dtype(network.dtype).itemsize)
    where = resolve_devices(device)
    # A memory map is read where it is used, by devices that take parts in turn.
    lazy = isinstance(source, ArraySource) and isinstance(source.x, np.memmap)
    held = 2 * len(in_turn(where))
    most = rows * BLOCKS // (held + 2) if lazy else rows
    length = chunk_length(network, where, samples)
    while length > most:  # kernels are made for multiples of large powers of two
        length = max(1, length // 2)
    calls = INT_MAX if samples is None else -(-samples // length)
    if isinstance(source, ArraySource) and lazy:
        parts = source.parts(length, held=held, direct=False)
    else:
        parts = source.parts(rows // length * length)
    if isinstance(source, BatchSource):
        parts = _numbers(parts, network)
    read = grouped(parts if lazy else read_ahead(parts), length)
    return _some(source.name, map(joined, read)), calls


def _some(name: str, parts: Iterator[Part]) -> Iterator[Part]:
    """Yield parts, of which there is at least one."""
    first = next(parts, None)
    if first is None:
        raise InputError(f"{name}x has no sample: give at least one")
    yield first
    yield from parts


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
        parts, calls = predicted_parts(source, network, room, device)
        pairs = predicted(
            network, plan_for, map(_with_targets, parts), calls, device, scaling,
            precision,
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

"""Predictions and evaluations: one pipelined walk over parts of rows.

`walk` yields the outputs and targets of parts, which `outputs` and `evaluate` make of
arrays, files, batches, sparse matrices, and the shares of ranks.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import (
    INT_MAX,
    PRECISIONS,
    as_array,
    as_numbers,
    as_rows,
    is_sparse,
)
from clnet.errors import InputError, quoted
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
    is_batches,
    is_stored,
    read_ahead,
    rows_of,
    source_of,
)
from clnet.formats.sources import joined as joined_parts
from clnet.ir.lowering import lower, reads_sparse
from clnet.ir.sparse_input import SparseShape, csr_rows
from clnet.nn.copies import cut as sections
from clnet.nn.metrics import evaluations
from clnet.planning.inference import Where, resolve_devices
from clnet.planning.room import samples_of_call
from clnet.runtime.data_parallel import alike, device_of_rank
from clnet.runtime.pipeline import Pipeline
from clnet.runtime.ranks import joined
from clnet.variants.dense.naive import EnsembleOutputs

if TYPE_CHECKING:
    from clnet.nn.metrics import Evaluation
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices
    from clnet.planning.inference import PlanCache
    from clnet.runtime.ranks import Ranks

Array = NDArray[Any]

CHUNK = 8192  # samples per call and device, on average at most
CHUNK_BYTES = 1 << 25  # of the widest layer's values in a call of a GPU, at most
LEAST_CALLS = 4  # of large chunks: fewer overlap little
EVEN_BITS = 4  # of the samples of a call: kernels are made for round numbers
SPARSE_CHUNK = 2048  # rows of a sparse call: its program serves any number


class Prediction(NamedTuple):
    """How the outputs of a network, or of several of one shape, are computed."""

    shape: Model  # The network, or that of the shape
    plans: PlanCache  # Its own, or those that compute several in one launch
    device: Devices = None
    scaling: Scaling | None = None  # None: inputs and outputs are not scaled
    precision: str = PRECISIONS[0]
    buffer: int | None = None  # Bytes for parts of a source; None: the default
    members: int = 1  # Networks
    # Of each network, where they are computed one after the other; None: all at once
    parameters: tuple[Array, ...] | None = None


def walk(
    how: Prediction, parts: Iterable[Part], calls: float, out: Array | None = None,
    sparse: SparseShape | None = None,
) -> Iterator[tuple[Array, Any]]:
    """Yield the outputs of each part, which is one call, with its targets, in order.

    `out` receives the outputs too. Double buffering: while devices compute a part, the
    host reads and copies the inputs of the next one, and the outputs of the one before.
    Devices that are alike take parts in turn, each in a thread of its own.
    """
    plans, scaling = how.plans, how.scaling
    rows = how.parameters or (plans.network.parameters,)  # of all parts
    takers: tuple[Devices, ...] = in_turn(resolve_devices(how.device)) or (how.device,)
    pipelines: list[Pipeline] = []
    started: deque[tuple[Future[Array], Array | None, Any]] = deque()
    first = 0
    inputs = ((part, row) for part in _scaled_parts(how, parts, sparse)
              for row in rows)
    with ExitStack() as held:
        for number, (part, parameters) in enumerate(inputs):
            samples = part.x.shape[0]
            target = None if out is None else out[first : first + samples]
            first += samples
            if out is not None and first > len(out):
                raise InputError(f"out has {len(out)} rows, and x more samples")
            if not pipelines:
                share = -(-calls * len(rows) // len(takers))
                for device in takers:
                    plan = plans.plan(device, sparse or samples, how.precision, share)
                    held.enter_context(plan.alternation)
                    pipeline = Pipeline(plan, len(takers) > 1)
                    pipelines.append(held.enter_context(pipeline))
            turn = number % len(takers)
            answer = pipelines[turn].call(
                part.x, parameters, None if scaling else target
            )
            started.append((answer, target, part.t))
            if len(started) > pipelines[turn].ahead * len(takers):
                yield _answered(scaling, *started.popleft())
        for pipeline in pipelines:
            pipeline.finish()
        while started:
            yield _answered(scaling, *started.popleft())
    if out is not None and first < len(out):
        raise InputError(f"out has {len(out)} rows, and x {first} samples")


def _scaled(how: Prediction, x: Any) -> Array:
    """Return inputs as the network takes them."""
    if how.scaling is not None:
        x = how.scaling.scale_input(as_numbers("x", x, "float64"))
    return as_numbers("x", x, how.shape.dtype)


def _scaled_parts(
    how: Prediction, parts: Iterable[Part], sparse: SparseShape | None
) -> Iterator[Part]:
    """Yield parts whose inputs are as the network takes them."""
    for part in parts:
        yield part if sparse else part._replace(x=_scaled(how, part.x))


def _answered(
    scaling: Scaling | None, answer: Future[Array], target: Array | None, t: Any
) -> tuple[Array, Any]:
    """Wait for the outputs of a part, and return them in the data's units."""
    y = answer.result()
    if scaling is not None:
        y = into(target, _descaled(scaling, y))
    forget(target)
    return y, t


def _descaled(scaling: Scaling, y: Array) -> Array:
    """Return outputs [samples, n_out] of one network or more, in the data's units."""
    rows = y.reshape(-1, len(scaling.mean_out))  # of one sample and network each
    return scaling.descale_output(rows).reshape(y.shape)


# Parts ----------------------------------------------------------------------------


def in_turn(where: Where) -> tuple[Device, ...]:
    """Return several devices that are alike, which take parts in turn; else none."""
    if isinstance(where, str) or len(where) < 2 or not alike(where):
        return ()
    return where


def chunk_length(network: Model, where: Where, samples: int | None) -> int:
    """Return the samples of a call, of so many or an unknown number.

    Of narrow networks GPUs take many at once, so that threads copy them. They fit the
    memory of each device.
    """
    if isinstance(where, str):
        return CHUNK
    length = CHUNK if in_turn(where) else CHUNK * len(where)
    item = np.dtype(network.dtype).itemsize
    if samples is not None and all(device.type != "cpu" for device in where):
        width = max(network.n_in + network.n_out, *network.sizes)
        most = CHUNK_BYTES // (width * item) // CHUNK
        fitting = samples // (LEAST_CALLS * CHUNK * len(where))
        length <<= max(0, min(most, fitting).bit_length() - 1)
    while network.members > 1 and length * network.n_out * item > max(
        CHUNK_BYTES, network.n_out * item
    ):
        length //= 2
    program = lower(network)
    room = min(samples_of_call(network, program, device) for device in where)
    while length > max(1, room):
        length //= 2
    return length if samples is None else even_length(samples, length)


def even_length(samples: int, most: int) -> int:
    """Return the samples of calls that are nearly full, of so many at most each.

    It has `EVEN_BITS` bits: trials and programs are shared by many numbers of samples.
    """
    even = -(-samples // -(-samples // most))
    step = 1 << max(0, even.bit_length() - EVEN_BITS)
    return min(most, -(-even // step) * step)


def parts_of(how: Prediction, source: Source) -> tuple[Iterator[Part], float]:
    """Return the samples of a source in parts of one call each, and the calls.

    Parts raise InputError if there is no sample. Unknown calls count as many.
    """
    network, samples = how.plans.network, source.samples
    width = network.n_in + network.n_out
    buffer = check_buffer(how.buffer)
    rows = rows_of(buffer, width, np.dtype(network.dtype).itemsize)
    where = resolve_devices(how.device)
    held = 2 * len(in_turn(where))
    length, most = chunk_length(network, where, samples), rows
    # A memory map is read where it is used, by devices that take parts in turn.
    mapped = isinstance(source, ArraySource) and isinstance(source.x, np.memmap)
    if mapped:
        most = rows * BLOCKS // (held + 2)
    while length > most:  # kernels are made for multiples of large powers of two
        length = max(1, length // 2)
    if isinstance(source, ArraySource) and mapped:
        parts = source.parts(length, held=held, direct=False)
    else:
        parts = source.parts(rows // length * length)
    checked = _checked(parts, source, how.shape)
    ready = checked if mapped else read_ahead(checked)
    calls = INT_MAX if samples is None else -(-samples // length)
    return map(joined_parts, grouped(ready, length)), calls


def _checked(parts: Iterator[Part], source: Source, network: Model) -> Iterator[Part]:
    """Yield the samples of a source as arrays; there is at least one."""
    part = None
    for part in parts:
        x, _ = named_inputs(network.columns, part.x)
        x, t = as_numbers("x", x), part.t
        batch = isinstance(source, BatchSource)
        if x.ndim != 2 or x.shape[1] != network.n_in:
            what = f"a batch of x, at sample {part.first}," if batch else "x"
            raise InputError(
                f"{what} has shape {list(x.shape)}, expected [samples, {network.n_in}]"
            )
        yield Part(part.first, x, as_array("t", t) if batch and t is not None else t)
    if part is None:
        raise InputError(f"{source.name}x has no sample: give at least one")


# Outputs --------------------------------------------------------------------------


class Cut(NamedTuple):
    """Samples cut into parts of one call each."""

    how: Prediction  # By the devices that the parts are for
    parts: Iterable[Part]
    calls: float
    samples: int | None
    alone: bool = False  # Whether x is one sample [n_in]
    sparse: SparseShape | None = None  # Of parts that stay sparse
    large: bool = True  # Whether they are of a source, or of several calls


def cut_of(how: Prediction, x: Any) -> Cut:
    """Return inputs of any kind, checked, in parts."""
    shape, network, buffer = how.shape, how.plans.network, check_buffer(how.buffer)
    item = np.dtype(shape.dtype).itemsize
    source = source_of(x)
    if source is not None:
        check_columns(source, shape.columns)
        size = source.size(item)
        if not is_sparse(x) and (size is None or size > buffer):
            return Cut(how, *parts_of(how, source), source.samples)
        if not is_sparse(x) and not is_stored(x):
            x = source.whole().x
    x, _ = named_inputs(shape.columns, x)
    # Sparse inputs become dense a part at a time: the whole may be too large.
    dtype = shape.dtype if how.scaling is None else "float64"
    array = as_rows("x", x) if is_sparse(x) else as_numbers("x", x, dtype)
    rows = array[np.newaxis] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != shape.n_in:
        raise InputError(
            f"x has shape {list(array.shape)}, expected [batch, {shape.n_in}] or "
            f"[{shape.n_in}]"
        )
    n = length = rows.shape[0]
    if n == 0:
        raise InputError("x has no sample: give at least one")
    sparse = None
    if is_sparse(x) and _stays_sparse(how, rows):
        rows = csr_rows("x", rows, shape.dtype)
        length = min(SPARSE_CHUNK, 1 << (n - 1).bit_length())
        ends = rows.indptr[[*range(0, n, length), n]]
        sparse = SparseShape.of(length, int(np.diff(ends).max()))
    elif n > CHUNK or n * (shape.n_in + network.n_out) * item > CHUNK_BYTES:
        where = resolve_devices(how.device)
        how = how._replace(device=where)
        length = chunk_length(network, where, n)
        if n <= max(length, min(CHUNK, length) * len(in_turn(where))):
            length = n
    if sparse is None and length >= n:
        return Cut(how, (Part(0, rows),), 1, n, array.ndim == 1, large=False)
    parts = (Part(start, rows[start : start + length]) for start in range(0, n, length))
    return Cut(how, parts, -(-n // length), n, sparse=sparse)


def outputs(how: Prediction, x: Any, out: Array | None = None) -> Array:
    """Return the outputs for inputs of any kind; see `Network.predict`."""
    cut, network = cut_of(how, x), how.shape
    if out is not None:
        shape = (network.n_out,)
        check_out(out, network, shape if cut.alone else (cut.samples, *shape))
    if not cut.large:
        y = _one_call(cut)
        return into(out, y[0] if cut.alone else y)
    if out is None and cut.samples is not None:
        out = np.empty((cut.samples, network.n_out), network.dtype)
    walked = walk(cut.how, cut.parts, cut.calls, out, cut.sparse)
    if out is None:
        return np.concatenate([y for y, _ in walked])
    deque(walked, maxlen=0)
    return out


def _stays_sparse(how: Prediction, rows: Any) -> bool:
    """Return whether kernels read a sparse matrix, which would be large if dense."""
    network = how.plans.network
    size = rows.shape[0] * rows.shape[1] * np.dtype(network.dtype).itemsize
    where = resolve_devices(how.device)
    return (
        how.scaling is None and size > max(CHUNK_BYTES, network.parameters.nbytes)
        and reads_sparse(network, rows) and not isinstance(where, str)
        and len(where) == 1
    )


def _one_call(cut: Cut) -> Array:
    """Return the outputs [batch, n_out] for rows of one call."""
    how = cut.how
    ((_, x, *_),) = cut.parts
    if how.scaling is not None or type(x) is not np.ndarray:  # else it is converted
        x = _scaled(how, x)
    y: Array = how.plans.plan(how.device, len(x), how.precision)(x)
    return y if how.scaling is None else _descaled(how.scaling, y)


def _calls_of(cut: Cut, rows: Sequence[Array]) -> Iterator[Array]:
    """Yield the outputs [batch, n_out] for rows of one call, by each of parameters."""
    how = cut.how
    ((_, x, *_),) = cut.parts
    x = _scaled(how, x)
    plan = how.plans.plan(how.device, len(x), how.precision, len(rows))
    for row in rows:
        try:
            plan.start(x, row)
            y = plan.finish()
        except BaseException:  # Ctrl-C may come between the two
            plan.cancel()
            raise
        yield y if how.scaling is None else _descaled(how.scaling, y)


def into(out: Array | None, y: Array) -> Array:
    """Return outputs in the array that shall hold them, if there is one."""
    if out is None:
        return y
    out[...] = y
    return out


def check_out(out: Any, network: Model, shape: tuple[int | None, ...]) -> None:
    """Raise InputError unless an array can hold outputs; None: any size."""
    if not isinstance(out, np.ndarray):
        raise InputError(f"out is of type {type(out).__name__}, expected an ndarray")
    fits = out.ndim == len(shape) and all(
        size in (None, length) for size, length in zip(shape, out.shape, strict=True)
    )
    if not fits or not np.can_cast(network.dtype, out.dtype, "same_kind"):
        raise InputError(
            f"out is an array {list(out.shape)} of {out.dtype}, expected "
            f"{['samples' if size is None else size for size in shape]} of "
            f"{network.dtype}"
        )
    if not out.flags.writeable:
        raise InputError("out is read-only, expected an array to write to")


def evaluate(
    how: Prediction, x: Any, t: ArrayLike | None, comm: Any = None, *, auc: bool = False
) -> list[Evaluation]:
    """Return the metrics of each network; see `Network.evaluate`."""
    if comm is not None:
        with joined(comm, "evaluate") as ranks:
            assert ranks is not None
            return _evaluated_by(ranks, how, x, t)
    source = source_of(x, t)
    if source is not None:
        check_columns(source, how.shape.columns)
    elif t is None:
        raise InputError("t is missing: only sources have targets of their own")
    if source is None or is_sparse(x):
        pairs: Iterable[tuple[Array, Any]] = [(member_outputs(how, x), t)]
    else:
        pairs = member_walk(Cut(how, *parts_of(how, source), source.samples))
    return evaluations(how.shape, how.scaling, pairs, how.members, auc)


# Networks of one shape --------------------------------------------------------


def of_members(how: Prediction, ensemble: PlanCache, parameters: Array) -> Prediction:
    """Return how networks predict: in one launch a part, or one after the other.

    `how` is of one network of the shape, and has no parameters [members, size] then.
    """
    where, members = resolve_devices(how.device), len(parameters)
    if members > 1 and where not in ensemble.takes:
        span = lower(ensemble.network).span(0, 1, 1)
        ensemble.takes[where] = not isinstance(where, str) and all(
            EnsembleOutputs().refuse(span, device) is None for device in where
        )
    how = how._replace(device=where, members=members)
    if ensemble.takes.get(where):
        return how._replace(plans=ensemble)
    return how._replace(parameters=tuple(parameters))


def member_walk(cut: Cut) -> Iterator[tuple[Array, Any]]:
    """Yield the outputs [members, samples, n_out] of each part, with its targets."""
    how, rows = cut.how, cut.how.parameters
    if cut.large:
        walked = walk(how, cut.parts, cut.calls, sparse=cut.sparse)
    else:
        ys = [_one_call(cut)] if rows is None else _calls_of(cut, rows)
        walked = ((y, None) for y in ys)
    members: list[Array] = []
    for y, t in walked:
        if rows is None:
            yield y.reshape(len(y), how.members, -1).swapaxes(0, 1), t
            continue
        members.append(y)
        if len(members) == how.members:
            yield np.stack(members), t
            members = []


def member_outputs(how: Prediction, x: Any) -> Array:
    """Return the outputs of all networks; see `Population.predict`."""
    if how.members == 1 and how.parameters is None:
        return outputs(how, x)[np.newaxis]
    cut, first = cut_of(how, x), 0
    walked = member_walk(cut)
    if cut.samples is None:
        return np.concatenate([y for y, _ in walked], axis=1)
    all_outputs = np.empty(
        (how.members, cut.samples, how.shape.n_out), how.shape.dtype
    )
    for y, _ in walked:
        all_outputs[:, first : first + y.shape[1]] = y
        first += y.shape[1]
    return all_outputs[:, 0] if cut.alone else all_outputs


# Ranks ----------------------------------------------------------------------------


def predict(
    how: Prediction, x: Any, out: Array | None = None, comm: Any = None
) -> Array:
    """Return the outputs, of which each rank computes a part; see `Network.predict`."""
    if comm is None:
        return outputs(how, x, out)
    with joined(comm, "predict") as ranks:
        assert ranks is not None
        return _outputs_by(ranks, how, x, out)


def _outputs_by(ranks: Ranks, how: Prediction, x: Any, out: Array | None) -> Array:
    """Return the outputs for all samples, or `out` with this rank's rows of them."""
    network = how.shape
    rows = ranks.together(lambda: _sliceable(named_inputs(network.columns, x)[0]))
    shape = (
        (rows.samples or 0, network.n_in) if isinstance(rows, Source)
        else np.shape(rows)
    )
    ranks.check_alike({
        "an x of shape": list(shape),
        "parameters of checksum": zlib.crc32(network.parameters.data),
        "out": "none" if out is None else "an array",
    })

    def share() -> Array:
        if len(shape) != 2:
            raise InputError(
                f"x has shape {list(shape)}, expected [batch, {network.n_in}] to share "
                "among ranks"
            )
        if out is not None:
            check_out(out, network, (shape[0], network.n_out))
        section = sections(shape[0], ranks.size)[ranks.rank]
        if section.start == section.stop:
            return np.empty((0, network.n_out), network.dtype)
        return outputs(
            how._replace(device=device_of_rank(ranks.local, how.device)),
            rows.section(section) if isinstance(rows, Source) else rows[section],
            None if out is None else out[section],
        )

    y = ranks.together(share)
    return ranks.stacked(y) if out is None else out


def _evaluated_by(
    ranks: Ranks, how: Prediction, x: Any, t: Any
) -> list[Evaluation]:
    """Return the metrics of all samples, whose outputs the ranks compute."""
    y = _outputs_by(ranks, how, x, None)
    if t is None and isinstance(x, Source):
        section = sections(len(y), ranks.size)[ranks.rank]
        targets = ranks.gathered(ranks.together(lambda: _targets(x, section)))
        t = np.concatenate([array for arrays in targets for array in arrays])

    def compared() -> list[Evaluation]:
        if t is None:
            raise InputError("t is missing: ranks share arrays, without targets")
        return evaluations(how.shape, how.scaling, [(y[np.newaxis], t)])

    return ranks.together(compared)


def _sliceable(x: Any) -> Any:
    """Return samples as an array or a source, whose rows can be cut."""
    if isinstance(x, Source):
        x.section(slice(0, 1))  # raises unless they can
        return x
    if is_batches(x):
        raise InputError(
            f"x is {quoted(type(x).__name__)}, whose rows ranks cannot share: give an "
            "array, a memory map, an array of h5py, or a file by open_data"
        )
    if is_sparse(x):
        return x.tocsr()
    return x if hasattr(x, "shape") else np.asarray(x)


def _targets(source: Source, rows: slice) -> list[Array]:
    """Return the targets of some rows of a source; of no row, none."""
    if rows.start == rows.stop:
        return []
    targets = list(source.section(rows).targets(rows.stop - rows.start))
    if any(t is None for t in targets):
        raise InputError(f"{source.name}t is missing: the samples have no targets")
    return targets

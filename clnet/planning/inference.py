"""Inference: from the arguments of `compile` and `predict` to plans and outputs."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import (
    INT_MAX,
    PRECISIONS,
    as_numbers,
    as_rows,
    as_whole,
    check_flag,
    check_precision,
    is_among,
    is_many,
    is_sparse,
)
from clnet.errors import InputError, quoted, unknown
from clnet.ir.lowering import lower, reads_sparse
from clnet.opencl.device import Device
from clnet.opencl.discovery import ALL, FASTEST, Devices, device_list, is_fastest
from clnet.opencl.discovery import device as find_device
from clnet.planning.format_planner import best_format, fastest_planner
from clnet.planning.planner import Planner
from clnet.planning.room import samples_of_call
from clnet.planning.tuning.search import Search
from clnet.runtime.data_parallel import ParallelPlan, alike
from clnet.runtime.pipeline import Pipeline
from clnet.runtime.plan import Plan
from clnet.variants import ALL_VARIANTS, VARIANTS
from clnet.variants.reference.host import Host

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling
    from clnet.variants.base import Variant

Where = str | tuple[Device, ...]
"""`FASTEST`, or the devices of a plan."""

SEARCH_SECONDS = 5.0  # limit of measuring for `predict`, which then takes the best
CALL_SECONDS = 2e-5  # of a call by NumPy, at least: some operations of 5 us each
CHUNK = 8192  # samples per call of `predict` and device, on average at most
CHUNK_BYTES = 1 << 25  # of the widest layer's values in a call of a GPU, at most
LEAST_CALLS = 4  # of large chunks: fewer overlap little
MAX_CACHED_PLANS = 16  # cached by a network for `predict`

Plans = OrderedDict[tuple[Any, ...], Plan | ParallelPlan]
"""A cache of plans, the least recently used first."""
RecentPlans = dict[tuple[Any, ...], Plan]
"""Plans by shape, `Devices` and precision of a prediction."""


class PlanFor(Protocol):
    """A function from devices, samples a call, precision and calls to a plan."""

    def __call__(
        self, devices: Devices, batch: int, precision: str = ..., calls: float = ...
    ) -> Plan | ParallelPlan:
        """Return the plan, as `cached_plan` does."""
        ...


def compile_network(
    network: Model,
    device: str | Device | None,
    batch: int,
    *,
    tune: bool | None = None,
    variants: Sequence[str | Variant] | None = None,
    precision: str = PRECISIONS[0],
    search: Search,
) -> Plan:
    """Return the best plan for a network on a device; see `Network.compile`."""
    batch = as_whole("batch", batch, most=INT_MAX)
    check_flag("tune", tune, optional=True)
    searched = _variants_of(variants)

    def planner(where: Device) -> Planner:
        def planner_of(stored: Model) -> Planner:
            program = lower(stored).at(precision)
            return Planner(stored, where, batch, tune, searched, program, search)

        return best_format(network, where, planner_of)

    if is_fastest(device):
        return fastest_planner(device_list(ALL), planner).plan()
    return planner(find_device(device)).plan()


def resolve_devices(devices: Devices) -> Where:
    """Return the named devices, or `FASTEST`."""
    return FASTEST if is_fastest(devices) else device_list(devices)


def plan_on(
    network: Model,
    where: Where,
    batch: int,
    precision: str,
    progress: bool | None = None,
    calls: float = inf,
) -> Plan | ParallelPlan:
    """Return the plan of a device, or of several that share the batch.

    Times that are not remembered are measured, for `SEARCH_SECONDS`; but not for the
    first calls on one device, until these have taken as long. They are answered by
    kernels of remembered times, or by NumPy, for which nothing is built.
    """
    batch = as_whole("batch", batch, most=INT_MAX)
    if calls < inf and not isinstance(where, str) and len(where) == 1:
        first, seconds = _first_plan(network, where[0], batch, precision)
        most = SEARCH_SECONDS // max(seconds, CALL_SECONDS)
        if calls <= most:
            first.calls_left = most
            return first
    with Search(SEARCH_SECONDS, progress) as search:
        plan = partial(compile_network, network, precision=precision, search=search)
        if isinstance(where, str) or len(where) == 1:
            return plan(where if isinstance(where, str) else where[0], batch)
        return ParallelPlan(network, where, batch, plan)


def _first_plan(
    network: Model, device: Device, batch: int, precision: str
) -> tuple[Plan, float]:
    """Return a plan for which nothing is measured, and the seconds of a call.

    By remembered times if they make a plan, else by NumPy on the host.
    """
    program = lower(network).at(precision)
    planner = Planner(network, device, batch, False, VARIANTS, program, own=True)
    if not planner.remembers:
        planner = Planner(network, device, batch, False, (Host(),), program)
    plan = planner.plan()
    return plan, planner.report.covers[0].seconds


def cached_plan(
    network: Model, plans: Plans, recent: RecentPlans, devices: Devices, batch: int,
    precision: str, calls: float = 1,
) -> Plan | ParallelPlan:
    """Return a plan from a network's cache, of the recent ones, or make it.

    `recent` has those used since the last one was made: for them nothing is resolved.
    The plan is good for so many calls.
    """
    if type(batch) is not int:
        batch = as_whole("batch", batch)
    check_precision(precision)  # before it is a key
    one = devices is None or isinstance(devices, (str, Device))
    shape = (batch, network.n_in)
    found = recent.get((shape, devices, precision)) if one else None
    if found is not None and found.calls_left >= calls:
        found.calls_left -= calls
        return found
    key = (resolve_devices(devices), batch, precision)
    plan = plans.get(key)
    if plan is None or plan.calls_left < calls:
        expected = calls if plan is None else inf
        plan = plan_on(network, key[0], batch, precision, calls=expected)
        plans[key] = plan
        recent.clear()
    plan.calls_left -= calls
    if one and isinstance(plan, Plan):
        recent[shape, devices, precision] = plan
        if batch == 1:
            recent[shape[1:], devices, precision] = plan
    try:
        plans.move_to_end(key)
        while len(plans) > MAX_CACHED_PLANS:
            plans.popitem(last=False)
    except KeyError:  # another thread has evicted it
        pass
    return plan


def predict(
    network: Model,
    plan_for: PlanFor,
    x: ArrayLike,
    device: Devices,
    scaling: Scaling | None,
    precision: str = PRECISIONS[0],
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the outputs for any number of samples; see `Network.predict`."""
    if scaling is not None:
        scaled = scaling.scale_input(as_numbers("x", x, "float64"))
        outputs = predict(network, plan_for, scaled, device, None, precision)
        return into(out, scaling.descale_output(outputs))
    # Sparse inputs become dense a chunk at a time: the whole may be too large.
    dense = not is_sparse(x)
    array = as_numbers("x", x, network.dtype) if dense else as_rows("x", x)
    rows = array[np.newaxis] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != network.n_in:
        raise InputError(
            f"x has shape {list(array.shape)}, expected [batch, {network.n_in}] or "
            f"[{network.n_in}]"
        )
    if rows.shape[0] == 0:
        raise InputError("x has no sample: give at least one")
    n = rows.shape[0]
    length = CHUNK
    # Of few bytes `plan_for` alone resolves the devices, once.
    item = np.dtype(network.dtype).itemsize
    most = max(CHUNK_BYTES, network.parameters.nbytes)  # of a matrix that becomes dense
    if not dense and n * network.n_in * item > most and reads_sparse(network, rows):
        where = device = resolve_devices(device)
        if not isinstance(where, str) and len(where) == 1:
            from clnet.planning.sparse_predictions import predict_sparse

            return into(out, predict_sparse(network, rows, where[0], precision))
    if n > length or n * (network.n_in + network.n_out) * item > CHUNK_BYTES:
        where = device = resolve_devices(device)
        length = chunk_length(network, where, n)
        length = max(length, min(CHUNK, length) * len(in_turn(where)))
    if n <= length:
        chunk = rows if dense else as_numbers("x", rows, network.dtype)
        y: NDArray[Any] = plan_for(device, n, precision)(chunk)
        return into(out, y[0] if array.ndim == 1 else y)
    y = np.empty((n, network.n_out), network.dtype) if out is None else out
    length = chunk_length(network, where, n)
    parts = [slice(start, start + length) for start in range(0, n, length)]
    chunks = ((rows[part], y[part]) for part in parts)
    calls = len(parts)
    deque(pipelined(network, plan_for, chunks, device, precision, calls), maxlen=0)
    return y


def chunk_length(network: Model, where: Where, samples: int | None) -> int:
    """Return the samples of a call, of so many or an unknown number.

    Of narrow networks GPUs take many at once, so that threads copy them. They fit the
    memory of each device.
    """
    if isinstance(where, str):
        return CHUNK
    length = CHUNK if in_turn(where) else CHUNK * len(where)
    if samples is not None and all(one.type != "cpu" for one in where):
        width = max(network.n_in + network.n_out, *network.sizes)
        most = CHUNK_BYTES // (width * np.dtype(network.dtype).itemsize) // CHUNK
        fitting = samples // (LEAST_CALLS * CHUNK * len(where))
        length <<= max(0, min(most, fitting).bit_length() - 1)
    program = lower(network)
    room = min(samples_of_call(network, program, one) for one in where)
    while length > max(1, room):
        length //= 2
    return length


def pipelined(
    network: Model,
    plan_for: PlanFor,
    chunks: Iterable[tuple[Any, NDArray[Any] | None]],
    device: Devices,
    precision: str,
    calls: float,
) -> Iterator[NDArray[Any]]:
    """Yield the outputs of chunks, in order.

    Double buffering: while devices compute a chunk, the host copies the inputs of the
    next one and the outputs of the one before. Devices that are alike take chunks in
    turn, each in a thread of its own.
    """
    parameters = network.parameters  # of all chunks
    takers = in_turn(resolve_devices(device)) or (device,)
    answers: deque[Future[NDArray[Any]]] = deque()
    pipelines: list[Pipeline] = []
    with ExitStack() as held:
        for number, (x, out) in enumerate(chunks):
            chunk = as_numbers("x", x, network.dtype)
            taker = takers[number % len(takers)]
            if not pipelines:
                for one in takers:
                    share = -(-calls // len(takers))
                    plan = plan_for(one, len(chunk), precision, share)
                    held.enter_context(plan.alternation)
                    thread = len(takers) > 1
                    pipeline = Pipeline(plan, parameters, thread)
                    pipelines.append(held.enter_context(pipeline))
            pipeline = pipelines[number % len(takers)]
            other = None
            if len(chunk) != pipeline.batch:
                other = plan_for(taker, len(chunk), precision)
            answers.append(pipeline.call(chunk, out, other))
            if len(answers) > pipeline.ahead * len(takers):
                yield answers.popleft().result()
        for pipeline in pipelines:
            pipeline.finish()
        while answers:
            yield answers.popleft().result()


def in_turn(where: Where) -> tuple[Device, ...]:
    """Return several devices that are alike, which take chunks in turn; else none."""
    if isinstance(where, str) or len(where) < 2 or not alike(where):
        return ()
    return where


def into(out: NDArray[Any] | None, y: NDArray[Any]) -> NDArray[Any]:
    """Return outputs in the array that shall hold them, if there is one."""
    if out is None:
        return y
    out[...] = y
    return out


def _variants_of(names: Sequence[str | Variant] | None) -> tuple[Variant, ...]:
    """Return variants by name, in the registry's order, then the user's own."""
    if names is None:
        return VARIANTS
    known = {variant.name: variant for variant in ALL_VARIANTS}
    if not is_many(names):
        raise InputError(f"variants must be a list of names, not {quoted(names)}")
    chosen = list(names)
    if not chosen:
        raise InputError(f"variants is empty: name some of {', '.join(known)}")
    own: list[Variant] = [
        variant for variant in chosen
        if not isinstance(variant, str) and hasattr(variant, "launches")
    ]
    for name in chosen:
        if is_among(name, known) or any(name is one for one in own):
            continue
        from clnet.variants.training_variants import STEP_VARIANTS

        if is_among(name, [variant.name for variant in STEP_VARIANTS]):
            raise InputError(
                f"variant {name!r} computes steps of training, which `fit` plans by "
                f"itself: expected some of {', '.join(known)}"
            )
        raise unknown("variant", name, known)
    registered = [variant for variant in ALL_VARIANTS if variant.name in chosen]
    found = (*registered, *own)
    _check_own(found)
    return found


def _check_own(variants: Iterable[Variant]) -> None:
    """Raise InputError for a class among variants, or two of one name."""
    names = set()
    for variant in variants:
        if isinstance(variant, type):
            name = variant.__name__
            raise InputError(f"variants has the class {name}: give a variant, {name}()")
        if variant.name in names:
            raise InputError(
                f"variants has two of the name {variant.name!r}, by which times are "
                "remembered: expected a name of its own for each"
            )
        names.add(variant.name)

"""Inference: from what users ask for to the plan, and to the outputs of all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_numbers, as_rows, check_count, is_sparse
from clnet.errors import InputError, unknown
from clnet.ir.lowering import lower
from clnet.ir.ops import PRECISIONS
from clnet.nn.model import Model
from clnet.nn.scaling import Scaling
from clnet.opencl.device import Device
from clnet.opencl.discovery import ALL, FASTEST, Devices, device_list, is_fastest
from clnet.opencl.discovery import device as find_device
from clnet.planning.device_planner import fastest_planner
from clnet.planning.format_planner import best_stored
from clnet.planning.planner import Planner
from clnet.planning.tuning.search import Search
from clnet.runtime.data_parallel import ParallelPlan
from clnet.runtime.plan import CHUNK, Plan
from clnet.variants import ALL_VARIANTS, TRAINING_VARIANTS, VARIANTS, Variant

Where = str | tuple[Device, ...]
"""`FASTEST`, or the devices of a plan."""

SEARCH_SECONDS = 5.0  # after which `predict` takes the best plan that is known
PLANS = 16  # plans that a network keeps for `predict`

PlanFor = Callable[[Where, int, str], Plan | ParallelPlan]
"""Returns the plan of a device or several, for a batch size, in a precision."""


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
    check_count("batch", batch)
    if tune is not None and not isinstance(tune, bool):
        raise InputError(f"tune must be None, True or False, not {tune!r}")
    allowed = _named(variants)

    def planner(where: Device) -> Planner:
        def stored_so(stored: Model) -> Planner:
            program = lower(stored).at(precision)
            return Planner(
                stored, where, int(batch), tune, allowed, program, search
            )

        return best_stored(network, where, stored_so)

    if is_fastest(device):
        return fastest_planner(device_list(ALL), planner).plan()
    return planner(find_device(device)).plan()


def places(devices: Devices) -> Where:
    """Return the devices that are named, or the word for the one to be chosen."""
    return FASTEST if is_fastest(devices) else device_list(devices)


def plan_on(
    network: Model,
    where: Where,
    batch: int,
    precision: str,
    progress: bool = False,
) -> Plan | ParallelPlan:
    """Return the plan of a device, or of several that share the batch.

    What has no time yet is measured, for `SEARCH_SECONDS`.

    Parameters
    ----------
    network : Model
        What to run.
    where : str or tuple of Device
        As `places` returns it.
    batch : int
        Samples a call.
    precision, progress
        As for `Network.compile`.
    """
    with Search(SEARCH_SECONDS, progress) as search:
        plan = partial(compile_network, network, precision=precision, search=search)
        if isinstance(where, str) or len(where) == 1:
            return plan(where if isinstance(where, str) else where[0], batch)
        return ParallelPlan(network, where, batch, plan)


def predict(
    network: Model,
    plan_for: PlanFor,
    x: ArrayLike,
    device: Devices,
    scaling: Scaling | None,
    precision: str = PRECISIONS[0],
) -> NDArray[Any]:
    """Return the outputs for any number of samples; see `Network.predict`."""
    if scaling is None:
        return _outputs(network, plan_for, x, device, precision)
    scaled = scaling.scale_input(as_numbers("x", x, "float64"))
    y = _outputs(network, plan_for, scaled, device, precision)
    return scaling.descale_output(y)


def _outputs(
    network: Model, plan_for: PlanFor, x: ArrayLike, device: Devices, precision: str
) -> NDArray[Any]:
    # Sparse ones become dense a chunk at a time: they may be too large as a whole.
    array = as_rows(x) if is_sparse(x) else as_numbers("x", x, network.dtype)
    rows = array[np.newaxis] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != network.n_in:
        raise InputError(
            f"x has shape {list(array.shape)}, expected [batch, {network.n_in}] or "
            f"[{network.n_in}]"
        )
    if rows.shape[0] == 0:
        raise InputError("x has no sample: give at least one")
    where = places(device)
    length = CHUNK * (1 if isinstance(where, str) else len(where))
    if rows.shape[0] <= length:
        chunk = as_numbers("x", rows, network.dtype)
        y: NDArray[Any] = plan_for(where, len(chunk), precision)(chunk)
        return y[0] if array.ndim == 1 else y
    y = np.empty((rows.shape[0], network.n_out), network.dtype)
    whole = plan_for(where, length, precision)
    waiting: list[tuple[Plan | ParallelPlan, NDArray[Any]]] = []

    def finish() -> None:
        plan, out = waiting.pop(0)
        plan.finish(out)

    # While a device computes, the host copies the next chunk to where it is read from,
    # and the one before from where it was written to.
    with whole.turns:
        try:
            for number, start in enumerate(range(0, rows.shape[0], length)):
                chunk = as_numbers("x", rows[start : start + length], network.dtype)
                plan = whole.double() if number % 2 else whole
                if len(chunk) < length:
                    plan = plan_for(where, len(chunk), precision)
                if waiting and waiting[0][0] is plan:
                    finish()
                plan.start(chunk)
                waiting.append((plan, y[start : start + length]))
                if len(waiting) > 1:
                    finish()
        finally:
            if waiting:
                finish()
    return y


def _named(names: Sequence[str | Variant] | None) -> tuple[Variant, ...]:
    """Return variants by name, in the order of the registry; then those given."""
    if names is None:
        return VARIANTS
    known = {variant.name: variant for variant in ALL_VARIANTS}
    training = {variant.name for variant in TRAINING_VARIANTS} - known.keys()
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"variants must be a list of names, not {names!r}")
    chosen = list(names)
    if not chosen:
        raise InputError(f"variants is empty: name some of {', '.join(known)}")
    given: list[Variant] = [
        one for one in chosen if not isinstance(one, str) and hasattr(one, "launches")
    ]
    for name in chosen:
        if isinstance(name, str) and name in training:
            raise InputError(
                f"variant {name!r} computes steps of training, which `fit` plans by "
                f"itself: expected some of {', '.join(known)}"
            )
        if name not in given and not (isinstance(name, str) and name in known):
            raise unknown("variant", name, known)
    listed = [variant for variant in ALL_VARIANTS if variant.name in chosen]
    return (*listed, *given)

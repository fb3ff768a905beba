"""Inference: from the arguments of `compile` and `predict` to plans."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from clnet.checks import (
    INT_MAX,
    PRECISIONS,
    as_whole,
    check_flag,
    check_precision,
    is_among,
    is_many,
)
from clnet.errors import InputError, quoted, unknown
from clnet.ir.lowering import lower
from clnet.ir.sparse_input import SparseShape
from clnet.opencl.device import Device
from clnet.opencl.discovery import ALL, FASTEST, Devices, device_list, is_fastest
from clnet.opencl.discovery import device as find_device
from clnet.opencl.process import check_process
from clnet.opencl.store import store_of
from clnet.planning.background import BackgroundSearch
from clnet.planning.format_planner import best_format, fastest_planner
from clnet.planning.planner import Planner
from clnet.planning.tuning.budget import Budget
from clnet.runtime.data_parallel import ParallelPlan
from clnet.runtime.plan import Plan
from clnet.variants import ALL_VARIANTS, ENSEMBLE_VARIANTS, VARIANTS
from clnet.variants.reference.generic import Host

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.planning.sparse_plan import SparsePlan
    from clnet.variants.base import Variant

    AnyPlan: TypeAlias = Plan | ParallelPlan | SparsePlan

Where = str | tuple[Device, ...]
"""`FASTEST`, or the devices of a plan."""

SEARCH_SECONDS = 5.0  # limit of measuring for `predict`, which then takes the best
HOST_SECONDS = 0.2  # of first calls by NumPy, beyond which to build a kernel pays
LOOK_SECONDS = 0.1  # of calls, between two looks at the search beside them
CALL_SECONDS = 2e-5  # of a call by NumPy, at least: some operations of 5 us each
MAX_CACHED_PLANS = 16  # of a network's predictions


def compile_network(
    network: Model,
    device: str | Device | None,
    batch: int,
    *,
    tune: bool | None = None,
    variants: Sequence[str | Variant] | None = None,
    precision: str = PRECISIONS[0],
    budget: Budget,
) -> Plan:
    """Return the best plan for a network on a device; see `Network.compile`."""
    batch = as_whole("batch", batch, most=INT_MAX)
    check_flag("tune", tune, optional=True)
    searched = _searched(network) if variants is None else _variants_of(variants)

    def planner(where: Device) -> Planner:
        def planner_of(stored: Model) -> Planner:
            program = lower(stored).at(precision)
            return Planner(stored, where, batch, tune, searched, program, budget)

        return best_format(network, where, planner_of)

    if is_fastest(device):
        return fastest_planner(device_list(ALL), planner).plan()
    return planner(find_device(device)).plan()


def resolve_devices(devices: Devices) -> Where:
    """Return the named devices, or `FASTEST`."""
    return FASTEST if is_fastest(devices) else device_list(devices)


def plan_on(
    network: Model, where: Where, batch: int | SparseShape, precision: str, calls: float
) -> AnyPlan:
    """Return the plan of a device, or of several that share the batch.

    Times that are not remembered are measured, for `SEARCH_SECONDS`; but not for the
    first calls on one device.
    """
    if isinstance(batch, SparseShape):
        from clnet.planning.sparse_plan import SparsePlan

        assert not isinstance(where, str)
        return SparsePlan(network, where[0], batch, precision, calls)
    batch = as_whole("batch", batch, most=INT_MAX)
    if calls < inf and not isinstance(where, str) and len(where) == 1:
        first = _first_plan(network, where[0], batch, precision, calls)
        if first is not None:
            return first
    with Budget(SEARCH_SECONDS) as budget:
        plan = partial(compile_network, network, precision=precision, budget=budget)
        if isinstance(where, str) or len(where) == 1:
            return plan(where if isinstance(where, str) else where[0], batch)
        return ParallelPlan(network, where, batch, plan)


def _first_plan(
    network: Model, device: Device, batch: int, precision: str, calls: float
) -> Plan | None:
    """Return a plan for so many calls and some more, for which nothing is measured.

    It is of remembered times if they make one, of a search that has ended for all
    calls. Else NumPy answers, for which nothing is built; but where searches are beside
    the calls, kernels chosen by the model if NumPy takes longer than a build. None:
    calls take so long that a search before them pays.
    """
    program, beside = lower(network).at(precision), searches_beside(device)
    planner = _planner(network, device, batch, precision)
    if planner.remembers:
        plan, seconds = planner.plan(), planner.report.covers[0].seconds
        if planner.searched:  # perhaps in another format of its layers
            return compile_network(
                network, device, batch, tune=False, precision=precision,
                budget=Budget(),
            )
    else:
        planner = Planner(network, device, batch, False, (Host(),), program)
        plan, seconds = planner.plan(), planner.report.covers[0].seconds
        if beside and calls * seconds > HOST_SECONDS:
            planner = Planner(
                network, device, batch, False, _searched(network), program
            )
            plan, seconds = planner.plan(), planner.report.covers[0].seconds
    seconds = max(seconds, CALL_SECONDS)
    if beside:
        plan.calls_a_look = LOOK_SECONDS // seconds
        plan.calls_left = max(calls, plan.calls_a_look)
        return plan
    plan.calls_left = SEARCH_SECONDS // seconds
    return plan if calls <= plan.calls_left else None


def searches_beside(device: Device) -> bool:
    """Return whether calls and a search beside them disturb each other little."""
    return device.type != "cpu"  # else they take each other's cores


class PlanCache:
    """The plans that a network's predictions have used, the oldest first."""

    def __init__(self, network: Model) -> None:
        self.network = network
        self.plans: OrderedDict[tuple[Any, ...], AnyPlan] = OrderedDict()
        # By shape, device and precision of the inputs, without resolving anything:
        # those used since the last plan was made.
        self.recent: dict[tuple[Any, ...], Plan] = {}
        self._searches: dict[tuple[Any, ...], BackgroundSearch] = {}  # beside calls
        self._looks = threading.Lock()  # held by the thread that looks at them
        # Whether devices compute an ensemble in one launch; see `of_members`.
        self.takes: dict[Where, bool] = {}

    def plan(
        self, devices: Devices, batch: int | SparseShape, precision: str,
        calls: float = 1,
    ) -> AnyPlan:
        """Return a plan that is good for so many calls, and count them."""
        if type(batch) is not int and not isinstance(batch, SparseShape):
            batch = as_whole("batch", batch)
        check_precision(precision)  # before it is a key
        by_shape = devices is None or isinstance(devices, (str, Device))
        shape = (batch, self.network.n_in)
        recent = self.recent.get((shape, devices, precision)) if by_shape else None
        if recent is not None and recent.calls_left >= calls:
            recent.calls_left -= calls
            return recent
        key = (resolve_devices(devices), batch, precision)
        plan = self.plans.get(key)
        if plan is None or plan.calls_left < calls:
            plan = self._next_plan(plan, calls, *key)
            self.plans[key] = plan
            self.recent.clear()
        if calls < inf:
            plan.calls_left -= calls
        if by_shape and isinstance(plan, Plan):
            self.recent[shape, devices, precision] = plan
            if batch == 1:
                self.recent[shape[1:], devices, precision] = plan
        try:
            self.plans.move_to_end(key)
            while len(self.plans) > MAX_CACHED_PLANS:
                oldest, _ = self.plans.popitem(last=False)
                self._searches.pop(oldest, None)
        except KeyError:  # another thread has evicted it
            pass
        return plan

    def _next_plan(
        self, plan: AnyPlan | None, calls: float, where: Where,
        batch: int | SparseShape, precision: str,
    ) -> AnyPlan:
        """Return the first plan, or the one after it, which may be the same for now."""
        if plan is None:
            return plan_on(self.network, where, batch, precision, calls)
        key = where, batch, precision
        beside = isinstance(plan, Plan) and searches_beside(plan.device)
        if calls == inf or not beside:  # who makes calls without end waits
            self._searches.pop(key, None)
            return plan_on(self.network, where, batch, precision, inf)
        assert isinstance(plan, Plan)
        check_process()  # a fork would read the child's marks
        later = self.plans.get(key, plan)
        if self._looks.acquire(blocking=False):  # else another thread looks
            try:
                if later is plan:
                    later = self._looked(plan, key)
            finally:
                self._looks.release()
        if isinstance(later, Plan):
            later.calls_left = max(calls, later.calls_left, later.calls_a_look)
        return later

    def _looked(self, plan: Plan, key: tuple[Where, Any, str]) -> AnyPlan:
        """Return the plan after a look at the search beside its calls."""
        network, (where, batch, precision) = self.network, key
        search = self._searches.get(key)
        if search is None:
            if not BackgroundSearch.is_free():
                return plan
            planner = _planner(network, plan.device, batch, precision)
            if planner.searched:
                return _remembered_plan(plan, precision)
            if not store_of(plan.device).can_remember():
                return plan_on(network, where, batch, precision, inf)
            search = self._searches[key] = BackgroundSearch(
                partial(_measure, network, plan.device, plan.batch, precision),
                partial(_remembered_plan, plan, precision),
            )
        better = search.take()
        if not search.ended:
            if better is not None:
                better.calls_left = better.calls_a_look
            return better or plan
        self._searches.pop(key, None)
        if better is None and search.understood:  # the child has not come to its end
            better = _remembered_plan(plan, precision)
        return better or plan_on(network, where, batch, precision, inf)


def _planner(network: Model, device: Device, batch: int, precision: str) -> Planner:
    """Return the planner of remembered times of the user's own store."""
    program = lower(network).at(precision)
    return Planner(
        network, device, batch, False, _searched(network), program, None, False
    )


def _measure(
    network: Model, device: Device, batch: int, precision: str, seconds: float
) -> None:
    """Measure as `compile` does, for so many seconds at most."""
    budget = Budget(seconds)
    compile_network(network, device, batch, precision=precision, budget=budget)


def _remembered_plan(plan: Plan, precision: str) -> Plan:
    """Return the plan of remembered times that is to replace another one."""
    store_of(plan.device).refresh()
    compiled = compile_network(
        plan.network, plan.device, plan.batch, tune=False, precision=precision,
        budget=Budget(),
    )
    compiled.calls_a_look = plan.calls_a_look
    if plan.has_twin:
        compiled.twin()
    return compiled


def _searched(network: Model) -> tuple[Variant, ...]:
    """Return the variants that are searched unless others are named."""
    return VARIANTS if network.members == 1 else ENSEMBLE_VARIANTS


def _variants_of(given: Sequence[str | Variant]) -> tuple[Variant, ...]:
    """Return variants by name, in the registry's order, then the user's own."""
    known = {variant.name: variant for variant in ALL_VARIANTS}
    if not is_many(given):
        raise InputError(f"variants must be a list of names, not {quoted(given)}")
    chosen = list(given)
    if not chosen:
        raise InputError(f"variants is empty: name some of {', '.join(known)}")
    unregistered: list[Variant] = [
        variant for variant in chosen
        if not isinstance(variant, str) and hasattr(variant, "launches")
    ]
    for name in chosen:
        if is_among(name, known) or any(name is variant for variant in unregistered):
            continue
        from clnet.variants.training_variants import STEP_VARIANTS

        if is_among(name, [variant.name for variant in STEP_VARIANTS]):
            raise InputError(
                f"variant {name!r} computes steps of training, which `fit` plans by "
                f"itself: expected some of {', '.join(known)}"
            )
        raise unknown("variant", name, known)
    registered = [variant for variant in ALL_VARIANTS if variant.name in chosen]
    variants = (*registered, *unregistered)
    names: set[str] = set()
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
    return variants

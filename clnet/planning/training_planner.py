"""Plans of trainings: the cheapest steps for a program, kept and named in files.

They are searched as those of inference are, by trials of steps: at the batch size of
the training, and with all data on the device. A step of many networks is one launch, so
each of its candidates spans the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clnet.errors import InputError, counted
from clnet.ir.update import Update
from clnet.opencl.launch import Scratch
from clnet.opencl.store import store_of
from clnet.planning.cover import MAX_SPEEDUP, SavedPlan, shortest_path
from clnet.planning.explain import explanation, in_units
from clnet.planning.format_planner import NetworkView, best_format, is_auto
from clnet.planning.planner import Planner
from clnet.planning.tuning.budget import Budget
from clnet.planning.tuning.trial import StepTrial
from clnet.runtime.member_replay import ITEM, most_epochs
from clnet.variants import PERSISTENT_VARIANTS, VARIANTS
from clnet.variants.base import MemberVariant
from clnet.variants.reference.generic import Host
from clnet.variants.training.whole_step import accepted_step
from clnet.variants.training_variants import STEP_VARIANTS

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.runtime.binding import PlanStep
    from clnet.variants.base import Variant

TRAINING_VARIANTS: tuple[Variant, ...] = (
    # Devices that share steps have no fallback: kernels must not wait for others.
    *(one for one in VARIANTS if one not in (Host(), *PERSISTENT_VARIANTS)),
    *STEP_VARIANTS,
)
"""The variants that may compute a training step."""


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a program of training, of one network or of many."""

    network: Model  # The network, or a `NetworkView` of it, whose layout the steps use
    program: Program  # The program, lowered from it
    steps: tuple[PlanStep, ...]  # The chosen cover, in order
    explanation: str  # The text of `explain`

    def explain(self) -> str:
        """Return the chosen cover, the losers with their times, and the refusals."""
        return self.explanation


def plan_training(
    network: Model,
    program: Program,
    device: Device,
    batch: int,
    *,
    tune: bool | None = None,
    variants: Sequence[Variant] | None = None,
    lowered: Callable[[Model], Program] | None = None,
    budget: Budget | None = None,
) -> TrainingPlan:
    """Return the cheapest steps for a program of training.

    `lowered` makes the program of a network with its ``"auto"`` layers in another
    format; without it they are trained as they are stored.
    """
    chosen = TRAINING_VARIANTS if variants is None else tuple(variants)
    budget = budget or Budget()
    last = program.ops[-1]
    if isinstance(last, Update) and last.optimiser.uses_offset:
        lowered = None
    kept = store_of(device).plans
    tried = variants and chosen  # all variants take longer to hash than all else
    key = program, batch, tried, lowered is None, *map(is_auto, network.layers)
    if tune is None:
        # Short trainings keep their plan, though a longer one has measured since.
        plans: dict[bool, _Kept] = kept.get(key, {})
        for short, known in sorted(plans.items(), reverse=True):
            if not (short and budget.pays(known.seconds)):
                return known.plan(network)

    def planner(stored: Model) -> Planner:
        other = program if lowered is None else lowered(stored)
        return Planner(
            stored, device, batch, tune, chosen, other, budget, trial=StepTrial
        )

    best = planner(network) if lowered is None else best_format(
        network, device, planner
    )
    plan = _training_plan(best)
    if tune is not False:
        seconds = best.report.covers[0].seconds
        known = _Kept(
            _format_of(plan), plan.program, plan.steps, plan.explanation, seconds
        )
        others = {} if tune else kept.get(key, {})  # who tunes asks for another plan
        kept[key] = {**others, best.short: known}
    return plan


def saved_plan(plan: TrainingPlan, device: Device) -> SavedPlan:
    """Return a device's plan by names."""
    places = device.places
    return SavedPlan(
        store_of(device).key, plan.steps[0].span.batch, _format_of(plan),
        [
            {
                "ops": len(step.span.ops), "variant": step.variant.name,
                "config": dict(step.config), "place": places.index(step.device),
            }
            for step in plan.steps if step.device is not None  # as all of training
        ],
    )


def plan_as_saved(
    saved: SavedPlan,
    network: Model,
    program: Program,
    device: Device,
    batch: int,
    *,
    lowered: Callable[[Model], Program] | None = None,
    budget: Budget | None = None,
) -> TrainingPlan | None:
    """Return a plan by its names, compared with the oracle on this device."""
    ops = sum(step["ops"] for step in saved.steps)
    here = store_of(device).key, batch, len(program.ops)
    if (saved.device, saved.batch, ops) != here:
        return None
    stored = network
    if saved.format is not None and lowered is not None:
        try:
            stored = NetworkView(network, saved.format)
        except InputError:
            return None
        program = lowered(stored)
    wanted, start = [], 0
    for step in saved.steps:
        stop = start + step["ops"]
        wanted.append((start, stop, step["variant"], step["config"], step["place"]))
        start = stop
    names = {step["variant"] for step in saved.steps}
    variants = tuple(v for v in TRAINING_VARIANTS if v.name in names)
    planner = Planner(
        stored, device, batch, True, variants, program, budget, trial=StepTrial
    )
    places = planner.device.places
    candidates = [
        c for c in planner.candidates() if c.step.device is not None and (
            c.start, c.stop, c.step.variant.name, dict(c.step.config),
            places.index(c.step.device),
        ) in wanted
    ]
    cover = shortest_path(ops, candidates)
    if cover is None or planner.times.wrong(cover):
        return None
    planner.report.candidates, planner.report.covers = candidates, [cover]
    text = f"{_explained(planner)}\n\nThe plan is that of the checkpoint."
    return TrainingPlan(stored, program, cover.steps, text)


@dataclass(frozen=True)
class _Kept:
    """A plan without its network: trainings alike have the first one's plan."""

    format: str | None  # Of the `NetworkView`; None: the network itself is trained
    program: Program  # As of `TrainingPlan`
    steps: tuple[PlanStep, ...]
    explanation: str
    seconds: float  # Of a step

    def plan(self, network: Model) -> TrainingPlan:
        """Return the plan for a network with the same program."""
        other = network if self.format is None else NetworkView(network, self.format)
        return TrainingPlan(other, self.program, self.steps, self.explanation)


def _format_of(plan: TrainingPlan) -> str | None:
    """Return the format of a plan's view; None: the network itself is trained."""
    view = plan.network
    return view.format if isinstance(view, NetworkView) else None


def _training_plan(planner: Planner) -> TrainingPlan:
    """Return the plan of the best cover whose results are right."""
    best = planner.right_cover()
    planner.report.unmeasured = (
        "nothing new may be measured" if planner.tune is False else
        "the training is too short to measure them; fit(tune=True) does"
        if planner.short else
        f"even {MAX_SPEEDUP:g} times as fast as modelled they would make no faster "
        f"step, or {StepTrial.per_span} others of their span are modelled faster"
    )
    return TrainingPlan(
        planner.network, planner.program, best.steps, _explained(planner)
    )


def _explained(planner: Planner) -> str:
    """Return the text of `explain`, of many networks with the chosen launch."""
    best = planner.report.covers[0].candidates[0]
    variant, subject, more = best.step.variant, "", {}
    if isinstance(variant, MemberVariant):
        subject = f"{counted(variant.members, 'network')} together, "
        epochs = counted(most_epochs(variant.members), "epoch")
        more = {"of the chosen one": [
            f"expected: {in_units(best.modelled)} a step, by the model",
            f"launches: one for {epochs} of all at most",
            f"memory: {_memory(best.step, variant.members)}",
        ]}
    return explanation(
        planner.network, planner.device, planner.batch, planner.report,
        planner.program, subject, more,
    )


def _memory(step: PlanStep, members: int) -> str:
    """Return the memory that a training of many networks takes, in words."""
    assert step.device is not None
    whole = accepted_step(step.span)
    slots = 0 if whole.update is None else whole.update.optimiser.slots
    launches = step.variant.launches(step.span, step.config, step.device)
    scratch: dict[Any, int] = {
        argument.name: argument.size
        for launch in launches for argument in launch.arguments
        if isinstance(argument, Scratch)
    }
    samples = sum(
        value.height(step.span.batch) * value.stride for value in whole.data
    )
    sizes = {
        "parameters and state": ITEM * members * (1 + slots) * whole.size,
        "samples": ITEM * samples, "scratch": sum(scratch.values()),
    }
    return ", ".join(f"{_bytes(size)} of {name}" for name, size in sizes.items())


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"

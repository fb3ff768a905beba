"""The planner of populations: the fastest variant for many networks of one shape.

A launch trains all networks, so every candidate spans the whole step. Choice, limits of
the time for measuring and remembered times are those of `training_planner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from clnet.errors import counted
from clnet.opencl.launch import Scratch
from clnet.opencl.store import store_of
from clnet.planning.explain import explanation, in_units
from clnet.planning.room import check_training
from clnet.planning.training_planner import (
    TrainingPlan,
    TrainingPlanner,
    TrainingTimes,
    plan_training,
)
from clnet.planning.tuning.member_trial import MemberTrial
from clnet.runtime.member_replay import most_epochs
from clnet.variants.training.whole_step import accepted_step

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Program, Span
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.planning.cover import Candidate, Cover
    from clnet.planning.tuning.measure import Run
    from clnet.planning.tuning.search import Search
    from clnet.runtime.binding import Step
    from clnet.variants.base import Variant
    from clnet.variants.members.members import MemberVariant

ITEM = 4  # bytes of a float32


def plan_members(
    network: Model, program: Program, device: Device, batch: int,
    variants: Sequence[MemberVariant], tune: bool | None, search: Search,
) -> TrainingPlan:
    """Return the fastest plan, of one step, for many networks."""
    return plan_training(
        network, program, device, batch, tune=tune, search=search, kind=MemberPlanner,
        variants=cast("Sequence[Variant]", variants),
    )


class MemberTimes(TrainingTimes):
    """Times of steps of all networks of a population, on random data."""

    whole = "step of many networks"

    def signature(self, step: Step, span: Span) -> str:
        """Return the store's name: times of files have no other word of the number."""
        variant = cast("MemberVariant", step.variant)
        own = ", rows of their own" if variant.subsets else ""
        return f"{counted(variant.members, 'network')}{own}: {span.signature}"

    def _ready(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Run:
        (step,) = steps
        store, name = store_of(self.device), self._compared_as(steps)
        if not store.fact(name) and self._compared(self.session, steps, (), ()):
            store.put_fact(name, True)
        members = cast("MemberVariant", step.variant).members
        return MemberTrial(step, self.network, members).ready()

    def _compared(
        self, device: Session, steps: Sequence[Step], inputs: Sequence[Value],
        outputs: Sequence[Value],
    ) -> bool:
        (step,) = steps
        return MemberTrial.small(step, self.network).check()


class MemberPlanner(TrainingPlanner):
    """The planner of a step of many networks; see `Planner`."""

    timed_by: type[TrainingTimes] = MemberTimes

    def _check_room(self) -> None:
        members = cast("MemberVariant", self.variants[0]).members
        check_training(self.network, self.program, self.device, self.batch, members)

    def _candidates(self) -> list[Candidate]:
        """Return those of the device itself: its companions train one network."""
        return [c for c in super()._candidates() if c.step.device == self.device]

    def _shortest(self, candidates: Sequence[Candidate]) -> Cover | None:
        cover = super()._shortest(candidates)
        if cover is None:
            return None
        (whole,) = cover.candidates  # of a launch of many steps: no wait after each
        return replace(cover, span_seconds=whole.seconds)

    def _builds(self, step: Step) -> int:
        return 0  # about the same for all: the choice follows from the kernels alone

    def _explained(self, cover: Cover) -> str:
        (candidate,) = cover.candidates
        members = cast("MemberVariant", candidate.step.variant).members
        epochs = most_epochs(members)
        return explanation(
            self.network, self.device, self.batch, self.report, self.program,
            subject=f"{counted(members, 'network')} together, ",
            more={"of the chosen one": [
                f"expected: {in_units(candidate.modelled)} a step, by the model",
                f"launches: one for {counted(epochs, 'epoch')} of all at most",
                f"memory: {_memory(candidate.step, members)}",
            ]},
        )


def _memory(step: Step, members: int) -> str:
    """Return the memory that a training takes on the device, in words."""
    assert step.device is not None
    whole = accepted_step(step.span)
    slots = 0 if whole.update is None else whole.update.optimiser.slots
    launches = step.variant.launches(step.span, step.config, step.device)
    scratch: dict[Any, int] = {
        one.name: one.size for launch in launches for one in launch.arguments
        if isinstance(one, Scratch)
    }
    samples = sum(
        value.height(step.span.batch) * value.stride for value in whole.data
    )
    parts = {
        "parameters and state": ITEM * members * (1 + slots) * whole.size,
        "samples": ITEM * samples, "scratch": sum(scratch.values()),
    }
    return ", ".join(f"{_bytes(size)} of {name}" for name, size in parts.items())


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"

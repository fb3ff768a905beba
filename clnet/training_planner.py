"""The planner of training: the cheapest cover of a step's program, measured.

As the planner of inference it ranks spans by times that are remembered or measured on
demand, and the best whole covers against each other; but at the batch that is trained,
and with all data on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from clnet.binding import Step
from clnet.cover import Candidate
from clnet.device import Device
from clnet.explain import explanation
from clnet.network import Network
from clnet.ops import Program, Value
from clnet.planner import PROSPECT, Planner
from clnet.tuning.store import Timing
from clnet.tuning.trial import Trial
from clnet.variants import TRAINING_VARIANTS, Variant

MOST = 3  # candidates of one span that are measured


@dataclass(frozen=True)
class TrainingPlan:
    """How a training program is computed.

    Attributes
    ----------
    steps : tuple of Step
        In order.
    explanation : str
        Why these.
    """

    steps: tuple[Step, ...]
    explanation: str

    def explain(self) -> str:
        """Return the chosen cover, the losers with their times, and the refusals."""
        return self.explanation


def plan_training(
    network: Network,
    program: Program,
    device: Device,
    batch: int,
    *,
    tune: bool | None = None,
    variants: Sequence[Variant] | None = None,
) -> TrainingPlan:
    """Return the cheapest steps for a program of training.

    Parameters
    ----------
    network : Network
        What the program was lowered from.
    program : Program
        Of one step.
    device : Device
        Where.
    batch : int
        Samples a step.
    tune : bool or None
        As for `Network.compile`.
    variants : sequence of Variant or None
        Those that may be used; None: all of training.

    Raises
    ------
    DeviceError
        If they do not compute the whole program.
    """
    chosen = TRAINING_VARIANTS if variants is None else tuple(variants)
    planner = _TrainingPlanner(network, device, batch, tune, chosen, program)
    return planner.training_plan()


class _TrainingPlanner(Planner):
    whole = "training step"

    def __init__(
        self,
        network: Network,
        device: Device,
        batch: int,
        tune: bool | None,
        variants: tuple[Variant, ...],
        program: Program,
    ) -> None:
        super().__init__(network, device, batch, tune, variants, program)
        self._measured_batch = batch

    def training_plan(self) -> TrainingPlan:
        chosen = self._chosen()
        text = explanation(
            self.network, self.device, self.batch, self.survey, self.program
        )
        return TrainingPlan(chosen.steps, text)

    def _limits(
        self, candidates: Sequence[Candidate]
    ) -> dict[tuple[int, int], float]:
        """Return the limits, also by what the parts of a span would take.

        A step has many ops, and to build a kernel takes longer than to measure it.
        """
        limits = super()._limits(candidates)
        ordered = sorted(candidates, key=lambda c: (c.stop, c.start))
        for start, stop in limits:
            within = [c for c in ordered if c.start >= start and c.stop <= stop]
            best = {start: 0.0}
            for c in within:
                seconds = best.get(c.start, inf) + c.modelled
                best[c.stop] = min(best.get(c.stop, inf), seconds)
            alone = sorted(
                c.modelled for c in within if (c.start, c.stop) == (start, stop)
            )
            limits[start, stop] = min(PROSPECT * best[stop], alone[:MOST][-1])
        return limits

    @cached_property
    def _trial(self) -> Trial:
        return Trial(self.session, self.network, self.program)

    def _timed(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Timing:
        return self._trial.measure(steps, outputs)

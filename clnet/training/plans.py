"""The plans of a training: of its step, and of its validation."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from clnet.errors import DeviceError, warn
from clnet.planning.training_planner import plan_as_saved, plan_training, saved_plan
from clnet.planning.tuning.budget import Budget
from clnet.training.data_set import VALIDATION_BATCH
from clnet.training.programs import program_of, without_backward
from clnet.training.streaming import StreamedSet
from clnet.variants.training.optimisers import Norm, Optimisers

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.planning.cover import SavedPlan
    from clnet.planning.training_planner import TrainingPlan
    from clnet.training.setup import TrainingSetup


class Planning:
    """The plans of one training: kept ones, those of its checkpoint, or new ones.

    New ones are searched for while it is entered as a context.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup = setup
        self._epochs = inf if setup.tune else setup.epochs
        self._saved = [] if setup.saved is None else setup.saved.plans

    def __enter__(self) -> None:
        """Begin the search."""
        self._budget = Budget(progress=self.setup.progress)
        steps = -(-len(self.setup.data) // self.setup.options.batch)
        self._budget.runs = self._epochs * steps

    def __exit__(self, *error: Any) -> None:
        """End the search."""
        self._budget.__exit__(*error)

    def plans(self, device: Device) -> list[TrainingPlan]:
        """Return the plans of step and validation on one device.

        The options keep them for later trainings, unless they are a checkpoint's or
        `tune` asks for others.
        """
        setup, held_out = self.setup, self.setup.validation
        network, batch = setup.network, setup.options.batch
        kept, key = setup.options.plans, (device, *(
            None if data is None else (
                type(data), data.rows, data.weighted, data.sparse
            )
            for data in (setup.data, held_out)
        ))
        keeps = setup.tune is None and not self._saved
        if keeps and key in kept:
            return kept[key]
        with self:
            plans = [self._plan(
                network, self.program(network), device, batch, lowered=self.program
            )]
            if held_out is not None:
                size = min(held_out.rows, VALIDATION_BATCH)
                self._budget.runs = self._epochs * -(-held_out.rows // size)
                view = plans[0].network
                plans.append(self._plan(view, self.validation_program(
                    view, held_out.capacity if size < held_out.capacity else None
                ), device, size))
        if keeps:
            kept[key] = plans
        return plans

    def share(self, program: Program, device: Device, size: int) -> TrainingPlan:
        """Return the plan of a share of a step, of so many samples at most.

        Ranks have rank 0's, so that they do not measure at the same time.
        """
        network, ranks = self.setup.network, self.setup.ranks
        if ranks is None:
            return self._plan(network, program, device, size)
        plan: TrainingPlan | None = None

        def measured() -> SavedPlan:
            nonlocal plan
            plan = self._plan(network, program, device, size)
            return saved_plan(plan, device)

        saved = ranks.from_first(measured)
        plan = plan or plan_as_saved(saved, network, program, device, size)
        if plan is None:
            names = ", ".join(step["variant"] for step in saved.steps)
            raise DeviceError(f"{device.name} does not compute rank 0's plan ({names})")
        return plan

    def update(self, program: Program, device: Device) -> TrainingPlan:
        """Return the plan of an update by the sum of gradients.

        There is one candidate, and nothing to measure.
        """
        return plan_training(
            self.setup.network, program, device, self.setup.options.batch, tune=False,
            variants=(Norm(), Optimisers()),
        )

    def program(self, network: Model) -> Program:
        """Return the program of a step."""
        data, options = self.setup.data, self.setup.options
        n = data.capacity
        gathers = options.batch < n and self.setup.ranks is None
        on_host = isinstance(data, StreamedSet)  # who orders the samples
        return program_of(
            network, options.loss, options.rule, options.precision,
            samples=n if gathers else None, shuffled=options.shuffled and not on_host,
            weighted=data.weighted, regularisation=options.regularisation,
            sparse=data.sparse,
        )

    def validation_program(
        self, network: Model, samples: int | None = None
    ) -> Program:
        """Return the program of a validation, gathered from samples if given."""
        options, data = self.setup.options, self.setup.validation
        return without_backward(program_of(
            network, options.loss, None, options.precision, samples=samples,
            dropout=False, weighted=data is not None and data.weighted,
            sparse=None if data is None else data.sparse,
        ))

    def _plan(
        self, network: Model, program: Program, device: Device, batch: int,
        **options: Any,
    ) -> TrainingPlan:
        """Return a plan as `plan_training` does, or that of the checkpoint."""
        options["budget"] = self._budget
        for saved in self._saved:
            plan = plan_as_saved(saved, network, program, device, batch, **options)
            if plan is not None:
                return plan
        if self._saved:
            warn(
                "the checkpoint's plan is none for these devices: the training goes on "
                "with another one, which rounds differently"
            )
        if self.setup.tune is not None:
            options["tune"] = self.setup.tune
        return plan_training(network, program, device, batch, **options)

"""The plans of a training: of its step, and of its validation."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from clnet.errors import warn
from clnet.planning.training_planner import plan_as_saved, plan_training
from clnet.planning.tuning.search import Search
from clnet.training.bound import program_of, without_backward
from clnet.training.data_set import VALIDATION_BATCH
from clnet.training.streaming import StreamedSet

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.planning.training_planner import TrainingPlan
    from clnet.training.setup import TrainingSetup


class Planning:
    """The plans of one training: kept ones, those of its checkpoint, or new ones.

    New ones are searched for while it is entered as a context.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup, self._tune = setup, setup.tune
        self._epochs = inf if setup.tune else setup.epochs
        self._saved = [] if setup.saved is None else setup.saved.plans

    def __enter__(self) -> Search:
        """Begin the search."""
        self._search = Search(progress=self._setup.progress)
        steps = -(-len(self._setup.data) // self._setup.options.batch)
        self._search.runs = self._epochs * steps
        return self._search

    def __exit__(self, *error: Any) -> None:
        """End the search."""
        self._search.__exit__(*error)

    def plans(self, network: Model, device: Device) -> list[TrainingPlan]:
        """Return the plans of step and validation on one device.

        The options keep them for later trainings, unless they are a checkpoint's or
        `tune` asks for others.
        """
        setup = self._setup
        kept, key = setup.options.plans, (device, *(
            None if data is None else (
                type(data), data.rows, data.weighted, data.sparse
            )
            for data in (setup.data, setup.validation)
        ))
        keeps = self._tune is None and not self._saved
        if keeps and key in kept:
            return kept[key]
        with self:
            found = [self._step(network, device)]
            if setup.validation is not None:
                found.append(self.validation(
                    found[0].network, device, setup.validation.rows,
                    setup.validation.capacity,
                ))
        if keeps:
            kept[key] = found
        return found

    def program(self, network: Model) -> Program:
        """Return the program of a step."""
        data, options = self._setup.data, self._setup.options
        n = data.capacity
        gathers = options.batch < n and self._setup.ranks is None
        on_host = isinstance(data, StreamedSet)  # who orders the samples
        return program_of(
            network, options.loss, options.rule, options.precision,
            samples=n if gathers else None, shuffled=options.shuffled and not on_host,
            weighted=data.weighted, regularisation=options.regularisation,
            sparse=data.sparse,
        )

    def _step(self, network: Model, device: Device) -> TrainingPlan:
        return self(
            network, self.program(network), device, self._setup.options.batch,
            lowered=self.program, search=self._search,
        )

    def validation(
        self, network: Model, device: Device, n: int, capacity: int | None = None
    ) -> TrainingPlan:
        """Return the plan of a validation of n samples, of an array of so many rows."""
        size, capacity = min(n, VALIDATION_BATCH), capacity or n
        self._search.runs = self._epochs * -(-n // size)
        program = self.validation_program(
            network, capacity if size < capacity else None
        )
        return self(network, program, device, size, search=self._search)

    def validation_program(
        self, network: Model, samples: int | None = None
    ) -> Program:
        """Return the program of a validation, gathered from samples if given."""
        options, data = self._setup.options, self._setup.validation
        return without_backward(program_of(
            network, options.loss, None, options.precision, samples=samples,
            dropout=False, weighted=data is not None and data.weighted,
            sparse=None if data is None else data.sparse,
        ))

    def __call__(
        self, network: Model, program: Program, device: Device, batch: int,
        **options: Any,
    ) -> TrainingPlan:
        """Return a plan as `plan_training` does, or that of the checkpoint."""
        for saved in self._saved:
            plan = plan_as_saved(saved, network, program, device, batch, **options)
            if plan is not None:
                return plan
        if self._saved:
            warn(
                "the checkpoint's plan is none for these devices: the training goes on "
                "with another one, which rounds differently"
            )
        if self._tune is not None:
            options["tune"] = self._tune
        return plan_training(network, program, device, batch, **options)

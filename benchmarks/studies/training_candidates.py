"""clnet's training: `fit`, and the third study's stages on the way to it.

``copied`` is the study's first program: a launch for each function of a layer, with all
arrays copied in before and out after. ``resident`` leaves them on the device, and
``serial`` is the same on one core of the host. ``merged`` has back-propagation and
gradients in few launches. The study proposed a whole epoch in one launch, which
`Network.fit` plans where it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import add
from typing import Any

from clnet.ir.loss import RECORD
from clnet.ir.op import Value
from clnet.opencl.commands import Action
from clnet.opencl.device import Device
from clnet.opencl.launch import Buffer
from clnet.opencl.memory import Memory
from clnet.opencl.session import session
from clnet.planning.training_planner import TRAINING_VARIANTS, plan_training
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.training.callbacks import Training
from clnet.training.history import Epoch
from clnet.variants.base import Variant

from ..candidates import Candidate, Prepared
from ..cases.dense import Array
from ..cases.training import Clock, Trained, TrainingCase, trainer
from ..own_candidates import (
    no_serial_device,
    serial_device,
    steps_text,
    with_serial_device,
)

SINGLE = ("generic", "generic_backward", "optimisers")  # a launch an op


def _single(variant: Variant) -> bool:
    return variant.name in SINGLE


def _merged(variant: Variant) -> bool:
    return variant.reach != "program"


class _Copying(Replay):
    """A replay that copies each launch's arrays in before and out after."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._copies: dict[Memory, Array] = {}
        for number, action in enumerate(self.schedule.actions):
            launch = self.schedule.launches.get(action)
            if launch is not None:
                arrays = {
                    self.bound.memory(argument) for argument in launch.arguments
                    if isinstance(argument, (Value, Buffer))
                }
                self.schedule.actions[number] = partial(self._copied, action, arrays)

    def _copied(self, action: Action, arrays: Iterable[Memory]) -> None:
        for memory in arrays:
            memory.write(self.session, self._host(memory))
        action()
        self.session.finish()
        for memory in arrays:
            host = self._host(memory)
            host[...] = memory.read(self.session, host.size, "uint8")

    def _host(self, memory: Memory) -> Array:
        """Return the host's copy of a buffer, read from the device at first."""
        if memory not in self._copies:
            size = (
                memory.argument.size if memory.array is None else memory.array.nbytes
            )
            self._copies[memory] = memory.read(self.session, size, "uint8")
        return self._copies[memory]


@dataclass(frozen=True)
class Fitted(Candidate):
    """`Network.fit`."""

    name: str = "planned"
    # Whether a callback reads the clock after each epoch. Otherwise only whole
    # trainings have a time
    clocked: bool = True

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the fit, from the case's initial weights."""
        network, options = case.network(), case.options
        start = network.parameters.copy()

        def train(epochs: int) -> Trained:
            clock = Clock()

            def record(training: Training, epoch: Epoch) -> None:
                clock()

            network.parameters = start
            history = network.fit(
                epochs=1 + epochs, device=device,
                callbacks=[record] if self.clocked else [], **options,
            )
            return case.outcome(history, clock.seconds if self.clocked else math.nan)

        config = ""
        if self.clocked:  # otherwise the first training plans, as a user's does
            program = case.program(network, case.optimiser)
            plan = plan_training(network, program, device, case.batch)
            config = steps_text(plan.steps)
        threads = device.compute_units if device.type == "cpu" else None
        return trainer(case, train, config=config, threads=threads)


@dataclass(frozen=True)
class Replayed(Candidate):
    """Training steps by some of the variants."""

    name: str  # Of the stage
    allowed: Callable[[Variant], bool]  # Returns whether a variant is searched
    binding: type[Replay] = Replay  # The class that runs the launches
    one_core: bool = False  # Whether they run in the calling thread, on the host

    def missing(self) -> str | None:
        """Return None unless a device in the calling thread is needed and missing."""
        return no_serial_device() if self.one_core else None

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs, which reads a record after each."""
        if self.one_core:
            device = serial_device(with_serial_device(device))
        network = case.network()
        program = case.program(network, case.optimiser)
        variants = [variant for variant in TRAINING_VARIANTS if self.allowed(variant)]
        plan = plan_training(network, program, device, case.batch, variants=variants)
        steps: tuple[PlanStep, ...] = plan.steps
        target, parameters = session(device), network.parameters
        rule = case.optimiser
        state = rule.initial_state(parameters.size, case.dtype)

        def train(epochs: int) -> Trained:
            train_state = TrainState(target, parameters, state)
            replay = self.binding(target, steps, network.layout, train_state)
            for value, array in zip(program.inputs, case.data, strict=True):
                replay.write(value, array)
            clock, errors, count = Clock(), [], 0
            for _ in range(1 + epochs):
                replay.set(rate=rule.rate, seed=case.seed)
                count += replay.run_pass(case.samples, count)
                totals = replay.read(program.output)[0].tolist()
                loss, squares, _ = map(add, totals, totals[len(RECORD):])
                clock()
                errors.append(case.error(loss, squares))
            return Trained(errors, clock.seconds)

        threads = device.compute_units if device.type == "cpu" else None
        return trainer(case, train, config=steps_text(steps), threads=threads)


STAGES = (
    Replayed("serial", _single, one_core=True),
    Replayed("copied", _single, _Copying),
    Replayed("resident", _single),
    Replayed("merged", _merged),
)
"""In the order of the study; `Fitted` is the last."""

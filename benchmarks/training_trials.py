"""The third study's trials: a step's launches, merged more and more.

``copied`` is how the study began: a launch a function of a layer, each with all its
arrays copied in before and out after. ``resident`` leaves them on the device, and
``serial`` is the same on one core of the host. ``merged`` has back-propagation and
slopes in few launches. What the study only proposed, a whole epoch in one, is what
`Network.fit` takes where it may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import add

import numpy as np

from clnet.ir.ops import Value
from clnet.ir.training_ops import RECORD
from clnet.opencl.device import Device
from clnet.opencl.launch import Gradients, Launch, Parameters, State
from clnet.opencl.memory import Action, Memory
from clnet.opencl.session import session
from clnet.planning.training_planner import plan_training
from clnet.runtime.binding import Step
from clnet.runtime.replay import Replay, TrainState
from clnet.variants import TRAINING_VARIANTS, Variant

from .candidates import Prepared, no_core, on_one_core, serial_place, steps_text
from .cases import Array
from .training_cases import Clock, Trained, TrainingCase, trainer

SINGLE = ("generic", "generic_backward", "optimisers")  # a launch an op


def _single(variant: Variant) -> bool:
    return variant.name in SINGLE


def _merged(variant: Variant) -> bool:
    return variant.reach != "program"


class _Copying(Replay):
    """Steps whose launches each have their arrays copied in before and out after."""

    def _append(self, action: Action, launch: Launch, place: Device) -> None:
        named = (Value, Parameters, Gradients, State)
        arrays = {
            id(memory): memory for memory in (
                self._value(a) if isinstance(a, Value) else self._memory(a)
                for a in launch.arguments if isinstance(a, named)
            )
        }
        super()._append(
            partial(self._copied, action, tuple(arrays.values())), launch, place
        )

    def _copied(self, action: Action, arrays: tuple[Memory, ...]) -> None:
        for memory in arrays:
            memory.write(self.session, self._host(memory))
        action()
        self.session.finish()
        for memory in arrays:
            host = self._host(memory)
            host[...] = memory.read(self.session, host.size, "uint8")

    def _host(self, memory: Memory) -> Array:
        """Return the host's copy of a buffer; at first, as the device has it."""
        copies = self.__dict__.setdefault("_copies", {})
        if memory not in copies:
            size = (
                memory.argument.size if memory.array is None else memory.array.nbytes
            )
            copies[memory] = memory.read(self.session, size, "uint8")
        found: Array = copies[memory]
        return found


@dataclass(frozen=True)
class Replayed:
    """Steps of training by some of the variants.

    Attributes
    ----------
    name : str
        Which trial.
    allowed : callable
        Whether a variant may be used.
    binding : type
        How launches are run.
    one_core : bool
        Whether they run in the calling thread, on the host.
    """

    name: str
    allowed: Callable[[Variant], bool]
    binding: type[Replay] = Replay
    one_core: bool = False
    patience: float | None = None

    def missing(self) -> str | None:
        """Return that it needs a device that runs in the calling thread."""
        return no_core() if self.one_core else None

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs, which reads a record after each."""
        if self.one_core:
            device = serial_place(on_one_core(device))
        network = case.network()
        program = case.program(network, case.optimiser)
        variants = [variant for variant in TRAINING_VARIANTS if self.allowed(variant)]
        plan = plan_training(
            network, program, device, case.batch, variants=variants
        )
        steps: tuple[Step, ...] = plan.steps
        place, parameters = session(device), network.parameters
        rule = case.optimiser
        state = np.empty((rule.slots, parameters.size), parameters.dtype)
        state[...] = np.reshape(rule.initial, (rule.slots, 1))

        def train(epochs: int) -> Trained:
            learnt = TrainState(place, parameters, state)
            replay = self.binding(place, steps, network.layout, learnt)
            for value, array in zip(program.inputs, case.data, strict=True):
                replay.write(value, array)
            clock, errors, count = Clock(), [], 0
            for _ in range(1 + epochs):
                replay.set(rate=rule.rate, seed=case.seed)
                count += replay.run_pass(case.samples, count)
                totals = replay.read(program.output)[0].tolist()
                loss, squares, _ = map(add, totals, totals[len(RECORD):])
                clock()
                errors.append(
                    loss / case.samples if case.by_loss
                    else squares / (case.samples * case.sizes[-1])
                )
            return Trained(errors, clock.seconds)

        threads = device.compute_units if device.type == "cpu" else None
        return trainer(case, train, config=steps_text(steps), threads=threads)


TRIALS = (
    Replayed("serial", _single, one_core=True),
    Replayed("copied", _single, _Copying),
    Replayed("resident", _single),
    Replayed("merged", _merged),
)
"""In the order of the study; `training_peers.Fitted` is the last."""

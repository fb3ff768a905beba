"""Launches of cascade training: the device's side of `training`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.opencl.bound import Bound
from clnet.opencl.session import KEPT_BYTES
from clnet.runtime.replay import run_flops
from clnet.variants.cascade.cascade import (
    CascadeSamples,
    NeuronsTraining,
    NeuronValues,
    neuron_table,
)

if TYPE_CHECKING:
    from clnet.nn.cascade import Neuron
    from clnet.opencl.commands import Action
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launch, Scratch
    from clnet.opencl.session import Session

Array = NDArray[Any]

class EndRule(Protocol):
    """Tells when the training of some neurons ends."""

    def earliest(self, done: int) -> int:
        """Return after how many epochs it may end, at least; so many are done."""
        ...

    def last(self, done: int, records: Array) -> int | None:
        """Return how many epochs of the next records are taken, if it ends in them.

        They are of shape [epochs, neurons, RECORD].
        """
        ...


class Workspace:
    """Launches on float32 buffers, which those that name the same one share."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.memory: Bound = Bound(session)
        self._running: Device = session.device  # the last launch's

    def bound(self, launch: Launch) -> Callable[..., None]:
        """Return the function that enqueues a launch, called with its scalars."""
        device = launch.device or self.session.device
        return partial(self._run, self.memory.launch(launch, device), device)

    def _run(self, action: Action, device: Device, **scalars: float) -> None:
        self.memory.set(key=None, **scalars)
        if self._running is not device:
            self.session.queues[self._running].finish()
            self._running = device
        action()

    def write(self, scratch: Scratch, values: Array) -> None:
        """Fill the start of a buffer, and wait."""
        self.session.finish()
        memory = self.memory.memory(scratch)
        memory.write(self.session, np.ascontiguousarray(values))

    def read(self, scratch: Scratch, count: int) -> Array:
        """Return the first numbers of a buffer, after all enqueued launches."""
        return self.memory.memory(scratch).read(self.session, count, "float32")

    @property
    def size(self) -> int:
        """Bytes of all buffers."""
        return sum(memory.size for memory in self.memory.buffers.values())


class NeuronGroup:
    """Candidates, or outputs, on a device."""

    def __init__(self, workspace: Workspace, training: NeuronsTraining) -> None:
        self._workspace, self._training = workspace, training
        device = workspace.session.device
        self._launch = workspace.bound(training.launch(device))
        workspace.write(training.table, neuron_table(training))
        self._half = 0  # of the parameters that are the present ones
        cores = device.compute_units if device.type == "cpu" else 1
        self._flops = run_flops(device) * cores

    def start(self, weights: Array) -> None:
        """Set the weights [neurons, n]; the rule's state begins anew."""
        training = self._training
        shape = training.shape
        state = training.rule.initial_state(shape[2], "float32")
        parameters = np.zeros(shape, np.float32)
        parameters[:, 0, : weights.shape[1]] = weights
        parameters[:, 1:, : weights.shape[1]] = state[:, : weights.shape[1]]
        self._half = 0
        self._workspace.write(training.parameters, parameters)

    def train(
        self, n_in: int, most: int, rule: EndRule, **scalars: float
    ) -> int:
        """Train until an epoch is the last, and return the number of epochs.

        A launch ends where the training may, at the earliest; if it ended within, the
        launch is repeated with fewer epochs.
        """
        training, done = self._training, 0
        count = len(training.neurons)
        flops = 4 * n_in * count * training.samples.samples
        longest = max(1, min(training.epochs, self._flops // flops))
        scalars["rate"] = training.rule.rate
        cools = not training.candidates
        while True:
            epochs = max(1, min(most, rule.earliest(done), done + longest) - done)
            now = {
                **scalars, "n_in": n_in,
                "seed": (int(scalars["seed"]) + done * (not cools)) % 2**32,
                "steps": scalars["steps"] + done * cools,
                "from": self._half * training.size,
                "to": (1 - self._half) * training.size,
            }
            self._launch(epochs=epochs, **now)
            records = self._workspace.read(
                training.records, epochs * count * len(RECORD)
            ).reshape(epochs, count, len(RECORD))
            last = rule.last(done, records)
            ran = epochs if last is None else last
            if ran < epochs:
                self._launch(epochs=ran, **now)
            self._half, done = 1 - self._half, done + ran
            if last is not None or done == most:
                return done

    def offset(self, neuron: int) -> int:
        """Return where a neuron's weights begin in the parameters."""
        _, rows, stride = self._training.shape
        return self._half * self._training.size + neuron * rows * stride

    def weights(self, n: int) -> Array:
        """Return the weights [neurons, n]."""
        training = self._training
        found = self._workspace.read(training.parameters, 2 * training.size)
        return found.reshape(2, *training.shape)[self._half, :, 0, :n]


class Values:
    """A neuron's values, or an output's errors, computed for all samples."""

    def __init__(
        self, workspace: Workspace, values: NeuronValues, population: NeuronGroup
    ) -> None:
        self._population = population
        self._launch = workspace.bound(values.launch(workspace.session.device))
        workspace.write(values.table, neuron_table(values))

    def __call__(self, neuron: int, n_in: int, row: int) -> None:
        """Compute the neuron, which reads n_in values; they become the numbered row."""
        self._launch(
            number=neuron, offset=self._population.offset(neuron), n_in=n_in, row=row
        )


class CascadeBinding:
    """All launches of a training, bound to memory."""

    def __init__(self, session: Session, parts: Parts) -> None:
        self._workspace, self._parts = Workspace(session), parts
        self.outputs: NeuronGroup = NeuronGroup(self._workspace, parts.outputs)
        self.candidates: NeuronGroup = NeuronGroup(self._workspace, parts.candidates)
        self.install: list[Values] = [
            Values(self._workspace, one, self.candidates) for one in parts.install
        ]
        self.errors: list[Values] = [
            Values(self._workspace, one, self.outputs) for one in parts.errors
        ]
        device = session.device
        self.name: str = f"{parts.outputs.launch(device).kernel} of {device.name}"

    def upload(self, number: int, inputs: Array, targets: Array) -> None:
        """Fill the memory of samples by values [read, n] and targets [outputs, n]."""
        samples = self._parts.samples[number]
        rows = np.zeros((samples.rows, samples.samples), np.float32)
        rows[: len(inputs)] = inputs
        self._workspace.write(samples.inputs, samples.tiled(rows))
        self._workspace.write(samples.targets, samples.tiled(targets))

    def residuals(self, number: int) -> Array:
        """Return the scaled errors [outputs, n] of samples."""
        samples = self._parts.samples[number]
        count = samples.outputs * samples.padded
        return samples.plain(self._workspace.read(samples.residuals, count))

    def keep(self) -> None:
        """Leave the binding to the next training that is alike, unless it is large."""
        session = self._workspace.session
        if self._workspace.size <= KEPT_BYTES:
            session.kept[self._parts] = self


@dataclass(frozen=True)
class Parts:
    """The descriptions of a training's launches."""

    # The training set, and the validation set if there is one
    samples: tuple[CascadeSamples, ...]
    outputs: NeuronsTraining  # On the training set
    candidates: NeuronsTraining
    added: tuple[Neuron, ...]  # The candidates as neurons of the network

    @property
    def install(self) -> tuple[NeuronValues, ...]:
        """The values of candidates as neurons, of each set of samples."""
        fann = self.outputs.fann_compatible
        return tuple(
            NeuronValues(
                one, self.added, self.candidates.parameters, False, False, fann
            )
            for one in self.samples
        )

    @property
    def errors(self) -> tuple[NeuronValues, ...]:
        """The errors of outputs, of each set of samples."""
        outputs = self.outputs
        return tuple(
            NeuronValues(
                one, outputs.neurons, outputs.parameters, True, outputs.halved,
                outputs.fann_compatible,
            )
            for one in self.samples
        )

    def launches(self, device: Device) -> tuple[Launch, ...]:
        """Return all launches."""
        described: tuple[NeuronsTraining | NeuronValues, ...] = (
            self.outputs, self.candidates, *self.install, *self.errors
        )
        return tuple(one.launch(device) for one in described)

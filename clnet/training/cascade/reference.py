"""The launches of cascade training in NumPy and float64: no kernel is trusted unseen.

Kernels are compared with it, and it trains where they are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir import cascade as oracle
from clnet.ir.loss import RECORD
from clnet.ir.reference import silent
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import StepInfo
from clnet.variants.cascade.cascade import neuron_table

if TYPE_CHECKING:
    from clnet.training.cascade.launches import EndRule, Parts
    from clnet.variants.cascade.cascade import CascadeSamples, NeuronsTraining

Array = NDArray[Any]


class ReferenceSamples:
    """Samples as `CascadeSamples` describes them."""

    def __init__(self, described: CascadeSamples) -> None:
        n = described.samples
        self.inputs: Array = np.zeros((described.rows, n))
        self.targets: Array = np.zeros((described.outputs, n))
        self.residuals: Array = np.zeros((described.outputs, n))


class ReferenceGroup:
    """Candidates, or outputs; see `launches.NeuronGroup`."""

    def __init__(self, samples: ReferenceSamples, training: NeuronsTraining) -> None:
        self._samples, self._training = samples, training
        self._scales = neuron_table(training)["error_scale"].astype(float)
        self.parameters: Array = np.zeros(training.shape)

    def start(self, weights: Array) -> None:
        """Set the weights [neurons, n]; the rule's state begins anew."""
        n = weights.shape[1]
        self.parameters = np.zeros(self._training.shape)
        self.parameters[:, 0, :n] = weights
        self.parameters[:, 1:, :n] = self._training.rule.initial_state(n, "float64")

    def train(
        self, n_in: int, most: int, rule: EndRule, **scalars: float
    ) -> int:
        """Train until an epoch is the last, and return the number of epochs."""
        for done in range(most):
            records = self.epoch(n_in, done, **scalars)[np.newaxis]
            if rule.last(done, records) is not None:
                return done + 1
        return most

    def epoch(
        self, n_in: int, number: int, *, error: float, steps: float, seed: float
    ) -> Array:
        """Train for an epoch, and return its records [neurons, RECORD].

        `number` are the epochs before; the others are as in `CHANGING`.
        """
        with silent():
            return self._epoch(n_in, number, error, int(steps), int(seed))

    def _epoch(
        self, n_in: int, number: int, error: float, steps: int, seed: int
    ) -> Array:
        training, samples = self._training, self._samples
        inputs, neurons = samples.inputs[:n_in], training.neurons
        read = n_in + len(samples.targets) * training.candidates
        weights, n = self.parameters[:, 0, :read], inputs.shape[1]
        records = np.zeros((len(neurons), len(RECORD)))
        gradients = np.zeros(self.parameters[:, 0].shape)
        if training.candidates:
            gradients[:, :read], records[:, 1] = oracle.candidates_epoch(
                inputs, samples.residuals, neurons, weights
            )
            now = StepInfo(training.rule.rate, n, steps, error,
                           (seed + number) % 2**32)
        else:
            gradients[:, :read], records = oracle.outputs_epoch(
                inputs, samples.targets, neurons, weights,
                loss_function(training.loss), self._scales,
                float(np.float32(training.bit_fail_limit)), training.fann_compatible,
            )
            mse = records[:, 1].sum() / (n * len(neurons))
            now = StepInfo(training.rule.rate, n, steps + number, mse, seed)
        # In one step: random numbers are by the element's offset.
        flat = self.parameters[:, 0].ravel()
        state = self.parameters[:, 1:].swapaxes(0, 1).reshape(training.rule.slots, -1)
        training.rule.step(flat, gradients.ravel(), state, now)
        shape = self.parameters[:, 0].shape
        self.parameters[:, 0] = flat.reshape(shape)
        self.parameters[:, 1:] = state.reshape(-1, *shape).swapaxes(0, 1)
        self.parameters[:, :, read:] = 0
        return records

    def weights(self, n: int) -> Array:
        """Return the weights [neurons, n]."""
        return self.parameters[:, 0, :n].copy()


class ReferenceBinding:
    """A training's launches; see `launches.CascadeBinding`."""

    name = "NumPy"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._samples = [ReferenceSamples(one) for one in parts.samples]
        first = self._samples[0]
        self.outputs: ReferenceGroup = ReferenceGroup(first, parts.outputs)
        self.candidates: ReferenceGroup = ReferenceGroup(
            first, parts.candidates
        )
        self.install: list[Callable[[int, int, int], None]] = [
            partial(self._install, one) for one in self._samples
        ]
        self.errors: list[Callable[[int, int, int], None]] = [
            partial(self._errors, one) for one in self._samples
        ]
        self._scales = neuron_table(parts.outputs)["error_scale"].astype(float)

    def upload(self, number: int, inputs: Array, targets: Array) -> None:
        """Fill the memory of samples by values [read, n] and targets [outputs, n]."""
        self._samples[number].inputs[: len(inputs)] = inputs
        self._samples[number].targets[...] = targets

    def residuals(self, number: int) -> Array:
        """Return the scaled errors [outputs, n] of samples."""
        return self._samples[number].residuals.copy()

    def keep(self) -> None:
        """Leave nothing: there is no memory of a device."""

    def _install(
        self, samples: ReferenceSamples, neuron: int, n_in: int, row: int
    ) -> None:
        weights = self.candidates.parameters[neuron, 0, :n_in]
        with silent():
            samples.inputs[row] = oracle.value(
                self._parts.added[neuron], weights @ samples.inputs[:n_in]
            )

    def _errors(
        self, samples: ReferenceSamples, output: int, n_in: int, row: int
    ) -> None:
        neuron = self._parts.outputs.neurons[output]
        weights = self.outputs.parameters[output, 0, :n_in]
        with silent():
            y = oracle.value(neuron, weights @ samples.inputs[:n_in])
            samples.residuals[row] = (samples.targets[row] - y) * self._scales[output]

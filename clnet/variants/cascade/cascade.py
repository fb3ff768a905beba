"""cascade: epochs of the neurons of cascade training, for CPUs and for GPUs.

Not a variant of ops: the neurons' number grows, so that kernels take all sizes as
arguments, and are built once a training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.loss import RECORD
from clnet.nn.activations import activation
from clnet.nn.cascade import Neuron, candidate_gradient
from clnet.nn.storage.layout import round_up
from clnet.opencl.launch import Argument, Launch, Scalar, Scratch
from clnet.variants.base import team_group
from clnet.variants.dense.cpu import serial_companion
from clnet.variants.macros import (
    gradient_defines,
    gradient_function,
    kernel_function,
    loss_function_defines,
    rows_macro,
)
from clnet.variants.training.epoch import SYNC_WORDS
from clnet.variants.training.optimisers import NO_REGULARISATION, optimiser_defines
from clnet.variants.training.whole_step import LANES, NEURON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device

TILE = 64  # samples of a tile
BLOCK = 4  # neurons that a CPU's worker trains together, at most
GROUP, TEAM = 256, 32  # work-items of a GPU's group, and of a team of it
# Arguments of a training's launches that change from launch to launch.
CHANGING = (
    Scalar("from"), Scalar("to"), Scalar("n_in"), Scalar("epochs"), Scalar("steps"),
    Scalar("rate", "real"), Scalar("error", "real"), Scalar("seed", "uint"),
)


@dataclass(frozen=True)
class CascadeSamples:
    """The memory of samples, of which neurons are trained or valued."""

    name: str  # Names its buffers
    samples: int  # Their number
    # Values of a sample at most: inputs, the constant 1, and all hidden neurons
    rows: int
    outputs: int  # Outputs of the network

    @property
    def padded(self) -> int:
        """Samples of whole tiles."""
        return round_up(self.samples, TILE)

    def tiled(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return values [rows, samples] by tiles [tiles, rows, TILE], padded by 0."""
        rows = np.zeros((len(values), self.padded), np.float32)
        rows[:, : self.samples] = values
        return np.ascontiguousarray(
            rows.reshape(len(values), -1, TILE).transpose(1, 0, 2)
        )

    def plain(self, tiled: NDArray[Any]) -> NDArray[Any]:
        """Return values [rows, samples] from tiles, flat."""
        tiles = tiled.reshape(self.padded // TILE, -1, TILE).transpose(1, 0, 2)
        return tiles.reshape(tiles.shape[0], -1)[:, : self.samples]

    @property
    def inputs(self) -> Scratch:
        """Values of all earlier neurons [tiles, rows, TILE]."""
        return Scratch(f"{self.name} inputs", 4 * self.rows * self.padded)

    @property
    def targets(self) -> Scratch:
        """Targets [tiles, outputs, TILE]."""
        return Scratch(f"{self.name} targets", 4 * self.outputs * self.padded)

    @property
    def residuals(self) -> Scratch:
        """Scaled errors of the outputs [tiles, outputs, TILE]."""
        return Scratch(f"{self.name} residuals", 4 * self.outputs * self.padded)


@dataclass(frozen=True)
class NeuronsTraining:
    """The training of candidates, or of outputs."""

    samples: CascadeSamples  # The training set
    neurons: tuple[Neuron, ...]  # The candidates or outputs
    candidates: bool  # Which of both they are
    rule: Optimiser  # The update rule of their weights
    loss: str  # Of outputs
    bit_fail_limit: float  # Of outputs: error from which on an output has failed
    epochs: int  # Of a launch at most
    halved: bool  # Whether errors of symmetric outputs are halved
    fann_compatible: bool  # Whether derivatives of outputs are FANN's
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """Names the buffers of the neurons alone."""
        return "candidates" if self.candidates else "outputs"

    @property
    def stride(self) -> int:
        """Weights of a neuron, padded."""
        return round_up(
            self.samples.rows + self.samples.outputs * self.candidates, LANES
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Parameters of all neurons: [neurons, 1 + slots, stride]."""
        return len(self.neurons), 1 + self.rule.slots, self.stride

    @property
    def size(self) -> int:
        """Elements of `shape`."""
        return math.prod(self.shape)

    @property
    def parameters(self) -> Scratch:
        """Two copies of the weights and state of all neurons, of which one is read."""
        return Scratch(f"{self.name} parameters", 8 * self.size)

    @property
    def records(self) -> Scratch:
        """The records [epochs, neurons, RECORD] of a launch."""
        size = 4 * self.epochs * len(self.neurons) * len(RECORD)
        return Scratch(f"{self.name} records", size)

    @property
    def table(self) -> Scratch:
        """The neurons' table."""
        return Scratch(f"{self.name} table", len(self.neurons) * NEURON.itemsize)

    def launch(self, device: Device) -> Launch:
        """Return the launch of some epochs."""
        samples, count = self.samples, len(self.neurons)
        outputs = samples.outputs
        together = not self.candidates and (self.rule.reads_error or not _cpu(device))
        per_unit = count if together else 1
        targets = samples.residuals if self.candidates else samples.targets
        start, to, n_in, epochs, steps, rate, error, seed = CHANGING
        block = min(BLOCK, count)
        memory, geometry = self._geometry(device, per_unit, block)
        arguments: tuple[Argument, ...] = (
            samples.inputs, targets, self.table, self.parameters, self.records, memory,
            start, to, count, per_unit, outputs, n_in, samples.rows, self.stride,
            samples.samples, epochs, rate, error, steps, seed, self.bit_fail_limit,
        )
        defines: dict[str, int | str] = {
            **_function_defines(self.neurons, self.candidates, self.fann_compatible),
            **loss_function_defines(self.loss, self),
            **optimiser_defines(self.rule, self), **NO_REGULARISATION,
            "CANDIDATES": int(self.candidates), "RECORD": len(RECORD),
        }
        if not _cpu(device):
            return Launch(
                "cascade/group_cascade.cl", "group_cascade",
                {
                    **defines, "RATIONAL_TANH": 1, "GROUP": geometry[1],
                    "TEAM": min(TEAM, geometry[1]),
                },
                geometry[:1], geometry[1:], arguments,
            )
        sync = Scratch(f"{self.name} sync", 4 * SYNC_WORDS)
        return Launch(
            "cascade/cascade.cl", "cascade", {**defines, "BLOCK": block},
            geometry[:1], geometry[1:],
            (*arguments, memory.size // 4 // geometry[0], sync),
            device=serial_companion(device) if geometry[0] == 1 else None,
        )

    def _geometry(
        self, device: Device, per_unit: int, block: int
    ) -> tuple[Scratch, tuple[int, int]]:
        """Return the kernel's memory, and its global and local size."""
        count, name = len(self.neurons), f"{self.name} memory"
        if _cpu(device):
            blocks = -(-count // block)
            workers = min(device.compute_units, blocks if per_unit == 1 else 1)
            of_worker = block * (1 if per_unit == 1 else blocks) * self.stride * LANES
            return Scratch(name, 4 * workers * of_worker), (workers, 1)
        group = team_group(GROUP, device)
        memory = Scratch(name, 4 * 2 * count * self.samples.padded)
        return memory, (count // per_unit * group, group)


def _cpu(device: Device) -> bool:
    return device.type == "cpu"


@dataclass(frozen=True)
class NeuronValues:
    """The computation of single neurons' values, or errors, of all samples."""

    samples: CascadeSamples  # Whose inputs are read
    neurons: tuple[Neuron, ...]  # Of a network, rows of a table
    parameters: Scratch  # Of the `NeuronsTraining` that has their weights
    # False: a neuron's values become a row of the inputs; True: the scaled errors of an
    # output become one of the residuals
    residuals: bool
    halved: bool  # As for `NeuronsTraining`
    fann_compatible: bool

    @property
    def table(self) -> Scratch:
        """The neurons' table."""
        name = f"{self.parameters.name} values"
        return Scratch(name, len(self.neurons) * NEURON.itemsize)

    def launch(self, device: Device) -> Launch:
        """Return the launch of one neuron."""
        samples = self.samples
        width = LANES if _cpu(device) else 1
        rows = samples.outputs if self.residuals else samples.rows
        return Launch(
            "cascade/cascade_values.cl", "cascade_values",
            {
                **_function_defines(self.neurons, False, self.fann_compatible),
                "WIDTH": width, "RESIDUALS": int(self.residuals),
            },
            (samples.padded // width,), (TILE // width,),
            (
                samples.inputs, samples.targets, self.table, self.parameters,
                samples.residuals if self.residuals else samples.inputs,
                Scalar("number"), Scalar("offset"), Scalar("n_in"), samples.rows, rows,
                Scalar("row"), samples.samples,
            ),
            device=serial_companion(device),
        )


def _function_defines(
    neurons: Sequence[Neuron], candidates: bool, fann_compatible: bool
) -> dict[str, int | str]:
    """Return the macros of ``neurons.h`` and ``gradients.h``."""
    functions = _functions(neurons, candidates, fann_compatible)
    return {
        "FUNCTIONS(X)": rows_macro(functions),
        **gradient_defines(_Float32()), "TILE": TILE,
    }


class _Float32:
    dtype = "float32"


def _functions(
    neurons: Sequence[Neuron], candidates: bool, fann_compatible: bool
) -> list[tuple[str, str, str]]:
    """Return the distinct functions: function, derivative, the derivative's input."""
    return list(dict.fromkeys(
        _function(neuron.activation, candidates, fann_compatible) for neuron in neurons
    ))


def _function(
    name: str, candidates: bool, fann_compatible: bool
) -> tuple[str, str, str]:
    if not candidates:
        gradient, by_v = gradient_function(name, fann_compatible)
        return kernel_function(name), gradient, "AT_PRE_ACTIVATION" if by_v else "AT_Y"
    fann_gradient, reads = candidate_gradient(name)
    gradient, _ = gradient_function(name, fann_gradient)
    if name.startswith(("sin", "cos")):
        return f"bounded_{name}", f"bounded_{gradient}", "AT_PRE_ACTIVATION"
    reading = {"y": "AT_Y", "v": "AT_PRE_ACTIVATION", "x": "AT_SUM"}[reads]
    return kernel_function(name), gradient, reading


def neuron_table(of: NeuronsTraining | NeuronValues) -> NDArray[Any]:
    """Return the kernels' table of neurons."""
    candidates = isinstance(of, NeuronsTraining) and of.candidates
    functions = _functions(of.neurons, candidates, of.fann_compatible)
    rows = np.zeros(len(of.neurons), NEURON)
    rows["function"] = [
        functions.index(_function(neuron.activation, candidates, of.fann_compatible))
        for neuron in of.neurons
    ]
    rows["steepness"] = [neuron.steepness for neuron in of.neurons]
    rows["limit"] = [neuron.limit for neuron in of.neurons]
    rows["error_scale"] = [
        0.5 if of.halved and activation(neuron.activation).symmetric else 1.0
        for neuron in of.neurons
    ]
    return rows

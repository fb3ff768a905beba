"""The end of a training step: the norm of the gradient, and the optimiser's rule.

Gradients are those of the sum over samples of the samples' losses. They live in one
flat buffer of the parameters' layout; the gradient of each slot is a value of its own,
so that a span knows those that are read outside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clnet.ir.op import Array, Op, Value, Values
from clnet.nn.regularisation import PLAIN, Regularisation
from clnet.nn.storage.layout import copy_live, live_elements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clnet.nn.optimisers import Optimiser
    from clnet.nn.storage.base import Storage
    from clnet.nn.storage.layout import Layout, Slot

UPDATED = 1 << 14  # parameters that a rule updates at a time


@dataclass(frozen=True)
class GradientNorm(Op):
    """The Euclidean norm of the mean gradient, penalties of weights included."""

    NAME: ClassVar[str] = "norm"
    READS: ClassVar[tuple[str, ...]] = ("gradients",)
    WRITES: ClassVar[tuple[str, ...]] = ("norm",)

    # Gradients of the slots that the loss depends on; those of others are zero
    gradients: tuple[Value, ...]
    slots: tuple[Slot, ...]  # Their slots
    norm: Value  # Written, [1, 1]
    regularisation: Regularisation  # The penalties
    layout: Layout  # Layout of the flat buffer
    # Storages of all layers, which know the live elements
    storages: tuple[Storage, ...]

    @property
    def signature(self) -> str:
        """The name, with the size."""
        return f"norm[{self.layout.size}]"

    @property
    def gradient_slots(self) -> Mapping[Value, Slot]:
        """Those that it reads."""
        return dict(zip(self.gradients, self.slots, strict=True))

    def run(self, values: Values, parameters: Array) -> None:
        """Take the norm of the live elements."""
        live = live_elements(self.layout, self.storages)
        flat = _penalised(self, values, parameters)
        norm = np.linalg.norm(flat[live] / flat.dtype.type(int(values["samples"])))
        values[self.norm.name] = np.reshape(norm, (1, 1)).astype(flat.dtype)


@dataclass(frozen=True)
class Update(Op):
    """One step of an optimiser over the live elements of the flat buffer."""

    NAME: ClassVar[str] = "update"
    READS: ClassVar[tuple[str, ...]] = ("gradients", "totals", "norm")
    WRITES: ClassVar[tuple[str, ...]] = ("parameters",)

    # Gradients of the slots that the loss depends on; those of others are zero
    gradients: tuple[Value, ...]
    slots: tuple[Slot, ...]  # Their slots
    totals: Value  # Totals of the epoch so far, for optimisers that read its error
    parameters: Value  # Written: the flat buffer itself, [1, size]
    optimiser: Optimiser  # The rule, and its constants
    layout: Layout  # Layout of the flat buffer
    # Storages of all layers, which know the live elements
    storages: tuple[Storage, ...]
    outputs: int  # Outputs per sample: the epoch's error is averaged over them
    # Penalties and clipping, which precede the rule
    regularisation: Regularisation = PLAIN
    norm: Value | None = None  # Norm of the gradient, where it is clipped by it

    @property
    def signature(self) -> str:
        """The rule's name, with the size."""
        return f"{self.optimiser.name}[{self.layout.size}]"

    @property
    def gradient_slots(self) -> Mapping[Value, Slot]:
        """Those that it reads."""
        return dict(zip(self.gradients, self.slots, strict=True))

    def run(self, values: Values, parameters: Array) -> None:
        """Change parameters and state in place."""
        from clnet.nn.optimisers import StepInfo  # no prediction needs the module

        samples = int(values["samples"])
        norm = 0.0 if self.norm is None else float(values[self.norm.name][0, 0])
        flat = self.regularisation.clipped(
            _penalised(self, values, parameters), samples, norm
        )
        error = float(values[self.totals.name][0, 1])
        now = StepInfo(
            rate=float(values["rate"]), samples=samples, count=int(values["count"]),
            mse=error / (int(values["seen"]) * self.outputs), seed=int(values["seed"]),
        )
        w, state = parameters.copy(), values["state"].copy()
        # A rule for each element, in parts that stay in a core's cache.
        size = w.size if self.optimiser.uses_offset else UPDATED
        for first in range(0, w.size, size):
            piece = slice(first, first + size)
            self.optimiser.step(w[piece], flat[piece], state[:, piece], now)
        copy_live(self.layout, self.storages, w, parameters)
        for new, old in zip(state, values["state"], strict=True):
            copy_live(self.layout, self.storages, new, old)
        values[self.parameters.name] = parameters[np.newaxis]


def _penalised(op: GradientNorm | Update, values: Values, parameters: Array) -> Array:
    """Return the flat gradient, those of the penalties included."""
    flat = np.zeros(op.layout.size, parameters.dtype)
    for value, slot in op.gradient_slots.items():
        slot.of(flat)[...] = values[value.name][0]
    samples = int(values["samples"])
    return op.regularisation.penalised(
        parameters, flat, samples, op.layout.biases_start
    )

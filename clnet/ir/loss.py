"""The loss of a batch with its derivative, and its sums over an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clnet.ir.op import Array, Op, Value, Values
from clnet.nn.losses import loss_function, sigmoid, softmax

RECORD = ("loss", "squared error", "bit fails")
"""The metrics of each sample, which are summed over an epoch."""


@dataclass(frozen=True)
class Loss(Op):
    """The samples' losses, their derivatives, and the record of each sample.

    Rows of the batch from ``samples`` on, which is set before each step, are ignored.
    """

    NAME: ClassVar[str] = "loss"
    READS: ClassVar[tuple[str, ...]] = ("y", "t", "weight")
    WRITES: ClassVar[tuple[str, ...]] = ("dy", "record")

    y: Value  # The outputs, or the logits if the loss is fused with sigmoid or softmax
    t: Value  # Targets
    # Factor [batch, 1] of each sample's loss, of mean 1 over the step; None: 1
    weight: Value | None
    dy: Value  # Derivative of the loss by `y`
    # Written, [batch, 3]: `RECORD`; the weight scales all but the bit fails
    record: Value
    loss: str  # A name of `losses`
    # Outputs whose error is halved, as FANN does for symmetric activations: one for
    # all, or one an output
    halved: tuple[bool, ...]
    bit_fail_limit: float  # Errors of at least this size are bit fails

    @property
    def signature(self) -> str:
        """The loss's name, with the width."""
        return f"{self.loss}[{self.y.width}]"

    def run(self, values: Values, parameters: Array) -> None:
        """Compute the loss's row of `nn.losses`, and its mean where it is one."""
        y, t = values[self.y.name], values[self.t.name]
        row = loss_function(self.loss)
        half = np.where(self.halved, 0.5, 1.0).astype(y.dtype)
        each, slope = row.value(y, t, half), row.gradient(y, t, half)
        if row.mean:
            slope = slope / y.dtype.type(self.y.width)
        total = each.mean(axis=1) if row.mean else each.sum(axis=1)
        outputs = {None: lambda z: z, "sigmoid": sigmoid, "softmax": softmax}
        error = (t - outputs[row.fused](y)) * half
        record = np.empty((len(y), len(RECORD)), y.dtype)
        record[:, 0] = total
        record[:, 1] = np.square(error).sum(axis=1)
        zero = y.dtype.type(0)
        if self.weight is not None:
            weight = values[self.weight.name]
            # A weight of 0 counts for nothing, where 0 times an overflow would be NaN.
            record[:, :2] = np.where(weight == 0, zero, record[:, :2] * weight)
            slope = np.where(weight == 0, zero, slope * weight)
        record[:, 2] = (np.abs(error) >= y.dtype.type(self.bit_fail_limit)).sum(axis=1)
        counted = np.arange(len(y))[:, np.newaxis] < values.get("samples", len(y))
        values[self.dy.name] = np.where(counted, slope, zero)
        values[self.record.name] = np.where(counted, record, zero)


@dataclass(frozen=True)
class Tally(Op):
    """Records summed over the batch, and added to those of the epoch so far."""

    NAME: ClassVar[str] = "tally"
    READS: ClassVar[tuple[str, ...]] = ("record",)
    WRITES: ClassVar[tuple[str, ...]] = ("totals",)

    record: Value  # One row per sample
    # [1, 6]: the sums of `RECORD`, then the rounding error of each so far (compensated
    # summation), which keeps long epochs exact. They start at zero where `fresh` is
    # set.
    totals: Value

    @property
    def signature(self) -> str:
        """The name: its cost depends on the batch alone."""
        return "tally"

    def run(self, values: Values, parameters: Array) -> None:
        """Sum the records; rounding errors are left out."""
        record = values[self.record.name]
        sums = np.concatenate([record.sum(axis=0), np.zeros(len(RECORD), record.dtype)])
        if not values.get("fresh", True):
            sums = sums + values[self.totals.name][0]
        values[self.totals.name] = sums[np.newaxis]

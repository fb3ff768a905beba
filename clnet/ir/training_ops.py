"""The ops of a training step beyond the forward ones: loss, backward, update.

Gradients are those of the sum over samples of the samples' losses. They live in one
flat buffer of the parameters' layout; the gradient of each slot is a value of its own,
so that a span knows those that are read outside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from clnet.ir.ops import Nonlinearity, Op, Value
from clnet.nn.random import HASH_BITS, stream
from clnet.nn.regularisation import PLAIN, Regularisation
from clnet.nn.storage.base import Storage, rounded_size

if TYPE_CHECKING:
    from clnet.ir.ops import Program
    from clnet.nn.optimisers import Optimiser
    from clnet.nn.storage.layout import Layout, Slot

RECORD = ("loss", "squared error", "bit fails")
"""The metrics of each sample, which are summed over an epoch."""


def gradient(name: str, slot: Slot) -> Value:
    """Return the value for the gradient of a slot of the parameters."""
    return Value(name, slot.size, slot.size, rows=1)


@dataclass(frozen=True)
class Gather(Op):
    """Row i of a batch is row ``order(first + i)`` of the data set.

    ``first`` is set before each step. Beyond the data set's end the order wraps around;
    the loss ignores those rows.
    """

    READS: ClassVar[tuple[str, ...]] = ("data",)
    WRITES: ClassVar[tuple[str, ...]] = ("batch",)

    # The data set's arrays, of equally many rows, and the batch's
    data: tuple[Value, ...]
    batch: tuple[Value, ...]
    # Whether the order is `nn.random.permuted` by the epoch's key; else it is the data
    # set's own
    shuffled: bool

    @property
    def samples(self) -> int:
        """Rows of the data set."""
        return self.data[0].height(0)

    @property
    def signature(self) -> str:
        """The widths, and whether rows are shuffled."""
        widths = ",".join(str(value.width) for value in self.data)
        return f"{'shuffle' if self.shuffled else 'slice'}[{self.samples},{widths}]"


@dataclass(frozen=True)
class Dropout(Op):
    """``y = x * factor``, or 0 where dropped: of outputs, or backward of derivatives.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from
    overfitting", 2014; scaled in training, so that inference needs no change. The mask
    is a hash of the seed, the step's count, the layer, the sample's index in the batch,
    and the neuron.
    """

    READS: ClassVar[tuple[str, ...]] = ("x",)
    WRITES: ClassVar[tuple[str, ...]] = ("y",)

    x: Value  # Read, and written
    y: Value
    layer: int  # Number of the layer, counted from 1
    fraction: float  # Share that is dropped, at least 0 and below 1

    @property
    def threshold(self) -> int:
        """Neurons with a hash below it are dropped."""
        return round(self.fraction * (1 << HASH_BITS))

    @property
    def factor(self) -> float:
        """The scale that preserves the mean."""
        return 1 / (1 - self.fraction)

    @property
    def stream(self) -> int:
        """The word that is XORed to the seed for the layer's own hashes."""
        return stream(self.layer)

    @property
    def signature(self) -> str:
        """The name, with the width."""
        return f"dropout[{self.x.width}]"


@dataclass(frozen=True)
class Loss(Op):
    """The samples' losses, their derivatives, and the record of each sample.

    Rows of the batch from ``samples`` on, which is set before each step, are ignored.
    """

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


@dataclass(frozen=True)
class Tally(Op):
    """Records summed over the batch, and added to those of the epoch so far."""

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


@dataclass(frozen=True)
class ActGrad(Op):
    """``dz = dy * f'(v) * steepness``, with ``v = steepness * (z + bias)``."""

    READS: ClassVar[tuple[str, ...]] = ("dy", "y", "z")
    WRITES: ClassVar[tuple[str, ...]] = ("dz",)

    # Derivatives of the loss by the layer's output, and by its pre-activation
    dy: Value
    dz: Value
    # Arguments of the functions' derivatives; None: no derivative reads it
    y: Value | None
    z: Value | None
    bias: Slot | None  # The layer's biases
    nonlinearity: Nonlinearity  # f; where it is FANN-compatible, so are its derivatives

    @property
    def shared(self) -> bool:
        """Whether one bias serves all neurons."""
        return self.bias is not None and self.bias.size < self.dz.width

    @property
    def signature(self) -> str:
        """The function's, with the width."""
        return f"d{self.nonlinearity.signature}[{rounded_size(self.dz.width)}]"


@dataclass(frozen=True)
class ApplyT(Op):
    """``dx = dz A``: derivatives propagated back through a layer's matrix.

    Or ``dx += dz A`` if `accumulate`: an output may have several readers.
    """

    WRITES: ClassVar[tuple[str, ...]] = ("dx",)

    dz: Value
    dx: Value
    storage: Storage
    weights: Slot
    accumulate: bool = False

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The input dz, and the previous dx if it accumulates."""
        return (self.dz, self.dx) if self.accumulate else (self.dz,)

    @property
    def signature(self) -> str:
        """The storage's, and whether it accumulates."""
        return ("+=" if self.accumulate else "") + self.storage.signature + "ᵀ"


@dataclass(frozen=True)
class Outer(Op):
    """The weights' gradient: at live entry (i, j), ``dz[:, i] · x[:, j]``.

    Padding of the gradient is unspecified: `GradientNorm` and `Update` read the live
    elements alone.
    """

    READS: ClassVar[tuple[str, ...]] = ("dz", "x")
    WRITES: ClassVar[tuple[str, ...]] = ("gradient",)

    dz: Value
    x: Value
    gradient: Value
    storage: Storage
    weights: Slot

    @property
    def signature(self) -> str:
        """The storage's."""
        return f"outer-{self.storage.signature}"


@dataclass(frozen=True)
class BiasGrad(Op):
    """The biases' gradient: ``dz`` summed over the batch.

    Summed over the neurons too, where they share one bias.
    """

    READS: ClassVar[tuple[str, ...]] = ("dz",)
    WRITES: ClassVar[tuple[str, ...]] = ("gradient",)

    dz: Value
    gradient: Value
    bias: Slot

    @property
    def signature(self) -> str:
        """The name, with the width, and whether there is one bias for all."""
        return f"d{'shared-' * self.shared}bias[{rounded_size(self.dz.width)}]"

    @property
    def shared(self) -> bool:
        """Whether one bias serves all neurons."""
        return self.bias.size < self.dz.width


@dataclass(frozen=True)
class GradientNorm(Op):
    """The Euclidean norm of the mean gradient, penalties of weights included."""

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


@dataclass(frozen=True)
class Update(Op):
    """One step of an optimiser over the live elements of the flat buffer."""

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


def split_program(program: Program) -> tuple[Program, Program]:
    """Return the program of a step's gradients and the program of its update."""
    start = next(
        i for i, op in enumerate(program.ops) if isinstance(op, (GradientNorm, Update))
    )
    (update,) = (op for op in program.ops if isinstance(op, Update))
    outputs = (update.totals, *update.gradients)
    gradients = replace(program, ops=program.ops[:start], outputs=outputs)
    return gradients, replace(program, ops=program.ops[start:], inputs=outputs)

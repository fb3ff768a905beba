"""The ops of a training step beyond the forward ones: loss, backward, update.

Gradients are those of the sum over samples of the samples' losses. They live in one
flat buffer of the parameters' layout; each slot's is a value of its own, so that a span
knows which are needed outside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from clnet.ir.ops import Nonlinearity, Op, Value
from clnet.nn.optimisers import Optimiser
from clnet.nn.random import HASH_BITS, stream
from clnet.nn.regularisation import PLAIN, Regularisation
from clnet.nn.storage.base import Storage, about
from clnet.nn.storage.layout import Layout, Slot

RECORD = ("loss", "squared error", "bit fails")
"""What is counted of each sample, and added up over an epoch."""

SCALARS = (
    "first", "samples", "seen", "fresh", "rate", "count", "seed", "key", "steps",
    "record_offset", "record_stride",
)
"""What is set from step to step: the number of the batch's first sample in the epoch's
order, its samples, those of the epoch so far with it, whether the totals start anew,
the learning rate, the steps taken before, the seed of the optimiser's random numbers,
the key of the epoch's order. A launch that takes ``steps`` does so many steps in a
row, with ``samples`` in all, from the one on that the others describe. One that takes
``apart`` does as many epochs of those samples as there are steps for: the first one's
totals begin with value ``place``, the next ones' lie ``apart`` behind each other."""


def gradient(name: str, slot: Slot) -> Value:
    """Return the value that is the gradient of a slot of the parameters."""
    return Value(name, slot.size, slot.size, rows=1)


@dataclass(frozen=True)
class Gather(Op):
    """Row i of a batch is row ``order(first + i)`` of the data set.

    ``first`` is set from step to step. Past the data set's end the order starts again:
    the loss takes those rows for no samples.

    Attributes
    ----------
    data, batch : tuple of Value
        The data set's arrays, of equally many rows, and the batch's.
    shuffled : bool
        Whether the order is `shuffling.permuted` by a key set from epoch to epoch;
        else it is the data set's own.
    """

    READS: ClassVar = ("data",)
    WRITES: ClassVar = ("batch",)

    data: tuple[Value, ...]
    batch: tuple[Value, ...]
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
    """``y = x * factor``, or 0 where dropped: outputs, or on the way back derivatives.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from
    overfitting", 2014; scaled in training, so that inference needs no change. Which
    are dropped is a hash of the seed, the step's count, the layer, the sample's number
    in the batch, and the neuron.

    Attributes
    ----------
    x, y : Value
        Read, and written.
    layer : int
        Which layer's, counted from 1.
    fraction : float
        How many are dropped, at least 0 and below 1.
    """

    READS: ClassVar = ("x",)
    WRITES: ClassVar = ("y",)

    x: Value
    y: Value
    layer: int
    fraction: float

    @property
    def threshold(self) -> int:
        """Hashes below it drop."""
        return round(self.fraction * (1 << HASH_BITS))

    @property
    def factor(self) -> float:
        """What keeps the mean."""
        return 1 / (1 - self.fraction)

    @property
    def stream(self) -> int:
        """What is XORed to the seed for the layer's own hashes."""
        return stream(self.layer)

    @property
    def signature(self) -> str:
        """The name, with the width."""
        return f"dropout[{self.x.width}]"


@dataclass(frozen=True)
class Loss(Op):
    """The samples' losses, their derivatives, and the record of each sample.

    Samples from the number ``samples`` on, which is set from step to step, count for
    nothing.

    Attributes
    ----------
    y : Value
        The outputs; before sigmoid or softmax, if the loss is fused with it.
    t : Value
        Targets.
    weight : Value or None
        Factor [batch, 1] of each sample's loss; None: 1.
    dy : Value
        Derivative of the loss by `y`.
    record : Value
        Written, [batch, 3]: `RECORD`, the loss with the sample's weight, the others
        without.
    loss : str
        A name of `losses`.
    halved : tuple of bool
        Outputs whose error is halved, as FANN does for symmetric activations: one for
        all, or one an output.
    bit_fail_limit : float
        Errors of at least this size are bit fails.
    """

    READS: ClassVar = ("y", "t", "weight")
    WRITES: ClassVar = ("dy", "record")

    y: Value
    t: Value
    weight: Value | None
    dy: Value
    record: Value
    loss: str
    halved: tuple[bool, ...]
    bit_fail_limit: float

    @property
    def signature(self) -> str:
        """The loss's name, with the width."""
        return f"{self.loss}[{self.y.width}]"


@dataclass(frozen=True)
class Tally(Op):
    """Records summed over the batch, and added to those of the epoch so far.

    Attributes
    ----------
    record : Value
        One row a sample.
    totals : Value
        [1, 6]: the sums of `RECORD`, then what rounding took from each so far, which
        keeps long epochs exact. Starts anew where ``fresh``, set from step to step.
    """

    READS: ClassVar = ("record",)
    WRITES: ClassVar = ("totals",)

    record: Value
    totals: Value

    @property
    def signature(self) -> str:
        """The name: it depends on the batch alone."""
        return "tally"


@dataclass(frozen=True)
class ActGrad(Op):
    """``ds = dy * f'(v) * steepness``, with ``v = steepness * (sums + bias)``.

    Attributes
    ----------
    dy, ds : Value
        Derivatives of the loss by the layer's output, and by its sums.
    y, sums : Value or None
        What the derivatives of the layer's functions read; None: none reads it.
    bias : Slot or None
        The layer's biases.
    nonlinearity : Nonlinearity
        f; where it is FANN-compatible, so are its derivatives.
    """

    READS: ClassVar = ("dy", "y", "sums")
    WRITES: ClassVar = ("ds",)

    dy: Value
    ds: Value
    y: Value | None
    sums: Value | None
    bias: Slot | None
    nonlinearity: Nonlinearity

    @property
    def shared(self) -> bool:
        """Whether one bias serves all neurons."""
        return self.bias is not None and self.bias.size < self.ds.width

    @property
    def signature(self) -> str:
        """The function's, with the width."""
        return f"d{self.nonlinearity.signature}[{about(self.ds.width)}]"


@dataclass(frozen=True)
class ApplyT(Op):
    """``dx = ds A``: derivatives carried back through a layer's matrix.

    Or ``dx += ds A`` if `accumulate`: a layer may have several readers.
    """

    WRITES: ClassVar = ("dx",)

    ds: Value
    dx: Value
    storage: Storage
    weights: Slot
    accumulate: bool = False

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The derivatives by the sums, and those so far if it accumulates."""
        return (self.ds, self.dx) if self.accumulate else (self.ds,)

    @property
    def signature(self) -> str:
        """The storage's, and whether it accumulates."""
        return ("+=" if self.accumulate else "") + self.storage.signature + "ᵀ"


@dataclass(frozen=True)
class Outer(Op):
    """The weights' gradient: at live entry (i, j), ``ds[:, i] · x[:, j]``.

    What padding of the gradient holds nobody reads: `GradientNorm` and `Update` know
    the live elements.
    """

    READS: ClassVar = ("ds", "x")
    WRITES: ClassVar = ("gradient",)

    ds: Value
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
    """The biases' gradient: ``ds`` summed over the batch.

    Over the neurons too, where they share one bias.
    """

    READS: ClassVar = ("ds",)
    WRITES: ClassVar = ("gradient",)

    ds: Value
    gradient: Value
    bias: Slot

    @property
    def signature(self) -> str:
        """The name, with the width, and whether there is one bias for all."""
        return f"d{'shared-' * self.shared}bias[{about(self.ds.width)}]"

    @property
    def shared(self) -> bool:
        """Whether one bias serves all neurons."""
        return self.bias.size < self.ds.width


@dataclass(frozen=True)
class GradientNorm(Op):
    """The Euclidean norm of the mean gradient, penalties of weights included.

    Attributes
    ----------
    gradients : tuple of Value
        Those of all slots.
    slots : tuple of Slot
        Where each is.
    norm : Value
        Written, [1, 1].
    regularisation : Regularisation
        The penalties.
    layout : Layout
        The flat buffer's.
    storages : tuple of Storage
        One a layer: they know which elements are live.
    """

    READS: ClassVar = ("gradients",)
    WRITES: ClassVar = ("norm",)

    gradients: tuple[Value, ...]
    slots: tuple[Slot, ...]
    norm: Value
    regularisation: Regularisation
    layout: Layout
    storages: tuple[Storage, ...]

    @property
    def signature(self) -> str:
        """The name, with the size."""
        return f"norm[{self.layout.size}]"


@dataclass(frozen=True)
class Update(Op):
    """One step of an optimiser over the live elements of the flat buffer.

    Attributes
    ----------
    gradients : tuple of Value
        Those of all slots.
    slots : tuple of Slot
        Where each is.
    totals : Value
        The epoch's so far, for optimisers that read its error.
    parameters : Value
        Written: the flat buffer itself, [1, size].
    optimiser : Optimiser
        Its rule, and its constants.
    layout : Layout
        The flat buffer's.
    storages : tuple of Storage
        One a layer: they know which elements are live.
    outputs : int
        Outputs a sample: the epoch's error is averaged over them.
    regularisation : Regularisation
        What is done to the gradients before.
    norm : Value or None
        The gradient's, where it is clipped by its norm.
    """

    READS: ClassVar = ("gradients", "totals", "norm")
    WRITES: ClassVar = ("parameters",)

    gradients: tuple[Value, ...]
    slots: tuple[Slot, ...]
    totals: Value
    parameters: Value
    optimiser: Optimiser
    layout: Layout
    storages: tuple[Storage, ...]
    outputs: int
    regularisation: Regularisation = PLAIN
    norm: Value | None = None

    @property
    def signature(self) -> str:
        """The rule's name, with the size."""
        return f"{self.optimiser.name}[{self.layout.size}]"

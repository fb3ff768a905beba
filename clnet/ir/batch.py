"""Ops by the number of a sample: the gather of a batch, and dropout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clnet.ir.op import Array, Derivatives, Op, Value, Values
from clnet.nn.random import HASH_BITS, hashes, permuted, stream

if TYPE_CHECKING:
    from collections.abc import Iterator


def ordered(values: Values, samples: int, shuffled: bool) -> Array:
    """Return the rows of a data set that make a batch."""
    rows: Array = (int(values["first"]) + np.arange(int(values["batch"]))) % samples
    return permuted(rows, samples, values["key"]) if shuffled else rows


@dataclass(frozen=True)
class Gather(Op):
    """Row i of a batch is row ``order(first + i)`` of the data set.

    ``first`` is set before each step. Beyond the data set's end the order wraps around;
    the loss ignores those rows.
    """

    NAME: ClassVar[str] = "gather"
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

    def run(self, values: Values, parameters: Array) -> None:
        """Copy the rows."""
        rows = ordered(values, self.samples, self.shuffled)
        for data, batch in zip(self.data, self.batch, strict=True):
            values[batch.name] = values[data.name][rows]


@dataclass(frozen=True)
class Dropout(Op):
    """``y = x * factor``, or 0 where dropped: of outputs, or backward of derivatives.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from
    overfitting", 2014; scaled in training, so that inference needs no change. The mask
    is a hash of the seed, the step's count, the layer, the sample's index in the batch,
    and the neuron.
    """

    NAME: ClassVar[str] = "dropout"
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

    def run(self, values: Values, parameters: Array) -> None:
        """Drop by the hashes of the elements."""
        x = values[self.x.name]
        words = hashes(int(values["seed"]) ^ self.stream, int(values["count"]), x.size)
        mask = words.reshape(x.shape) >= self.threshold
        zero = x.dtype.type(0)
        values[self.y.name] = np.where(mask, x * x.dtype.type(self.factor), zero)

    def backward(self, d: Derivatives) -> Iterator[Op]:
        """Drop the derivatives of dropped outputs: the hashes are the same."""
        yield replace(self, x=d[self.y], y=d[self.x])

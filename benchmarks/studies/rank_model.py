"""A model of training by ranks: the time of a step from a few measured numbers.

A message of n bytes takes ``latency + n * per_byte`` seconds (the alpha-beta model),
and an addition of n bytes ``n * per_add``. The costs of all-reduce are those of R.
Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication
Operations in MPICH", International Journal of High Performance Computing Applications
19 (1), 2005.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

BLOCKS = 8  # of a step in the fixed order, unless there are more ranks
MAX_RANKS = 1024


@dataclass(frozen=True)
class Line:
    """A cost that grows linearly: ``fixed + each * n``."""

    fixed: float
    each: float

    @classmethod
    def through(cls, times: Mapping[int, float]) -> Line:
        """Return the line through measured times by size, by least relative squares.

        There are two or more. Neither cost is negative.
        """
        n = np.array(list(times), float)
        seconds = np.array(list(times.values()))
        terms = np.stack([1 / seconds, n / seconds], axis=1)
        fixed, each = np.linalg.lstsq(terms, np.ones(len(n)), rcond=None)[0]
        if fixed < 0:
            return cls(0.0, float(np.exp(np.mean(np.log(seconds / n)))))
        if each < 0:
            return cls(float(np.exp(np.mean(np.log(seconds)))), 0.0)
        return cls(float(fixed), float(each))


@dataclass(frozen=True)
class Interconnect:
    """The costs between ranks."""

    latency: float  # Seconds of an empty message
    per_byte: float  # Seconds that each byte of a message adds
    per_add: float  # Seconds to add a byte of a received gradient to one's own

    def ordered(self, n: int, ranks: int) -> float:
        """Return the seconds of a sum of n bytes by recursive doubling.

        It is clnet's fixed order: all ranks exchange all bytes log2(ranks) times.
        """
        levels = math.ceil(math.log2(ranks))
        return levels * (self.latency + n * (self.per_byte + self.per_add))

    def any_order(self, n: int, ranks: int) -> float:
        """Return the seconds of MPI's all-reduce of n bytes.

        It is the faster one of recursive doubling and Rabenseifner's algorithm, a
        reduce-scatter and an all-gather.
        """
        share = n * (ranks - 1) / ranks
        scattered = (
            2 * math.ceil(math.log2(ranks)) * self.latency
            + share * (2 * self.per_byte + self.per_add)
        )
        return min(self.ordered(n, ranks), scattered)


@dataclass(frozen=True)
class Training:
    """A training, by the costs of its steps on one rank."""

    parameters: int  # Bytes of the gradients
    step: Line  # Seconds of a step in one block, over its samples
    block: float  # Seconds that each further block of a rank adds

    def seconds(
        self, interconnect: Interconnect, ranks: int, batch: int, ordered: bool
    ) -> float:
        """Return the predicted seconds of a step of `batch` samples of all ranks.

        Ranks are a power of two if sums have the fixed order.
        """
        computed = self.step.fixed + self.step.each * math.ceil(batch / ranks)
        if not ordered:
            return computed + interconnect.any_order(self.parameters, ranks)
        further = max(BLOCKS, ranks) // ranks - 1
        return (
            computed + further * self.block
            + interconnect.ordered(self.parameters, ranks)
        )

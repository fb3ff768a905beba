"""Cases of fully connected networks, shared by tests, candidates and baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import ClnetError, unknown
from clnet.ir import reference
from clnet.ir.program import Span
from clnet.network import Network

Array = NDArray[Any]

SETS = (2, 8)  # the least and the largest number of input sets
SETS_BYTES = 1 << 26  # limit of all sets together, beyond the least number
CHECKED_SAMPLES = 8  # of a set
# Weights are Glorot's times this, the inverse of the activation's derivative at 0: else
# the output of ten sigmoid layers hardly depends on the input, and checks are weak.
GAIN = {"sigmoid": 4.0}
BIAS = 0.1  # biases are drawn from ± this
# The largest relative error, in norm, by dtype and PyTorch's name of the precision.
TOLERANCE = {
    ("float64", "highest"): 1e-12,
    ("float32", "highest"): 1e-4,
    ("float32", "high"): 1e-2,
    ("float32", "medium"): 5e-2,
}


class WrongError(ClnetError):
    """A candidate's result differs from the oracle's."""


@dataclass(frozen=True)
class Check:
    """Samples of one set of inputs, and their outputs by the float64 oracle."""

    inputs: int  # Number of the set
    rows: NDArray[np.int64]
    expected: NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A fully connected network and a batch of inputs.

    InputError: there is no tolerance for the precision in the dtype.
    """

    name: str  # For people, files and ``--case``
    sizes: tuple[int, ...]  # Inputs, then neurons of each layer
    activation: str = "sigmoid"  # Of all layers
    batch: int = 1  # Samples a call
    dtype: str = "float32"  # Of parameters, inputs and outputs
    precision: str = "highest"  # Of products, as PyTorch names it
    seed: int = 0  # Of parameters and inputs

    def __post_init__(self) -> None:
        if (self.dtype, self.precision) not in TOLERANCE:
            known = [name for dtype, name in TOLERANCE if dtype == self.dtype]
            raise unknown(f"{self.dtype} precision", self.precision, known)

    @property
    def network(self) -> Network:
        """The network; cases that differ only in the batch share it."""
        return _network(replace(self, name="", batch=1, precision="highest"))

    def build(self) -> Network:
        """Return a new network."""
        return self.spread(Network.mlp(
            self.sizes, self.activation, seed=self.seed, dtype=self.dtype
        ))

    def spread(self, network: Network) -> Network:
        """Return a network with weights times their `GAIN`, and biases of ± `BIAS`."""
        gain = np.dtype(network.dtype).type(GAIN.get(self.activation, 1.0))
        parameters = network.parameters * gain
        rng = np.random.default_rng(self.seed)
        for slot in network.layout.biases:
            assert slot is not None
            slot.of(parameters)[...] = rng.uniform(-BIAS, BIAS, slot.size)
        network.parameters = parameters
        return network

    @property
    def span(self) -> Span:
        """The whole program."""
        program = self.network.program.at(self.precision)
        return program.span(0, len(program.ops), self.batch)

    @property
    def bytes(self) -> int:
        """Least bytes read and written: parameters, inputs and outputs once."""
        return self.span.bytes

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add being two."""
        return self.span.flops

    @property
    def footprint(self) -> int:
        """Bytes of all data that are read."""
        return self.bytes

    @property
    def tolerance(self) -> float:
        """The largest relative error of a result, in norm."""
        return TOLERANCE[self.dtype, self.precision]

    def missing(self) -> str | None:
        """Return None: the data are random."""
        return None

    @cached_property
    def inputs(self) -> tuple[Array, ...]:
        """Sets of inputs [batch, n_in] in ±1, used in turn."""
        rng = np.random.default_rng(self.seed)
        shape = (self.batch, self.sizes[0])
        size = int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        least, most = SETS
        n = max(least, min(most, SETS_BYTES // size))
        return tuple(rng.uniform(-1, 1, shape).astype(self.dtype) for _ in range(n))

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Samples of the first and the last set, the first and last sample among them.

        There are two sets, so that results that ignore their inputs are noticed.
        """
        parameters = self.network.parameters.astype(np.float64)
        rows = np.unique(
            np.linspace(0, self.batch - 1, CHECKED_SAMPLES).astype(np.int64)
        )
        checks = []
        for number in (0, len(self.inputs) - 1):
            x = self.inputs[number][rows].astype(np.float64)
            expected = reference.run(self.network.program, x, parameters)
            checks.append(Check(number, rows, expected))
        return tuple(checks)


def check(case: Case, call: Callable[[Array], Array]) -> float:
    """Return the largest relative error of a candidate's results, in norm.

    WrongError: a result has another shape, is not finite, or is farther from the
    float64 oracle than the case's tolerance.
    """
    worst = 0.0
    shape = (case.batch, case.sizes[-1])
    for test in case.checks:
        y = np.asarray(call(case.inputs[test.inputs]))
        if y.shape != shape:
            raise WrongError(f"the result has shape {list(y.shape)}, not {list(shape)}")
        if not np.isfinite(y).all():
            raise WrongError("the result is not finite everywhere")
        distance = float(np.linalg.norm(y[test.rows] - test.expected))
        worst = max(worst, distance / float(np.linalg.norm(test.expected)))
    if worst > case.tolerance:
        raise WrongError(
            f"it differs from the oracle by {worst:.2g}, at most {case.tolerance:.2g} "
            "was allowed"
        )
    return worst


@lru_cache(maxsize=1)  # the largest take hundreds of megabytes
def _network(case: Case) -> Network:
    return case.build()

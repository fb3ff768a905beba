"""Trials of calls of a network: compared with the oracle, and timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.errors import DeviceError
from clnet.ir.reference import silent
from clnet.opencl.session import session
from clnet.planning.tuning import measure
from clnet.planning.tuning.measure import Run
from clnet.planning.tuning.oracle import (
    WrongResultError,
    difference,
    may_overflow,
    names_of,
    ops_of,
    quiet_errors,
    run_ops,
    tolerance_of,
    uses_threads,
)
from clnet.runtime.executable import Executable

if TYPE_CHECKING:
    from clnet.ir.op import Op, Value
    from clnet.ir.program import Program, Span
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep

Array = NDArray[Any]

# Distinct samples of a check. The batch repeats them, so that the oracle computes only
# these. A prime: rows that a kernel confuses at the distance of its tiles or lanes,
# powers of two, differ.
PERIOD = 31


class _CallOracle(NamedTuple):
    """Results of ops on samples in float64."""

    parameters: Array  # Of the ops
    exact: dict[str, Array]
    perturbed: dict[str, Array]  # By the tolerance
    largest: float  # Of all values


@dataclass(frozen=True, eq=False)
class CallTrial:
    """Trials of calls of a network, host arrays to host arrays."""

    network: Model
    program: Program
    device: Device
    # The last one: configurations of a span are checked in a row
    _oracles: dict[Any, _CallOracle] = field(default_factory=dict, init=False)

    trains: ClassVar[bool] = False  # Whether a call is a step of training
    # Candidates of a span that a search considers, the best by the model
    per_span: ClassVar[int] = 6

    @property
    def session(self) -> Session:
        """The device's session, made at the first use."""
        return session(self.device)

    def whole(self, step: PlanStep) -> str:
        """Return the store's name of times of whole covers with such steps."""
        return "host to host"

    def signature(self, step: PlanStep, span: Span) -> str:
        """Return the store's name of a step's span: equal where times may be."""
        return span.signature

    def ready(
        self, steps: Sequence[PlanStep], inputs: Sequence[Value],
        outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[PlanStep] = (),
    ) -> Run:
        """Return a run of steps and of others alike, after a check of their results."""
        known = [id(oracle) for oracle in self._oracles.values()]
        self.check(steps, inputs, outputs)
        ran = known != [id(oracle) for oracle in self._oracles.values()]
        if ran and uses_threads(ops_of(steps), min(PERIOD, steps[0].span.batch)):
            time.sleep(measure.SPIN_SECONDS)
        timed = [*steps, *alike]
        read = dict.fromkeys(inputs)
        written = {value for step in steps for value in step.span.outputs}
        for step in alike:
            read.update(dict.fromkeys(v for v in step.span.inputs if v not in written))
            written.update(step.span.outputs)
        device = self.session
        with quiet_errors(device):
            executable = Executable(
                device, self.network, timed, tuple(read), timed[-1].span.outputs,
                on_device,
            )
            for value in read:
                values = _random((executable.batch, value.width))
                if on_device:
                    executable.bound.write(value, values)
                else:
                    executable.x[value.name][...] = values
            executable.run()
            device.finish()
        return Run(executable.run, device.finish, 1 / (len(alike) + 1))

    def check(
        self, steps: Sequence[PlanStep], inputs: Sequence[Value],
        outputs: Sequence[Value]
    ) -> bool:
        """Compare steps with the oracle; return whether their values allow it.

        Every sample and every output is compared. The inputs are `PERIOD` random
        samples, repeated to fill the batch; the oracle computes them once, in NumPy and
        float64.

        The norm of each sample's error must be at most `TOLERANCE` times the norm of
        the oracle's outputs and of as many ones, plus `SENSITIVITY` times the largest
        change of a sample of the oracle's when all values are perturbed by `TOLERANCE`:
        networks may magnify roundings, and jump at thresholds. Nothing is compared
        where values are so large that sums may overflow.
        """
        with quiet_errors(self.session):
            executable = Executable(self.session, self.network, steps, inputs, outputs)
            for array in executable.x.values():
                distinct = _random((min(PERIOD, array.shape[0]), array.shape[1]))
                array[...] = np.resize(distinct, array.shape)
            # Copies: an accumulator is both input and output.
            samples = {name: x[:PERIOD].copy() for name, x in executable.x.items()}
            executable.run()
            if executable.bound.timed_out():
                raise DeviceError(
                    f"{names_of(steps)} timed out on {self.device.name} (is another "
                    "program using it?)"
                )
        tolerance = tolerance_of(steps[0].span)
        parameters = executable.host.parameters
        oracle = self._oracle(parameters, ops_of(steps), samples, tolerance)
        if may_overflow(oracle.largest, self.program.dtype):
            return False
        for value in outputs:
            result = executable.result(value.name)
            exact, perturbed = oracle.exact[value.name], oracle.perturbed[value.name]
            for first in range(0, len(result), len(exact)):
                rows = result[first : first + len(exact)]
                fault = difference(rows, exact, perturbed, tolerance, first)
                if fault is not None:
                    raise WrongResultError(f"{names_of(steps)} {fault}")
        return True

    def _oracle(
        self, parameters: Array, ops: tuple[Op, ...], samples: dict[str, Array],
        tolerance: float,
    ) -> _CallOracle:
        shapes = tuple((name, array.shape) for name, array in samples.items())
        key = ops, shapes, tolerance  # the samples' values follow from their shapes
        known = self._oracles.get(key)
        if known is None or known.parameters is not parameters:
            exact = {name: array.astype(np.float64) for name, array in samples.items()}
            perturbed = dict(exact)
            sides = [(exact, parameters), (perturbed, parameters)]
            with silent():
                largest = run_ops(ops, sides, tolerance, self.program.dtype)
            known = _CallOracle(parameters, exact, perturbed, largest)
            self._oracles.clear()
            self._oracles[key] = known
        return known


def representative(batch: int) -> int:
    """Return the batch that represents `batch` in the tuning store.

    It is the next power of two. Its times serve all sizes down to half of it, so that a
    program of many batch sizes is not measured at each.
    """
    return 1 << (batch - 1).bit_length()


def _random(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, shape)

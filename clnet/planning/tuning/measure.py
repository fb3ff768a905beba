"""Measuring: run steps on random inputs, check the result, take the time."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.checks import PRECISIONS
from clnet.errors import ClnetError, DeviceError
from clnet.ir.product import Apply, ApplyT, Outer
from clnet.ir.reference import silent
from clnet.opencl.process import check_process
from clnet.opencl.session import device_errors, session
from clnet.opencl.store import Timing
from clnet.runtime.executable import Executable

if TYPE_CHECKING:
    from clnet.ir.op import Op, Value
    from clnet.ir.program import Program, Span
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.runtime.binding import Step

Array = NDArray[Any]

# Distinct samples of a check. The batch repeats them, so that the oracle computes only
# these. A prime: rows that a kernel confuses at the distance of its tiles or lanes,
# powers of two, differ.
PERIOD = 31
# Relative, and far above rounding, for each type and precision.
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "high": 1e-3, "medium": 1e-2}
SENSITIVITY = 10.0  # factor of the oracle's change under one random perturbation
COMPARED = 1 << 14  # numbers that are compared at a time
OVERFLOW_RATIO = 1e-6  # of the type's largest number: sums of such values may overflow
# A BLAS's worker threads spin for some 100 to 200 ms after a call, and occupy cores
# (measured with OpenBLAS 0.3.31). The next measurement waits for them.
SPIN_SECONDS = 0.25
THREADED = 1 << 18  # multiply-adds of a product for which a BLAS uses threads
WARM_UP_SECONDS = 0.03  # until clocks are high and threads have cores of their own
ROUNDS = 5
ROUND_SECONDS = 4e-3  # a round repeats until it lasts this long
# Of runs before a round: threads that waited for work of the last round's runs leave
# their cores meanwhile.
SETTLE_SECONDS = 1e-3
REMEASURE_RATIO = 2.0  # time over the best, up to which runs in turn are measured on
REMEASURES = 4  # times as many rounds of these
LONGEST_SECONDS = 0.25  # a longer run is not repeated


class WrongResultError(ClnetError):
    """A kernel's results differ from the oracle's."""


@dataclass(frozen=True)
class Run:
    """Steps whose results were right, ready to be timed."""

    start: Callable[[], object]  # Enqueue the work, and wait for its end
    finish: Callable[[], object]
    share: float = 1.0  # The share of a run's time that counts
    warm_up: float | None = None  # Instead of `WARM_UP_SECONDS` and `LONGEST_SECONDS`
    longest: float | None = None

    def shared(self, total: Timing) -> Timing:
        """Return the times that count of those of a run."""
        seconds = total.seconds * self.share
        sync = max(0.0, total.latency - total.seconds)
        return replace(total, seconds=seconds, latency=seconds + sync)


@dataclass(frozen=True)
class CallTrial:
    """Trials of calls of a network, host arrays to host arrays."""

    network: Model
    program: Program
    device: Device
    trains: ClassVar[bool] = False  # Whether a call is a step of training
    # Candidates of a span that a search considers, the best by the model
    per_span: ClassVar[int] = 6

    @property
    def session(self) -> Session:
        """The device's session, made at the first use."""
        return session(self.device)

    def whole(self, step: Step) -> str:
        """Return the store's name of times of whole covers with such steps."""
        return "host to host"

    def signature(self, step: Step, span: Span) -> str:
        """Return the store's name of a step's span: equal where times may be."""
        return span.signature

    def ready(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Run:
        """Return a run of steps and of others alike, after a check of their results."""
        return ready(
            self.session, self.network, steps, inputs, outputs, on_device=on_device,
            alike=alike,
        )

    def check(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> bool:
        """Compare steps with the oracle; return whether their values allow it."""
        return check(self.session, self.network, steps, inputs, outputs).compared


def ready(
    session: Session,
    network: Model,
    steps: Sequence[Step],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    *,
    on_device: bool,
    alike: Sequence[Step] = (),
) -> Run:
    """Return a run of steps, after a check of their results."""
    checked = check(session, network, steps, inputs, outputs)
    ops = [op for step in steps for op in step.span.ops]
    if checked.oracle_ran and uses_threads(ops, min(PERIOD, steps[0].span.batch)):
        time.sleep(SPIN_SECONDS)
    timed = [*steps, *alike]
    read = dict.fromkeys(inputs)
    written = {value for step in steps for value in step.span.outputs}
    for step in alike:
        read.update(dict.fromkeys(v for v in step.span.inputs if v not in written))
        written.update(step.span.outputs)
    with quiet_errors(session):
        executable = Executable(
            session, network, timed, tuple(read), timed[-1].span.outputs, on_device
        )
        for value in read:
            values = _random((executable.batch, value.width))
            if on_device:
                executable.bound.write(value, values)
            else:
                executable.x[value.name][...] = values

        def finish() -> None:
            for queue in session.queues.values():
                queue.finish()

        executable.run()
        finish()
    return Run(executable.run, finish, 1 / (len(alike) + 1))


def quiet_errors(session: Session) -> AbstractContextManager[None]:
    """Return the context of `device_errors` that also silences NumPy's warnings."""
    return _Contexts(device_errors(session), silent())


class _Contexts(AbstractContextManager[None]):
    """Several contexts as one.

    No `ExitStack`, and no generator: their frames keep the error that a context raises,
    and thus buffers, until the collector runs.
    """

    def __init__(self, *contexts: AbstractContextManager[None]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for one in self._contexts:
            one.__enter__()

    def __exit__(self, *error: Any) -> None:
        for one in reversed(self._contexts):
            one.__exit__(*error)


def timing(run: Run) -> Timing:
    """Return the times of runs back to back, and of one with the wait for its end.

    Both are lower quartiles: other work of the machine only adds time.
    """
    rounds = _Rounds(run)
    for _ in range(ROUNDS):
        rounds.add()
    return rounds.timing(0)


def timings(
    runs: Sequence[Run], pays: Callable[[float, float], bool]
) -> list[Timing]:
    """Return the times of runs that are measured in turn, so that load affects all.

    They are medians: a run of several threads that wait for each other loses more to
    other work than a run of one.
    """
    found = [_Rounds(run) for run in runs]
    near = found
    for _ in range(REMEASURES):
        begin = time.perf_counter()
        for number in range(ROUNDS):
            for rounds in near[:: 1 if number % 2 else -1]:
                rounds.add()
        cost = time.perf_counter() - begin
        least = min(rounds.timing(1).seconds for rounds in found)
        near = [
            rounds for rounds in near
            if rounds.timing(1).seconds <= REMEASURE_RATIO * least
        ]
        if len(near) < 2 or not pays(cost, least):
            break
    return [rounds.timing(1) for rounds in found]


class _Rounds:
    """Rounds of a run's time, after a warm-up."""

    def __init__(self, run: Run) -> None:
        self._run = run
        warm_up = WARM_UP_SECONDS if run.warm_up is None else run.warm_up
        longest = LONGEST_SECONDS if run.longest is None else run.longest
        begin = time.perf_counter()
        while True:
            start = time.perf_counter()
            run.start()
            run.finish()
            alone = time.perf_counter() - start
            if start + alone >= begin + warm_up:
                break
        self._repeats = max(1, min(1000, int(ROUND_SECONDS / max(alone, 1e-7))))
        self._long = alone if alone > longest else None
        self._rounds: list[float] = []
        self._singles: list[float] = []

    def add(self) -> None:
        """Measure one more round, unless the run is too long to be repeated."""
        if self._long is not None:
            return
        if self._repeats > 1:
            self._seconds(math.ceil(SETTLE_SECONDS / ROUND_SECONDS * self._repeats))
        self._rounds.append(self._seconds(self._repeats))
        # A round of one run is a single run.
        self._singles.append(
            self._seconds(1) if self._repeats > 1 else self._rounds[-1]
        )

    def timing(self, quartile: int) -> Timing:
        """Return the times that count: a quartile of the rounds, the lower one is 0."""
        if self._long is not None:
            return self._run.shared(Timing(self._long, self._long, 0.0))
        import statistics

        low, median, high = quartiles = statistics.quantiles(self._rounds, n=4)
        alone = statistics.quantiles(self._singles, n=4)[quartile]
        spread = (high - low) / median
        return self._run.shared(Timing(quartiles[quartile], alone, spread))

    def _seconds(self, repeats: int) -> float:
        check_process()
        start = time.perf_counter()
        for _ in range(repeats):
            self._run.start()
        self._run.finish()
        return (time.perf_counter() - start) / repeats


class Check(NamedTuple):
    """A check whose results were right."""

    # Whether results were compared, and values not so large that sums may overflow
    compared: bool
    # Whether the oracle was computed, and not cached: NumPy's threads may still spin
    oracle_ran: bool


def check(
    session: Session,
    network: Model,
    steps: Sequence[Step],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
) -> Check:
    """Compare the results of steps on random inputs with the float64 oracle.

    Every sample and every output is compared. The inputs are `PERIOD` random samples,
    repeated to fill the batch; the oracle computes them once, in NumPy and float64.

    The norm of each sample's error must be at most `TOLERANCE` times the norm of the
    oracle's outputs and of as many ones, plus `SENSITIVITY` times the largest change of
    a sample of the oracle's when all values are perturbed by `TOLERANCE`: networks may
    magnify roundings, and jump at thresholds. Nothing is compared where values are so
    large that sums may overflow.
    """
    with quiet_errors(session):
        executable = Executable(session, network, steps, inputs, outputs)
        for array in executable.x.values():
            distinct = _random((min(PERIOD, array.shape[0]), array.shape[1]))
            array[...] = np.resize(distinct, array.shape)
        # Copies: an accumulator is both input and output.
        samples = {name: array[:PERIOD].copy() for name, array in executable.x.items()}
        executable.run()
        if executable.bound.timed_out():
            raise DeviceError(
                f"{names_of(steps)} timed out on {session.device.name} (is another "
                "program using it?)"
            )
    dtype = executable.dtype
    ops = tuple(op for step in steps for op in step.span.ops)
    before = _oracles.get(network)
    tolerance = tolerance_of(steps[0].span)
    oracle = _oracle(network, executable.parameters, ops, samples, tolerance)
    oracle_ran = _oracles.get(network) is not before
    if oracle.largest > OVERFLOW_RATIO * np.finfo(dtype).max:
        return Check(False, oracle_ran)
    for value in outputs:
        result = executable.result(value.name)
        exact, perturbed = oracle.exact[value.name], oracle.perturbed[value.name]
        for first in range(0, len(result), len(exact)):
            fault = difference(
                result[first : first + len(exact)], exact, perturbed, tolerance, first
            )
            if fault is not None:
                raise WrongResultError(f"{names_of(steps)} {fault}")
    return Check(True, oracle_ran)


def tolerance_of(computation: Span | Program) -> float:
    """Return the relative tolerance of the type and precision of a span or program."""
    exact = computation.precision == PRECISIONS[0]
    return TOLERANCE[computation.dtype if exact else computation.precision]


def difference(
    result: Array, exact: Array, perturbed: Array, tolerance: float, first: int = 0
) -> str | None:
    """Return the first difference from the oracle beyond rounding, or None."""
    squares = np.zeros((3, len(exact)))  # of changes, the oracle's numbers, distances
    counts = np.zeros(len(exact))
    for part in _blocks(*exact.shape):
        one, other, found = exact[part], perturbed[part], result[part]
        finite = np.isfinite(one + other)
        if not finite.all():
            one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
            found = np.where(finite[: len(found)], found, 0.0)
        counts[part[0]] += np.count_nonzero(finite, axis=1)
        distances = found - one[: len(found)]
        for sums, numbers in zip(squares, (other - one, one, distances), strict=True):
            rows = sums[part[0]][: len(numbers)]
            rows += np.einsum("ij,ij->i", numbers, numbers)
    changes, sizes, distances = np.sqrt(squares)
    change = float(np.max(changes, initial=0.0))
    limits = tolerance * (sizes + np.sqrt(counts)) + SENSITIVITY * change
    wrong = np.flatnonzero(~(distances <= limits)[: len(result)])  # NaN is wrong
    if not wrong.size:
        return None
    row = wrong[0]
    return (
        f"differs from the oracle by {distances[row]:.2g} in norm in row "
        f"{first + row}, at most {limits[row]:.2g} was expected"
    )


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of an array that stay in a core's cache."""
    height = max(1, COMPARED // max(1, columns))
    for top in range(0, rows, height):
        for left in range(0, columns, COMPARED):
            yield slice(top, top + height), slice(left, left + COMPARED)


def names_of(steps: Sequence[Step]) -> str:
    """Return the names of the steps' variants."""
    return ", ".join(sorted({step.variant.name for step in steps}))


def uses_threads(ops: Iterable[Op], samples: int) -> bool:
    """Return whether NumPy uses several threads for ops on so many samples."""
    return any(
        samples * op.storage.n_in * op.storage.n_out > THREADED
        for op in ops if isinstance(op, (Apply, ApplyT, Outer))
    )


class _Oracle(NamedTuple):
    """Results of ops in float64, and those for values perturbed by the tolerance."""

    parameters: Array  # of the ops
    exact: dict[str, Array]
    perturbed: dict[str, Array]
    largest: float  # of all values


# The last one of each network: configurations of one span are checked in a row.
_oracles: weakref.WeakKeyDictionary[Model, tuple[Any, _Oracle]] = (
    weakref.WeakKeyDictionary()
)


def _oracle(
    network: Model, parameters: Array, ops: tuple[Op, ...],
    samples: Mapping[str, Array], tolerance: float,
) -> _Oracle:
    shapes = tuple((name, array.shape) for name, array in samples.items())
    # The samples' values follow from their shapes.
    key = (ops, shapes, tolerance)
    cached = _oracles.get(network)
    if cached is not None and cached[0] == key and cached[1].parameters is parameters:
        return cached[1]
    exact = {name: array.astype(np.float64) for name, array in samples.items()}
    perturbed = dict(exact)
    largest = 0.0
    with silent():
        for op in ops:
            for value in op.reads:
                perturbed[value.name] = perturb(perturbed[value.name], tolerance)
            # In float64, as the values are.
            op.run(exact, parameters)
            op.run(perturbed, parameters)
            for value in op.writes:
                sizes = np.abs(exact[value.name])
                largest = np.fmax.reduce(sizes, axis=None, initial=largest)
    oracle = _Oracle(parameters, exact, perturbed, largest)
    _oracles[network] = (key, oracle)
    return oracle


def perturb(values: Array, relative: float, draw: int = 1) -> Array:
    """Return values changed by a relative amount, up or down at random by draw."""
    words = np.random.default_rng(draw).bytes(-(-values.size // 8))
    bits = np.unpackbits(np.frombuffer(words, np.uint8), count=values.size)
    factors = np.array((1 - relative, 1 + relative))
    return np.asarray(values * factors[bits].reshape(values.shape))


def _random(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, shape)


def representative(batch: int) -> int:
    """Return the batch that represents `batch` in the tuning store.

    It is the next power of two. Its times serve all sizes down to half of it, so that a
    program of many batch sizes is not measured at each.
    """
    return 1 << (batch - 1).bit_length()

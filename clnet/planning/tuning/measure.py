"""Measuring: run steps on random inputs, check the result, take the time."""

from __future__ import annotations

import contextlib
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.errors import ClnetError, DeviceError
from clnet.ir.ops import PRECISIONS, Apply, Op, Program, Span, Value
from clnet.ir.reference import run_op
from clnet.ir.training_ops import ApplyT, Outer
from clnet.nn.model import Model
from clnet.opencl.session import Session
from clnet.opencl.store import Timing
from clnet.runtime.binding import Step
from clnet.runtime.executable import Executable

Array = NDArray[Any]

# Distinct samples of a check: the batch repeats them, so that as many of the oracle's
# tell all its rows. A prime: rows that a kernel mixes up at a distance of its tiles or
# lanes, powers of two, differ.
PERIOD = 31
# Relative, and far above rounding, for each type and precision.
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "high": 1e-3, "medium": 1e-2}
DEVIATIONS = 10.0  # what one random deviation of the oracle's stands for
LARGEST = 1e-6  # of the type's largest number; sums of such numbers may overflow
# A BLAS's worker threads spin on for some 100 to 200 ms after a call, and take a core
# from whoever comes next (measured with OpenBLAS 0.3.31). So long is waited.
SPIN_SECONDS = 0.25
THREADED = 1 << 18  # multiply-adds of one product from which a BLAS takes threads
WARM_UP_SECONDS = 0.03  # until clocks are up and threads are on cores of their own
ROUNDS = 5
ROUND_SECONDS = 4e-3  # a round repeats until it lasts this long
LONGEST_SECONDS = 0.25  # what takes longer alone is not repeated


class WrongResultError(ClnetError):
    """A kernel computed something else than the oracle."""


def measure(
    session: Session,
    network: Model,
    steps: Sequence[Step],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    *,
    on_device: bool,
    alike: Sequence[Step] = (),
) -> Timing:
    """Return how long steps take, after checking what they compute.

    Parameters
    ----------
    session, network, steps, inputs, outputs
        As for `Executable`.
    on_device : bool
        True: values start and stay in device memory. False: host arrays in and out.
    alike : sequence of Step
        Steps of other layers that cost the same: they are timed along with `steps`,
        and the time is shared among all, so that each finds its weights where it would
        in the network, and not in the cache that a step run alone fills for itself.

    Raises
    ------
    WrongResultError
        If the result is not the oracle's.
    DeviceError
        If it does not build or run.
    """
    anew = check(session, network, steps, inputs, outputs)
    ops = [op for step in steps for op in step.span.ops]
    if anew and threaded(ops, min(PERIOD, steps[0].span.batch)):
        time.sleep(SPIN_SECONDS)
    timed = [*steps, *alike]
    given = dict.fromkeys(inputs)
    written = {value for step in steps for value in step.span.outputs}
    for step in alike:
        given.update(dict.fromkeys(v for v in step.span.inputs if v not in written))
        written.update(step.span.outputs)
    with faults(session):
        executable = Executable(
            session, network, timed, tuple(given), timed[-1].span.outputs, on_device
        )
        for value in given:
            values = _random((executable.batch, value.width))
            if on_device:
                executable.write(value, values)
            else:
                executable.x[value.name][...] = values

        def finish() -> None:
            for queue in session.queues.values():
                queue.finish()

        executable.run()
        finish()
        found = timing(executable.run, finish)
    share = found.seconds * len(alike) / (len(alike) + 1)
    return replace(
        found, seconds=found.seconds - share, latency=max(0.0, found.latency - share)
    )


@contextlib.contextmanager
def faults(session: Session) -> Iterator[None]:
    """Turn what OpenCL raises into a DeviceError; NumPy is silent on random inputs."""
    try:
        with np.errstate(all="ignore"):
            yield
    except session.errors as error:
        raise DeviceError(f"{session.device.name} failed: {error}") from error


def timing(
    run: Callable[[], object],
    finish: Callable[[], object],
    warm_up: float | None = None,
    longest: float | None = None,
) -> Timing:
    """Return the times of `run` back to back, and of one `run` and `finish`.

    Lower quartiles: what else the machine does only ever adds.

    Parameters
    ----------
    run, finish : callable
        Enqueues what is timed, and waits for it.
    warm_up, longest : float or None
        Instead of `WARM_UP_SECONDS` and `LONGEST_SECONDS`.
    """
    warm_up = WARM_UP_SECONDS if warm_up is None else warm_up
    longest = LONGEST_SECONDS if longest is None else longest
    begin = time.perf_counter()
    while True:
        start = time.perf_counter()
        run()
        finish()
        alone = time.perf_counter() - start
        if start + alone >= begin + warm_up:
            break
    if alone > longest:
        return Timing(alone, alone, 0.0)
    repeats = max(1, min(1000, int(ROUND_SECONDS / max(alone, 1e-7))))

    def taken(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        finish()
        return (time.perf_counter() - start) / repeats

    rounds: list[float] = []
    singles: list[float] = []
    for _ in range(ROUNDS):
        rounds.append(taken(repeats))
        # What fills a round alone has just been timed alone.
        singles.append(taken(1) if repeats > 1 else rounds[-1])
    low, median, high = statistics.quantiles(rounds, n=4)
    alone = statistics.quantiles(singles, n=4)[0]
    return Timing(low, alone, (high - low) / median)


def check(
    session: Session,
    network: Model,
    steps: Sequence[Step],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
) -> bool:
    """Compare the whole result of steps on random inputs with the float64 oracle.

    Every sample and every output is compared. The inputs are `PERIOD` random samples,
    repeated to fill the batch; the oracle computes them once, in NumPy and float64.

    The norm of each sample's error must be at most `TOLERANCE` times the norm of the
    oracle's outputs and of as many ones, and `DEVIATIONS` times the largest change of
    a sample of the oracle's when all values differ by `TOLERANCE`: networks may magnify
    roundings, up to jumping. Where values are so large that sums may overflow nothing
    is compared.

    Returns
    -------
    bool
        Whether the oracle was asked anew: NumPy has then just worked.

    Raises
    ------
    WrongResultError, DeviceError
        If they differ, or the device fails.
    """
    with faults(session):
        executable = Executable(session, network, steps, inputs, outputs)
        for array in executable.x.values():
            distinct = _random((min(PERIOD, array.shape[0]), array.shape[1]))
            array[...] = np.resize(distinct, array.shape)
        # Copies: sums that are added to are input and output.
        samples = {
            name: array[:PERIOD].copy() for name, array in executable.x.items()
        }
        executable.run()
    dtype = executable.dtype
    ops = tuple(op for step in steps for op in step.span.ops)
    before = _oracles.get(network)
    tolerance = tolerance_of(steps[0].span)
    oracle = _oracle(network, ops, samples, tolerance)
    anew = _oracles.get(network) is not before
    if oracle.largest > LARGEST * np.finfo(dtype).max:
        return anew
    for value in outputs:
        found = executable.result(value.name)
        exact, moved = oracle.exact[value.name], oracle.moved[value.name]
        for first in range(0, len(found), len(exact)):
            fault = difference(
                found[first : first + len(exact)], exact, moved, tolerance, first
            )
            if fault is not None:
                raise WrongResultError(f"{names_of(steps)} {fault}")
    return anew


def tolerance_of(what: Span | Program) -> float:
    """Return the relative deviation of results that its type and precision allow."""
    exact = what.precision == PRECISIONS[0]
    return TOLERANCE[what.dtype if exact else what.precision]


def difference(
    found: Array, exact: Array, moved: Array, tolerance: float, first: int = 0
) -> str | None:
    """Return how rows differ from the oracle's by more than rounding, or None.

    Parameters
    ----------
    found : ndarray, shape [rows, width]
        The result, or its first rows.
    exact, moved : ndarray, shape [at least rows, width]
        The oracle's, and the oracle's for values that differ by the tolerance.
    tolerance : float
        As `tolerance_of` says.
    first : int
        Number of the first row, to be told.
    """
    finite = np.isfinite(exact + moved)
    exact, moved = np.where(finite, exact, 0.0), np.where(finite, moved, 0.0)
    deviation = float(np.max(np.linalg.norm(moved - exact, axis=1), initial=0.0))
    finite, exact = finite[: len(found)], exact[: len(found)]
    distances = np.linalg.norm(np.where(finite, found, 0.0) - exact, axis=1)
    sizes = np.linalg.norm(exact, axis=1) + np.sqrt(np.count_nonzero(finite, axis=1))
    limits = tolerance * sizes + DEVIATIONS * deviation
    wrong = np.flatnonzero(~(distances <= limits))  # NaN is wrong
    if not wrong.size:
        return None
    row = wrong[0]
    return (
        f"differs from the oracle by {distances[row]:.2g} in norm in row "
        f"{first + row}, at most {limits[row]:.2g} was expected"
    )


def names_of(steps: Sequence[Step]) -> str:
    """Return the names of the variants of steps."""
    return ", ".join(sorted({step.variant.name for step in steps}))


def threaded(ops: Iterable[Op], samples: int) -> bool:
    """Return whether NumPy takes threads for ops on so many samples."""
    return any(
        samples * op.storage.n_in * op.storage.n_out > THREADED
        for op in ops if isinstance(op, (Apply, ApplyT, Outer))
    )


class _Oracle(NamedTuple):
    """What ops give in float64, and what for values that differ by the tolerance."""

    exact: dict[str, Array]
    moved: dict[str, Array]
    largest: float  # of all values


# Of each network the last one: configurations of one span are checked in a row.
_oracles: weakref.WeakKeyDictionary[Model, tuple[Any, _Oracle]] = (
    weakref.WeakKeyDictionary()
)


def _oracle(
    network: Model, ops: tuple[Op, ...], samples: Mapping[str, Array],
    tolerance: float,
) -> _Oracle:
    shapes = tuple((name, array.shape) for name, array in samples.items())
    # The samples' values follow from their shapes.
    key = (network.version, ops, shapes, tolerance)
    known = _oracles.get(network)
    if known is not None and known[0] == key:
        return known[1]
    exact = {name: array.astype(np.float64) for name, array in samples.items()}
    moved = dict(exact)
    largest = 0.0
    with np.errstate(all="ignore"):
        for op in ops:
            for value in op.reads:
                moved[value.name] = displaced(moved[value.name], tolerance)
            # In float64, as the values are.
            run_op(op, exact, network.parameters)
            run_op(op, moved, network.parameters)
            for value in op.writes:
                sizes = np.abs(exact[value.name])
                largest = np.fmax.reduce(sizes, axis=None, initial=largest)
    found = _Oracle(exact, moved, largest)
    _oracles[network] = (key, found)
    return found


def displaced(values: Array, by: float) -> Array:
    """Return values that differ by a share of themselves, up or down at random."""
    signs = np.random.default_rng(1).choice((-1.0, 1.0), values.shape)
    return np.asarray(values * (1 + by * signs))


def _random(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, shape)


def representative(batch: int) -> int:
    """Return the batch that stands for `batch` in the tuning store.

    The next power of two: times of one batch size serve all up to it, so that a
    program that meets many sizes is not measured for each.
    """
    return 1 << (batch - 1).bit_length()



"""Trials of training: steps run on random data, checked against the oracle, and timed.

Nothing of the network changes: parameters and state are copies.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.ops import Op, Program, Value
from clnet.ir.reference import run_op
from clnet.ir.training_ops import BiasGrad, Dropout, Gather, Outer, Tally, Update
from clnet.nn.model import Model
from clnet.nn.optimisers import Optimiser
from clnet.nn.random import key
from clnet.nn.storage.layout import Layout, Slot, live_elements
from clnet.opencl.memory import Memory
from clnet.opencl.session import Session
from clnet.opencl.store import Timing
from clnet.planning.tuning import measure
from clnet.planning.tuning.measure import (
    LARGEST,
    WrongResultError,
    difference,
    displaced,
    faults,
    names_of,
    threaded,
    timing,
    tolerance_of,
)
from clnet.runtime.binding import Step
from clnet.runtime.replay import Replay, TrainState
from clnet.variants.base import span_flops

Array = NDArray[Any]

TRIES = 2  # data sets; rounding may flip a count or a sign in one
CHECKED_FLOPS = 3e8  # a check; a larger batch is checked by a smaller one
LEAST_CHECKED = 64  # samples, however much that is
LARGE = 1 << 22  # numbers that steps write, from which on the oracle takes seconds
PASS = 64  # steps timed together at most, of launches that do many at once
PASS_SECONDS = 5e-3  # as many as take so long
LONGEST_SECONDS = 0.05  # what takes longer is not repeated
WARM_UP = 0.2  # share of an inference's: trials follow each other
BLOCK = 1 << 16  # random numbers, repeated
KEEPING = (Dropout, Gather, Tally, Update)  # ops that differ from step to step


@dataclass(frozen=True)
class Trial:
    """Where and on what steps of a training are tried.

    Attributes
    ----------
    session : Session
        Where.
    network : Model
        Whose parameters the trials start from.
    program : Program
        Of one step.
    """

    session: Session
    network: Model
    program: Program

    def measure(self, steps: Sequence[Step], outputs: Sequence[Value]) -> Timing:
        """Return how long one step of training takes, after checking its results.

        Parameters
        ----------
        steps : sequence of Step
            A part of the program, or all of it.
        outputs : sequence of Value
            What they compute that is needed outside.

        Raises
        ------
        WrongResultError
            If the results are not the oracle's.
        DeviceError
            If a launch does not build or run.
        """
        with faults(self.session):
            self._check(steps, outputs)
            replay, _ = self._replay(steps, 0)
            replay.set(rate=0.0)  # so that nothing grows
            made = self._pass(replay)  # sets the scalars
            found = timing(
                replay.run, self.session.finish, WARM_UP * measure.WARM_UP_SECONDS,
                LONGEST_SECONDS,
            )
        seconds = found.seconds / made
        hand_over = max(0.0, found.latency - found.seconds)
        return Timing(seconds, seconds + hand_over, found.spread)

    def _pass(self, replay: Replay) -> int:
        """Run as many steps as are to be timed together, and return how many."""
        batch, samples = replay.batch, self._samples(replay.batch)

        def run(steps: int) -> int:
            epochs = replay.epochs_a_run(samples) if samples == batch else 0
            if epochs > 1 and steps > 1:
                made = min(epochs, steps)
                replay.run_epochs(samples, 0, made)
            else:
                made = replay.run_pass(min(samples, steps * batch))
            self.session.finish()
            return made

        made = run(1)  # what follows from the data alone takes its time here
        if replay.many_at_once:
            start = time.perf_counter()
            run(1)
            alone = time.perf_counter() - start
            made = run(max(1, min(PASS, int(PASS_SECONDS / alone))))
        return made

    def _check(self, steps: Sequence[Step], outputs: Sequence[Value]) -> None:
        steps = _lighter(steps)
        checked = tuple(map(_identity, steps))
        if checked in self._passed:
            return
        if _large(steps) and all((one,) in self._passed for one in checked):
            return
        known = len(self._oracles)
        for seed in range(TRIES):
            fault = self._fault(steps, outputs, seed)
            if fault is None:
                break
        if len(self._oracles) > known and threaded(_ops(steps), steps[0].span.batch):
            time.sleep(measure.SPIN_SECONDS)
        if fault is not None:
            raise WrongResultError(f"{names_of(steps)} {fault}")
        self._passed.add(checked)

    def _fault(
        self, steps: Sequence[Step], outputs: Sequence[Value], seed: int
    ) -> str | None:
        """Return how two steps of training differ from the oracle's, or None."""
        batch, ops = steps[0].span.batch, _ops(steps)
        replay, train_state = self._replay(steps, seed)
        for samples, count in self._passes(steps):
            replay.run_pass(samples, count)
        asked = (tuple(map(id, ops)), batch, seed)
        if asked not in self._oracles:
            given = self._by_value(ops, batch, seed)
            self._oracles[asked] = self._oracle(steps, outputs, given)
        exact, moved, largest = self._oracles[asked]
        if largest > LARGEST * np.finfo(self.program.dtype).max:
            return None
        self.session.finish()
        flat = np.where(self._live, replay.read_gradients(), 0)  # nobody reads others
        values, state = train_state.values()
        results = {"parameters": values[self._live], "state": state[:, self._live]}
        for value in outputs:
            slot = self._slots.get(value.name)
            if slot is not None:
                results[value.name] = _part(flat, slot)
            elif value.name not in results:
                results[value.name] = replay.read(value)
        for name, expected in exact.items():
            fault = difference(
                np.atleast_2d(results[name]), np.atleast_2d(expected),
                np.atleast_2d(moved[name]), tolerance_of(self.program),
            )
            if fault is not None:
                return fault
        return None

    def _replay(
        self, steps: Sequence[Step], seed: int
    ) -> tuple[Replay, TrainState]:
        """Return steps bound to memory that holds random inputs."""
        updates = any(isinstance(op, Update) for op in _ops(steps))
        train_state = self._train_state() if updates else self._unchanged
        data = self._data.setdefault(seed, {})
        known = set(data)
        replay = _Replay(
            self.session, steps, self.program.layout, train_state, self._data_set, data
        )
        given = self._by_value(_ops(steps), replay.batch, seed, known)
        flat = np.zeros(self.program.layout.size, self.program.dtype)
        for value, rows in given.items():
            slot = self._slots.get(value.name)
            if slot is None:
                replay.write(value, rows)
            else:
                flat[slot.offset : slot.offset + slot.size] = rows[0]
        replay.write_gradients(flat)
        words = {f"key{i}": int(word) for i, word in enumerate(key(0, 0))}
        replay.set(rate=self._rate, seed=0, **words)
        return replay, train_state

    def _by_value(
        self, ops: Iterable[Op], batch: int, seed: int,
        known: Container[Value] = (),
    ) -> dict[Value, Array]:
        """Return random inputs but for those known; of gradients nothing in padding."""
        numbers = np.random.default_rng(seed).uniform(-1, 1, BLOCK)
        numbers = numbers.astype(self.program.dtype)
        given = {}
        for i, value in enumerate(_inputs(ops)):
            if value in known:
                continue
            shape = (value.height(batch), value.width)
            rows = np.resize(np.roll(numbers, 997 * i), shape)
            slot = self._slots.get(value.name)
            if slot is not None:
                rows = rows * _part(self._live, slot)
            elif value.rows == 1:  # sums and norms
                rows = np.abs(rows)
            given[value] = rows
        return given

    def _oracle(
        self, steps: Sequence[Step], outputs: Sequence[Value],
        given: Mapping[Value, Array],
    ) -> tuple[dict[str, Array], dict[str, Array], float]:
        """Return results in float64, those for displaced values, the largest value."""
        batch, ops = steps[0].span.batch, _ops(steps)
        sides: list[tuple[dict[str, Any], Array]] = []
        for _ in range(2):
            values: dict[str, Any] = {
                "batch": batch, "rate": self._rate, "seed": 0, "key": key(0, 0),
                "state": self._state.astype(np.float64),
                **{value.name: rows for value, rows in given.items()},
            }
            sides.append((values, self.network.parameters.astype(np.float64)))
        largest = 0.0
        tolerance = tolerance_of(self.program)
        for total, before in self._passes(steps):
            for number, first in enumerate(range(0, total, batch)):
                here = min(batch, total - first)
                for values, _ in sides:
                    values.update(
                        first=first, samples=here, seen=first + here,
                        fresh=number == 0, count=before + number,
                    )
                for op in ops:
                    for (values, parameters), by in zip(
                        sides, (0.0, tolerance), strict=True
                    ):
                        _run(op, values, parameters, by)
                    sizes = [np.abs(sides[0][0][value.name]) for value in op.writes]
                    for size in sizes:
                        largest = np.fmax.reduce(size, axis=None, initial=largest)
        found: list[dict[str, Array]] = []
        for values, parameters in sides:
            kept = {value.name: values[value.name] for value in outputs}
            kept.pop("parameters", None)
            if any(isinstance(op, Update) for op in ops):
                kept["parameters"] = parameters[self._live]
                kept["state"] = values["state"][:, self._live]
            found.append(kept)
        return found[0], found[1], float(largest)

    def _passes(self, steps: Sequence[Step]) -> list[tuple[int, int]]:
        """Return samples and steps before of the passes that make two steps.

        Of large ones that keep nothing from step to step only one.
        """
        batch = steps[0].span.batch
        samples = self._samples(batch)
        if samples > batch:
            return [(min(samples, 2 * batch), 0)]
        keeps = any(isinstance(op, KEEPING) for op in _ops(steps))
        return [(batch, 0), (batch, 1)] if keeps or not _large(steps) else [(batch, 0)]

    def _samples(self, batch: int) -> int:
        """Return the rows of the data set."""
        return self._data_set[0].height(batch) if self._data_set else batch

    @cached_property
    def _data_set(self) -> tuple[Value, ...]:
        """What batches are gathered from."""
        first = self.program.ops[0]
        return first.data if isinstance(first, Gather) else ()

    @cached_property
    def _data(self) -> dict[int, dict[Value, Memory]]:
        """The data set of each seed: trials share it."""
        return {}

    def _train_state(self) -> TrainState:
        return TrainState(self.session, self.network.parameters.copy(), self._state)

    @cached_property
    def _unchanged(self) -> TrainState:
        """Parameters and state that steps without an update share."""
        return self._train_state()

    @cached_property
    def _passed(self) -> set[tuple[Any, ...]]:
        """Steps that were right."""
        return set()

    @cached_property
    def _oracles(self) -> dict[Any, tuple[dict[str, Array], dict[str, Array], float]]:
        return {}

    @cached_property
    def _slots(self) -> dict[str, Slot]:
        """Where each gradient lies in the flat buffer."""
        return {
            op.gradient.name: op.weights if isinstance(op, Outer) else op.bias
            for op in self.program.ops if isinstance(op, (Outer, BiasGrad))
        }

    @cached_property
    def _live(self) -> NDArray[np.bool_]:
        return live_elements(self.program.layout, self.network.storages)

    @cached_property
    def _rule(self) -> Optimiser | None:
        last = self.program.ops[-1]
        return last.optimiser if isinstance(last, Update) else None

    @property
    def _rate(self) -> float:
        return 0.0 if self._rule is None else self._rule.rate

    @cached_property
    def _state(self) -> Array:
        """The optimiser's state at first."""
        rule = self._rule
        slots = 0 if rule is None else rule.slots
        state = np.zeros((slots, self.program.layout.size), self.program.dtype)
        if rule is not None:
            state[...] = np.reshape(rule.initial, (slots, 1))
        return state


class _Replay(Replay):
    """Steps that share the memory of some values with others."""

    def __init__(
        self, session: Session, steps: Sequence[Step], layout: Layout,
        train_state: TrainState,
        values: Container[Value], shared: dict[Value, Memory],
    ) -> None:
        self._sharing, self._shared_values = values, shared
        super().__init__(session, steps, layout, train_state)

    def _value(self, value: Value) -> Memory:
        if value not in self._sharing:
            return super()._value(value)
        if value not in self._shared_values:
            self._shared_values[value] = super()._value(value)
        return self._shared_values[value]


def _identity(step: Step) -> tuple[Any, ...]:
    """Return what tells a step from others in what it computes and how."""
    span = step.span
    config = tuple(sorted(step.config.items()))
    return tuple(map(id, span.ops)), span.batch, step.variant, config, step.device


def _ops(steps: Sequence[Step]) -> tuple[Op, ...]:
    return tuple(op for step in steps for op in step.span.ops)


def _inputs(ops: Iterable[Op]) -> tuple[Value, ...]:
    """Return the values that are read before any op writes them."""
    written: set[Value] = set()
    found: dict[Value, None] = {}
    for op in ops:
        found.update(dict.fromkeys(v for v in op.reads if v not in written))
        written.update(op.writes)
    return tuple(found)


def _large(steps: Sequence[Step]) -> bool:
    batch = steps[0].span.batch
    written = (value for op in _ops(steps) for value in op.writes)
    return sum(value.width * value.height(batch) for value in written) >= LARGE


def _lighter(steps: Sequence[Step]) -> Sequence[Step]:
    """Return steps for a batch that the oracle computes in a moment."""
    batch = steps[0].span.batch
    flops = sum(span_flops(step.span) for step in steps)
    samples = max(LEAST_CHECKED, int(batch * CHECKED_FLOPS / max(1, flops)))
    if samples >= batch:
        return steps
    lighter = [replace(step, span=replace(step.span, batch=samples)) for step in steps]
    refused = [
        step.variant.refuse(step.span, step.device) for step in lighter
        if step.device is not None
    ]
    return steps if any(refused) else lighter


def _run(op: Op, values: dict[str, Any], parameters: Array, by: float) -> None:
    """Run an op in float64, on values displaced by a share of themselves."""
    if isinstance(op, Gather):  # the data set may be large
        run_op(op, values, parameters)
        for value in op.batch:
            values[value.name] = values[value.name].astype(np.float64)
        return
    for value in op.reads:
        rows = values[value.name].astype(np.float64)
        values[value.name] = displaced(rows, by) if by else rows
    run_op(op, values, parameters)


def _part(flat: Array, slot: Slot) -> Array:
    """Return a slot of a flat buffer, [1, size]."""
    return flat[np.newaxis, slot.offset : slot.offset + slot.size]

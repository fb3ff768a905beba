"""Trials of training: steps run on random data, checked against the oracle, and timed.

Parameters and state are copies: the network does not change.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.batch import Dropout, Gather
from clnet.ir.loss import Loss, Tally
from clnet.ir.reference import silent
from clnet.ir.sparse_input import SPARSE_INPUT_OPS
from clnet.ir.update import GradientNorm, Update
from clnet.nn.random import key
from clnet.nn.storage.layout import Slot, live_elements
from clnet.planning.tuning import measure
from clnet.planning.tuning.measure import (
    OVERFLOW_RATIO,
    Check,
    Run,
    WrongResultError,
    difference,
    names_of,
    perturb,
    quiet_errors,
    tolerance_of,
    uses_threads,
)
from clnet.planning.tuning.narrowing import Narrowed, Parameters, narrowed
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.cost import span_flops

if TYPE_CHECKING:
    from clnet.ir.op import Op, Value
    from clnet.ir.program import Program
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.memory import Memory
    from clnet.opencl.session import Session
    from clnet.runtime.binding import Step

Array = NDArray[Any]

# Data sets, and the oracle's draws of perturbed values. Rounding may flip a count or a
# sign in one set. Settings may bring many near to flipping, in each set: the draws of
# the last attempt have flipped what rounding may.
ATTEMPTS = ((0, 1), (1, 1), (0, 16))
CHECKED_FLOPS = 3e8  # of a check; larger batches are checked at a smaller size
CHECKED_NUMBERS = 1 << 22  # that a check's ops write, likewise
LEAST_CHECKED = 64  # samples, whatever they cost
LARGE = 1 << 22  # numbers that steps write, for which the oracle takes seconds
MAX_STEPS = 512  # timed together, of launches that run many
PASS_SECONDS = 5e-3  # of the steps timed together
LONGEST_SECONDS = 0.05  # a longer run is not repeated
WARM_UP_RATIO = 0.2  # of inference's warm-up: trials follow each other
BLOCK = 1 << 16  # random numbers, repeated
RATES = (1e-4, 1.0)  # of learning, in trials
ROUNDINGS = 4  # of a parameter and a value of the state, by the step of an optimiser
STATEFUL = (Dropout, Gather, Tally, Update)  # ops that differ from step to step


@dataclass(frozen=True)
class Trial:
    """The device, the network and the program whose steps are timed."""

    session: Session  # The device's session
    network: Parameters  # The network; trials start from its parameters
    program: Program  # The program of one step

    def ready(self, steps: Sequence[Step], outputs: Sequence[Value]) -> Run:
        """Return a run of steps of training, after a check of its results.

        Its time is that of one step.
        """
        with quiet_errors(self.session):
            checked = self.check(steps, outputs)
            if checked.oracle_ran and uses_threads(_ops(steps), steps[0].span.batch):
                time.sleep(measure.SPIN_SECONDS)
            replay, _ = self._replay(steps, 0)
            replay.set(rate=0.0)  # parameters stay as they are
            count = self._pass(replay)  # sets the scalars
        return Run(
            replay.run, self.session.finish, 1 / count,
            WARM_UP_RATIO * measure.WARM_UP_SECONDS, LONGEST_SECONDS,
        )

    def _pass(self, replay: Replay) -> int:
        """Run the steps to be timed together, and return their number."""
        batch, samples = replay.batch, self._samples(replay.batch)

        def run(steps: int) -> int:
            of_epoch = -(-samples // batch)
            epochs = min(replay.epochs_per_run(samples), steps // of_epoch)
            if epochs > 1:
                replay.run_epochs(samples, 0, epochs)
                count = epochs * of_epoch
            else:
                count = replay.run_pass(min(samples, steps * batch))
            self.session.finish()
            return count

        count = run(1)  # includes launches that depend on the data alone
        if replay.multi_step:
            start = time.perf_counter()
            run(1)
            alone = time.perf_counter() - start
            count = run(max(1, min(MAX_STEPS, int(PASS_SECONDS / alone))))
        return count

    def check(self, steps: Sequence[Step], outputs: Sequence[Value]) -> Check:
        """Compare the results of steps with the oracle's, once for each."""
        if self._narrow is not None:
            narrow, trial = self._narrow
            return trial.check(
                narrow.steps(self.program, steps),
                [narrow.values.get(value, value) for value in outputs],
            )
        with quiet_errors(self.session):
            return self._check(_reduced(steps), outputs)

    @cached_property
    def _narrow(self) -> tuple[Narrowed, Trial] | None:
        """The program with fewer inputs that is compared, if it has many."""
        found = narrowed(self.network, self.program)
        if found is None:
            return None
        return found, Trial(self.session, found, found.program)

    def _check(self, steps: Sequence[Step], outputs: Sequence[Value]) -> Check:
        keys = tuple(map(_key, steps))
        if keys in self._checked:
            return Check(True, False)
        if _large(steps) and all((key,) in self._checked for key in keys):
            return Check(True, False)
        known = len(self._oracles)
        for attempt in ATTEMPTS:
            fault, compared = self._fault(steps, outputs, *attempt)
            if fault is None:
                break
        if fault is not None:
            raise WrongResultError(f"{names_of(steps)} {fault}")
        if compared:
            self._checked.add(keys)
        return Check(compared, len(self._oracles) > known)

    def _fault(
        self, steps: Sequence[Step], outputs: Sequence[Value], seed: int, draws: int
    ) -> tuple[str | None, bool]:
        """Return how two training steps differ from the oracle's, or None.

        And whether they were compared.
        """
        batch, ops = steps[0].span.batch, _ops(steps)
        replay, train_state = self._replay(steps, seed)
        for samples, count in self._passes(steps):
            replay.run_pass(samples, count)
        oracle_key = (tuple(map(id, ops)), batch, seed, draws)
        if oracle_key not in self._oracles:
            inputs = self._random_inputs(ops, batch, seed)
            self._oracles[oracle_key] = self._oracle(steps, outputs, inputs, draws)
        exact, perturbed, largest = self._oracles[oracle_key]
        if overflows(largest, exact, perturbed, self.program.dtype):
            return None, False
        self.session.finish()
        results = {}
        if "state" in exact:  # the steps update
            values, state = train_state.values()
            results = {"parameters": values[self._live], "state": state[:, self._live]}
        for value in outputs:
            if value.name in self._slots:
                flat = np.where(self._live, replay.read_gradients(), 0)  # no padding
                break
        for value in outputs:
            slot = self._slots.get(value.name)
            if slot is not None:
                results[value.name] = _slot_row(flat, slot)
            elif value.name not in results:
                results[value.name] = replay.read(value)
        for name, expected in exact.items():
            fault = difference(
                np.atleast_2d(results[name]), np.atleast_2d(expected),
                np.atleast_2d(perturbed[name]), tolerance_of(self.program),
            )
            if fault is not None:
                return fault, True
        return None, True

    def _replay(self, steps: Sequence[Step], seed: int) -> tuple[Replay, TrainState]:
        """Return steps bound to memory that holds random inputs, and their state."""
        updates = any(isinstance(op, Update) for op in _ops(steps))
        train_state = self._train_state() if updates else self._unchanged
        data = self._data.setdefault(seed, {})
        known = {value for value in self._data_set if value.name in data}
        replay = Replay(self.session, steps, self.program.layout, train_state, data)
        inputs = self._random_inputs(_ops(steps), replay.batch, seed, known)
        flat = np.zeros(self.program.layout.size, self.program.dtype)
        for value, rows in inputs.items():
            slot = self._slots.get(value.name)
            if slot is None:
                replay.write(value, rows)
            else:
                flat[slot.offset : slot.offset + slot.size] = rows[0]
        memory = replay.bound.buffers
        data.update({
            value.name: memory[value.name] for value in self._data_set
            if value.name in memory
        })
        replay.write_gradients(flat)
        replay.set(rate=self._rate, seed=0, key=key(0, 0))
        return replay, train_state

    def _random_inputs(
        self, ops: Iterable[Op], batch: int, seed: int,
        known: Container[Value] = (),
    ) -> dict[Value, Array]:
        """Return random inputs of ops but those known; gradients' padding is zero."""
        numbers = np.random.default_rng(seed).uniform(-1, 1, BLOCK)
        numbers = numbers.astype(self.program.dtype)
        inputs: dict[Value, Array] = {}
        for op in ops:
            if isinstance(op, SPARSE_INPUT_OPS):
                inputs |= op.x.trial(op.storage.n_in)
        for i, value in enumerate(_inputs(ops)):
            if value in known or value in inputs:
                continue
            shape = (value.height(batch), value.width)
            rows = np.resize(np.roll(numbers, 997 * i), shape)
            slot = self._slots.get(value.name)
            if slot is not None:
                rows = rows * _slot_row(self._live, slot)
            elif value.rows == 1 or value in self._weights:  # sums and norms too
                rows = np.abs(rows)
            inputs[value] = rows
        return inputs

    def _oracle(
        self, steps: Sequence[Step], outputs: Sequence[Value],
        inputs: Mapping[Value, Array], draws: int,
    ) -> tuple[dict[str, Array], dict[str, Array], float]:
        """Return results in float64, those of perturbed values, the largest value.

        Of several draws, each perturbed number is the farthest.
        """
        batch, ops = steps[0].span.batch, _ops(steps)
        sides: list[tuple[dict[str, Any], Array]] = []
        for _ in range(1 + draws):
            values: dict[str, Any] = {
                "batch": batch, "rate": self._rate, "seed": 0, "key": key(0, 0),
                "state": self._state.astype(np.float64),
                **{value.name: rows for value, rows in inputs.items()},
            }
            sides.append((values, self._parameters.astype(np.float64)))
        largest = 0.0
        tolerance = tolerance_of(self.program)
        for total, before in self._passes(steps):
            for number, first in enumerate(range(0, total, batch)):
                samples = min(batch, total - first)
                for values, _ in sides:
                    values.update(
                        first=first, samples=samples, seen=first + samples,
                        fresh=number == 0, count=before + number,
                    )
                for op in ops:
                    for draw, (values, parameters) in enumerate(sides):
                        relative = tolerance if draw else 0.0
                        run_perturbed(
                            op, values, parameters, relative, self.program.dtype, draw
                        )
                    for value in op.writes:
                        numbers = sides[0][0][value.name]
                        largest = np.fmax.reduce(numbers, axis=None, initial=largest)
                        least = np.fmin.reduce(numbers, axis=None, initial=0.0)
                        largest = max(largest, -least)
        results: list[dict[str, Array]] = []
        for values, parameters in sides:
            result = {value.name: values[value.name] for value in outputs}
            result.pop("parameters", None)
            if any(isinstance(op, Update) for op in ops):
                result["parameters"] = parameters[self._live]
                result["state"] = values["state"][:, self._live]
            results.append(result)
        return results[0], farthest(results[0], results[1:]), float(largest)

    def _passes(self, steps: Sequence[Step]) -> list[tuple[int, int]]:
        """Return the samples, and the steps before, of the passes of two steps.

        Large steps without state are one step.
        """
        batch = steps[0].span.batch
        samples = self._samples(batch)
        if samples > batch:
            return [(min(samples, 2 * batch), 0)]
        stateful = any(isinstance(op, STATEFUL) for op in _ops(steps))
        twice = stateful or not _large(steps)
        return [(batch, 0), (batch, 1)] if twice else [(batch, 0)]

    def _samples(self, batch: int) -> int:
        """Return the number of rows of the data set."""
        return self._data_set[0].height(batch) if self._data_set else batch

    @cached_property
    def _data_set(self) -> tuple[Value, ...]:
        """The values from which batches are gathered."""
        first = self.program.ops[0]
        return first.data if isinstance(first, Gather) else ()

    @cached_property
    def _weights(self) -> set[Value]:
        """The weights of samples, of the batch and of the data set."""
        found = {op.weight for op in self.program.ops if isinstance(op, Loss)}
        for op in self.program.ops:
            if isinstance(op, Gather):
                pairs = zip(op.data, op.batch, strict=True)
                found.update(data for data, batch in pairs if batch in found)
        return {value for value in found if value is not None}

    @cached_property
    def _data(self) -> dict[int, dict[str, Memory]]:
        """The memory of each seed's data set, by names of values: trials share it."""
        return {}

    def _train_state(self) -> TrainState:
        return TrainState(self.session, self._parameters.copy(), self._state)

    @cached_property
    def _parameters(self) -> Array:
        """The network's parameters, whatever replaces them during the trials."""
        return self.network.parameters

    @cached_property
    def _unchanged(self) -> TrainState:
        """Parameters and state that steps without an update share."""
        return self._train_state()

    @cached_property
    def _checked(self) -> set[tuple[Any, ...]]:
        """Keys of steps whose results were right."""
        return set()

    @cached_property
    def _oracles(self) -> dict[Any, tuple[dict[str, Array], dict[str, Array], float]]:
        return {}

    @cached_property
    def _slots(self) -> dict[str, Slot]:
        """The slot of each gradient in the flat buffer."""
        return {
            value.name: slot for op in self.program.ops
            for value, slot in op.gradient_slots.items()
        }

    @cached_property
    def _live(self) -> NDArray[np.bool_]:
        return live_elements(self.program.layout, self.network.storages)

    @cached_property
    def _optimiser(self) -> Optimiser | None:
        last = self.program.ops[-1]
        return last.optimiser if isinstance(last, Update) else None

    @property
    def _rate(self) -> float:
        return 0.0 if self._optimiser is None else tame_rate(self._optimiser)

    @cached_property
    def _state(self) -> Array:
        """The optimiser's initial state."""
        size, dtype = self.program.layout.size, self.program.dtype
        if self._optimiser is None:
            return np.zeros((0, size), dtype)
        return self._optimiser.initial_state(size, dtype)


def _key(step: Step) -> tuple[Any, ...]:
    """Return a key that is equal for steps of equal launches on equal values."""
    span = step.span
    config = tuple(sorted(step.config.items()))
    return tuple(map(id, span.ops)), span.batch, step.variant, config, step.device


def _ops(steps: Sequence[Step]) -> tuple[Op, ...]:
    return tuple(op for step in steps for op in step.span.ops)


def _inputs(ops: Iterable[Op]) -> tuple[Value, ...]:
    """Return the values that are read before any op writes them."""
    written: set[Value] = set()
    read: dict[Value, None] = {}
    for op in ops:
        read.update(dict.fromkeys(v for v in op.reads if v not in written))
        written.update(op.writes)
    return tuple(read)


def _large(steps: Sequence[Step]) -> bool:
    batch = steps[0].span.batch
    written = (value for op in _ops(steps) for value in op.writes)
    return sum(value.width * value.height(batch) for value in written) >= LARGE


def _reduced(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps at a batch size that is cheap to check, if none refuses."""
    batch = steps[0].span.batch
    flops = sum(span_flops(step.span) for step in steps)
    written = (value for op in _ops(steps) for value in op.writes)
    numbers = sum(value.width for value in written if value.rows is None)
    samples = max(LEAST_CHECKED, min(
        int(batch * CHECKED_FLOPS / max(1, flops)), CHECKED_NUMBERS // max(1, numbers)
    ))
    if samples >= batch:
        return steps
    reduced = [replace(step, span=replace(step.span, batch=samples)) for step in steps]
    refusals = [
        step.variant.refuse(step.span, step.device) for step in reduced
        if step.device is not None
    ]
    return steps if any(refusals) else reduced


def overflows(
    largest: float, exact: Mapping[str, Array], perturbed: Mapping[str, Array],
    dtype: str,
) -> bool:
    """Return whether a trial's values are too large for the kernels' dtype.

    `largest` is that of all values in float64; the results are of `run_perturbed`.
    """
    return largest > OVERFLOW_RATIO * float(np.finfo(dtype).max) or any(
        np.any(np.isfinite(values) & ~np.isfinite(perturbed[name]))
        for name, values in exact.items()
    )


def farthest(
    exact: Mapping[str, Array], others: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    """Return the numbers of others that are farthest from the exact ones."""
    found = {}
    for name, values in exact.items():
        rows = np.stack([other[name] for other in others])
        with silent():
            at = np.abs(rows - values).argmax(axis=0)  # NaN, if there is one
        found[name] = np.take_along_axis(rows, at[np.newaxis], axis=0)[0]
    return found


def tame_rate(rule: Optimiser) -> float:
    """Return the learning rate of a trial: the rule's, or the nearest of `RATES`.

    It is an argument of the kernels, so that any rate tries the same programs; after
    steps of an extreme one there is nothing to compare.
    """
    return min(max(rule.rate, RATES[0]), RATES[1])


def run_perturbed(
    op: Op, values: dict[str, Any], parameters: Array, relative: float, dtype: str,
    draw: int = 1,
) -> None:
    """Run an op in float64, on values perturbed by a relative amount, by draw.

    The perturbed step of an optimiser is in the dtype of the kernels, from parameters
    and a state a few roundings off: constants of any size may make it cancel, overflow
    or underflow there.
    """
    if isinstance(op, Gather):  # the data set may be large
        op.run(values, parameters)
        for value in op.batch:
            values[value.name] = values[value.name].astype(np.float64)
        return
    for value in op.reads:
        if value.whole:
            continue
        rows = values[value.name].astype(np.float64, copy=False)
        values[value.name] = perturb(rows, relative, draw) if relative else rows
    if not relative or not isinstance(op, (GradientNorm, Update)):
        op.run(values, parameters)
        return
    few = ROUNDINGS * float(np.finfo(dtype).eps)
    arrays = [value.name for value in op.reads if not value.whole]
    narrow = {**values, **{name: values[name].astype(dtype) for name in arrays}}
    if isinstance(op, Update):
        arrays.append("state")
        narrow["state"] = perturb(values["state"], few, draw).astype(dtype)
    flat = perturb(parameters, few, draw).astype(dtype)
    op.run(narrow, flat)
    if isinstance(op, Update):
        parameters[...] = flat
    for name in (*arrays, *(value.name for value in op.writes)):
        values[name] = narrow[name].astype(np.float64)


def _slot_row(flat: Array, slot: Slot) -> Array:
    """Return a slot of a flat buffer as a row, [1, size]."""
    return flat[np.newaxis, slot.offset : slot.offset + slot.size]

"""Runs of trials: steps of one network, or of many, bound to memory of random data.

Networks of one trial are numbered. Number 0 has the parameters of the trial's network;
those of others, their rates, seeds and samples differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from clnet.ir.batch import Gather
from clnet.ir.loss import Loss
from clnet.ir.op import inputs_of
from clnet.ir.sparse_input import SPARSE_INPUT_OPS
from clnet.ir.update import Update
from clnet.nn.random import key, keys
from clnet.nn.storage.layout import Slot, live_elements
from clnet.opencl.launch import EPOCH
from clnet.planning.tuning.oracle import ops_of, tame_rate
from clnet.runtime.member_replay import MAX_EPOCHS, MemberLaunch, MemberReplay
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.base import MemberVariant
from clnet.variants.training.whole_step import LANES, accepted_step

if TYPE_CHECKING:
    from clnet.ir.op import Op, Value
    from clnet.ir.program import Program
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.memory import Memory
    from clnet.opencl.session import Session
    from clnet.planning.tuning.narrowing import Parameters
    from clnet.runtime.binding import PlanStep

Array = NDArray[Any]

PARAMETERS = "parameters"  # name of a value
MAX_STEPS = 512  # timed together, of launches that run many
PASS_SECONDS = 5e-3  # of the steps timed together
BLOCK = 1 << 16  # random numbers, repeated

# Of steps of many networks:
EPOCHS = 2  # of a check
MOST = LANES + 1  # networks of a check: those of a vector, and one more
# Networks that differ; the others repeat these. Three is odd: lanes a power of two
# apart never hold the same network, so mixed-up lanes are noticed.
DISTINCT = 3
EXACT_STEPS = 1 << 7  # to 1, of inputs of a kernel that takes few bits
GROWTH = 8  # of a launch's epochs, until it takes `PASS_SECONDS`


class StepPass(NamedTuple):
    """Steps on consecutive samples of an order."""

    samples: int
    steps_before: int
    key: Array  # Of the order


class TrialNetwork(NamedTuple):
    """A network of a trial, as its oracle trains it."""

    number: int  # Of those that differ; the only network is 0
    ops: tuple[Op, ...]
    batch: int
    inputs: dict[Value, Array]
    passes: Sequence[StepPass]
    # The name and values of samples' weights that a launch scales to a mean of 1
    weights: tuple[str, Array] | None = None


@dataclass(frozen=True, eq=False)
class TrialData:
    """The data of the trials of a program."""

    network: Parameters
    program: Program
    # Ops by the rows of their data set. They are kept: oracles and checked steps are
    # known by the ops' identities.
    _resized: dict[int, tuple[Op, ...]] = field(default_factory=dict, init=False)

    def inputs(
        self, ops: Iterable[Op], batch: int, seed: int, known: Container[Value] = ()
    ) -> dict[Value, Array]:
        """Return random inputs of ops but those known; gradients' padding is zero."""
        numbers = np.random.default_rng(seed).uniform(-1, 1, BLOCK)
        numbers = numbers.astype(self.program.dtype)
        inputs: dict[Value, Array] = {}
        for op in ops:
            if isinstance(op, SPARSE_INPUT_OPS):
                inputs |= op.x.trial(op.storage.n_in)
        for i, value in enumerate(inputs_of(ops)):
            if value in known or value in inputs:
                continue
            shape = (value.height(batch), value.width)
            rows = np.resize(np.roll(numbers, 997 * i), shape)
            slot = self.slots.get(value.name)
            if slot is not None:
                rows = rows * slot_row(self.live, slot)
            elif value.rows == 1 or value in self._weights_of_samples:  # norms too
                rows = np.abs(rows)
            inputs[value] = rows
        return inputs

    def member_inputs(self, step: PlanStep, seed: int) -> dict[Value, Array]:
        """Return random inputs of a step of many networks, as its kernel takes them."""
        inputs = self.inputs(step.span.ops, step.span.batch, seed)
        if cast("MemberVariant", step.variant).exact:
            x = accepted_step(step.span).data[0]
            inputs[x] = np.rint(inputs[x] * EXACT_STEPS) / EXACT_STEPS
        return inputs

    def weights(self, step: PlanStep, seed: int, number: int) -> Array:
        """Return the weights of a network's samples, as the host gives them."""
        n = len(rows_of(step, number))
        weights = np.random.default_rng([seed, number]).uniform(0.5, 1, n)
        # Kernels scale those of other steps (`Members.balanced_weights`).
        whole = min(step.span.batch, n) in (1, n)
        return weights / weights.mean() if whole else weights

    def start(self, number: int) -> Array:
        """Return a network's parameters [size]: the first one has the trial's."""
        if not number:
            return self.parameters
        factor = 1 - number / (2 * DISTINCT)
        return (self.parameters * factor).astype(self.program.dtype)

    def rate(self, number: int) -> float:
        """Return a network's learning rate."""
        if self.optimiser is None:
            return 0.0
        return float(np.float32(tame_rate(self.optimiser) / (1 + number)))

    def with_samples(self, samples: int) -> tuple[Op, ...]:
        """Return the ops with another number of rows of the data set."""
        if samples not in self._resized:
            self._resized[samples] = tuple(
                replace(op, data=tuple(replace(v, rows=samples) for v in op.data))
                if isinstance(op, Gather) else op for op in self.program.ops
            )
        return self._resized[samples]

    @cached_property
    def data_set(self) -> tuple[Value, ...]:
        """The values from which batches are gathered."""
        first = self.program.ops[0]
        return first.data if isinstance(first, Gather) else ()

    @cached_property
    def _weights_of_samples(self) -> set[Value]:
        """The weights of samples, of the batch and of the data set."""
        weights = {op.weight for op in self.program.ops if isinstance(op, Loss)}
        for op in self.program.ops:
            if isinstance(op, Gather):
                pairs = zip(op.data, op.batch, strict=True)
                weights.update(data for data, batch in pairs if batch in weights)
        return {value for value in weights if value is not None}

    @cached_property
    def parameters(self) -> Array:
        """The network's parameters, whatever replaces them during the trials."""
        return self.network.parameters

    @cached_property
    def slots(self) -> dict[str, Slot]:
        """The slot of each gradient in the flat buffer."""
        return {
            value.name: slot for op in self.program.ops
            for value, slot in op.gradient_slots.items()
        }

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Which elements of the flat buffer are no padding."""
        return live_elements(self.program.layout, self.network.storages)

    @cached_property
    def optimiser(self) -> Optimiser | None:
        """The program's update rule, if it has an update."""
        last = self.program.ops[-1]
        return last.optimiser if isinstance(last, Update) else None

    @cached_property
    def state(self) -> Array:
        """The optimiser's initial state."""
        size, dtype = self.program.layout.size, self.program.dtype
        if self.optimiser is None:
            return np.zeros((0, size), dtype)
        return self.optimiser.initial_state(size, dtype)


class SingleRun:
    """Steps of one network. `memory` has the data set, which runs of a seed share."""

    numbers: Array = np.zeros(1, int)

    def __init__(
        self, data: TrialData, steps: Sequence[PlanStep], passes: Sequence[StepPass],
        seed: int, session: Session, state: TrainState, memory: dict[str, Memory],
    ) -> None:
        self._data, self._session, self._state = data, session, state
        self._ops, self._passes, self._seed = ops_of(steps), passes, seed
        self.trains: bool = any(isinstance(op, Update) for op in self._ops)
        # Runs of one key and seed have the same oracles.
        self.key: Any = tuple(map(id, self._ops)), steps[0].span.batch
        layout = data.program.layout
        known = {value for value in data.data_set if value.name in memory}
        self._replay = replay = Replay(session, steps, layout, state, memory)
        inputs = data.inputs(self._ops, replay.batch, seed, known)
        flat = np.zeros(layout.size, data.program.dtype)
        for value, rows in inputs.items():
            slot = data.slots.get(value.name)
            if slot is None:
                replay.write(value, rows)
            else:
                slot.of(flat)[...] = rows[0]
        buffers = replay.bound.buffers
        memory.update({
            value.name: buffers[value.name] for value in data.data_set
            if value.name in buffers
        })
        replay.write_gradients(flat)
        replay.set(rate=data.rate(0), seed=0, key=key(0, 0))

    def network(self, number: int) -> TrialNetwork:
        """Return the network, as the oracle trains it."""
        batch = self._replay.batch
        inputs = self._data.inputs(self._ops, batch, self._seed)
        return TrialNetwork(number, self._ops, batch, inputs, self._passes)

    def run(self) -> None:
        """Enqueue the steps to be compared."""
        for samples, steps_before, _ in self._passes:
            self._replay.run_pass(samples, steps_before)

    def results(self, outputs: Sequence[Value]) -> dict[str, Array]:
        """Return what the steps wrote, [rows, width] without padding."""
        results, data = {}, self._data
        if any(value.name in data.slots for value in outputs):
            flat = np.where(data.live, self._replay.read_gradients(), 0)
        for value in outputs:
            slot = data.slots.get(value.name)
            if slot is not None:
                results[value.name] = slot_row(flat, slot)
            elif value.name != PARAMETERS:
                results[value.name] = self._replay.read(value)
        return results

    def trained(self) -> dict[str, Array]:
        """Return what the network has become."""
        return _trained(self._state, self._data)

    def timed(self) -> tuple[Callable[[], Any], float]:
        """Return a function that runs what is timed, and a step's share of it."""
        self._replay.set(rate=0.0)  # parameters stay as they are
        count = self._run_timed(1)  # includes launches that depend on the data alone
        if self._replay.multi_step:
            start = time.perf_counter()
            self._run_timed(1)
            seconds = time.perf_counter() - start
            count = self._run_timed(
                max(1, min(MAX_STEPS, int(PASS_SECONDS / seconds)))
            )
        return self._replay.run, 1 / count  # which has the scalars of the last run

    def _run_timed(self, steps: int) -> int:
        """Run steps, or whole epochs of them, and wait; return their number."""
        replay = self._replay
        samples = samples_of(self._data.program.ops, replay.batch)
        of_epoch = -(-samples // replay.batch)
        epochs = min(replay.epochs_per_run(samples), steps // of_epoch)
        if epochs > 1:
            replay.run_epochs(samples, 0, epochs)
            count = epochs * of_epoch
        else:
            count = replay.run_pass(min(samples, steps * replay.batch))
        self._session.finish()
        return count


class MemberRun:
    """A launch of networks by their numbers, all of the variant's or those compared."""

    trains = True

    def __init__(
        self, data: TrialData, step: PlanStep, seed: int, session: Session, most: int
    ) -> None:
        whole, variant = accepted_step(step.span), members_variant(step)
        assert variant is not None
        self._data, self._step, self._seed = data, step, seed
        self.key: Any = (
            tuple(map(id, step.span.ops)), step.span.batch, variant.subsets,
            variant.exact,
        )
        self.numbers: Array = np.arange(min(variant.members, most)) % DISTINCT
        n = samples_of(step.span.ops, step.span.batch)
        starts = np.stack([data.start(number) for number in range(DISTINCT)])
        self._state = TrainState(
            session, starts[self.numbers].reshape(-1), data.state,
            members=len(self.numbers),
        )
        subsets = [rows_of(step, number) for number in range(DISTINCT)]
        self._replay = replay = MemberReplay(
            session, step, data.program.layout, self._state,
            [subsets[i] if variant.subsets else None for i in self.numbers.tolist()],
            n, MAX_EPOCHS,
        )
        inputs = data.member_inputs(step, seed)
        for value in whole.data[:2]:
            replay.write(value, inputs[value])
        if whole.loss.weight is not None:
            weights = np.ones((DISTINCT, n))
            for number, rows in enumerate(subsets):
                weights[number, rows] = data.weights(step, seed, number)
            replay.write_weights(weights[self.numbers])
        none = np.zeros(len(self.numbers))
        replay.set_members(
            seed=self.numbers.astype(np.uint32), squares_limit=none, fails_limit=none
        )

    def network(self, number: int) -> TrialNetwork:
        """Return one of the networks, with its samples."""
        step, data, rows = self._step, self._data, rows_of(self._step, number)
        whole, n, weights = accepted_step(step.span), len(rows), None
        if whole.loss.weight is not None:
            weights = whole.data[-1].name, data.weights(step, self._seed, number)
        inputs = {
            value: array[rows] if value in whole.data else array
            for value, array in data.member_inputs(step, self._seed).items()
        }
        batch = min(step.span.batch, n)
        steps = -(-n // batch)
        passes = [StepPass(n, epoch * steps, key(0, epoch)) for epoch in range(EPOCHS)]
        return TrialNetwork(
            number, data.with_samples(n), batch, inputs, passes, weights
        )

    def run(self) -> None:
        """Run the epochs to be compared."""
        self._launch = self._train(EPOCHS)

    def results(self, outputs: Sequence[Value]) -> dict[str, Array]:
        """Return the sums of the last epoch, each with its compensation."""
        sums = self._launch.last.reshape(len(self.numbers), 2, -1).sum(axis=1)
        return {value.name: sums for value in outputs if value.name != PARAMETERS}

    def trained(self) -> dict[str, Array]:
        """Return what the networks have become."""
        return _trained(self._state, self._data)

    def timed(self) -> tuple[Callable[[], Any], float]:
        """Return a function that runs what is timed, and a step's share of it."""
        replay, span, epochs = self._replay, self._step.span, 1
        self._train(1, 0.0)  # builds
        while True:
            start = time.perf_counter()
            self._train(epochs, 0.0)
            if epochs == replay.epochs or time.perf_counter() - start >= PASS_SECONDS:
                break
            epochs = min(replay.epochs, GROWTH * epochs)
        share = 1 / (epochs * -(-samples_of(span.ops, span.batch) // span.batch))
        # One epoch runs in parts, between which Ctrl-C is handled.
        return replay.run if epochs > 1 else partial(self._train, 1, 0.0), share

    def _train(self, epochs: int, rate: float = 1.0) -> MemberLaunch:
        """Train all networks for some epochs, at their rates times a factor."""
        schedule = np.zeros((DISTINCT, epochs + 1), EPOCH)
        schedule["rate"] = [[rate * self._data.rate(i)] for i in range(DISTINCT)]
        schedule["key"][:, :epochs] = keys(0, 0, epochs)
        members = np.arange(len(self.numbers))
        return self._replay.run_members(
            members, np.zeros(len(members), int), schedule, members % DISTINCT
        )


def _trained(state: TrainState, data: TrialData) -> dict[str, Array]:
    """Return parameters and states without padding [networks or slots, size]."""
    values, state_values = (
        array.reshape(-1, data.program.layout.size)[:, data.live]
        for array in state.values()
    )
    return {PARAMETERS: values, "state": state_values}


def members_variant(step: PlanStep) -> MemberVariant | None:
    """Return the variant of a step of many networks; None: it is of one."""
    variant = step.variant
    return variant if isinstance(variant, MemberVariant) else None


def rows_of(step: PlanStep, number: int) -> Array:
    """Return the samples of a network: if they differ, one in two leaves one out."""
    samples = samples_of(step.span.ops, step.span.batch)
    if not cast("MemberVariant", step.variant).subsets:
        return np.arange(samples)
    rows = np.random.default_rng(number).permutation(samples)
    return rows[: max(1, samples - number % 2)]


def samples_of(ops: Sequence[Op], batch: int) -> int:
    """Return the rows of the data set from which ops gather, else of the batch."""
    return ops[0].samples if isinstance(ops[0], Gather) else batch


def slot_row(flat: Array, slot: Slot) -> Array:
    """Return a slot of a flat buffer as a row, [1, size]."""
    return slot.of(flat)[np.newaxis]

"""Trials of training: steps run on random data, checked against the oracle, and timed.

A step is of one network, or of many in one launch: then a few networks, whose
parameters, rates, seeds and samples differ, train beside an oracle each. Parameters and
state are copies: no network changes.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from clnet.errors import counted
from clnet.ir.batch import Dropout, Gather
from clnet.ir.loss import RECORD, Loss, Tally
from clnet.ir.op import inputs_of
from clnet.ir.sparse_input import SPARSE_INPUT_OPS
from clnet.ir.update import Update
from clnet.nn.random import key, keys, permuted
from clnet.nn.storage.layout import Slot, live_elements
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import session
from clnet.planning.tuning import measure
from clnet.planning.tuning.measure import Run
from clnet.planning.tuning.narrowing import Narrowed, Parameters, narrowed
from clnet.planning.tuning.oracle import (
    ATTEMPTS,
    CHECKED_FLOPS,
    WrongResultError,
    difference,
    farthest,
    names_of,
    ops_of,
    overflows,
    quiet_errors,
    run_ops,
    tame_rate,
    tolerance_of,
    uses_threads,
)
from clnet.runtime.member_replay import MAX_EPOCHS, MemberLaunch, MemberReplay
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.base import MemberVariant
from clnet.variants.cost import span_flops
from clnet.variants.training.whole_step import LANES, accepted_step

if TYPE_CHECKING:
    from clnet.ir.op import Op, Value
    from clnet.ir.program import Program, Span
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.opencl.memory import Memory
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep

Array = NDArray[Any]

CHECKED_NUMBERS = 1 << 22  # that a check's ops write; larger batches are reduced
LEAST_CHECKED = 64  # samples of a check, whatever they cost
LARGE = 1 << 22  # numbers that steps write, for which the oracle takes seconds
MAX_STEPS = 512  # timed together, of launches that run many
PASS_SECONDS = 5e-3  # of the steps timed together
LONGEST_SECONDS = 0.05  # a longer run is not repeated
WARM_UP_RATIO = 0.2  # of inference's warm-up: trials follow each other
BLOCK = 1 << 16  # random numbers, repeated
PARAMETERS, TOTALS = "parameters", "totals"  # names of values
STATEFUL = (Dropout, Gather, Tally, Update)  # ops that differ from step to step

# Of steps of many networks:
EPOCHS = 2  # of a check
MOST = LANES + 1  # networks of a check: those of a vector, and one more
# Networks that differ; the others repeat these. Three is odd: lanes a power of two
# apart never hold the same network, so mixed-up lanes are noticed.
DISTINCT = 3
EXACT_STEPS = 1 << 7  # to 1, of inputs of a kernel that takes few bits
LEAST_TOGETHER = 256  # samples of a check, whatever they cost
GROWTH = 8  # of a launch's epochs, until it takes `PASS_SECONDS`


class _Pass(NamedTuple):
    """Steps on consecutive samples of an order."""

    samples: int
    steps_before: int
    key: Array  # Of the order


class _Network(NamedTuple):
    """A network of a trial, as its oracle trains it."""

    number: int  # Of those that differ; the only network is 0
    ops: tuple[Op, ...]
    batch: int
    inputs: dict[Value, Array]
    passes: list[_Pass]
    # The name and values of samples' weights that a launch scales to a mean of 1
    weights: tuple[str, Array] | None


class _StepOracle(NamedTuple):
    """Results in float64, those of perturbed values, and the largest of all values."""

    exact: dict[str, Array]
    perturbed: dict[str, Array]
    largest: float


@dataclass(frozen=True, eq=False)
class StepTrial:
    """Trials of steps of training, with all data on the device."""

    network: Parameters  # Trials start from its parameters
    program: Program  # The program of one step
    device: Device
    # The memory of each seed's data set, by names of values: trials share it
    _data: dict[int, dict[str, Memory]] = field(default_factory=dict, init=False)
    # Keys of steps whose results were right
    _checked: set[tuple[Any, ...]] = field(default_factory=set, init=False)
    _oracles: dict[Any, _StepOracle] = field(default_factory=dict, init=False)
    # Ops by the rows of their data set. They are kept: oracles and checked steps are
    # known by the ops' identities.
    _resized: dict[int, tuple[Op, ...]] = field(default_factory=dict, init=False)

    trains: ClassVar[bool] = True
    # Candidates of a span that a search considers, the best by the model
    per_span: ClassVar[int] = 3

    @property
    def session(self) -> Session:
        """The device's session, made at the first use."""
        return session(self.device)

    def whole(self, step: PlanStep) -> str:
        """Return the store's name of times of whole covers with such steps."""
        return "training step" if _members(step) is None else "step of many networks"

    def signature(self, step: PlanStep, span: Span) -> str:
        """Return the store's name of a step's span: equal where times may be.

        It has the number of networks: times of files have no other word of it.
        """
        variant = _members(step)
        if variant is None:
            return span.signature
        rows = ", rows of their own" if variant.subsets else ""
        return f"{counted(variant.members, 'network')}{rows}: {span.signature}"

    def ready(
        self, steps: Sequence[PlanStep], inputs: Sequence[Value],
        outputs: Sequence[Value],
        *, on_device: bool = True, alike: Sequence[PlanStep] = (),
    ) -> Run:
        """Return a run of steps, after a check of their results.

        Its time is that of one step, of all networks. All data are on the device, and
        steps alike are not timed.
        """
        with quiet_errors(self.session):
            oracles = len(self._oracles)
            self.check(steps, inputs, outputs)
            ran = len(self._oracles) > oracles
            if ran and uses_threads(ops_of(steps), steps[0].span.batch):
                time.sleep(measure.SPIN_SECONDS)
            start, share = self._timed_run(steps)
        return Run(
            start, self.session.finish, share, WARM_UP_RATIO * measure.WARM_UP_SECONDS,
            LONGEST_SECONDS,
        )

    def check(
        self, steps: Sequence[PlanStep], inputs: Sequence[Value],
        outputs: Sequence[Value]
    ) -> bool:
        """Compare steps with the oracle, once; return whether their values allow it."""
        if self._narrow is not None:
            narrow, trial = self._narrow
            return trial.check(
                narrow.steps(self.program, steps), inputs,
                [narrow.values.get(value, value) for value in outputs],
            )
        with quiet_errors(self.session):
            return self._check(self._reduced(steps), outputs)

    @cached_property
    def _narrow(self) -> tuple[Narrowed, StepTrial] | None:
        """The program with fewer inputs that is compared, if it has many."""
        narrow = narrowed(self.network, self.program)
        if narrow is None:
            return None
        return narrow, StepTrial(narrow, narrow.program, self.device)

    # Time -----------------------------------------------------------------------

    def _timed_run(self, steps: Sequence[PlanStep]) -> tuple[Any, float]:
        """Return a function that runs what is timed, and a step's share of it."""
        variant = _members(steps[0])
        if variant is not None:
            numbers = np.arange(variant.members) % DISTINCT
            together, _ = self._member_replay(steps[0], 0, numbers)
            epochs = self._launch_epochs(together)
            samples = _samples(steps[0].span.ops, steps[0].span.batch)
            share = 1 / (epochs * -(-samples // steps[0].span.batch))
            if epochs > 1:
                return together.run, share
            # In parts, between which Ctrl-C is handled
            return partial(self._run_members, together, 1, 0.0), share
        replay, _ = self._replay(steps, 0)
        replay.set(rate=0.0)  # parameters stay as they are
        return replay.run, 1 / self._run_pass(replay)  # which sets the scalars

    def _run_pass(self, replay: Replay) -> int:
        """Run the steps to be timed together, and return their number."""
        batch, samples = replay.batch, _samples(self.program.ops, replay.batch)

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

    def _launch_epochs(self, replay: MemberReplay) -> int:
        """Run launches as `fit` has them; return the epochs of the last, many if short.

        They train at rate 0: parameters stay as they are.
        """
        epochs = 1
        self._run_members(replay, 1, 0.0)  # builds
        while True:
            start = time.perf_counter()
            self._run_members(replay, epochs, 0.0)
            if epochs == replay.epochs or time.perf_counter() - start >= PASS_SECONDS:
                return epochs
            epochs = min(replay.epochs, GROWTH * epochs)

    # Comparison -----------------------------------------------------------------

    def _check(self, steps: Sequence[PlanStep], outputs: Sequence[Value]) -> bool:
        step_keys = tuple(map(_key, steps))
        if step_keys in self._checked:
            return True
        if _large(steps) and all((one,) in self._checked for one in step_keys):
            return True
        for attempt in ATTEMPTS:
            fault, compared = self._fault(steps, outputs, *attempt)
            if fault is None:
                break
        if fault is not None:
            raise WrongResultError(f"{names_of(steps)} {fault}")
        if compared:
            self._checked.add(step_keys)
        return compared

    def _fault(
        self, steps: Sequence[PlanStep], outputs: Sequence[Value], seed: int, draws: int
    ) -> tuple[str | None, bool]:
        """Return how steps differ from the oracle's, or None.

        And whether they were compared.
        """
        variant, numbers = _members(steps[0]), np.zeros(1, int)
        if variant is not None:
            numbers = np.arange(min(variant.members, MOST)) % DISTINCT
            together, train_state = self._member_replay(steps[0], seed, numbers)
            launch = self._run_members(together, EPOCHS)
        else:
            replay, train_state = self._replay(steps, seed)
            for samples, steps_before, _ in self._passes(steps):
                replay.run_pass(samples, steps_before)
        # The host computes while the device does.
        oracles = [
            self._oracle(steps, outputs, seed, draws, number)
            for number in range(numbers.max() + 1)
        ]
        dtype = self.program.dtype
        if any(
            overflows(largest, exact, perturbed, dtype)
            for exact, perturbed, largest in oracles
        ):
            return None, False
        self.session.finish()
        results = {}
        if variant is None:
            results = self._outputs(replay, outputs)
        else:
            results[TOTALS] = launch.last.reshape(len(numbers), 2, -1).sum(axis=1)
        if PARAMETERS in oracles[0].exact:
            values, state = (
                array.reshape(-1, self.program.layout.size)[:, self._live]
                for array in train_state.values()
            )
            results |= {PARAMETERS: values, "state": state}
        for name in oracles[0].exact:
            exact, perturbed = (
                np.concatenate([np.atleast_2d(oracles[i][side][name]) for i in numbers])
                for side in range(2)
            )
            fault = difference(
                results[name], exact, perturbed, tolerance_of(self.program)
            )
            if fault is not None:
                return fault, True
        return None, True

    def _outputs(
        self, replay: Replay, outputs: Sequence[Value]
    ) -> dict[str, Array]:
        """Return what steps of one network wrote, [rows, width] without padding."""
        results = {}
        if any(value.name in self._slots for value in outputs):
            flat = np.where(self._live, replay.read_gradients(), 0)
        for value in outputs:
            slot = self._slots.get(value.name)
            if slot is not None:
                results[value.name] = _slot_row(flat, slot)
            elif value.name != PARAMETERS:
                results[value.name] = replay.read(value)
        return results

    def _oracle(
        self, steps: Sequence[PlanStep], outputs: Sequence[Value], seed: int,
        draws: int,
        number: int,
    ) -> _StepOracle:
        """Return a network's results, kept for other steps of the same ops."""
        span, variant, ops = steps[0].span, _members(steps[0]), ops_of(steps)
        samples = None if variant is None else (variant.subsets, variant.exact)
        oracle_key = tuple(map(id, ops)), span.batch, seed, draws, number, samples
        if oracle_key not in self._oracles:
            if variant is None:
                network = _Network(
                    0, ops, span.batch, self._random_inputs(ops, span.batch, seed),
                    self._passes(steps), None,
                )
            else:
                network = self._member(steps[0], seed, number)
                outputs = [accepted_step(span).tally.totals]
            trains = variant is not None or any(isinstance(op, Update) for op in ops)
            oracle = self._computed(network, outputs, draws, trains)
            if variant is not None:  # a launch's totals are the sums alone
                for results in (oracle.exact, oracle.perturbed):
                    results[TOTALS] = results[TOTALS][:, : len(RECORD)]
            self._oracles[oracle_key] = oracle
        return self._oracles[oracle_key]

    def _member(self, step: PlanStep, seed: int, number: int) -> _Network:
        """Return one of the networks of a launch, with its samples."""
        whole, variant = accepted_step(step.span), cast("MemberVariant", step.variant)
        rows = _rows(variant, _samples(step.span.ops, step.span.batch), number)
        n, weights = len(rows), None
        if whole.loss.weight is not None:
            weights = whole.data[-1].name, self._weights(step, seed, number)
        inputs = {
            value: array[rows] if value in whole.data else array
            for value, array in self._member_inputs(step, seed).items()
        }
        batch = min(step.span.batch, n)
        steps = -(-n // batch)
        return _Network(
            number, self._with_samples(n), batch, inputs,
            [_Pass(n, epoch * steps, key(0, epoch)) for epoch in range(EPOCHS)],
            weights,
        )

    def _computed(
        self, network: _Network, outputs: Sequence[Value], draws: int, trains: bool
    ) -> _StepOracle:
        """Run a network's steps; of several draws, each number is the farthest."""
        sides: list[tuple[dict[str, Any], Array]] = []
        for _ in range(1 + draws):
            values: dict[str, Any] = {
                "batch": network.batch, "rate": self._rate(network.number),
                "seed": network.number, "state": self._state.astype(np.float64),
                **{value.name: rows for value, rows in network.inputs.items()},
            }
            sides.append((values, self._start(network.number).astype(np.float64)))
        largest, tolerance = 0.0, tolerance_of(self.program)
        for total, before, words in network.passes:
            for count, first in enumerate(range(0, total, network.batch)):
                samples = min(network.batch, total - first)
                scalars = {
                    "first": first, "samples": samples, "seen": first + samples,
                    "fresh": count == 0, "count": before + count, "key": words,
                    **self._scaled_weights(network, first, samples, words),
                }
                for values, _ in sides:
                    values.update(scalars)
                largest = run_ops(
                    network.ops, sides, tolerance, self.program.dtype, largest
                )
        results: list[dict[str, Array]] = []
        for values, parameters in sides:
            result = {value.name: values[value.name] for value in outputs}
            result.pop(PARAMETERS, None)
            if trains:
                result[PARAMETERS] = parameters[self._live]
                result["state"] = values["state"][:, self._live]
            results.append(result)
        return _StepOracle(results[0], farthest(results[0], results[1:]), largest)

    def _scaled_weights(
        self, network: _Network, first: int, samples: int, words: Array
    ) -> dict[str, Array]:
        """Return the samples' weights, of which those of a step have a mean of 1."""
        if network.weights is None:
            return {}
        name, weights = network.weights
        gather, n = network.ops[0], len(weights)
        taken: Array = np.arange(first, first + samples)
        if network.batch == 1:
            taken = np.arange(n)
        elif isinstance(gather, Gather) and gather.shuffled:
            taken = permuted(taken, n, words)
        return {name: (weights / weights[taken].mean())[:, np.newaxis]}

    # Memory ---------------------------------------------------------------------

    def _replay(
        self, steps: Sequence[PlanStep], seed: int,
    ) -> tuple[Replay, TrainState]:
        """Return steps bound to memory that holds random inputs, and their state."""
        updates = any(isinstance(op, Update) for op in ops_of(steps))
        train_state = self._train_state() if updates else self._unchanged
        data = self._data.setdefault(seed, {})
        known = {value for value in self._data_set if value.name in data}
        replay = Replay(self.session, steps, self.program.layout, train_state, data)
        inputs = self._random_inputs(ops_of(steps), replay.batch, seed, known)
        flat = np.zeros(self.program.layout.size, self.program.dtype)
        for value, rows in inputs.items():
            slot = self._slots.get(value.name)
            if slot is None:
                replay.write(value, rows)
            else:
                slot.of(flat)[...] = rows[0]
        memory = replay.bound.buffers
        data.update({
            value.name: memory[value.name] for value in self._data_set
            if value.name in memory
        })
        replay.write_gradients(flat)
        replay.set(rate=self._rate(0), seed=0, key=key(0, 0))
        return replay, train_state

    def _member_replay(
        self, step: PlanStep, seed: int, numbers: Array
    ) -> tuple[MemberReplay, TrainState]:
        """Return a launch of networks by their numbers, and their state."""
        whole, variant = accepted_step(step.span), cast("MemberVariant", step.variant)
        n = _samples(step.span.ops, step.span.batch)
        starts = np.stack([self._start(number) for number in range(DISTINCT)])
        train_state = TrainState(
            self.session, starts[numbers].reshape(-1), self._state,
            members=len(numbers),
        )
        subsets = [_rows(variant, n, number) for number in range(DISTINCT)]
        replay = MemberReplay(
            self.session, step, self.program.layout, train_state,
            [subsets[i] if variant.subsets else None for i in numbers.tolist()],
            n, MAX_EPOCHS,
        )
        inputs = self._member_inputs(step, seed)
        for value in whole.data[:2]:
            replay.write(value, inputs[value])
        if whole.loss.weight is not None:
            weights = np.ones((DISTINCT, n))
            for number, rows in enumerate(subsets):
                weights[number, rows] = self._weights(step, seed, number)
            replay.write_weights(weights[numbers])
        none = np.zeros(len(numbers))
        replay.set_members(
            seed=numbers.astype(np.uint32), squares_limit=none, fails_limit=none
        )
        return replay, train_state

    def _run_members(
        self, replay: MemberReplay, epochs: int, rate: float = 1.0
    ) -> MemberLaunch:
        """Train all networks for some epochs, at their rates times a factor."""
        schedule = np.zeros((DISTINCT, epochs + 1), EPOCH)
        schedule["rate"] = [[rate * self._rate(i)] for i in range(DISTINCT)]
        schedule["key"][:, :epochs] = keys(0, 0, epochs)
        members = np.arange(len(replay.samples))
        return replay.run_members(
            members, np.zeros(len(members), int), schedule, members % DISTINCT
        )

    # Random numbers ---------------------------------------------------------------

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
        for i, value in enumerate(inputs_of(ops)):
            if value in known or value in inputs:
                continue
            shape = (value.height(batch), value.width)
            rows = np.resize(np.roll(numbers, 997 * i), shape)
            slot = self._slots.get(value.name)
            if slot is not None:
                rows = rows * _slot_row(self._live, slot)
            elif value.rows == 1 or value in self._weights_of_samples:  # norms too
                rows = np.abs(rows)
            inputs[value] = rows
        return inputs

    def _member_inputs(self, step: PlanStep, seed: int) -> dict[Value, Array]:
        """Return random inputs of a step of many networks, as its kernel takes them."""
        inputs = self._random_inputs(step.span.ops, step.span.batch, seed)
        if cast("MemberVariant", step.variant).exact:
            x = accepted_step(step.span).data[0]
            inputs[x] = np.rint(inputs[x] * EXACT_STEPS) / EXACT_STEPS
        return inputs

    def _weights(self, step: PlanStep, seed: int, number: int) -> Array:
        """Return the weights of a network's samples, as the host gives them."""
        variant = cast("MemberVariant", step.variant)
        n = len(_rows(variant, _samples(step.span.ops, step.span.batch), number))
        weights = np.random.default_rng([seed, number]).uniform(0.5, 1, n)
        # Kernels scale those of other steps (`Members.balanced_weights`).
        whole = min(step.span.batch, n) in (1, n)
        return weights / weights.mean() if whole else weights

    def _start(self, number: int) -> Array:
        """Return a network's parameters [size]: the first one has the trial's."""
        if not number:
            return self._parameters
        factor = 1 - number / (2 * DISTINCT)
        return (self._parameters * factor).astype(self.program.dtype)

    def _rate(self, number: int) -> float:
        if self._optimiser is None:
            return 0.0
        return float(np.float32(tame_rate(self._optimiser) / (1 + number)))

    # The program ------------------------------------------------------------------

    def _passes(self, steps: Sequence[PlanStep]) -> list[_Pass]:
        """Return the passes of two steps; large steps without state are one step."""
        batch, order = steps[0].span.batch, key(0, 0)
        samples = _samples(self.program.ops, batch)
        if samples > batch:
            return [_Pass(min(samples, 2 * batch), 0, order)]
        stateful = any(isinstance(op, STATEFUL) for op in ops_of(steps))
        twice = stateful or not _large(steps)
        return [_Pass(batch, number, order) for number in range(1 + twice)]

    def _reduced(self, steps: Sequence[PlanStep]) -> Sequence[PlanStep]:
        """Return the steps at a size that is cheap to check, if none refuses."""
        variant = _members(steps[0])
        if variant is None:
            return _reduced(steps)
        if variant.of_samples:  # the data set is small
            return steps
        # Of a data set of many batches there are two, the second as long as the last.
        span = steps[0].span
        n = _samples(span.ops, span.batch)
        if n > 2 * span.batch:
            n = span.batch + (n % span.batch or span.batch)
        flops = DISTINCT * max(1, span_flops(span) // span.batch)
        n = min(n, max(LEAST_TOGETHER, int(CHECKED_FLOPS / flops)))
        few = replace(span, ops=self._with_samples(n), batch=min(span.batch, n))
        return [replace(steps[0], span=few)]

    def _with_samples(self, samples: int) -> tuple[Op, ...]:
        """Return the ops with another number of rows of the data set."""
        if samples not in self._resized:
            self._resized[samples] = tuple(
                replace(op, data=tuple(replace(v, rows=samples) for v in op.data))
                if isinstance(op, Gather) else op for op in self.program.ops
            )
        return self._resized[samples]

    @cached_property
    def _data_set(self) -> tuple[Value, ...]:
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

    @cached_property
    def _state(self) -> Array:
        """The optimiser's initial state."""
        size, dtype = self.program.layout.size, self.program.dtype
        if self._optimiser is None:
            return np.zeros((0, size), dtype)
        return self._optimiser.initial_state(size, dtype)


def _members(step: PlanStep) -> MemberVariant | None:
    """Return the variant of a step of many networks; None: it is of one."""
    variant = step.variant
    return variant if isinstance(variant, MemberVariant) else None


def _rows(variant: MemberVariant, samples: int, number: int) -> Array:
    """Return the samples of a network: if they differ, one in two leaves one out."""
    if not variant.subsets:
        return np.arange(samples)
    rows = np.random.default_rng(number).permutation(samples)
    return rows[: max(1, samples - number % 2)]


def _samples(ops: Sequence[Op], batch: int) -> int:
    """Return the rows of the data set from which ops gather, else of the batch."""
    return ops[0].samples if isinstance(ops[0], Gather) else batch


def _key(step: PlanStep) -> tuple[Any, ...]:
    """Return a key that is equal for steps of equal launches on equal values."""
    span = step.span
    config = tuple(sorted(step.config.items()))
    return tuple(map(id, span.ops)), span.batch, step.variant, config, step.device


def _large(steps: Sequence[PlanStep]) -> bool:
    batch = steps[0].span.batch
    written = (value for op in ops_of(steps) for value in op.writes)
    return sum(value.width * value.height(batch) for value in written) >= LARGE


def _reduced(steps: Sequence[PlanStep]) -> Sequence[PlanStep]:
    """Return the steps at a smaller batch size, if none refuses."""
    batch = steps[0].span.batch
    flops = sum(span_flops(step.span) for step in steps)
    written = (value for op in ops_of(steps) for value in op.writes)
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


def _slot_row(flat: Array, slot: Slot) -> Array:
    """Return a slot of a flat buffer as a row, [1, size]."""
    return slot.of(flat)[np.newaxis]

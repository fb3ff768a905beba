"""Trials of launches of many networks: run on random data, checked, and timed.

A few networks train for `EPOCHS`, each beside the oracle; all of them train for the
time. Parameters and state are of the trial: no network changes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from clnet.ir.batch import Gather
from clnet.ir.loss import RECORD
from clnet.ir.reference import silent
from clnet.nn.random import key, keys, permuted
from clnet.nn.storage.layout import live_elements
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import session
from clnet.planning.tuning import measure
from clnet.planning.tuning.measure import (
    Run,
    WrongResultError,
    difference,
    quiet_errors,
    tolerance_of,
)
from clnet.planning.tuning.trial import (
    ATTEMPTS,
    CHECKED_FLOPS,
    LONGEST_SECONDS,
    PASS_SECONDS,
    WARM_UP_RATIO,
    farthest,
    overflows,
    run_perturbed,
    tame_rate,
)
from clnet.runtime.member_replay import MAX_EPOCHS, MemberLaunch, MemberReplay
from clnet.runtime.train_state import TrainState
from clnet.variants.cost import span_flops
from clnet.variants.training.whole_step import LANES, accepted_step

if TYPE_CHECKING:
    from clnet.ir.op import Op
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.runtime.binding import Step
    from clnet.variants.members.members import MemberVariant

Array = NDArray[Any]

EPOCHS = 2
MOST = LANES + 1  # networks of a check: those of a vector, and one more
# Networks whose parameters, rates and seeds differ; the others repeat these. A prime:
# networks that a kernel confuses at the distance of its lanes, powers of two, differ.
DISTINCT = 3
EXACT_STEPS = 1 << 7  # to 1, of inputs of a kernel that takes few bits
LEAST = 256  # samples, whatever they cost
GROWTH = 8  # of its epochs, until it takes `PASS_SECONDS`


@dataclass(frozen=True)
class MemberTrial:
    """Networks that train on random data."""

    step: Step  # Of a variant of `clnet.variants.members`
    network: Model  # The shape of all networks, whose parameters are finite
    members: int  # Networks that train

    @classmethod
    def small(cls, step: Step, network: Model) -> MemberTrial:
        """Return a trial of few networks and samples, for `check`."""
        members = min(cast("MemberVariant", step.variant).members, MOST)
        return cls(_reduced(step), network, members)

    def check(self) -> bool:
        """Compare results with the oracle's; return whether their values allow it."""
        for attempt in ATTEMPTS:
            fault, compared = self._fault(*attempt)
            if fault is None:
                return compared
        raise WrongResultError(f"{self.step.variant.name} {fault}")

    def _fault(self, seed: int, draws: int) -> tuple[str | None, bool]:
        """Return how results differ from the oracle's; whether they were compared."""
        found, tolerance = self.results(seed), tolerance_of(self.step.span)
        networks = range(DISTINCT)
        with silent():
            oracles = [self._oracle(seed, number, 0.0) for number in networks]
            perturbed = [
                farthest(exact, [
                    self._oracle(seed, number, tolerance, draw + 1)[0]
                    for draw in range(draws)
                ])
                for number, (exact, _) in enumerate(oracles)
            ]
        dtype = self.step.span.dtype
        if any(
            overflows(largest, exact, other, dtype)
            for (exact, largest), other in zip(oracles, perturbed, strict=True)
        ):
            return None, False
        which = np.arange(self.members) % DISTINCT
        for name, result in found.items():
            one, other = (
                np.stack([values[name] for values in side])[which]
                for side in ([exact for exact, _ in oracles], perturbed)
            )
            fault = difference(result, one, other, tolerance)
            if fault is not None:
                return fault, True
        return None, True

    def results(self, seed: int) -> dict[str, Array]:
        """Train the networks; return parameters, state and totals [members, …]."""
        count, size, slots = self.members, self._start.size, len(self._state)
        assert self.step.device is not None
        with quiet_errors(session(self.step.device)):
            replay, train_state = self._replay(seed)
            launch = self._run(replay, EPOCHS)
            values, states = train_state.values()
        states = states.reshape(count, slots, size)
        return {
            "parameters": values.reshape(count, size)[:, self._live],
            "state": states[:, :, self._live].reshape(count, -1),
            "totals": launch.last.reshape(count, 2, -1).sum(axis=1),
        }

    def ready(self) -> Run:
        """Return a run whose time is that of one step of all networks.

        It is of launches as `fit` has them: of many epochs, unless one is long.
        """
        assert self.step.device is not None
        place, epochs = session(self.step.device), 1
        with quiet_errors(place):
            replay, _ = self._replay(0)
            most = replay.epochs
            self._run(replay, 1, rate=0.0)  # builds
            while True:
                start = time.perf_counter()
                self._run(replay, epochs, rate=0.0)
                if epochs == most or time.perf_counter() - start >= PASS_SECONDS:
                    break
                epochs = min(most, GROWTH * epochs)

        def again() -> None:
            if epochs > 1:
                replay.run()
            else:  # in parts, between which Ctrl-C is handled
                self._run(replay, 1, rate=0.0)

        steps = epochs * -(-self._samples // self.step.span.batch)
        return Run(
            again, place.finish, 1 / steps, WARM_UP_RATIO * measure.WARM_UP_SECONDS,
            LONGEST_SECONDS,
        )

    def _replay(self, seed: int) -> tuple[MemberReplay, TrainState]:
        """Return the launches of the networks on random data, and their state."""
        step, which = self.step, np.arange(self.members) % DISTINCT
        assert step.device is not None
        place, whole = session(step.device), accepted_step(step.span)
        distinct = np.stack([self._parameters(i) for i in range(DISTINCT)])
        train_state = TrainState(
            place, distinct[which].reshape(-1), self._state, members=self.members
        )
        subsets = [self._rows(i) if self._subsets else None for i in range(DISTINCT)]
        replay = MemberReplay(
            place, step, self.network.layout, train_state,
            [subsets[i] for i in which.tolist()], self._samples, MAX_EPOCHS,
        )
        for value, rows in zip(whole.data, self._data(seed), strict=False):
            replay.write(value, rows)
        if whole.loss.weight is not None:
            weights = np.ones((DISTINCT, self._samples))
            for i, row in enumerate(weights):
                row[self._rows(i)] = self._weights(seed, i)
            replay.write_weights(weights[which])
        none = np.zeros(self.members)
        replay.set_members(
            seed=which.astype(np.uint32), squares_limit=none, fails_limit=none
        )
        return replay, train_state

    def _run(
        self, replay: MemberReplay, epochs: int, rate: float = 1.0
    ) -> MemberLaunch:
        """Train all networks for some epochs, at their rates times a factor."""
        schedule = np.zeros((DISTINCT, epochs + 1), EPOCH)
        schedule["rate"] = [[rate * self._rate(i)] for i in range(DISTINCT)]
        schedule["key"][:, :epochs] = keys(0, 0, epochs)
        numbers = np.arange(self.members)
        return replay.run_members(
            numbers, np.zeros(self.members, int), schedule, numbers % DISTINCT
        )

    def _oracle(
        self, seed: int, number: int, relative: float, draw: int = 1
    ) -> tuple[dict[str, Array], float]:
        """Return a network's results in float64, and the largest value.

        Values that ops read are perturbed by a relative amount, by draw.
        """
        rows, span = self._rows(number), self.step.span
        n, batch = len(rows), min(span.batch, len(rows))
        inputs = accepted_step(span).data
        data = [array[rows] for array in self._data(seed)]
        weights = self._weights(seed, number)
        parameters = self._parameters(number).astype(np.float64)
        values: dict[str, Any] = {
            "batch": batch, "rate": self._rate(number), "seed": number,
            "state": self._state.astype(np.float64),
            **{value.name: one for value, one in zip(inputs, data, strict=False)},
        }
        largest, ops = 0.0, _of_samples(span.ops, n)
        steps = [(e, first) for e in range(EPOCHS) for first in range(0, n, batch)]
        for count, (epoch, first) in enumerate(steps):
            samples, words = min(batch, n - first), key(0, epoch)
            values.update(
                first=first, samples=samples, seen=first + samples, fresh=first == 0,
                count=count, key=words,
            )
            if len(inputs) > len(data):
                own: Array = np.arange(first, first + samples)
                if batch == 1:
                    own = np.arange(n)
                elif isinstance(ops[0], Gather) and ops[0].shuffled:
                    own = permuted(own, n, words)
                values[inputs[-1].name] = (weights / weights[own].mean())[:, np.newaxis]
            for op in ops:
                run_perturbed(op, values, parameters, relative, span.dtype, draw)
                for value in op.writes:
                    sizes = np.abs(values[value.name])
                    largest = np.fmax.reduce(sizes, axis=None, initial=largest)
        return {
            "parameters": parameters[self._live],
            "state": values["state"][:, self._live].reshape(-1),
            "totals": values["totals"][0, : len(RECORD)],
        }, largest

    @property
    def _samples(self) -> int:
        """Rows of the data set."""
        span = self.step.span
        return accepted_step(span).data[0].height(span.batch)

    def _rows(self, number: int) -> Array:
        """Return the samples of a network: one in two leaves one out."""
        n = self._samples
        if not self._subsets:
            return np.arange(n)
        return np.random.default_rng(number).permutation(n)[: max(1, n - number % 2)]

    def _data(self, seed: int) -> list[Array]:
        """Return inputs and targets [samples, width]."""
        rng = np.random.default_rng(seed)
        x, t, *_ = accepted_step(self.step.span).data
        dtype = self.step.span.dtype
        inputs = rng.uniform(-1, 1, (self._samples, x.width))
        if cast("MemberVariant", self.step.variant).exact:
            inputs = np.rint(inputs * EXACT_STEPS) / EXACT_STEPS
        return [
            inputs.astype(dtype),
            rng.uniform(0, 1, (self._samples, t.width)).astype(dtype),
        ]

    def _weights(self, seed: int, number: int) -> Array:
        """Return the weights of a network's samples, as the host gives them."""
        rows = self._rows(number)
        found = np.random.default_rng([seed, number]).uniform(0.5, 1, len(rows))
        # Kernels scale those of other steps (`Members.balanced_weights`).
        whole = min(self.step.span.batch, len(rows)) in (1, len(rows))
        return found / found.mean() if whole else found

    def _parameters(self, number: int) -> Array:
        """Return the initial parameters of a network [size]."""
        return np.asarray(self._start * (1 - number / (2 * DISTINCT)), np.float32)

    def _rate(self, number: int) -> float:
        if self._rule is None:
            return 0.0
        return float(np.float32(tame_rate(self._rule) / (1 + number)))

    @property
    def _subsets(self) -> bool:
        """Whether each network takes rows of its own."""
        return cast("MemberVariant", self.step.variant).subsets

    @property
    def _rule(self) -> Optimiser | None:
        """The rule of the networks' updates; None: they only measure."""
        update = accepted_step(self.step.span).update
        return None if update is None else update.optimiser

    @property
    def _start(self) -> Array:
        return self.network.parameters

    @property
    def _state(self) -> Array:
        size, dtype = self._start.size, self.step.span.dtype
        if self._rule is None:
            return np.zeros((0, size), dtype)
        return self._rule.initial_state(size, dtype)

    @property
    def _live(self) -> NDArray[np.bool_]:
        return live_elements(self.network.layout, self.network.storages)


def _reduced(step: Step) -> Step:
    """Return a step of so few samples that a check takes `CHECKED_FLOPS`, or `LEAST`.

    Of a data set of many batches there are two, the second of the size of the last. A
    variant whose program is of the number of samples takes all, as they are few.
    """
    if cast("MemberVariant", step.variant).of_samples:
        return step
    span = step.span
    n = accepted_step(span).data[0].height(span.batch)
    if n > 2 * span.batch:
        n = span.batch + (n % span.batch or span.batch)
    flops = DISTINCT * max(1, span_flops(span) // span.batch)
    n = min(n, max(LEAST, int(CHECKED_FLOPS / flops)))
    return replace(step, span=replace(
        span, ops=_of_samples(span.ops, n), batch=min(span.batch, n)
    ))


def _of_samples(ops: tuple[Op, ...], samples: int) -> tuple[Op, ...]:
    """Return the ops of another number of rows of the data set."""
    return tuple(
        replace(op, data=tuple(replace(value, rows=samples) for value in op.data))
        if isinstance(op, Gather) else op for op in ops
    )

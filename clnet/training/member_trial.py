"""Trials of launches of many networks: no planner compares them with the oracle.

A few networks train for `EPOCHS`, each beside the oracle, before the first training
counts. On an untested runtime they train in a child process first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from clnet.ir.training_ops import RECORD, Gather
from clnet.nn.random import key, permuted
from clnet.nn.storage.layout import live_elements
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import session
from clnet.planning.tuning.fingerprint import exact_fingerprint, program_fingerprint
from clnet.planning.tuning.first_use import FirstUse, refusal_of_kernels
from clnet.planning.tuning.measure import (
    OVERFLOW_RATIO,
    WrongResultError,
    difference,
    quiet_errors,
    tolerance_of,
)
from clnet.planning.tuning.times import key_of
from clnet.planning.tuning.trial import CHECKED_FLOPS, TRIES, run_perturbed
from clnet.runtime.binding import Step
from clnet.runtime.member_replay import MemberReplay
from clnet.runtime.train_state import TrainState
from clnet.variants.cost import span_flops
from clnet.variants.training.whole_step import LANES, accepted_step

if TYPE_CHECKING:
    from clnet.ir.ops import Op, Span
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.variants.members.members import MemberVariant

Array = NDArray[Any]

EPOCHS = 2
MOST = LANES + 1  # networks: those of a vector, and one more
# Networks whose parameters, rates and seeds differ; the others repeat these. A prime:
# networks that a kernel confuses at the distance of its lanes, powers of two, differ.
DISTINCT = 3
EXACT_STEPS = 1 << 7  # to 1, of inputs of a kernel that takes few bits
LEAST = 256  # samples, whatever they cost


def refusal_of(
    step: Step, network: Model, rule: Optimiser, members: int, subsets: bool
) -> str | None:
    """Return why a launch fails or is wrong, with a warning; None: it is right.

    A right one is remembered: comparing costs once per device.

    Parameters
    ----------
    step : Step
        Of a variant of `clnet.variants.members`.
    network : Model
        The shape of all networks, whose parameters are finite.
    rule : Optimiser
        Whose state the networks have.
    members : int
        Networks.
    subsets : bool
        Whether each network takes rows of its own.
    """
    device, variant = step.device, cast("Any", step.variant)
    assert device is not None

    def first_use() -> FirstUse:
        trial = MemberTrial(_reduced(step), network, rule, min(members, MOST), subsets)
        programs = f"{key_of(step)} {program_fingerprint(step)}"
        return FirstUse(programs, (trial.results, 0), trial.check)

    known = _key_of(step.span, variant, tuple(step.config.items()), device)
    return refusal_of_kernels(device, variant.name, known, first_use, 2)


@lru_cache(maxsize=64)  # it takes a millisecond
def _key_of(
    span: Span, variant: Any, config: tuple[tuple[str, int], ...], device: Device
) -> str:
    """Return the store's key of a step, its span's sizes included."""
    step = Step(span, variant, dict(config), device)
    return f"{key_of(step)} {exact_fingerprint(span)}"


@dataclass(frozen=True)
class MemberTrial:
    """A few networks that train on random data.

    Attributes
    ----------
    step : Step
        Of a variant of `clnet.variants.members`, of few samples.
    network, rule, subsets
        As for `refusal_of`.
    members : int
        Networks that train.
    """

    step: Step
    network: Model
    rule: Optimiser
    members: int
    subsets: bool

    def check(self) -> bool:
        """Compare the results with the oracle's; return whether their values allow it.

        Raises
        ------
        WrongResultError, DeviceError
            If the results differ, or the device fails.
        """
        for seed in range(TRIES):
            fault, compared = self._fault(seed)
            if fault is None:
                return compared
        raise WrongResultError(f"{self.step.variant.name} {fault}")

    def _fault(self, seed: int) -> tuple[str | None, bool]:
        """Return how results differ from the oracle's; whether they were compared."""
        found, tolerance = self.results(seed), tolerance_of(self.step.span)
        with np.errstate(all="ignore"):
            sides = [
                [self._oracle(seed, number, relative) for number in range(DISTINCT)]
                for relative in (0.0, tolerance)
            ]
        largest = max(size for _, size in sides[0])
        if largest > OVERFLOW_RATIO * np.finfo(self.step.span.dtype).max:
            return None, False
        which = np.arange(self.members) % DISTINCT
        for name, result in found.items():
            exact, perturbed = (
                np.stack([values[name] for values, _ in side])[which] for side in sides
            )
            fault = difference(result, exact, perturbed, tolerance)
            if fault is not None:
                return fault, True
        return None, True

    def results(self, seed: int) -> dict[str, Array]:
        """Train the networks; return parameters, state and totals [members, …]."""
        step, count, size = self.step, self.members, self._start.size
        assert step.device is not None
        place, loss = session(step.device), accepted_step(step.span).loss
        which, state = [i % DISTINCT for i in range(count)], self._state
        with quiet_errors(place):
            train_state = TrainState(
                place, np.stack([self._parameters(i) for i in which]).reshape(-1),
                np.tile(state, (count, 1)).reshape(len(state), count * size),
            )
            replay = MemberReplay(
                place, step, self.network.layout, train_state,
                [self._rows(i) if self.subsets else None for i in which],
                self._samples, EPOCHS,
            )
            data = self._data(seed)
            for value, rows in zip(accepted_step(step.span).data, data, strict=False):
                replay.write(value, rows)
            if loss.weight is not None:
                weights = np.ones((count, self._samples))
                for row, i in zip(weights, which, strict=True):
                    row[self._rows(i)] = self._weights(seed, i)
                replay.write_weights(weights)
            replay.set_members(
                seed=np.array(which, np.uint32), squares_limit=np.zeros(count),
                fails_limit=np.zeros(count),
            )
            schedule = np.zeros((DISTINCT, EPOCHS + 1), EPOCH)
            schedule["rate"] = [[self._rate(i)] for i in range(DISTINCT)]
            schedule["key"][:, :EPOCHS] = [key(0, epoch) for epoch in range(EPOCHS)]
            launch = replay.run_members(
                np.arange(count), np.zeros(count, int), schedule, np.array(which)
            )
            values, states = train_state.values()
        states = states.reshape(count, len(state), size)
        return {
            "parameters": values.reshape(count, size)[:, self._live],
            "state": states[:, :, self._live].reshape(count, -1),
            "totals": launch.last.reshape(count, 2, -1).sum(axis=1),
        }

    def _oracle(
        self, seed: int, number: int, relative: float
    ) -> tuple[dict[str, Array], float]:
        """Return a network's results in float64, and the largest value.

        Values that ops read are perturbed by a relative amount.
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
                run_perturbed(op, values, parameters, relative)
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
        if not self.subsets:
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
        return float(np.float32(self.rule.rate / (1 + number)))

    @property
    def _start(self) -> Array:
        return self.network.parameters

    @property
    def _state(self) -> Array:
        return self.rule.initial_state(self._start.size, self.step.span.dtype)

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

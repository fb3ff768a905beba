"""`Segments`: the epochs of one network, computed ahead of their reports.

The data set goes to the device once. Parameters, gradients and the optimiser's state
stay there for the whole of `fit`. The host reads one record an epoch.

Short epochs are enqueued speculatively, several in a segment, so that the device does
not wait for the host to report each. Before a segment the device takes a snapshot. If a
callback reads or replaces the parameters or stops within a segment, or an interrupt
ends it, the training rolls back to the snapshot and recomputes the epochs reported so
far, bit for bit. Callbacks cannot observe the speculation. An interrupt may come
between any two statements: one assignment each tells which epochs are enqueued
(`_segments`), and which are reported (the history).
"""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.checks import all_finite
from clnet.nn.random import keys
from clnet.nn.schedules import constant
from clnet.opencl.session import session
from clnet.runtime.replay import RECORDS, RUN_SECONDS
from clnet.runtime.train_state import TrainState
from clnet.training.history import finite_epochs
from clnet.training.passes import (
    BoundPasses,
    Pass,
    bound_passes,
    keep,
    measures,
    shared_passes,
)
from clnet.training.trainer import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.training.history import History
    from clnet.training.plans import Planning

Array = NDArray[Any]

MAX_EPOCHS = RECORDS  # of a segment: their totals are read together
# Bound of the time of one segment of speculative epochs that a callback may have
# recomputed, or that the desired error ends. Other segments take `RUN_SECONDS`.
SPECULATION_SECONDS = 5e-3


class _Enqueued(NamedTuple):
    """Consecutive epochs that are enqueued together after one snapshot."""

    first: int  # Epochs done before
    rates: Array  # The learning rate of each epoch
    snapshot: int  # Number of the snapshot in `TrainState`


class Segments:
    """The epochs of a network, computed on one device, on several, or by ranks.

    `observed`: whether a callback may read or replace the parameters after each epoch.
    """

    def __init__(self, planning: Planning, history: History, observed: bool) -> None:
        setup = planning.setup
        options, data, state = setup.options, setup.data, setup.state
        self._setup, self._history, self._start = setup, history, state
        self._sessions = [session(device) for device in setup.devices]
        # Of the two snapshots, the newest first.
        self._segments = [_Enqueued(state.epoch, np.empty(0), i) for i in range(2)]
        # Epochs since a callback last read or replaced the parameters.
        self.each_epoch = observed
        self._unobserved = 0 if observed else MAX_EPOCHS
        shares = setup.ranks is not None or len(setup.devices) > 1
        self._speculates = options.predictable and not shares
        may_stop = observed or options.desired is not None
        self._segment_seconds = SPECULATION_SECONDS if may_stop else RUN_SECONDS
        self._replaced = -1  # the last epoch whose parameters a callback replaced
        # While the device has the parameters before the last epoch: those that a
        # callback has put in place of the epoch's, or None.
        self._before_last: tuple[Array | None] | None = None
        self._bound: BoundPasses | None = None
        self._validations: list[Pass] = []
        if shares:
            self._train_state = [
                TrainState(each, state.parameters, state.values)
                for each in self._sessions
            ]
            self._pass, *self._validations = shared_passes(planning, self._train_state)
        else:
            plans = planning.plans(setup.devices[0])
            sets = [data] if setup.validation is None else [data, setup.validation]
            self._bound = bound_passes(self._sessions[0], state, plans, sets)
            self._train_state = [self._bound.train_state]
            self._pass, *self._validations = self._bound.passes
        self._pass.limit(
            *((0.0, 0.0) if options.desired is None else
              options.desired.limits(len(data) * setup.network.n_out))
        )
        self._seconds = self._pass.epoch_seconds or inf
        history.plan = self._pass.explain()

    @property
    def _epoch(self) -> int:
        """Number of epochs reported."""
        return self._history.epochs.last

    @property
    def _enqueued(self) -> int:
        """Number of epochs enqueued."""
        return self._segments[0].first + len(self._segments[0].rates)

    @property
    def done(self) -> Array:
        """The epochs reported since the start [1]."""
        return np.array([self._epoch - self._start.epoch])

    @property
    def ahead(self) -> bool:
        """Whether epochs are enqueued that are not reported."""
        return self._enqueued > self._epoch

    @property
    def passes(self) -> list[Pass]:
        """The passes over the training set, and over the validation set if any."""
        return [self._pass, *self._validations]

    @property
    def replaced(self) -> bool:
        """Whether a callback has replaced the last epoch's parameters."""
        return self._replaced == self._epoch

    # Epochs -----------------------------------------------------------------------

    def run(self, active: Array, left: Array) -> Segment:
        """Compute the next epochs, at most those left; return their measures."""
        # 1. A snapshot is taken, and epochs are enqueued behind it, as many as fit in
        #    the time that a callback may cost: the device does not wait for reports.
        # 2. The host waits for their totals.
        # 3. If kernels timed out, their totals are NaN: the snapshot is restored, and a
        #    fallback computes the same epochs.
        # 4. A launch may have ended early, at the desired error: it has fewer epochs.
        while True:
            first = self._epoch
            length = self._length(int(left[0]))
            rates = self._rates_of(first, length)
            start = time.perf_counter()
            self._enqueue(first, rates)
            training, validation = self._measures(length)
            if (
                not self._pass.may_time_out or finite_epochs(training).all()
                or not self._pass.recovered()
            ):
                break
            self._history.plan = self._pass.explain()
            self._restore(first)
            self._discard(first)
        if len(training) < length:
            length = len(training)
            self._discard(first + length)
        self._seconds = (time.perf_counter() - start) / length
        self._pass.epoch_seconds = self._seconds
        if len(self._sessions) > 1:  # the bus has a share of it
            self._history.plan = self._pass.explain()
        return Segment(
            np.array([length]), training[np.newaxis],
            None if validation is None else validation[np.newaxis], self._seconds,
        )

    def report(self, segment: Segment) -> None:
        """Add epochs to the history."""
        self._unobserved += int(segment.ran[0])
        segment.log(self._history)

    def _length(self, left: int) -> int:
        """Return the number of epochs of the next segment."""
        if not self._speculates or not self._train_state[0].can_snapshot_state:
            return 1
        most = self._pass.epochs_per_run
        if most == 0 or self.each_epoch or self._validations:
            most = int(self._segment_seconds / self._seconds)
        elif self._seconds == inf:  # a launch of an unknown time
            most = 1
        return max(1, min(
            MAX_EPOCHS, self._pass.records, left, self._unobserved, most
        ))

    def _rates_of(self, first: int, length: int) -> Array:
        """Return the learning rates of epochs."""
        rate, factor = self._setup.options.rule.rate, self._setup.rates
        rates = np.empty(length)
        if factor is constant:
            rates.fill(rate)
            return rates

        def scheduled() -> Array:
            rates[:] = [rate * factor(first + i) for i in range(length)]
            return rates

        ranks = self._setup.ranks  # a function of the caller's may read rank 0's state
        return scheduled() if ranks is None else ranks.from_first(scheduled)

    def _enqueue(self, first: int, rates: Array) -> None:
        """Take a snapshot and enqueue a segment, with the validation of each epoch."""
        train_state, last = self._train_state[0], self._segments[0]
        number = 1 - last.snapshot
        restorable = self._setup.ranks is None and (
            train_state.can_snapshot_state or train_state.host_is_apart
        )
        train_state.snapshot(number, self._pass.may_time_out or restorable)
        self._segments = [_Enqueued(first, rates, number), last]
        self._run(first, rates, self._validations)

    def _run(
        self, first: int, rates: Array, validations: Sequence[Pass] = ()
    ) -> None:
        """Enqueue an epoch for each rate."""
        seed, count, steps = self._start.seed, len(rates), self._setup.steps
        before = self._start.count + (first - self._start.epoch) * steps
        shuffled = self._setup.options.shuffled and count
        epochs = keys(seed, first, count) if shuffled else None
        size = 1 if validations else max(count, 1)
        for index in range(0, count, size):
            part = slice(index, index + size)
            self._pass.run(
                rates[part], None if epochs is None else epochs[part], seed,
                before + index * steps, index,
            )
            for one in validations:
                one.run(record=index)

    def _measures(self, count: int) -> tuple[Array, Array | None]:
        """Wait for the segment's epochs, and return their measures [epochs, 3]."""
        setup, n_out = self._setup, self._setup.network.n_out
        training = measures(self._pass.totals(count), len(setup.data), n_out)
        if setup.validation is None:
            return training, None
        totals = np.sum([one.totals(count) for one in self._validations], axis=0)
        return training, measures(totals, len(setup.validation), n_out)

    # Parameters -------------------------------------------------------------------

    def values(self) -> tuple[Array, Array]:
        """Return the parameters and the optimiser's state after the last epoch."""
        self.roll_back()
        self._unobserved = 0
        return self._train_state[0].values()

    def replace(self, parameters: Array) -> None:
        """Replace the parameters after the last epoch."""
        self.roll_back()
        self._replaced = self._epoch
        for train_state in self._train_state:
            train_state.replace(parameters)

    def parameters_before(self) -> Array:
        """Return the parameters before the last epoch."""
        self.roll_back()
        self._unobserved = 0
        segment, train_state = self._segments[0], self._train_state[0]
        if len(segment.rates) == 1:
            return train_state.kept_parameters(segment.snapshot)
        self._before_last = (self.values()[0] if self.replaced else None,)
        self._restore(self._epoch - 1)
        parameters = train_state.values()[0]
        self.roll_back()
        return parameters

    def finite_parameters(self, epoch: int) -> Array:
        """Return the last finite parameters after at most `epoch` epochs.

        Losses may stay finite while parameters are not. They are looked for in the last
        two segments; before these there are the initial ones.
        """
        first = self._start.epoch
        if self._enqueued == first:  # no epoch, and no snapshot
            return self._start.parameters
        low, high = min(one.first for one in self._segments), max(epoch, first)
        finite, at = self._start.parameters, high
        while low <= high:  # once they are not finite, they stay so
            self._restore(at)
            parameters, _ = self._train_state[0].values()
            if all_finite(parameters):
                finite, low = parameters, at + 1
            else:
                high = at - 1
            at = (low + high) // 2
        return finite

    def roll_back(self) -> None:
        """Discard the epochs that are not reported yet.

        The optimiser's state of a discarded epoch stays on a CPU without memory for a
        snapshot of it.
        """
        if self.ahead or self._before_last is not None:
            self._restore(self._epoch)
            self._discard(self._epoch)
            self._unobserved = 0
            replaced, = self._before_last or (None,)
            if replaced is not None:
                self._train_state[0].replace(replaced)
            self._before_last = None

    def _discard(self, epoch: int) -> None:
        """Forget the last segment's epochs after `epoch`, and it if none is left."""
        last, before = self._segments
        rates = last.rates[: epoch - last.first]
        self._segments = (
            [last._replace(rates=rates), before] if len(rates) else [before, last]
        )

    def _restore(self, epoch: int) -> None:
        """Restore the parameters after `epoch` epochs, of the last two segments.

        The optimiser's state is restored if the snapshot has it.
        """
        segment = self._segments[0 if self._segments[0].first <= epoch else 1]
        self._train_state[0].restore(segment.snapshot)
        self._run(segment.first, segment.rates[: epoch - segment.first])
        if self._pass.recovered():
            self._restore(epoch)

    def finish(self) -> tuple[Array, Array]:
        """Wait for all devices; return the parameters and the optimiser's state."""
        self.roll_back()
        for each in self._sessions[1:]:
            each.finish()
        return self._train_state[0].values()

    def keep(self) -> None:
        """Leave the passes to a later training that is alike."""
        if self._bound is not None:
            keep(self._sessions[0], self._bound)

"""Training by several devices: each the gradients of its share of every batch.

The gradients go through the host to the other devices, each adds them up in the same
order, and the update follows from the sum: on every device where these are alike, so
that their parameters stay equal bit for bit; else on the first one, and the others get
its parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.ir.ops import Program
from clnet.ir.training_ops import Gather, GradientNorm, Update
from clnet.nn.model import Model
from clnet.opencl.device import Device
from clnet.opencl.session import session
from clnet.planning.training_planner import TrainingPlan, plan_training
from clnet.planning.tuning.search import Search
from clnet.runtime.binding import Step
from clnet.runtime.data_parallel import alike, least_seconds, shares, told
from clnet.runtime.gradient_exchange import GradientExchange
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.training.data_set import DataSet
from clnet.variants.training.gradient_norm import Norm
from clnet.variants.training.optimisers import Optimisers

Array = NDArray[Any]


class _Worker:
    """One device's share of a training.

    Parameters
    ----------
    network : Model
        What is trained.
    device : Device
        Where.
    steps : sequence of Step
        Of the gradients, for the share.
    program : Program
        Theirs.
    data : DataSet
        All samples.
    rows : slice
        The share of a batch.
    train_state : TrainState
        The device's parameters and state.
    exchange : GradientExchange
        The device's side of it.
    """

    def __init__(
        self,
        network: Model,
        device: Device,
        steps: Sequence[Step],
        program: Program,
        data: DataSet,
        rows: slice,
        train_state: TrainState,
        exchange: GradientExchange,
    ) -> None:
        self.exchange = exchange
        self._rows = rows
        self._gathers = isinstance(program.ops[0], Gather)
        self._totals = program.output
        self.replay = Replay(session(device), steps, network.layout, train_state)
        for value, array in zip(program.inputs, data.arrays, strict=True):
            self.replay.write(value, array if self._gathers else array[rows])

    def run(self, first: int, samples: int, count: int) -> bool:
        """Begin the gradients of a batch; False: it has no sample of this share."""
        mine = min(samples, self._rows.stop) - self._rows.start
        if mine <= 0:
            return False
        begin = first + self._rows.start if self._gathers else 0
        self.replay.set(
            first=begin, samples=mine, seen=begin + mine, fresh=first == 0, count=count,
            steps=1,
        )
        self.replay.run()
        self.exchange.fetch()
        return True

    def totals(self) -> Array:
        """Wait for the steps so far, and return the epoch's totals."""
        totals: Array = self.replay.read(self._totals)[0]
        return totals


class ParallelPass:
    """A program of training, run over a data set by several devices: as `Pass`.

    Parameters
    ----------
    network : Model
        What the program was lowered from.
    program : Program
        One step.
    data : DataSet
        Uploaded here: to each device its part, or all where it is gathered from.
    batch : int
        Samples a step, of all devices.
    devices : sequence of Device
        Two or more.
    train_state : sequence of TrainState
        Parameters and state on each.
    search : Search
        Told of what is measured.

    Raises
    ------
    InputError
        If a batch has not a sample for each device.
    """

    def __init__(
        self,
        network: Model,
        program: Program,
        data: DataSet,
        batch: int,
        devices: Sequence[Device],
        train_state: Sequence[TrainState],
        search: Search,
    ) -> None:
        if batch < len(devices):
            raise InputError(
                f"a batch has {batch} samples, expected one or more for each of "
                f"{len(devices)} devices"
            )
        self._network, self._data, self._batch = network, data, batch
        self._devices, self._train_state = tuple(devices), tuple(train_state)
        self._search = search
        self._gradients, update = parts(program)
        self._alike = alike(devices)
        self._exchanges = [
            GradientExchange(
                session(device), one.gradients, one.size, program.dtype,
                len(devices) - 1 if self._alike or number == 0 else 0,
            )
            for number, (device, one) in enumerate(
                zip(devices, train_state, strict=True)
            )
        ]
        self._plans: dict[tuple[Device, int], TrainingPlan] = {}
        even = shares(batch, [1.0] * len(devices))
        self._workers = self._shared(even)
        if not self._alike:
            speeds = [
                count / least_seconds(partial(self._try, worker))
                for worker, count in zip(self._workers, even, strict=True)
            ]
            self._plans.clear()
            self._workers = []  # what they hold goes before the next ones come
            even = shares(batch, speeds)
            self._workers = self._shared(even)
        self.shares = even
        self._update_plan = plan_training(  # there is one way, and nothing to measure
            network, update, devices[0], batch, tune=False,
            variants=(Norm(), Optimisers()),
        )
        (op,) = (op for op in update.ops if isinstance(op, Update))
        self._totals = op.totals if op.optimiser.reads_error else None
        updating = self._devices if self._alike else self._devices[:1]
        self._updates = [
            Replay(
                session(device), moved(self._update_plan.steps, devices[0], device),
                network.layout, one,
            )
            for device, one in zip(updating, train_state, strict=False)
        ]

    def explain(self) -> str:
        """Return which device has which share, and how a step is computed, and why."""
        texts = [told(self._devices, self.shares, "samples of a batch")]
        texts += [plan.explain() for plan in self._plans.values()]
        where = "every device" if self._alike else self._devices[0].name
        texts.append(f"the update, on {where}\n\n{self._update_plan.explain()}")
        return "\n\n".join(texts)

    does_epochs = False
    may_fail = False  # gradients alone are computed without kernels that wait

    def recovered(self) -> bool:
        """Return False: see `Pass.mended`."""
        return False

    def run(
        self, words: Iterable[int], rate: float, seed: int, count: int,
        place: int = 0, epochs: int = 1,
    ) -> None:
        """Train one epoch, whose totals have one place: as `Pass.run`."""
        keys = {f"key{i}": int(word) for i, word in enumerate(words)}
        for number, worker in enumerate(self._workers):
            # A seed of its own: samples count from 0 on each, in what dropout hashes.
            worker.replay.set(seed=(seed + number) & 0xFFFFFFFF, **keys)
        for update in self._updates:
            update.set(rate=rate, seed=seed & 0xFFFFFFFF)
        n, batch = len(self._data), self._batch
        for step, first in enumerate(range(0, n, batch)):
            self._step(first, min(batch, n - first), count + step)

    def totals(self, count: int = 1) -> Array:
        """Wait for the epoch's end, and return its totals [1, 6] of all devices."""
        found: Array = np.sum([worker.totals() for worker in self._workers], axis=0)
        return found[np.newaxis]

    def _step(self, first: int, samples: int, count: int) -> None:
        busy = {w.exchange for w in self._workers if w.run(first, samples, count)}
        senders = [i for i, one in enumerate(self._exchanges) if one in busy]
        for piece in range(self._exchanges[0].pieces):
            found = {i: self._exchanges[i].fetched(piece) for i in senders}
            for number, _ in enumerate(self._updates):
                self._exchanges[number].take(
                    piece, [found[i] for i in senders if i != number]
                )
        for number, update in enumerate(self._updates):
            if self._totals is not None:
                update.write(self._totals, self.totals())
            self._exchanges[number].add(
                sum(i < number for i in senders), number in senders,
                sum(i > number for i in senders),
            )
            update.set(samples=samples, seen=first + samples, count=count)
            update.run()
            update.session.settle()
        if not self._alike:
            parameters, _ = self._train_state[0].values()
            for train_state in self._train_state[1:]:
                train_state.replace(parameters)

    def _shared(self, counts: Sequence[int]) -> list[_Worker]:
        """Return the workers of those devices that have a share."""
        found = []
        for number, (device, stop) in enumerate(
            zip(self._devices, accumulate(counts), strict=True)
        ):
            if counts[number]:
                found.append(_Worker(
                    self._network, device, self._steps(device, counts[number]),
                    self._gradients, self._data, slice(stop - counts[number], stop),
                    self._train_state[number], self._exchanges[number],
                ))
        return found

    def _steps(self, device: Device, samples: int) -> Sequence[Step]:
        """Return the steps of a device's share, planned once for all that are alike."""
        for (other, batch), plan in self._plans.items():
            if batch == samples and alike([device, other]):
                return moved(plan.steps, other, device)
        plan = plan_training(
            self._network, self._gradients, device, samples, search=self._search
        )
        self._plans[device, samples] = plan
        return plan.steps

    def _try(self, worker: _Worker) -> None:
        worker.run(0, self._batch, 0)
        for piece in range(worker.exchange.pieces):
            worker.exchange.fetched(piece)


def parts(program: Program) -> tuple[Program, Program]:
    """Return the program of a step's gradients, and the one of its update."""
    start = next(
        i for i, op in enumerate(program.ops) if isinstance(op, (GradientNorm, Update))
    )
    (update,) = (op for op in program.ops if isinstance(op, Update))
    outputs = (update.totals, *update.gradients)
    gradients = replace(program, ops=program.ops[:start], outputs=outputs)
    return gradients, replace(program, ops=program.ops[start:], inputs=outputs)


def moved(steps: Iterable[Step], here: Device, there: Device) -> list[Step]:
    """Return steps of one device as those of another that is alike."""
    places = dict(zip(here.places, there.places, strict=True))
    return [
        step if step.device is None else replace(step, device=places[step.device])
        for step in steps
    ]

"""Data-parallel training: each device computes the gradients of its share of a batch.

The gradients are exchanged through the host, and each device adds them in the same
order. Devices of one kind then update their own parameters, which stay equal bit for
bit. Otherwise the first device updates, and the others get its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.ir.batch import Gather
from clnet.ir.program import split_program
from clnet.ir.update import Update
from clnet.opencl.session import session
from clnet.planning.training_planner import TrainingPlan, plan_training
from clnet.runtime.data_parallel import alike, min_seconds, shares, shares_text
from clnet.runtime.gradient_exchange import GradientExchange
from clnet.runtime.replay import Replay
from clnet.training.passes import shuffled_weights
from clnet.variants.training.optimisers import Norm, Optimisers

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.planning.tuning.search import Search
    from clnet.runtime.binding import Step
    from clnet.runtime.train_state import TrainState
    from clnet.training.data_set import DataSet

Array = NDArray[Any]


class _Worker:
    """One device's part of a training: the gradients of its share of each batch."""

    def __init__(
        self,
        network: Model,
        device: Device,
        steps: Sequence[Step],
        program: Program,
        data: DataSet,
        rows: slice,
        train_state: TrainState,
    ) -> None:
        self._rows = rows
        self._gathers = isinstance(program.ops[0], Gather)
        self._totals, self._weights = program.output, program.inputs[-1]
        self.replay = Replay(session(device), steps, network.layout, train_state)
        for value, array in zip(program.inputs, data.arrays, strict=True):
            self.replay.write(value, array if self._gathers else array[rows])

    def prepare(self, first: int, samples: int, count: int) -> bool:
        """Set the scalars of a batch; return False if it ends before this share."""
        size = min(samples, self._rows.stop) - self._rows.start
        if size <= 0:
            return False
        start = first + self._rows.start if self._gathers else 0
        self.replay.set(
            first=start, samples=size, seen=start + size, fresh=first == 0, count=count,
            steps=1,
        )
        return True

    def write_weights(self, weights: Array) -> None:
        """Wait for the enqueued steps, and replace the weights of all samples."""
        self.replay.session.finish()
        self.replay.write(self._weights, weights)

    def totals(self) -> Array:
        """Wait for the enqueued steps, and return the epoch's totals."""
        totals: Array = self.replay.read(self._totals)[0]
        return totals


class ParallelPass:
    """A pass over a data set by several devices, with the interface of `Pass`."""

    def __init__(
        self,
        network: Model,
        program: Program,
        data: DataSet,
        batch: int,
        devices: Sequence[Device],
        train_state: Sequence[TrainState],
        search: Search,
        planning: Callable[..., TrainingPlan] = plan_training,
    ) -> None:
        if batch < len(devices):
            raise InputError(
                f"a batch has {batch} samples, expected one or more for each of "
                f"{len(devices)} devices"
            )
        self._network, self._data, self._batch = network, data, batch
        self._devices, self._train_state = tuple(devices), tuple(train_state)
        self._search, self._planning = search, planning
        self._gradients, update = split_program(program)
        self._alike = alike(devices)
        self._exchange = GradientExchange(
            [session(device) for device in devices],
            [one.gradients for one in train_state], network.layout, program.dtype,
            len(devices) if self._alike else 1,
        )
        self._plans: dict[tuple[Device, int], TrainingPlan] = {}
        self.shares: list[int] = shares(batch, [1.0] * len(devices))
        self._workers = self._make_workers()
        if not self._alike:
            speeds = [
                count / min_seconds(partial(self._try, number))
                for number, count in enumerate(self.shares)
            ]
            self._plans.clear()
            self._workers = {}  # free their memory before the next ones allocate
            self.shares = shares(batch, speeds)
            self._workers = self._make_workers()
        self._update_plan = plan_training(  # one candidate: nothing to measure
            network, update, devices[0], batch, tune=False,
            variants=(Norm(), Optimisers()),
        )
        (op,) = (op for op in update.ops if isinstance(op, Update))
        self._totals = op.totals if op.optimiser.reads_error else None
        updating = self._devices if self._alike else self._devices[:1]
        self._updates = [
            Replay(
                session(device),
                retargeted(self._update_plan.steps, devices[0], device),
                network.layout, one,
            )
            for device, one in zip(updating, train_state, strict=False)
        ]

    def explain(self) -> str:
        """Return the devices' shares, and how a step is computed, and why that way."""
        texts = [shares_text(self._devices, self.shares, "samples of a batch")]
        texts += [plan.explain() for plan in self._plans.values()]
        seconds = self.epoch_seconds
        steps = -(-len(self._data) // self._batch)
        texts.append(self._exchange.explain(seconds and seconds / steps))
        updating = "every device" if self._alike else self._devices[0].name
        texts.append(f"the update, on {updating}\n\n{self._update_plan.explain()}")
        return "\n\n".join(texts)

    @property
    def plans(self) -> list[tuple[TrainingPlan, Device]]:
        """The plans of the gradients with their devices."""
        return [(plan, device) for (device, _), plan in self._plans.items()]

    records = 1
    epochs_per_run = 0
    epoch_seconds: float | None = None
    may_time_out = False  # no kernel of a program of gradients alone waits for groups

    def recovered(self) -> bool:
        """Return False: no kernel can time out."""
        return False

    def limit(self, squares: float, fails: float) -> None:
        """Do nothing: the host looks at each epoch's totals."""

    def run(
        self, rates: Array, keys: Array | None, seed: int, count: int,
        record: int = 0,
    ) -> None:
        """Train one epoch; the parameters are those of `Pass.run`."""
        (rate,) = rates.tolist()
        if keys is not None and self._data.weight is not None:
            weights = shuffled_weights(self._data, self._batch, keys[0])
            for worker in self._workers.values():
                worker.write_weights(weights)
        key = None if keys is None else keys[0]
        for number, worker in self._workers.items():
            # Dropout hashes the seed and a sample's index, which starts at 0 on each
            # device: each needs a seed of its own.
            worker.replay.set(seed=(seed + number) & 0xFFFFFFFF, key=key)
        for update in self._updates:
            update.set(rate=rate, seed=seed & 0xFFFFFFFF)
        n, batch = len(self._data), self._batch
        for step, first in enumerate(range(0, n, batch)):
            self._step(first, min(batch, n - first), count + step)

    def totals(self, count: int = 1) -> Array:
        """Wait for the epoch, and return the totals [1, 6] of all devices."""
        totals = [worker.totals() for worker in self._workers.values()]
        found: Array = np.sum(totals, axis=0)
        return found[np.newaxis]

    def _step(self, first: int, samples: int, count: int) -> None:
        senders = [
            number for number, worker in self._workers.items()
            if worker.prepare(first, samples, count)
        ]
        for number in senders:
            self._start(number)
        self._exchange.exchange(senders)
        for update in self._updates:
            if self._totals is not None:
                update.write(self._totals, self.totals())
            update.set(samples=samples, seen=first + samples, count=count)
            update.run()
            update.session.barrier()
        self._exchange.end()
        if not self._alike:
            parameters, _ = self._train_state[0].values()
            for train_state in self._train_state[1:]:
                train_state.replace(parameters)

    def _start(self, number: int) -> None:
        """Enqueue a device's gradients, and their downloads."""
        replay = self._workers[number].replay
        self._exchange.start(number, replay.run_to(self._exchange.pauses(number)))

    def _make_workers(self) -> dict[int, _Worker]:
        """Return the workers of the devices that have a share, by their numbers."""
        workers = {}
        for number, (device, stop) in enumerate(
            zip(self._devices, accumulate(self.shares), strict=True)
        ):
            size = self.shares[number]
            if size:
                steps = self._steps(device, size)
                self._exchange.plan(number, steps)
                workers[number] = _Worker(
                    self._network, device, steps, self._gradients, self._data,
                    slice(stop - size, stop), self._train_state[number],
                )
        return workers

    def _steps(self, device: Device, samples: int) -> Sequence[Step]:
        """Return the plan of a device's share; devices of one kind share a plan."""
        for (other, batch), plan in self._plans.items():
            if batch == samples and alike([device, other]):
                return retargeted(plan.steps, other, device)
        plan = self._planning(
            self._network, self._gradients, device, samples, search=self._search
        )
        self._plans[device, samples] = plan
        return plan.steps

    def _try(self, number: int) -> None:
        worker = self._workers[number]
        worker.prepare(0, self._batch, 0)
        self._start(number)
        worker.replay.session.finish()


def retargeted(steps: Iterable[Step], source: Device, target: Device) -> list[Step]:
    """Return the steps of one device for another of the same kind."""
    devices = dict(zip(source.places, target.places, strict=True))
    return [
        step if step.device is None else replace(step, device=devices[step.device])
        for step in steps
    ]

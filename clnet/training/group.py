"""Groups: one device, several, or ranks of MPI, which share each step of a pass.

A worker computes its shares of a step's samples on a device. Alone it updates the
parameters too. In a group, gradients are summed before an update of their own: devices
of one model each update their own parameters, which stay equal bit for bit; of others
the first updates, and the rest get its parameters. Ranks all update.

The bits of a training by ranks depend on the number of shares, its blocks, not on that
of the ranks: a block is computed by the same plan on whichever rank owns it, and sums
over blocks have one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError, warn
from clnet.ir.batch import Gather
from clnet.ir.program import split_program
from clnet.ir.update import Update
from clnet.nn.copies import cut
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import session
from clnet.runtime.data_parallel import alike, min_seconds, shares_of, shares_text
from clnet.runtime.device_sums import DeviceSums
from clnet.runtime.rank_sums import RankSums
from clnet.runtime.ranks import size_of, sizes_of
from clnet.runtime.replay import Replay
from clnet.runtime.row_placement import SampleRows
from clnet.training.data_set import VALIDATION_BATCH
from clnet.training.streaming import StreamedSet

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Program
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.binding import PlanStep
    from clnet.runtime.ranks import Ranks
    from clnet.runtime.train_state import TrainState
    from clnet.training.plans import Planning

Array = NDArray[Any]


class Alone:
    """One device, whose program computes gradients and update of whole epochs."""

    alone = True
    shares: tuple[int, ...] = (1,)
    numbers: range = range(1)
    ranks: Ranks | None = None

    def __init__(
        self, session: Session, plan: TrainingPlan, train_state: TrainState
    ) -> None:
        # Empty while no training has the group
        self.plans: list[tuple[TrainingPlan, Device]] = [(plan, session.device)]
        self.train_state = train_state
        self.replay: Replay = Replay(
            session, plan.steps, plan.network.layout, train_state
        )
        self.program: Program = plan.program
        self.batch: int = self.replay.batch
        self.records: int = self.replay.add_records(plan.program.output)
        self.rows: SampleRows | None = None  # those of samples that are read by parts

    @property
    def workers(self) -> list[Alone]:
        """The device itself."""
        return [self]

    @property
    def whole_epochs(self) -> Alone:
        """The group itself: its launches may compute whole epochs."""
        return self

    def begin(self, rate: float, seed: int, key: Array | None, record: int) -> None:
        """Begin an epoch, whose totals are a numbered record."""
        self.replay.select_record(self.program.output, record)
        self.replay.set(rate=rate, seed=seed & 0xFFFFFFFF, key=key)

    def run(self, slot: int, samples: int, seen: int, count: int) -> int:
        """Enqueue the steps of consecutive samples; return their number."""
        # Helpers of the last step may still wait with their old kernel arguments; the
        # new row numbers tell them that a new block has begun.
        start = 0 if self.rows is None else self.rows.row(0, slot)
        return self.replay.run_pass(samples, count, seen, start)

    def epochs_per_run(self, samples: int, weighted: bool) -> int:
        """Return the epochs that a launch computes at most; 0: launches take less."""
        op = self.program.ops[0]
        if weighted and isinstance(op, Gather) and op.shuffled:
            return 0  # the host balances the weights of each epoch
        return self.replay.epochs_per_run(samples)

    def run_epochs(
        self, samples: int, rates: Array, keys: Array | None, seed: int, count: int,
        record: int,
    ) -> None:
        """Enqueue epochs by launches that each compute several."""
        schedule = None
        if keys is not None or np.count_nonzero(rates != rates[0]):
            schedule = np.zeros(len(rates), EPOCH)
            schedule["rate"] = rates
            if keys is not None:
                schedule["key"] = keys
        self.replay.set(rate=float(rates[0]), seed=seed & 0xFFFFFFFF)
        self.replay.run_epochs(samples, count, len(rates), record, schedule)

    def limit(self, squares: float, fails: float) -> None:
        """Let launches end after an epoch whose totals may be below a limit."""
        self.replay.set(squares_limit=squares, fails_limit=fails)

    def fallback(self) -> Alone | None:
        """Wait for the epochs; return a group by other kernels if some timed out.

        Warns
        -----
        ClnetWarning
            If kernels timed out.
        """
        if not self.replay.bound.timed_out():
            return None
        from clnet.planning.training_planner import plan_training

        ((plan, device),) = self.plans
        names = ", ".join(step.variant.name for step in plan.steps)
        text = (
            f"{names} timed out on {device.name} (is another program using it?); these "
            "epochs are recomputed by a fallback, and the training continues with it"
        )
        warn(text)
        other = plan_training(
            plan.network, plan.program, replace(device, forward_progress=False),
            self.batch, tune=False,
        )
        other = replace(other, explanation=f"{other.explanation}\n\n{text}")
        return Alone(self.replay.session, other, self.train_state)

    def totals(self, count: int) -> Array:
        """Wait for the epochs, and return their totals [count, 6]."""
        return self.replay.read_records(self.program.output, count)

    def explain(self, step_seconds: float | None) -> str:
        """Return how a step is computed, and why that way."""
        ((plan, _),) = self.plans
        return plan.explain()


class Worker:
    """A device's part of a group: a program over its shares of each step."""

    def __init__(
        self, replay: Replay, steps: Sequence[PlanStep], program: Program,
        numbers: range
    ) -> None:
        self.replay: Replay = replay
        self.steps: Sequence[PlanStep] = steps
        self.program: Program = program
        self.numbers = numbers  # those of its shares among all of the group
        self.rows: SampleRows | None = None
        replay.add_records(program.output, len(numbers))  # of each share's totals
        self._fresh = np.ones(len(numbers), bool)  # shares without a step this epoch
        self._seed = 0
        replay.select_record(program.output, 0)

    def begin(self, seed: int, key: Array | None) -> None:
        """Begin an epoch."""
        self._fresh[:] = True
        self._seed = seed
        self.replay.set(seed=(seed + self.numbers[0]) & 0xFFFFFFFF, key=key)

    def prepare(self, index: int, slot: int, piece: slice, count: int) -> Replay:
        """Take its piece of a step for one of its shares; return what computes it."""
        replay = self.replay
        if len(self.numbers) > 1:
            replay.select_record(self.program.output, index)
            # Dropout hashes the seed and a sample's index in its share.
            replay.set(seed=(self._seed + self.numbers[index]) & 0xFFFFFFFF)
        assert self.rows is not None
        samples = size_of(piece)
        replay.set(
            first=self.rows.select(index, slot, piece), samples=samples, seen=samples,
            fresh=bool(self._fresh[index]), count=count, steps=1,
        )
        self._fresh[index] = False
        return replay

    def totals(self) -> Array:
        """Wait for the epoch, and return the totals of its shares [shares, 6]."""
        records = self.replay.read_records(self.program.output, len(self.numbers))
        totals: Array = records.astype(np.float64)
        totals[self._fresh] = 0
        return totals


@dataclass
class Group:
    """Workers that share the steps of a pass, and how their gradients are summed."""

    workers: list[Worker]  # Those of this process
    shares: tuple[int, ...]  # The proportions of all workers' shares
    batch: int  # Samples of a step
    plans: list[tuple[TrainingPlan, Device]]  # Those of the workers
    text: str  # How steps are shared
    ranks: Ranks | None = None
    sums: DeviceSums | RankSums | None = None  # None: gradients are not summed
    updates: list[Replay] = field(default_factory=list)
    update_text: str = ""
    read_totals: Value | None = None  # Those that the update reads
    # The states of the first device and of others that get its parameters
    states: Sequence[TrainState] = ()

    alone = False
    whole_epochs = None  # a launch takes a share of a step

    def fallback(self) -> None:
        """Return none: kernels of a program of gradients alone wait for no others."""

    def __post_init__(self) -> None:
        self._cuts = cut(self.batch, self.shares)

    def cuts(self, samples: int) -> list[slice]:
        """Return the samples of each share of a step."""
        return self._cuts if samples == self.batch else cut(samples, self.shares)

    def begin(self, rate: float, seed: int, key: Array | None, record: int) -> None:
        """Begin an epoch."""
        for worker in self.workers:
            worker.begin(seed, key)
        for update in self.updates:
            update.set(rate=rate, seed=seed & 0xFFFFFFFF)

    def run(self, slot: int, samples: int, seen: int, count: int) -> int:
        """Enqueue the steps of consecutive samples; return their number."""
        firsts = range(0, samples, self.batch)
        for step, first in enumerate(firsts):
            size = min(self.batch, samples - first)
            self._step(slot + step, size, seen + first + size, count + step)
        return len(firsts)

    def _step(self, slot: int, samples: int, seen: int, count: int) -> None:
        """Enqueue a step: its gradients, their sum, and the update."""
        sums, cuts = self.sums, self.cuts(samples)
        if sums is not None:
            sums.begin([size_of(piece) > 0 for piece in cuts])
        for worker in self.workers:
            for index, number in enumerate(worker.numbers):
                piece, replay = cuts[number], None
                if size_of(piece):
                    replay = worker.prepare(index, slot, piece, count)
                if sums is not None:
                    sums.add(number, replay)
                elif replay is not None:
                    replay.run()
        if sums is None:
            return
        sums.finish()
        totals = None if self.read_totals is None else self.totals()
        for update in self.updates:
            if self.read_totals is not None and totals is not None:
                update.write(self.read_totals, totals.astype(update.dtype))
            update.set(samples=samples, seen=seen, count=count)
            update.run()
            update.session.barrier()
        sums.end()
        if self.states:  # devices of another model would round another update
            first, *others = self.states
            parameters, _ = first.values()
            for state in others:
                state.replace(parameters)

    def totals(self, count: int = 1) -> Array:
        """Wait for the epoch so far, and return all workers' totals [1, 6]."""
        totals = [worker.totals() for worker in self.workers]
        if self.ranks is not None:
            totals = self.ranks.gathered(totals[0])
        summed: Array = np.concatenate(totals).sum(axis=0)
        return summed[np.newaxis]

    def explain(self, step_seconds: float | None) -> str:
        """Return the shares, and how each step is computed, and why that way."""
        texts = [self.text, *(plan.explain() for plan, _ in self.plans)]
        if self.sums is not None:
            texts += [self.sums.explain(step_seconds), self.update_text]
        return "\n\n".join(texts)


def training_group(planning: Planning, states: Sequence[TrainState]) -> Group:
    """Return the group of several devices or ranks that share a training's steps."""
    setup, network = planning.setup, planning.setup.network
    batch, devices, ranks = setup.options.batch, setup.devices, setup.ranks
    if ranks is None and batch < len(devices):
        raise InputError(
            f"a batch has {batch} samples, expected one or more for each of "
            f"{len(devices)} devices"
        )
    gradients, update = split_program(planning.program(network))
    shares = (1,) * (len(devices) if ranks is None else setup.blocks or ranks.size)
    group = _group(planning, gradients, batch, shares, states)
    equal = alike(devices)
    if not equal:
        speeds = [
            size_of(piece) / _step_seconds(worker, size_of(piece))
            for worker, piece in zip(group.workers, group.cuts(batch), strict=True)
        ]
        shares = tuple(shares_of(batch, speeds))
        del group  # free its memory before the next one allocates
        group = _group(planning, gradients, batch, shares, states)
    layout, dtype = network.layout, update.dtype
    if ranks is not None:
        (worker,), where = group.workers, "every rank"
        group.sums = RankSums(
            ranks, worker.replay.session, states[0].gradients, layout, dtype,
            worker.steps, len(worker.numbers), ordered=setup.blocks is not None,
        )
    else:
        where = "every device" if equal else devices[0].name
        steps = {worker.numbers[0]: worker.steps for worker in group.workers}
        group.sums = DeviceSums(
            [session(device) for device in devices],
            [state.gradients for state in states], layout, dtype,
            [steps.get(number, ()) for number in range(len(devices))],
            len(devices) if equal else 1,
        )
        group.states = () if equal else states
    (op,) = (op for op in update.ops if isinstance(op, Update))
    group.read_totals = op.totals if op.optimiser.reads_error else None
    plan = planning.update(update, devices[0])
    group.update_text = f"the update, on {where}\n\n{plan.explain()}"
    for device, state in zip(devices if equal else devices[:1], states, strict=False):
        steps_there = retargeted(plan.steps, devices[0], device)
        group.updates.append(Replay(session(device), steps_there, layout, state))
    return group


def validation_group(
    planning: Planning, states: Sequence[TrainState], training: Group
) -> Group:
    """Return the group that measures the validation set, of the training's shares."""
    data = planning.setup.validation
    assert data is not None
    batch = min(len(data), VALIDATION_BATCH * len(training.shares))
    if isinstance(data, StreamedSet):
        batch = min(batch, data.rows)
    program = planning.validation_program(planning.setup.network)
    return _group(planning, program, batch, training.shares, states)


def _group(
    planning: Planning, program: Program, batch: int, shares: tuple[int, ...],
    states: Sequence[TrainState],
) -> Group:
    """Return a group whose workers compute their shares of a program's steps."""
    setup = planning.setup
    devices, ranks = setup.devices, setup.ranks
    numbers = [range(number, number + 1) for number in range(len(devices))]
    if ranks is not None:
        numbers = [range(len(shares))[cut(len(shares), ranks.size)[ranks.rank]]]
    workers: list[Worker] = []
    plans: list[tuple[TrainingPlan, Device]] = []
    for device, state, owned in zip(devices, states, numbers, strict=True):
        size = -(-batch * shares[owned[0]] // sum(shares))  # of a share, at most
        if not size:
            continue
        for plan, source in plans:  # devices of one model share a plan
            if plan.steps[0].span.batch == size and alike([device, source]):
                break
        else:
            plan, source = planning.share(program, device, size), device
            plans.append((plan, device))
        steps = retargeted(plan.steps, source, device)
        replay = Replay(session(device), steps, setup.network.layout, state)
        workers.append(Worker(replay, steps, program, owned))
    if ranks is not None:
        text = (
            f"shared among {ranks.size} ranks: a step's {batch} samples in "
            f"{len(shares)} blocks"
        )
    else:
        text = shares_text(devices, sizes_of(batch, shares), "samples of a batch")
    return Group(workers, shares, batch, plans, text, ranks)


def _step_seconds(worker: Worker, samples: int) -> float:
    """Return the time of a step of a worker's share alone."""
    worker.rows = SampleRows(worker.replay, worker.program, 1)

    def step() -> None:
        worker.prepare(0, 0, slice(0, samples), 0).run()
        worker.replay.session.finish()

    return min_seconds(step)


def retargeted(
    steps: Iterable[PlanStep], source: Device, target: Device,
) -> list[PlanStep]:
    """Return the steps of one device for another of the same model."""
    places = dict(zip(source.places, target.places, strict=True))
    return [
        step if step.device is None else replace(step, device=places[step.device])
        for step in steps
    ]

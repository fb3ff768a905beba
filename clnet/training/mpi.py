"""Training by several ranks: each computes the gradients of its blocks of a step.

The bits of a training depend on the number of blocks, not on that of the ranks: a block
is computed by the same plan on whichever rank owns it, and sums over blocks have one
order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_whole
from clnet.errors import DeviceError, InputError, counted
from clnet.ir.training_ops import Update, split_program
from clnet.nn.random import permuted
from clnet.opencl.session import session
from clnet.opencl.store import store_of
from clnet.planning.training_planner import plan_as_saved, plan_training, saved_plan
from clnet.runtime.data_parallel import device_of_rank
from clnet.runtime.rank_sums import RankSums
from clnet.runtime.ranks import cut
from clnet.runtime.replay import Replay
from clnet.training.data_set import VALIDATION_BATCH, DataSet
from clnet.training.saved import SavedTraining
from clnet.training.streaming import StreamedSet
from clnet.variants.training.gradient_norm import Norm
from clnet.variants.training.optimisers import Optimisers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from clnet.ir.ops import Program, Value
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices
    from clnet.opencl.session import Session
    from clnet.planning.saved_plan import SavedPlan
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.ranks import Ranks
    from clnet.runtime.replay import Blocks
    from clnet.runtime.train_state import TrainState
    from clnet.training.setup import TrainingSetup

Array = NDArray[Any]

MAX_BLOCKS = 1 << 16


class RankPass:
    """A pass over a data set by all ranks, with the interface of `Pass`.

    Parameters
    ----------
    ranks : Ranks
        All ranks.
    blocks : int or None
        Blocks of a step; None: as many as ranks, summed in MPI's order.
    session : Session
        Of this rank's device.
    plan : TrainingPlan
        The plan of one block, by the program of gradients, or of a validation.
    update : Program or None
        The program of a step's update; None: a validation.
    data : DataSet
        All samples; the device gets those of this rank's blocks.
    batch : int
        Samples a step, of all ranks together.
    train_state : TrainState
        Parameters and optimiser state on this rank's device.
    """

    records = 1
    epochs_per_run = 0
    epoch_seconds: float | None = None
    may_time_out = False  # no kernel of a program of gradients alone waits for groups

    def __init__(
        self, ranks: Ranks, blocks: int | None, session: Session, plan: TrainingPlan,
        update: Program | None, data: DataSet, batch: int, train_state: TrainState,
    ) -> None:
        self._ranks, self._session = ranks, session
        self._plan, self._data, self._batch = plan, data, batch
        self._blocks = blocks or ranks.size
        mine = cut(self._blocks, ranks.size)
        self._mine = range(self._blocks)[mine[ranks.rank]]
        self._owned = mine
        program, layout = plan.program, plan.network.layout
        self._replay = Replay(session, plan.steps, layout, train_state)
        n = len(data)
        # The rows of each step's blocks, all ranks' included.
        self._cuts = [
            [slice(first + part.start, first + part.stop)
             for part in cut(min(batch, n - first), self._blocks)]
            for first in range(0, n, batch)
        ]
        own = len(self._mine)
        self._stores: list[tuple[Value, Blocks]] = [
            (value, self._replay.add_blocks(value, own * len(self._cuts)))
            for value in program.inputs
        ]
        self._totals = program.output
        self._records = self._replay.add_blocks(self._totals, own)
        self._write(data)
        self._update: Replay | None = None
        self._read_totals: Value | None = None
        if update is not None:
            self._sums = RankSums(
                ranks, session, train_state.gradients, layout, plan.steps,
                program.dtype, ordered=blocks is not None,
            )
            self._update_plan = plan_training(  # one candidate: nothing to measure
                plan.network, update, session.device, batch, tune=False,
                variants=(Norm(), Optimisers()),
            )
            self._update = Replay(
                session, self._update_plan.steps, layout, train_state
            )
            (op,) = (op for op in update.ops if isinstance(op, Update))
            self._read_totals = op.totals if op.optimiser.reads_error else None

    def _write(self, data: DataSet, order: Array | None = None) -> None:
        """Write this rank's samples, in an order [n]."""
        for (_, store), array in zip(self._stores, data.arrays, strict=True):
            store.write(
                array[rows if order is None else order[rows]]
                for cuts in self._cuts
                for rows in cuts[self._mine.start : self._mine.stop]
            )

    def run(
        self, rates: Array | None = None, keys: Array | None = None, seed: int = 0,
        count: int = 0, record: int = 0,
    ) -> None:
        """Train one epoch, or validate; the parameters are those of `Pass.run`."""
        if keys is not None:
            n = len(self._data)
            order = permuted(np.arange(n), n, keys[0])
            self._session.finish()  # the epoch before reads the samples
            self._write(self._data.balanced(self._batch, order), order)
        for step, cuts in enumerate(self._cuts):
            self._run_blocks(step, cuts, seed, count + step)
            if self._update is not None:
                assert rates is not None
                samples = cuts[-1].stop - cuts[0].start
                if self._read_totals is not None:
                    totals = self.totals().astype(self._replay.dtype)
                    self._update.write(self._read_totals, totals)
                self._update.set(
                    rate=float(rates[0]), seed=seed & 0xFFFFFFFF, samples=samples,
                    seen=cuts[-1].stop, count=count + step,
                )
                self._update.run()
                self._session.barrier()

    def _run_blocks(
        self, step: int, cuts: Sequence[slice], seed: int, count: int
    ) -> None:
        """Compute this rank's blocks of a step, and the sum of all ranks' gradients."""
        replay, own = self._replay, len(self._mine)
        present = [
            any(part.start < part.stop for part in cuts[owned]) for owned in self._owned
        ]
        for index, block in enumerate(self._mine):
            size = cuts[block].stop - cuts[block].start
            if size:
                for value, store in self._stores:
                    argument = store.argument(step * own + index)
                    replay.select(value, argument, is_input=True)
                replay.select(self._totals, self._records.argument(index))
                replay.set(
                    # Dropout hashes the seed and a sample's index in its block.
                    seed=(seed + block) & 0xFFFFFFFF,
                    first=0, samples=size, seen=size, fresh=step == 0, count=count,
                    steps=1,
                )
            last = self._update is not None and index == own - 1
            if size and not last:
                replay.run()
            if last:
                pauses = self._sums.pauses
                self._sums.sum_up(replay.run_to(pauses) if size else None, present)
            elif self._update is not None:
                self._sums.add(bool(size))

    def totals(self, count: int = 1) -> Array:
        """Wait for the epoch, and return its totals [1, 6] in float64."""
        own = self._records.read()[:, 0].astype(np.float64)
        # Blocks without samples in the first step have the totals of the last epoch.
        first = self._cuts[0][self._mine.start : self._mine.stop]
        own[[part.start == part.stop for part in first]] = 0
        found: Array = np.concatenate(self._ranks.gathered(own)).sum(axis=0)
        return found[np.newaxis]

    def recovered(self) -> bool:
        """Return False: no kernel can time out."""
        return False

    def limit(self, squares: float, fails: float) -> None:
        """Do nothing: the host looks at each epoch's totals."""

    @property
    def plans(self) -> list[tuple[TrainingPlan, Device]]:
        """The plan of a block with its device."""
        return [(self._plan, self._session.device)]

    def explain(self) -> str:
        """Return the ranks' shares, and how a block is computed, and why that way."""
        blocks = self._blocks
        text = (
            f"shared among {self._ranks.size} ranks: a step's {self._batch} samples in "
            f"{blocks} blocks\n\n{self._plan.explain()}"
        )
        if self._update is None:
            return text
        return (
            f"{text}\n\n{self._sums.early:.0%} of the gradients are summed while "
            "others are computed\n\nthe update, on every rank\n\n"
            f"{self._update_plan.explain()}"
        )


def rank_passes(
    setup: TrainingSetup, network: Model, program: Program, train_state: TrainState,
    plan: Callable[..., TrainingPlan], validation: Program,
) -> tuple[RankPass, list[RankPass]]:
    """Return the pass over the training set, and that over the validation set if any.

    Parameters
    ----------
    setup : TrainingSetup
        With ranks.
    network : Model
        The network in training.
    program : Program
        The program of a step.
    train_state : TrainState
        Parameters and optimiser state on this rank's device.
    plan : callable
        Plans a program for a network, a device and a batch, on rank 0.
    validation : Program
        The program of a validation.
    """
    ranks, (where,) = setup.ranks, setup.devices
    assert ranks is not None
    parts = setup.blocks or ranks.size
    own = session(where)

    def planned(program: Program, batch: int) -> TrainingPlan:
        """Return rank 0's plan, so that ranks do not measure at the same time."""
        size = -(-batch // parts)
        found: TrainingPlan | None = None

        def measured() -> SavedPlan:
            nonlocal found
            found = plan(network, program, where, size)
            return saved_plan(found, where)

        saved = ranks.from_first(measured)
        if found is None:
            found = plan_as_saved(saved, network, program, where, size)
        if found is None:
            names = ", ".join(step["variant"] for step in saved.steps)
            raise DeviceError(f"{where.name} does not compute rank 0's plan ({names})")
        return found

    assert isinstance(setup.data, DataSet)  # `shared_setup`
    assert not isinstance(setup.validation, StreamedSet)
    gradients, update = split_program(program)
    batch = setup.options.batch
    training = RankPass(
        ranks, setup.blocks, own, planned(gradients, batch), update, setup.data,
        batch, train_state,
    )
    if setup.validation is None:
        return training, []
    batch = min(len(setup.validation), parts * VALIDATION_BATCH)
    return training, [RankPass(
        ranks, setup.blocks, own, planned(validation, batch), None, setup.validation,
        batch, train_state,
    )]


def shared_setup(
    make: partial[TrainingSetup], ranks: Ranks, blocks: int | None,
    where: Devices, resume: str | PathLike[str] | None,
) -> TrainingSetup:
    """Return the setup of a training, which all ranks agree on.

    Parameters
    ----------
    make : partial
        `training_setup` with its other arguments.
    ranks : Ranks
        All ranks.
    blocks, where, resume
        Arguments of `Network.fit`.

    Raises
    ------
    InputError, DeviceError, FormatError
        On all ranks, if an argument is wrong on one, or ranks differ.
    """
    # Rank 0's file counts: others may have no access to it.
    resume, saved = ranks.from_first(
        lambda: (resume, resume and SavedTraining.load(resume))
    )

    def checked() -> TrainingSetup:
        spread = make.keywords["devices"] is None
        setup = make(
            device=device_of_rank(ranks.local, where) if spread else where,
            resume=resume, load=lambda _: saved,
            blocks=checked_blocks(blocks, ranks.size) or "any",
        )
        if len(setup.devices) > 1:
            raise InputError(
                "each rank has one device: give device, or start a rank for each"
            )
        if not isinstance(setup.data, DataSet) or isinstance(
            setup.validation, StreamedSet
        ):
            raise InputError(
                "samples that are read by parts are for one process: give no comm, or "
                "a buffer in which they fit"
            )
        options = setup.options
        if options.batch < max(2, ranks.size):
            raise InputError(
                f"a step of {options.rule.name} has "
                f"{counted(options.batch, 'sample')}, expected two or more, and one "
                f"for each of {ranks.size} ranks"
            )
        return setup

    setup = ranks.together(checked)
    (where,) = setup.devices
    validation = setup.validation
    ranks.check_alike({
        **setup.settings(checksums=False), "epochs": setup.epochs,
        "desired_error": setup.options.desired,
        "weighted": setup.data.weighted,
        "validation samples": None if validation is None else len(validation),
        "device": store_of(where).key,
    })
    return replace(
        setup, ranks=ranks, blocks=blocks, state=ranks.from_first(lambda: setup.state),
        callbacks=setup.callbacks if ranks.first else [],
        checkpoints=setup.checkpoints if ranks.first else [],
    )


def checked_blocks(blocks: int | None, ranks: int) -> int | None:
    """Return the number of blocks of a step.

    Raises
    ------
    InputError
        If it is no power of two, or the ranks are none or more.
    """
    if blocks is None:
        return None
    blocks = as_whole("blocks", blocks, most=MAX_BLOCKS)
    if blocks & (blocks - 1):
        raise InputError(f"blocks is {blocks}, expected a power of two, or None")
    if ranks & (ranks - 1) or ranks > blocks:
        raise InputError(
            f"{ranks} ranks cannot share {blocks} blocks in one order of sums: take a "
            "power of two of ranks, at most as many as blocks, or blocks=None"
        )
    return blocks

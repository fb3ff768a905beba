"""Training by several ranks: each computes the gradients of its blocks of a step.

The bits of a training depend on the number of blocks, not on that of the ranks: a block
is computed by the same plan on whichever rank owns it, and sums over blocks have one
order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from clnet.checks import as_whole
from clnet.errors import DeviceError, InputError, counted
from clnet.ir.program import split_program
from clnet.opencl.session import session
from clnet.opencl.store import store_of
from clnet.planning.training_planner import plan_as_saved, plan_training, saved_plan
from clnet.runtime.data_parallel import device_of_rank
from clnet.training.data_set import VALIDATION_BATCH
from clnet.training.rank_pass import RankPass
from clnet.training.rank_streaming import StreamedRankPass
from clnet.training.saved import SavedTraining
from clnet.training.setup import training_setup
from clnet.training.streaming import StreamedSet
from clnet.variants.training.optimisers import Norm, Optimisers

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.model import Model
    from clnet.planning.cover import SavedPlan
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.ranks import Ranks
    from clnet.runtime.train_state import TrainState
    from clnet.training.fit_options import FitOptions
    from clnet.training.setup import TrainingSetup
    from clnet.training.streaming import AnySet

MAX_BLOCKS = 1 << 16


def rank_passes(
    setup: TrainingSetup, network: Model, program: Program, train_state: TrainState,
    plan: Callable[..., TrainingPlan], validation: Program,
) -> tuple[RankPass, list[RankPass]]:
    """Return pass over the training set, and that over the validation set if any."""
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

    def shared(
        data: AnySet, plan: TrainingPlan, update: TrainingPlan | None, batch: int
    ) -> RankPass:
        kind = StreamedRankPass if isinstance(data, StreamedSet) else RankPass
        return kind(ranks, setup.blocks, own, plan, update, data, batch, train_state)

    gradients, update = split_program(program)
    batch = setup.options.batch
    block = planned(gradients, batch)
    training = shared(setup.data, block, plan_training(
        block.network, update, where, batch, tune=False,  # of one candidate
        variants=(Norm(), Optimisers()),
    ), batch)
    held_out = setup.validation
    if held_out is None:
        return training, []
    batch = min(len(held_out), parts * VALIDATION_BATCH)
    if isinstance(held_out, StreamedSet):
        batch = min(batch, held_out.rows)
        held_out = replace(held_out, batch=batch)
    return training, [shared(held_out, planned(validation, batch), None, batch)]


def shared_setup(network: Model, options: FitOptions, ranks: Ranks) -> TrainingSetup:
    """Return the setup of a training, which all ranks agree on."""
    # Rank 0's file counts: others may have no access to it.
    path = options.resume
    resume, saved = ranks.from_first(
        lambda: (path, None if path is None else SavedTraining.load(path))
    )

    def checked() -> TrainingSetup:
        device = options.device
        if options.devices is None:
            device = device_of_rank(ranks.local, device)
        setup = training_setup(
            network, replace(
                options, device=device, resume=resume,
                progress=options.progress if ranks.first else False,
            ), ranks, checked_blocks(options.blocks, ranks.size), saved,
        )
        if len(setup.devices) > 1:
            raise InputError(
                "each rank has one device: give device, or start a rank for each"
            )
        for samples in (setup.data, setup.validation):
            if isinstance(samples, StreamedSet):
                samples.section(slice(0, 1), 1, 1, 0)  # raises unless ranks can share
        batch = setup.options.batch
        if batch < max(2, ranks.size):
            raise InputError(
                f"a step of {setup.options.rule.name} has "
                f"{counted(batch, 'sample')}, expected two or more, and one for each "
                f"of {ranks.size} ranks"
            )
        return setup

    setup = ranks.together(checked)
    (device,) = setup.devices
    validation = setup.validation
    ranks.check_alike({
        **setup.settings(checksums=False), "epochs": setup.epochs,
        "desired_error": setup.options.desired,
        "weighted": setup.data.weighted,
        "validation samples": None if validation is None else len(validation),
        "device": store_of(device).key,
    })
    return replace(
        setup, state=ranks.from_first(lambda: setup.state),
        callbacks=setup.callbacks if ranks.first else [],
        checkpoints=setup.checkpoints if ranks.first else [],
    )


def checked_blocks(blocks: int | None, ranks: int) -> int | None:
    """Return the number of blocks of a step."""
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

"""The setup of a training by ranks, which all of them agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from clnet.checks import as_whole
from clnet.errors import InputError, counted
from clnet.opencl.store import store_of
from clnet.runtime.data_parallel import device_of_rank
from clnet.training.fit_options import FitOptions, PopulationOptions
from clnet.training.saved import SavedTraining
from clnet.training.setup import training_setup
from clnet.training.streaming import StreamedSet

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.runtime.ranks import Ranks
    from clnet.training.setup import TrainingSetup

MAX_BLOCKS = 1 << 16

Options = TypeVar("Options", FitOptions, PopulationOptions)


def shared_setup(network: Model, options: FitOptions, ranks: Ranks) -> TrainingSetup:
    """Return the setup of a training, which all ranks agree on."""
    # Rank 0's file counts: others may have no access to it.
    path = options.resume
    resume, saved = ranks.from_first(
        lambda: (path, None if path is None else SavedTraining.load(path))
    )

    def checked() -> TrainingSetup:
        setup = training_setup(
            network, replace(options_of_rank(options, ranks), resume=resume), ranks,
            checked_blocks(options.blocks, ranks.size), saved,
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


def options_of_rank(options: Options, ranks: Ranks) -> Options:
    """Return the options of one of the ranks, which has a device of its own."""
    device: Any = options.device
    if options.devices is None:
        device = device_of_rank(ranks.local, device)
    progress = options.progress if ranks.first else False
    return replace(options, device=device, progress=progress)


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

"""Options of ``clnet train`` for long trainings: checkpoints and learning curves."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clnet.errors import InputError
from clnet.formats import TRAINING_SUFFIX

if TYPE_CHECKING:
    from clnet.training.callbacks import Callback

SEEDS = 1 << 32  # of which one is drawn


def add_arguments(add: Callable[..., Any], count: Callable[[str], int]) -> None:
    """Add the options to a group; `count` parses a whole number of at least 1."""
    add(
        "--checkpoint", metavar="FILE",
        help=f"save the training to a {TRAINING_SUFFIX} file as it goes: the network, "
        "the optimiser's state, the order of samples and the epochs so far",
    )
    add(
        "--checkpoint-every", type=count, metavar="N",
        help="epochs between two saves; default: 1",
    )
    add(
        "--resume", action="store_true",
        help="go on from the --checkpoint FILE if it is there, to the same end as "
        "without the interruption: --epochs counts those before too",
    )
    add(
        "--curve", metavar="FILE",
        help="write the learning curve to a .csv file: a row an epoch, all measures",
    )
    add(
        "--tensorboard", metavar="DIR",
        help="write the learning curve to a folder for TensorBoard",
    )


def prepare(arguments: argparse.Namespace, draws: bool) -> Path | None:
    """Return the checkpoint to resume from, or None; set the seed.

    A validation set may be drawn by the seed: the training that resumes has the one of
    the checkpoint.
    """
    for option in ("resume", "checkpoint_every"):
        if getattr(arguments, option) and arguments.checkpoint is None:
            name = option.replace("_", "-")
            raise InputError(f"--{name} needs a file: give --checkpoint FILE")
    if arguments.checkpoint is None:
        return None
    path = Path(arguments.checkpoint)
    if path.suffix.lower() != TRAINING_SUFFIX:
        raise InputError(
            f"--checkpoint is {path}, expected a {TRAINING_SUFFIX} file: others hold "
            "no training"
        )
    if arguments.resume and path.exists():
        from clnet.training.saved import SavedTraining

        if arguments.seed is None:
            arguments.seed = SavedTraining.load(path).state.seed
        return path
    if draws:
        arguments.seed = seed(arguments)
    return None


def seed(arguments: argparse.Namespace) -> int:
    """Return the seed, drawn if none is given."""
    if arguments.seed is None:
        return int(np.random.default_rng().integers(SEEDS))
    return int(arguments.seed)


def callbacks(arguments: argparse.Namespace) -> list[Callback]:
    """Return the callbacks that write files."""
    from clnet.training.callbacks import Checkpoint, CSVLogger, TensorBoard

    found: list[Callback] = []
    if arguments.curve is not None:
        found.append(CSVLogger(arguments.curve))
    if arguments.tensorboard is not None:
        found.append(TensorBoard(arguments.tensorboard))
    if arguments.checkpoint is not None:
        found.append(Checkpoint(arguments.checkpoint, arguments.checkpoint_every or 1))
    return found

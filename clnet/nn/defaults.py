"""The defaults of `Network.fit`, measured: see ``docs/explanation/defaults.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clnet.nn.model import Model

EPOCHS = 200
MAX_NEURONS = 30  # of cascade training
BLOCKS = 8  # of a step that ranks share


def default_optimiser(network: Model, samples: int, batch_size: int | None) -> str:
    """Return the name of the optimiser where none is given.

    It is that of the file for networks from FANN's files. RPROP, which compares the
    gradients of successive steps, trains where a step takes the whole training set:
    `batch_size` says so, or the set has no more samples than a mini-batch. Adam trains
    by mini-batches.
    """
    from clnet.nn.optimisers import FANN, MINI_BATCH, Adam, Rprop

    if network.fann_compatible and network.fann is not None:
        return FANN
    whole = samples <= (batch_size or MINI_BATCH)
    return Rprop.name if whole else Adam.name

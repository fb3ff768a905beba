"""Populations trained by ranks: each rank trains some of the networks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.runtime.data_parallel import device_of_rank
from clnet.runtime.ranks import cut, joined

if TYPE_CHECKING:
    from clnet.training.history import History

Array = NDArray[Any]
Train = Callable[[slice, dict[str, Any]], tuple[Array, Iterable["History"]]]
"""Trains some networks; returns their parameters [some, size], and histories."""


def fit_by_ranks(
    comm: Any, parameters: Array, train: Train, options: Mapping[str, Any],
    each: Iterable[str],
) -> tuple[Array, list[History]]:
    """Return the parameters and histories of all networks, on each rank."""
    networks = len(parameters)
    with joined(comm, "Population.fit") as ranks:
        assert ranks is not None
        ranks.check_alike({
            "networks": networks, "parameters of checksum": zlib.crc32(parameters.data),
        })
        part = cut(networks, ranks.size)[ranks.rank]

        def own() -> tuple[Array, list[History]]:
            if part.start == part.stop:
                return parameters[part], []
            some = _some(options, each, part, networks)
            some["device"] = device_of_rank(ranks.local, some["device"])
            some["progress"] = some["progress"] if ranks.first else False
            trained, histories = train(part, some)
            return trained, list(histories)

        trained, histories = ranks.together(own)
        found = chain.from_iterable(ranks.gathered(histories))
        return ranks.stacked(trained), list(found)


def _some(
    options: Mapping[str, Any], each: Iterable[str], part: slice, networks: int
) -> dict[str, Any]:
    """Return the options of some networks.

    Lists of another length than there are networks stay, to be refused.
    """
    found = dict(options)
    for name in each:
        value = found[name]
        if isinstance(value, (list, tuple, np.ndarray)) and np.shape(value)[:1] == (
            networks,
        ):
            found[name] = value[part]
    if found["rows"] is not None and len(found["rows"]) == networks:
        found["rows"] = found["rows"][part]
    if np.ndim(found["sample_weight"]) == 2:
        found["sample_weight"] = np.asarray(found["sample_weight"])[part]
    return found

"""Predictions by ranks: each computes its rows, and all get those of all."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.checks import is_sparse
from clnet.errors import InputError, quoted
from clnet.formats.data_frame import named_inputs
from clnet.formats.sources import Source, is_batches
from clnet.planning.streams import check_out
from clnet.runtime.data_parallel import device_of_rank
from clnet.runtime.ranks import Ranks, cut, joined

if TYPE_CHECKING:
    from clnet.nn.metrics import Evaluation
    from clnet.nn.model import Model
    from clnet.opencl.discovery import Devices

Array = NDArray[Any]
Predict = Callable[[Any, "Devices", "Array | None"], Array]
"""Returns the outputs for some rows, by a device, in an array if one is given."""


def predict_by_ranks(
    network: Model, predict: Predict, comm: Any, x: Any, device: Devices,
    out: Array | None,
) -> Array:
    """Return the outputs for samples that all ranks have; see `Network.predict`."""
    with joined(comm, "predict") as ranks:
        assert ranks is not None
        return _predicted(network, predict, ranks, x, device, out)


def evaluate_by_ranks(
    network: Model, predict: Predict, compare: Callable[[Array, Any], Evaluation],
    comm: Any, x: Any, t: Any, device: Devices,
) -> Evaluation:
    """Return what `compare` finds for all samples; see `Network.evaluate`."""
    with joined(comm, "evaluate") as ranks:
        assert ranks is not None
        y = _predicted(network, predict, ranks, x, device, None)
        given = t
        if t is None and isinstance(x, Source):
            part = cut(len(y), ranks.size)[ranks.rank]
            own = ranks.together(lambda: _targets(x, part))
            given = np.concatenate(
                [one for found in ranks.gathered(own) for one in found]
            )

        def compared() -> Evaluation:
            if given is None:
                raise InputError("t is missing: ranks share arrays, without targets")
            return compare(y, given)

        return ranks.together(compared)


def _predicted(
    network: Model, predict: Predict, ranks: Ranks, x: Any, device: Devices,
    out: Array | None,
) -> Array:
    """Return the outputs for all samples, or `out` with this rank's rows of them."""
    rows = ranks.together(lambda: _rows(named_inputs(network.columns, x)[0]))
    shape = np.shape(rows) if not isinstance(rows, Source) else (
        rows.samples or 0, network.n_in
    )
    ranks.check_alike({
        "an x of shape": list(shape),
        "parameters of checksum": zlib.crc32(network.parameters.data),
        "out": "none" if out is None else "an array",
    })

    def own() -> Array:
        if len(shape) != 2:
            raise InputError(
                f"x has shape {list(shape)}, expected [batch, {network.n_in}] to share "
                "among ranks"
            )
        if out is not None:
            check_out(out, network, (shape[0], network.n_out))
        part = cut(shape[0], ranks.size)[ranks.rank]
        if part.start == part.stop:
            return np.empty((0, network.n_out), network.dtype)
        where = device_of_rank(ranks.local, device)
        some = rows.section(part) if isinstance(rows, Source) else rows[part]
        return predict(some, where, None if out is None else out[part])

    y = ranks.together(own)
    return ranks.stacked(y) if out is None else out


def _rows(x: Any) -> Any:
    """Return samples as an array or a source, whose rows can be cut."""
    if isinstance(x, Source):
        x.section(slice(0, 1))  # raises unless they can
        return x
    if is_batches(x):
        raise InputError(
            f"x is {quoted(type(x).__name__)}, whose rows ranks cannot share: give an "
            "array, a memory map, an array of h5py, or a file by open_data"
        )
    if is_sparse(x):
        return x.tocsr()
    return x if hasattr(x, "shape") else np.asarray(x)


def _targets(source: Source, rows: slice) -> list[Array]:
    """Return the targets of some rows of a source; of no row, none."""
    if rows.start == rows.stop:
        return []
    found = list(source.section(rows).targets(rows.stop - rows.start))
    if any(part is None for part in found):
        raise InputError(f"{source.name}t is missing: the samples have no targets")
    return found

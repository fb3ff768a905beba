"""Samples for training or validation, checked and scaled."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_numbers
from clnet.errors import ClnetWarning, InputError
from clnet.nn.activations import SOFTMAXES, activation

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling

Array = NDArray[Any]

SLACK = 1e-3  # of targets beyond an output's bounds, which rounding explains


@dataclass(frozen=True)
class DataSet:
    """Samples of one network.

    Attributes
    ----------
    x, t : ndarray, shape [n, n_in] and [n, n_out]
        Inputs and targets.
    weight : ndarray, shape [n, 1], or None
        Factor of each sample's loss.
    """

    x: Array
    t: Array
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.x)

    def subset(self, rows: slice | Array) -> DataSet:
        """Return the samples of some rows."""
        weight = None if self.weight is None else self.weight[rows]
        return DataSet(self.x[rows], self.t[rows], weight)

    @property
    def arrays(self) -> list[Array]:
        """The arrays in the order of a program's inputs."""
        return [a for a in (self.x, self.t, self.weight) if a is not None]


def data_set(
    network: Model,
    x: ArrayLike,
    t: ArrayLike,
    weight: ArrayLike | None = None,
    what: str = "",
    scaling: Scaling | None = None,
) -> DataSet:
    """Return samples of a network, checked and scaled.

    Parameters
    ----------
    network : Model
        The network that the samples are for.
    x, t : array_like, shape [n, n_in] and [n, n_out]
        Inputs and targets.
    weight : array_like, shape [n], or None
        Factor of each sample's loss.
    what : str
        Prefix of the arrays' names in errors: empty, or a word and a space.
    scaling : Scaling or None
        Scaling of inputs and targets; None: they are not scaled.

    Raises
    ------
    InputError
        If a shape or type is wrong, there is no sample, or a number is not finite.
    """
    dtype = network.dtype if scaling is None else "float64"
    arrays = {"x": as_numbers(f"{what}x", x, dtype),
              "t": as_numbers(f"{what}t", t, dtype)}
    widths = {"x": network.n_in, "t": network.n_out}
    for name, array in arrays.items():
        if array.ndim != 2 or array.shape[1] != widths[name]:
            raise InputError(
                f"{what}{name} has shape {list(array.shape)}, expected "
                f"[samples, {widths[name]}]"
            )
    if scaling is not None:
        scaled = scaling.scale_input(arrays["x"]), scaling.scale_output(arrays["t"])
        arrays = {
            name: as_numbers(name, array, network.dtype)
            for name, array in zip(arrays, scaled, strict=True)
        }
    n = len(arrays["x"])
    if n != len(arrays["t"]):
        raise InputError(f"{what}x has {n} samples and t {len(arrays['t'])}")
    if n == 0:
        raise InputError(f"{what}x has no sample: give at least one")
    if weight is not None:
        arrays["sample_weight"] = as_numbers("sample_weight", weight, network.dtype)
        if arrays["sample_weight"].shape != (n,):
            raise InputError(
                f"sample_weight has shape {list(arrays['sample_weight'].shape)}, "
                f"expected [{n}]"
            )
    for name, array in arrays.items():
        finite = np.isfinite(array)
        if not finite.all():
            bad = np.argwhere(~finite)
            raise InputError(
                f"{what}{name} holds {array[tuple(bad[0])]} at {bad[0].tolist()}, "
                "expected finite numbers"
            )
    weights = arrays.get("sample_weight")
    return DataSet(
        arrays["x"], arrays["t"], None if weights is None else weights[:, np.newaxis]
    )


def warn_of_reach(network: Model, t: Array) -> None:
    """Warn of targets [n, n_out] that the outputs' functions do not reach.

    Warns
    -----
    ClnetWarning
        With the first such output.
    """
    names = network.layers[-1].activation
    many = (names,) if isinstance(names, str) else names
    low, high = np.transpose([
        (0.0, 1.0) if name in SOFTMAXES else activation(name).limits for name in many
    ])
    least, most = t.min(axis=0), t.max(axis=0)
    beyond = np.flatnonzero((least < low - SLACK) | (most > high + SLACK))
    if not beyond.size:
        return
    at = int(beyond[0])
    row = at % len(many)
    ends = f"from {low[row]:g} to {high[row]:g}" if high[row] < np.inf else (
        f"down to {low[row]:g}"
    )
    warnings.warn(
        f"targets of output {at} are from {least[at]:g} to {most[at]:g}, and its "
        f"{many[row]} reaches {ends}: a last layer of identity reaches all numbers, as "
        "for regression, and scaled targets are near 0",
        ClnetWarning, stacklevel=5,
    )

"""Samples for training or validation, checked and scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import all_finite, as_array, as_numbers, as_rows, is_sparse
from clnet.errors import InputError, warn
from clnet.ir.lowering import reads_sparse
from clnet.ir.sparse_input import SparseShape, csr_arrays, csr_rows
from clnet.nn.labels import might_be_classes, output_middles

if TYPE_CHECKING:
    from clnet.nn.losses import LossFunction
    from clnet.nn.model import Model
    from clnet.nn.scaling import Scaling

Array = NDArray[Any]

VALIDATION_BATCH = 8192  # samples of a validation set per launch, at most
LARGE_TARGET = 1e3  # magnitude from which a divergence is rather the targets'
SLACK = 1e-3  # of targets beyond an output's bounds, which rounding explains


@dataclass(frozen=True)
class DataSet:
    """Samples of one network."""

    x: Any  # Inputs
    t: Array  # Targets
    # Factor of each sample's loss and squared error; the largest is 1 until `balanced`
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.t)

    @property
    def sparse(self) -> SparseShape | None:
        """Size of the inputs as a program takes sparse ones; None: they are dense."""
        return SparseShape.of(len(self), self.x.nnz) if is_sparse(self.x) else None

    @property
    def rows(self) -> int:
        """Samples on the device at a time: all."""
        return len(self)

    @property
    def capacity(self) -> int:
        """Rows of the device's arrays of samples."""
        return len(self)

    @property
    def counts(self) -> dict[str, int | None]:
        """The numbers that a training that goes on must have in common."""
        return {"samples": len(self), "block": None}

    @property
    def weighted(self) -> bool:
        """Whether the samples have weights."""
        return self.weight is not None

    def subset(self, rows: slice | Array) -> DataSet:
        """Return the samples of some rows."""
        weight = None if self.weight is None else self.weight[rows]
        return DataSet(self.x[rows], self.t[rows], weight)

    def balanced(self, batch: int, order: Array | None = None) -> DataSet:
        """Return the samples with weights of mean 1 in each batch of an order [n].

        A step's means over its samples are then means over the sum of their weights.
        Weights of a batch that are all 0 stay so: its gradient is zero. Batches of one
        sample have the set's mean, else their weights would have no effect.
        """
        if self.weight is None:
            return self
        return replace(self, weight=balanced_weights(self.weight, batch, order))

    @property
    def arrays(self) -> list[Array]:
        """The arrays in the order of a program's inputs."""
        x = csr_arrays(self.x) if is_sparse(self.x) else [self.x]
        return [*x, self.t] if self.weight is None else [*x, self.t, self.weight]


def balanced_weights(weight: Array, batch: int, order: Array | None = None) -> Array:
    """Return weights [n, 1] as of `DataSet.balanced`."""
    n = len(weight)
    batch = n if batch == 1 else batch
    ordered = weight if order is None else weight[order]
    starts = np.arange(0, n, batch)
    sizes = np.diff(starts, append=n)
    sums = np.add.reduceat(ordered, starts)
    means = np.where(sums > 0, sums / sizes[:, np.newaxis], 1)
    balanced = np.empty_like(weight)
    balanced[slice(None) if order is None else order] = (
        ordered / np.repeat(means, sizes, axis=0)
    )
    return balanced


def data_set(
    network: Model,
    x: ArrayLike,
    t: ArrayLike,
    weight: ArrayLike | None = None,
    what: str = "",
    scaling: Scaling | None = None,
    sparse: bool = False,
) -> DataSet:
    """Return samples of a network, checked and scaled."""
    sparse = sparse and scaling is None and reads_sparse(network, x)
    x, t = samples_of(network, x, t, what, sparse)
    weights = None
    if weight is not None:
        weights = checked_weights(weight, len(t), what, 0)
        if weights.max() == 0:
            raise InputError(
                f"{what}sample_weight is 0 for all samples, expected one above 0"
            )
        weights = weights[:, np.newaxis] / weights.max()
    return DataSet(*converted(network, x, t, what, scaling, 0), weights)


def samples_of(
    network: Model, x: ArrayLike, t: ArrayLike, what: str, sparse: bool = False
) -> tuple[Any, Array]:
    """Return inputs and targets as arrays of numbers, of a network's shapes.

    With `sparse` the inputs are a matrix in CSR form.
    """
    read = as_rows if sparse else as_numbers
    arrays: list[Any] = [read(f"{what}x", x), as_numbers(f"{what}t", t)]
    for name, array, width in zip(
        "xt", arrays, (network.n_in, network.n_out), strict=True
    ):
        if array.ndim != 2 or array.shape[1] != width:
            raise InputError(
                f"{what}{name} has shape {list(array.shape)}, expected "
                f"[samples, {width}]"
            )
    n = arrays[0].shape[0]
    if n != len(arrays[1]):
        raise InputError(
            f"{what}x has {n} samples and t {len(arrays[1])}: give one target a sample"
        )
    if n == 0:
        raise InputError(f"{what}x has no sample: give at least one")
    return arrays[0], arrays[1]


def converted(
    network: Model, x: Any, t: Array, what: str, scaling: Scaling | None, first: int
) -> tuple[Any, Array]:
    """Return inputs and targets scaled, in a network's type, and all finite."""
    if scaling is not None:
        x = scaling.scale_input(as_numbers("x", x, "float64"))
        t = scaling.scale_output(as_numbers("t", t, "float64"))
    arrays: list[Any] = []
    for name, array in (("x", x), ("t", t)):
        if is_sparse(array):
            arrays.append(_converted_rows(f"{what}{name}", array, network.dtype))
            continue
        rounded = as_numbers(name, array, network.dtype)
        _check_finite(f"{what}{name}", rounded, first, array)
        arrays.append(rounded)
    return arrays[0], arrays[1]


def _converted_rows(name: str, matrix: Any, dtype: str) -> Any:
    """Return a CSR matrix as `csr_rows` does, all finite."""
    rounded = csr_rows(name, matrix, dtype)
    if not all_finite(rounded.data):
        first = np.isfinite(rounded.data).argmin()
        row = int(np.searchsorted(rounded.indptr, first, side="right")) - 1
        rows = slice(row, row + 1)
        _check_finite(name, rounded[rows].toarray(), row, matrix[rows].toarray())
    return rounded


def checked_weights(weight: ArrayLike, n: int, what: str, first: int) -> Array:
    """Return weights [n] of float64."""
    name = f"{what}sample_weight"
    weights = as_numbers(name, weight, "float64")
    if weights.shape != (n,):
        raise InputError(f"{name} has shape {list(weights.shape)}, expected [{n}]")
    _check_finite(name, weights, first, weights)
    if weights.min() < 0:
        raise InputError(
            f"{name} holds {weights.min()} at [{first + weights.argmin()}], expected "
            "numbers of at least 0"
        )
    return weights


def _check_finite(name: str, array: Array, first: int, exact: Array) -> None:
    """Raise InputError unless an array is finite; it was rounded from `exact`."""
    if not all_finite(array):
        row, *column = np.argwhere(~np.isfinite(array))[0].tolist()
        value = exact[(row, *column)]
        expected = f"numbers within {array.dtype}'s range" if np.isfinite(value) else (
            "finite numbers"
        )
        raise InputError(
            f"{name} holds {value} at {[first + row, *column]}, expected {expected}"
        )


def advice(t: Array) -> str:
    """Return what a training that diverged should try, by its targets."""
    most = float(np.abs(t).max())
    if most > LARGE_TARGET:
        return f"try scaled targets: these reach {most:g}"
    return "try a smaller learning rate"


def warn_of_classes(network: Model, t: Any, loss: LossFunction) -> None:
    """Warn of labels, as given, that are trained as numbers.

    They are few different values of a type of whole numbers, and one output that has
    no bounds. A loss of counts takes them for these.

    Warns
    -----
    ClnetWarning
        With what would make them classes.
    """
    bounded = output_middles(network) != (None,)
    if network.n_out > 1 or bounded or loss.positive or t is None or is_sparse(t):
        return
    array = as_array("t", t)
    if array.dtype.kind in "iu" and might_be_classes(array):
        count = len(np.unique(array))
        warn(
            f"t holds {count} different whole numbers, from {array.min()} to "
            f"{array.max()}, and is trained as a number: labels of classes need a "
            f'network of {count} outputs, Dense({count}, "softmax"); numbers as floats '
            "are not warned of"
        )


def warn_of_reach(
    network: Model, reach: Sequence[tuple[float, float]], t: Array
) -> None:
    """Warn of targets [n, n_out] that the outputs' functions do not reach.

    Warns
    -----
    ClnetWarning
        With the first such output, by the bounds of all or of each.
    """
    low, high = reach[0]
    if len(reach) == 1 and low - SLACK <= t.min() and t.max() <= high + SLACK:
        return  # of few samples, a third of the time of the bounds of each output
    if len(reach) > 1:
        low, high = np.transpose(reach)
    least, most = t.min(axis=0), t.max(axis=0)
    beyond = (least < low - SLACK) | (most > high + SLACK)
    if not beyond.any():
        return
    at = int(beyond.argmax())
    low, high = reach[at % len(reach)]
    names = network.layers[-1].activation
    name = names if isinstance(names, str) else names[at]
    ends = f"from {low:g} to {high:g}" if high < np.inf else f"down to {low:g}"
    warn(
        f"targets of output {at} are from {least[at]:g} to {most[at]:g}, and its "
        f"{name} reaches {ends}: a last layer of identity reaches all numbers, as "
        "for regression, and scaled targets are near 0"
    )

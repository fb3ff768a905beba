"""The objective that solvers minimise, in terms of clnet, and the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from clnet.checks import is_sparse
from clnet.nn.losses import loss_function

Array = NDArray[Any]


@dataclass(frozen=True)
class Objective:
    """scikit-learn's objective in terms of a loss of clnet.

    scikit-learn's gradients are those of the loss summed over the outputs. Most losses
    of clnet are means over them.
    """

    loss: str  # A name of `clnet.nn.losses`
    value: float = 1.0  # Factor from clnet's loss to the one that scikit-learn reports
    gradient: float = 1.0  # Factor from clnet's gradients to scikit-learn's

    @classmethod
    def of(cls, loss: str, outputs: int) -> Objective:
        """Return the objective of a loss, by its name here or in another library."""
        name = loss_function(loss).name
        if name == "mse":
            return cls(name, 0.5, outputs / 2)
        if name == "binary_cross_entropy":
            return cls(name, outputs, outputs)
        return cls(name)


@dataclass
class FitData:
    """The samples of a training."""

    x: Any  # Inputs [n, n_in], an array or a sparse matrix
    t: Array  # Targets [n, n_out]
    weight: Array | None  # Factor of each sample's loss [n]

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @property
    def mean_weight(self) -> float:
        """The mean of the weights; 1 without."""
        return 1.0 if self.weight is None else float(self.weight.mean())

    def rows(self, order: Array | slice) -> FitData:
        """Return some of the samples, dense."""
        x = self.x[order]
        weight = None if self.weight is None else self.weight[order]
        return FitData(x.toarray() if is_sparse(x) else x, self.t[order], weight)

"""Many networks of one shape as one model, which has the outputs of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.nn.model import Model

if TYPE_CHECKING:
    from clnet.nn.initialisers import Draw


class EnsembleModel(Model):
    """Networks of one shape, whose parameters follow each other in the flat buffer."""

    def __init__(self, network: Model, parameters: NDArray[Any]) -> None:
        self.members: int = len(parameters)
        super().__init__(
            network.n_in, network.layers, dtype=network.dtype,
            fann_compatible=network.fann_compatible, fann=network.fann,
        )
        self.replace(parameters)

    @property
    def n_out(self) -> int:
        """Outputs of all networks, network after network."""
        return self.members * super().n_out

    def replace(self, parameters: NDArray[Any]) -> None:
        """Replace the parameters by an array [members, size] whose padding is zero."""
        self._replace(parameters.reshape(-1))

    def _initial(self, draw: Draw | None, seed: int | None) -> NDArray[Any]:
        """Return no numbers: drawn parameters would be replaced."""
        return np.empty(0, self.dtype)

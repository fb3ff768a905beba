"""Cases of partially connected networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from clnet.network import Network
from clnet.nn.layers import Sparse
from clnet.nn.storage.formats import AUTO

from .dense import Case


@dataclass(frozen=True)
class SparseCase(Case):
    """A stack of sparse layers; other parameters as for `Case`."""

    density: float = 1.0  # The density of each layer's random connections
    stored: str = AUTO

    @property
    def network(self) -> Network:
        """The network in the case's format."""
        if self.stored == AUTO:
            return super().network
        return _stored(replace(self, stored=AUTO).network, self.stored)

    def build(self) -> Network:
        """Return a new network."""
        layers = [
            Sparse(n, self.activation, density=self.density, seed=self.seed + i)
            for i, n in enumerate(self.sizes[1:])
        ]
        return self.spread(
            Network(self.sizes[0], layers, seed=self.seed, dtype=self.dtype)
        )


def sparse_case(
    neurons: int, layers: int, density: float, batch: int = 1
) -> SparseCase:
    """Return the case of equal layers."""
    sizes = (neurons,) * (layers + 1)
    name = f"{neurons}x{layers} {100 * density:g}%"
    return SparseCase(name, sizes, batch=batch, density=density)


@lru_cache(maxsize=1)
def _stored(network: Network, name: str) -> Network:
    return network.stored_as(name)

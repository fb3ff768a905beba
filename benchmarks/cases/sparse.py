"""Cases of partially connected networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from clnet.network import Network
from clnet.nn.layers import Sparse
from clnet.nn.storage.formats import AUTO

from .dense import Case, spread


@dataclass(frozen=True)
class SparseCase(Case):
    """A stack of sparse layers; other parameters as for `Case`.

    Attributes
    ----------
    density : float
        The density of each layer's random connections.
    stored : str
        The storage format.
    """

    density: float = 1.0
    stored: str = AUTO

    @property
    def network(self) -> Network:
        """The network in the case's format."""
        network = _network(
            self.sizes, self.density, self.activation, self.dtype, self.seed
        )
        return network if self.stored == AUTO else _stored(network, self.stored)


def sparse_case(
    neurons: int, layers: int, density: float, batch: int = 1
) -> SparseCase:
    """Return the case of equal layers."""
    sizes = (neurons,) * (layers + 1)
    name = f"{neurons}x{layers} {100 * density:g}%"
    return SparseCase(name, sizes, batch=batch, density=density)


@lru_cache(maxsize=1)
def _network(
    sizes: tuple[int, ...], density: float, name: str, dtype: str, seed: int
) -> Network:
    layers = [
        Sparse(n, name, density=density, seed=seed + i)
        for i, n in enumerate(sizes[1:])
    ]
    return spread(Network(sizes[0], layers, seed=seed, dtype=dtype), name, seed)


@lru_cache(maxsize=1)
def _stored(network: Network, name: str) -> Network:
    return network.stored_as(name)

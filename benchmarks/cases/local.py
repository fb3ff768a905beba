"""Cases of locally connected networks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from clnet.network import Network
from clnet.nn.layers import Local

from .dense import Case, spread

WINDOW = 3  # inputs a neuron, in the study


@dataclass(frozen=True)
class LocalCase(Case):
    """A stack of local layers; parameters as for `Case`."""

    @property
    def network(self) -> Network:
        """The network."""
        return _network(self.sizes, self.activation, self.dtype, self.seed)


def local_case(n: int, k: int, batch: int = 1) -> LocalCase:
    """Return the case of N inputs and K layers of values."""
    sizes = tuple(n - i * (WINDOW - 1) for i in range(k))
    return LocalCase(f"N={n} K={k}", sizes, batch=batch)


@lru_cache(maxsize=1)
def _network(sizes: tuple[int, ...], name: str, dtype: str, seed: int) -> Network:
    window = 1 + sizes[0] - sizes[1]
    layers = [Local(window, name)] * (len(sizes) - 1)
    return spread(Network(sizes[0], layers, seed=seed, dtype=dtype), name, seed)

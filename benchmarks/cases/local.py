"""Cases of locally connected networks."""

from __future__ import annotations

from dataclasses import dataclass

from clnet.network import Network
from clnet.nn.layers import Local

from .dense import Case

WINDOW = 3  # inputs a neuron, in the study


@dataclass(frozen=True)
class LocalCase(Case):
    """A stack of local layers; parameters as for `Case`."""

    def build(self) -> Network:
        """Return a new network; the sizes tell its window."""
        layers = [Local(1 + self.sizes[0] - self.sizes[1], self.activation)]
        return self.spread(Network(
            self.sizes[0], layers * (len(self.sizes) - 1), seed=self.seed,
            dtype=self.dtype,
        ))


def local_case(n: int, k: int, batch: int = 1) -> LocalCase:
    """Return the case of N inputs and K layers of values."""
    sizes = tuple(n - i * (WINDOW - 1) for i in range(k))
    return LocalCase(f"N={n} K={k}", sizes, batch=batch)

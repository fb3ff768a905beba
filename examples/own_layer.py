"""A kind of layer of your own: neurons that read a band of the inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

import clnet
from clnet.nn.layers import Neurons
from clnet.nn.storage.formats import parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.nn.layers import Blocks


@dataclass(frozen=True)
class Banded(Neurons):
    """A layer whose neuron i reads the inputs i - reach … i + reach."""

    reach: int = field(default=1, kw_only=True)

    def blocks(self, widths: Sequence[int], item_size: int) -> Blocks:
        """Return the storages of the band, in compressed rows."""
        distance = np.subtract.outer(np.arange(self.n_out), np.arange(sum(widths)))
        band = clnet.Pattern.of(abs(distance) <= self.reach)
        return parts(band.blocks(widths), "csr", item_size, None)


def main() -> None:
    """Train a banded layer below a dense one, and print the band's weights."""
    net = clnet.Network(6, [Banded(6, "tanh", reach=1), clnet.Dense(1)], seed=0)
    x = np.random.default_rng(0).uniform(-1, 1, (256, 6))
    print(net.fit(x, x[:, :1] * x[:, 1:2], optimiser="rprop", epochs=100))
    print(net.weights(0).round(1))


if __name__ == "__main__":
    main()

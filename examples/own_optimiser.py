"""An optimiser of your own, on scikit-learn's digits: its kernel is adagrad.h."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import clnet
from clnet.nn.optimisers import Optimiser, StepInfo


@dataclass(frozen=True)
class AdaGrad(Optimiser):
    """Duchi, Hazan and Singer, "Adaptive subgradient methods", 2011."""

    name: ClassVar[str] = "adagrad"
    slots: ClassVar[int] = 1  # sum of squares
    squares: ClassVar[tuple[int, ...]] = (0,)
    default_batch: ClassVar[int | None] = 32
    header: ClassVar[str | None] = str(Path(__file__).resolve().with_name("adagrad.h"))
    learning_rate: float = 1e-2
    eps: float = 1e-10

    def step(
        self, w: NDArray[Any], g: NDArray[Any], state: NDArray[Any], now: StepInfo
    ) -> None:
        """``G = G + g^2``; ``w -= rate g / (sqrt(G) + eps)``."""
        number = w.dtype.type
        mean = g / number(now.samples)
        state[0] += mean * mean
        w -= number(now.rate) * (mean / (np.sqrt(state[0]) + number(self.eps)))


def main() -> None:
    """Train a network, and print the accuracy on images that it has not seen."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, t = images / 16, np.eye(10)[labels]
    net = clnet.Network.mlp([64, 32, 10], ["tanh", "softmax"], seed=0)
    print(net.fit(x[:1500], t[:1500], optimiser=AdaGrad(0.05), epochs=20, seed=0))
    print(net.evaluate(x[1500:], t[1500:]))


if __name__ == "__main__":
    main()

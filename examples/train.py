"""Trains a network, watches samples that it does not learn from, and keeps the best.

Run it as ``python examples/train.py`` for scikit-learn's handwritten digits, or as
``python examples/train.py FOLDER`` for FANN's mushrooms: the folder holds
``mushroom.train.gz`` and ``mushroom.test.gz``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import clnet


def digits() -> tuple[np.ndarray, ...]:
    """Return pictures of digits [n, 64] and one-hot classes, and some for a test."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, t = pictures[order] / pictures.max(), np.eye(10)[labels[order]]
    return x[360:], t[360:], x[:360], t[:360]


def mushrooms(folder: Path) -> tuple[np.ndarray, ...]:
    """Return properties of mushrooms, edible or not, and some for a test."""
    x, t = clnet.load_data(folder / "mushroom.train.gz")
    return x, t, *clnet.load_data(folder / "mushroom.test.gz")


def main() -> None:
    """Train, and say how well."""
    x, t, x_test, t_test = mushrooms(Path(sys.argv[1])) if sys.argv[1:] else digits()

    # A fifth is kept aside: training stops when its loss no longer falls.
    kept = len(x) // 5
    net = clnet.Network.mlp(
        [x.shape[1], 64, t.shape[1]], ["relu", "softmax"], initialiser="he",
        dropout=0.2, seed=0,
    )
    history = net.fit(
        x[kept:], t[kept:], optimiser=clnet.optimisers.Adam(3e-3), batch_size=32,
        epochs=60, schedule="cosine", l2=1e-5, seed=0,
        validation=(x[:kept], t[:kept]),
        callbacks=[clnet.EarlyStopping(patience=10)], progress=sys.stderr.isatty(),
    )
    print(history)
    print("test:", net.evaluate(x_test, t_test))

    # The file holds all that running it needs.
    net.save("trained.safetensors")
    print("the same again:", clnet.load("trained.safetensors").evaluate(x_test, t_test))


if __name__ == "__main__":
    main()

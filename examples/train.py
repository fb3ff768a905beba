"""Train a network with a validation set and early stopping.

``python examples/train.py`` trains on scikit-learn's handwritten digits,
``python examples/train.py FOLDER`` on FANN's mushrooms: ``mushroom.train.gz`` and
``mushroom.test.gz`` in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import clnet


def digits() -> tuple[np.ndarray, ...]:
    """Return images of digits [n, 64] and one-hot classes, for training and test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, t = images[order] / images.max(), np.eye(10)[labels[order]]
    return x[360:], t[360:], x[:360], t[:360]


def mushrooms(folder: Path) -> tuple[np.ndarray, ...]:
    """Return features and classes of mushrooms, for training and test."""
    x, t = clnet.load_data(folder / "mushroom.train.gz")
    return x, t, *clnet.load_data(folder / "mushroom.test.gz")


def main() -> None:
    """Train, evaluate, save and load."""
    x, t, x_test, t_test = mushrooms(Path(sys.argv[1])) if sys.argv[1:] else digits()

    # A fifth is the validation set: training stops when its loss no longer falls.
    n = len(x) // 5
    net = clnet.Network.mlp(
        [x.shape[1], 64, t.shape[1]], ["relu", "softmax"], initialiser="he",
        dropout=0.2, seed=0,
    )
    history = net.fit(
        x[n:], t[n:], optimiser=clnet.optimisers.Adam(3e-3), batch_size=32,
        epochs=60, schedule="cosine", l2=1e-5, seed=0,
        validation=(x[:n], t[:n]),
        callbacks=[clnet.EarlyStopping(patience=10)], progress=sys.stderr.isatty(),
    )
    print(history)
    print("test:", net.evaluate(x_test, t_test))

    # The file holds the description and the parameters.
    net.save("trained.safetensors")
    print("loaded:", clnet.load("trained.safetensors").evaluate(x_test, t_test))


if __name__ == "__main__":
    main()

"""``clnet train digits``: scikit-learn's handwritten digits, and their defaults."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.cli.samples import TABLE_OPTIONS, Samples
from clnet.errors import ClnetError, InputError
from clnet.nn.activations import SOFTMAX
from clnet.nn.optimisers import CASCADE, Adam

DIGITS = "digits"
LAYERS = "64-128-10"
TEST = 360  # samples of the test set
RATE = 3e-3
EPOCHS = 40


def shuffled(arguments: argparse.Namespace) -> tuple[Samples, Samples]:
    """Return the shuffled digits for training and test; set default arguments."""
    for option in ("validation", "outputs", *TABLE_OPTIONS):
        if getattr(arguments, option) is not None:
            raise InputError(f"{DIGITS} has its own test set: leave out --{option}")
    images, labels = images_and_labels()
    order = np.random.default_rng(0).permutation(len(labels))
    x = (images[order] / images.max()).astype(np.float32)
    t: NDArray[Any] = np.eye(10, dtype=np.float32)[labels[order]]
    if arguments.network is None and arguments.optimiser != CASCADE:
        arguments.layers = arguments.layers or LAYERS
        arguments.output = arguments.output or SOFTMAX
        if arguments.hidden is None and arguments.layers.count("-") > 1:
            arguments.hidden = "relu"
    if arguments.optimiser is None:
        arguments.optimiser = Adam.name
        arguments.rate = arguments.rate or RATE
        arguments.epochs = arguments.epochs or EPOCHS
        arguments.seed = 0 if arguments.seed is None else arguments.seed
    n = TEST
    return Samples(x[n:], t[n:]), Samples(x[:n], t[:n])


def images_and_labels() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scikit-learn's images [1797, 64] of digits, and their labels.

    Its file is read: to import scikit-learn takes longer than the training.
    """
    found = find_spec("sklearn")
    if found is None:
        raise ClnetError(
            f"{DIGITS} needs scikit-learn, which is not installed: pip install "
            "scikit-learn, or with clnet: pip install 'clnet[demo]'"
        )
    for folder in found.submodule_search_locations or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            rows = np.loadtxt(path, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(int)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images, labels

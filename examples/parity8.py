"""Write ``parity8.net`` and ``parity8.data``: a network that computes parity.

The network has eight inputs of 0 or 1. Hidden neuron k fires if at least k inputs are
1. The output adds the hidden neurons with alternating signs: + - + - … is 1 if the
number of ones is odd. The weights need no training, and all outputs are right.

    python examples/parity8.py [FOLDER]
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np

import clnet
from clnet.formats import save_data

BITS = 8
STEEP = 20.0  # weights: large, so that sigmoids are nearly steps


def network() -> clnet.Network:
    """Return the network, 8-8-1."""
    counts = np.arange(1, BITS + 1)
    signs = np.where(counts % 2, 1.0, -1.0)
    net = clnet.Network.mlp([BITS, BITS, 1], "sigmoid", fann_compatible=True)
    net.set_layer(0, np.full((BITS, BITS), STEEP), STEEP * (0.5 - counts))
    net.set_layer(1, STEEP * signs[np.newaxis], [-STEEP / 2])
    return net


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return all patterns of the bits [256, 8], and their parities [256, 1]."""
    x = np.array(list(product((0.0, 1.0), repeat=BITS)))
    return x, x.sum(axis=1, keepdims=True) % 2


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    network().save(folder / "parity8.net")
    save_data(folder / "parity8.data", *data())

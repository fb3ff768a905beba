"""Trainings by the ranks that `test_mpi` starts; rank 0 prints what they found."""

from __future__ import annotations

import json
import sys
import zlib

import numpy as np
from mpi4py import MPI

import clnet
from clnet import Network
from clnet.nn.optimisers import SGD

COMM = MPI.COMM_WORLD
RNG = np.random.default_rng(0)
X = RNG.normal(size=(101, 5)).astype(np.float32)
T = np.tanh(X[:, :2])
# Few digits: sums of the products have the same bits in any order.
DIGITS = RNG.integers(-2, 3, (64, 3)).astype(np.float32)
SETTINGS = {
    "sgd": {"optimiser": SGD(0.1, 0.5), "batch_size": 30,
            "validation": (X[:37], T[:37])},
    "sgd-weighted": {"optimiser": "sgd", "batch_size": 44,
                     "sample_weight": np.arange(101.0)},
    "rprop": {"optimiser": "rprop", "clip_norm": 0.1},
    "sarprop": {"optimiser": "sarprop"},
    "few": {"optimiser": "adam", "batch_size": 6},  # steps with empty blocks
}


def network(**options):
    return Network.mlp([5, 6, 2], "tanh", seed=1, **options)


def equal_on_all_ranks(values):
    checksums = COMM.allgather(zlib.crc32(np.ascontiguousarray(values)))
    assert len(set(checksums)) == 1, checksums
    return checksums[0]


def same_bits():
    """Return checksums of parameters and measures after each of the settings."""
    found = {}
    for name, options in SETTINGS.items():
        net = network(dropout=0.25 if name == "few" else 0.0)
        history = net.fit(X, T, comm=COMM, seed=7, epochs=3, device="cpu", tune=False,
                          **options)
        found[name] = [
            equal_on_all_ranks(net.parameters),
            equal_on_all_ranks(history.epochs.rows[:, :-1]), history.stopped,
        ]
    return found


def exact():
    """Return the weights of a linear network after SGD; a wrong scale shows."""
    found = []
    for options in {}, {"comm": COMM}, {"comm": COMM, "blocks": None}:
        net = Network.mlp([3, 2], "identity", parameters=np.zeros(
            Network.mlp([3, 2], "identity").parameters.size
        ))
        net.fit(DIGITS[:16], DIGITS[16:32, :2], optimiser=SGD(0.25), batch_size=8,
                epochs=1, seed=3, device="cpu", tune=False, **options)
        found.append(net.parameters.tolist())
    return found


def main():
    results = {
        "size": COMM.size, "same_bits": same_bits(), "exact": exact(),
    }
    if COMM.rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    assert clnet.__version__, sys.argv
    main()

"""FANN's library, called through ctypes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clnet.opencl.device import Device

from .candidates import Prepared
from .fann_library import FannPeer, Owned
from .training_cases import Clock, Trained, TrainingCase, trainer


@dataclass(frozen=True)
class Fann(FannPeer):
    """FANN's library, which trains on one core."""

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return `fann_train_epoch` on networks read from a file of ours."""
        fann = self.loaded()
        network = case.network(fann=True)
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "data")
            x, t = case.data
            rows = np.concatenate([x, t], axis=1)
            header = f"{case.samples} {case.sizes[0]} {case.sizes[-1]}"
            np.savetxt(data, rows, fmt="%.9g", header=header, comments="")
            samples = Owned(
                fann.fann_read_train_from_file(bytes(data)), fann.fann_destroy_train
            )
            net = Path(folder, "start.net")
            network.save(net)
            first = Owned(fann.fann_create_from_file(bytes(net)), fann.fann_destroy)

        def train(epochs: int) -> Trained:
            learner = Owned(fann.fann_copy(first.pointer), fann.fann_destroy)
            # fann_copy of FANN 2.2.0 leaves the algorithm at RPROP, its default.
            algorithm = fann.fann_get_training_algorithm(first.pointer)
            fann.fann_set_training_algorithm(learner.pointer, algorithm)
            clock = Clock()
            errors = []
            for _ in range(1 + epochs):
                errors.append(fann.fann_train_epoch(learner.pointer, samples.pointer))
                clock()
            return Trained(errors, clock.seconds)

        return trainer(
            case, train, expected=lambda: case.fann_errors,
            config=Path(fann._name).name, threads=1,
        )

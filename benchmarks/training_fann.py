"""FANN's library, called through ctypes."""

from __future__ import annotations

import ctypes
import ctypes.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clnet.device import Device

from .candidates import Prepared, RefusedError
from .peers import PATIENCE
from .training_cases import Clock, Trained, TrainingCase, trainer

FANN_LIBRARIES = ("floatfann", "fann")  # both are FANN's single-precision build


@dataclass(frozen=True)
class Fann:
    """FANN's library, which trains on one core.

    Attributes
    ----------
    library : str or None
        Its file; None: where the system's libraries are.
    """

    library: str | None = None
    name: str = "fann"
    patience: float | None = PATIENCE

    @property
    def _file(self) -> str | None:
        found = (ctypes.util.find_library(name) for name in FANN_LIBRARIES)
        return self.library or next((file for file in found if file), None)

    def missing(self) -> str | None:
        """Return that there is no library."""
        if self._file is None:
            return "FANN's library is not installed: see --fann-library"
        return None

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return `fann_train_epoch` on networks read from a file of ours."""
        file = self._file
        assert file is not None
        fann = _bound(file)
        network = case.network(fann=True)
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "data")
            x, t = case.data
            rows = np.concatenate([x, t], axis=1)
            header = f"{case.samples} {case.sizes[0]} {case.sizes[-1]}"
            np.savetxt(data, rows, fmt="%.9g", header=header, comments="")
            samples = _Owned(
                fann.fann_read_train_from_file(bytes(data)), fann.fann_destroy_train
            )
            net = Path(folder, "start.net")
            network.save(net)
            first = _Owned(fann.fann_create_from_file(bytes(net)), fann.fann_destroy)

        def train(epochs: int) -> Trained:
            learner = _Owned(fann.fann_copy(first.pointer), fann.fann_destroy)
            clock = Clock()
            errors = []
            for _ in range(1 + epochs):
                errors.append(fann.fann_train_epoch(learner.pointer, samples.pointer))
                clock()
            return Trained(errors, clock.seconds)

        return trainer(
            case, train, expected=lambda: case.fann_errors, config=Path(file).name,
            threads=1,
        )


class _Owned:
    """Something that FANN made, given back with the last reference."""

    def __init__(self, pointer: int | None, give_back: Callable[[int], Any]) -> None:
        if not pointer:
            raise RefusedError("FANN could not make or read what it was asked to")
        self.pointer = pointer
        self._give_back = give_back

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._give_back(self.pointer)


def _bound(file: str) -> ctypes.CDLL:
    """Return FANN's library with the types of what is called."""
    library = ctypes.CDLL(file)
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    types: dict[str, tuple[Any, list[Any]]] = {
        "fann_create_from_file": (handle, [text]),
        "fann_copy": (handle, [handle]),
        "fann_destroy": (None, [handle]),
        "fann_read_train_from_file": (handle, [text]),
        "fann_destroy_train": (None, [handle]),
        "fann_train_epoch": (ctypes.c_float, [handle, handle]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

"""FANN's library, called through ctypes: what the training and the forward peer share.

FANN: S. Nissen, "Implementation of a Fast Artificial Neural Network Library", 2003.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .candidates import RefusedError
from .peers import PATIENCE

NAMES = ("floatfann", "fann")  # both are FANN's single-precision build


def library_file(given: str | None) -> str | None:
    """Return the library's file: what is given, else the system's, else None."""
    found = (ctypes.util.find_library(name) for name in NAMES)
    return given or next((file for file in found if file), None)


@dataclass(frozen=True)
class FannPeer:
    """What the peers that call FANN share.

    Attributes
    ----------
    library : str or None
        Its file; None: where the system's libraries are.
    """

    library: str | None = None
    name: str = "fann"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return that there is no library."""
        if library_file(self.library) is None:
            return "FANN's library is not installed: see --fann-library"
        return None

    def loaded(self) -> ctypes.CDLL:
        """Return the library, which is not missing."""
        file = library_file(self.library)
        assert file is not None
        return load_library(file)


class Head(ctypes.Structure):
    """The first fields of ``struct fann``, which its header makes public."""

    _fields_ = (
        ("error", ctypes.c_int), ("error_log", ctypes.c_void_p),
        ("error_text", ctypes.c_void_p), ("learning_rate", ctypes.c_float),
        ("learning_momentum", ctypes.c_float), ("connection_rate", ctypes.c_float),
        ("network_type", ctypes.c_int), ("first_layer", ctypes.c_void_p),
        ("last_layer", ctypes.c_void_p), ("total_neurons", ctypes.c_uint),
        ("num_input", ctypes.c_uint), ("num_output", ctypes.c_uint),
        ("weights", ctypes.POINTER(ctypes.c_float)),
    )


class Owned:
    """Something that FANN made, given back with the last reference."""

    def __init__(self, pointer: int | None, give_back: Callable[[int], Any]) -> None:
        if not pointer:
            raise RefusedError("FANN could not make or read what it was asked to")
        self.pointer = pointer
        self._give_back = give_back

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._give_back(self.pointer)


@lru_cache
def load_library(file: str) -> ctypes.CDLL:
    """Return FANN's library with the types of what is called."""
    library = ctypes.CDLL(file)
    handle, text, real = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float
    reals = ctypes.POINTER(real)
    types: dict[str, tuple[Any, list[Any]]] = {
        "fann_create_from_file": (handle, [text]),
        "fann_create_standard_array": (
            handle, [ctypes.c_uint, ctypes.POINTER(ctypes.c_uint)]
        ),
        "fann_copy": (handle, [handle]),
        "fann_destroy": (None, [handle]),
        "fann_read_train_from_file": (handle, [text]),
        "fann_destroy_train": (None, [handle]),
        "fann_get_training_algorithm": (ctypes.c_int, [handle]),
        "fann_set_training_algorithm": (None, [handle, ctypes.c_int]),
        "fann_train_epoch": (real, [handle, handle]),
        "fann_get_total_connections": (ctypes.c_uint, [handle]),
        "fann_run": (reals, [handle, handle]),
    }
    for part in ("hidden", "output"):
        types |= {
            f"fann_set_activation_function_{part}": (None, [handle, ctypes.c_int]),
            f"fann_set_activation_steepness_{part}": (None, [handle, real]),
        }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

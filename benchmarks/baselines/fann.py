"""FANN's library, called through ctypes: inference and training.

FANN: S. Nissen, "Implementation of a Fast Artificial Neural Network Library", 2003.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from clnet.network import Network
from clnet.opencl.device import Device

from ..candidates import Baseline, Prepared, RefusedError, forward
from ..cases.dense import Array, Case
from ..cases.training import Clock, Trained, TrainingCase, trainer
from ..environment import cores
from .layers import name_elsewhere, weights_and_biases

NAMES = ("floatfann", "fann")  # both are FANN's single-precision build
# FANN's number of an activation, and the steepness that makes it clnet's.
FANN_FUNCTIONS = {"sigmoid": (3, 0.5), "tanh": (5, 1.0)}


def library_file(given: str | None) -> str | None:
    """Return the library's file: the given one, else the system's, else None."""
    installed = (ctypes.util.find_library(name) for name in NAMES)
    return given or next((file for file in installed if file), None)


@dataclass(frozen=True)
class FannBaseline(Baseline):
    """A baseline that calls FANN."""

    library: str | None = None  # Its file; None: the system's
    name: str = "fann"

    def missing(self) -> str | None:
        """Return None, or that there is no library."""
        if library_file(self.library) is None:
            return "FANN's library is not installed: see --fann-library"
        return None

    def loaded(self) -> ctypes.CDLL:
        """Return the library."""
        file = library_file(self.library)
        assert file is not None
        return load_library(file)


class FannStruct(ctypes.Structure):
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


class Handle:
    """A pointer to an object of FANN's, which the last reference destroys."""

    def __init__(self, pointer: int | None, destroy: Callable[[int], Any]) -> None:
        if not pointer:
            raise RefusedError("FANN could not make or read an object")
        self.pointer = pointer
        self._destroy = destroy

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._destroy(self.pointer)


@lru_cache
def load_library(file: str) -> ctypes.CDLL:
    """Return FANN's library, with the types of its functions."""
    library = ctypes.CDLL(file)
    handle, text, real = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float
    reals = ctypes.POINTER(real)
    types: dict[str, tuple[Any, list[Any]]] = {
        "fann_create_from_file": (handle, [text]),
        "fann_create_standard_array": (
            handle, [ctypes.c_uint, ctypes.POINTER(ctypes.c_uint)]
        ),
        "fann_copy": (handle, [handle]),
        "fann_get_training_algorithm": (ctypes.c_int, [handle]),
        "fann_set_training_algorithm": (None, [handle, ctypes.c_int]),
        "fann_destroy": (None, [handle]),
        "fann_read_train_from_file": (handle, [text]),
        "fann_destroy_train": (None, [handle]),
        "fann_train_epoch": (real, [handle, handle]),
        "fann_train_on_data": (
            None, [handle, handle, ctypes.c_uint, ctypes.c_uint, real]
        ),
        "fann_cascadetrain_on_data": (
            None, [handle, handle, ctypes.c_uint, ctypes.c_uint, real]
        ),
        "fann_set_callback": (None, [handle, ctypes.c_void_p]),
        "fann_get_MSE": (real, [handle]),
        "fann_test_data": (real, [handle, handle]),
        "fann_save": (ctypes.c_int, [handle, text]),
        "fann_get_total_neurons": (ctypes.c_uint, [handle]),
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


def samples_of(fann: ctypes.CDLL, x: Array, t: Array) -> Handle:
    """Return FANN's copy of samples x [n, n_in] and t [n, n_out]."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        header = f"{len(x)} {x.shape[1]} {t.shape[1]}"
        rows = np.concatenate([x, t], axis=1)
        np.savetxt(data, rows, fmt="%.9g", header=header, comments="")
        return Handle(
            fann.fann_read_train_from_file(bytes(data)), fann.fann_destroy_train
        )


def network_of(fann: ctypes.CDLL, network: Network) -> Handle:
    """Return FANN's copy of a network, by a file."""
    with tempfile.TemporaryDirectory() as folder:
        net = Path(folder, "start.net")
        network.save(net)
        return Handle(fann.fann_create_from_file(bytes(net)), fann.fann_destroy)


@dataclass(frozen=True)
class Fann(FannBaseline):
    """FANN's `fann_run`, a call a sample, on one core."""

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over samples; weights are copied into FANN's array."""
        fann = self.loaded()
        if case.dtype != "float32":
            raise RefusedError(f"this FANN computes in float32, not in {case.dtype}")
        function, steepness = name_elsewhere(case.activation, FANN_FUNCTIONS)
        sizes = (ctypes.c_uint * len(case.sizes))(*case.sizes)
        net = Handle(
            fann.fann_create_standard_array(len(sizes), sizes), fann.fann_destroy
        )
        for part in ("hidden", "output"):
            getattr(fann, f"fann_set_activation_function_{part}")(net.pointer, function)
            getattr(fann, f"fann_set_activation_steepness_{part}")(
                net.pointer, steepness
            )
        n_in, n_out = case.sizes[0], case.sizes[-1]
        head = ctypes.cast(net.pointer, ctypes.POINTER(FannStruct)).contents
        if (head.num_input, head.num_output) != (n_in, n_out):
            raise RefusedError("this FANN's struct has an unknown layout")
        # Each neuron's weights, its bias last, neuron by neuron.
        count = fann.fann_get_total_connections(net.pointer)
        weights = np.ctypeslib.as_array(head.weights, (count,))
        weights[:] = np.concatenate(
            [np.column_stack(layer).ravel() for layer in weights_and_biases(case)]
        )
        run, step = fann.fann_run, n_in * np.dtype(case.dtype).itemsize
        # All calls return the same array of the network's.
        outputs = np.ctypeslib.as_array(
            run(net.pointer, case.inputs[0].ctypes.data), (n_out,)
        )

        def call(x: Array) -> Array:
            y = np.empty((len(x), n_out), np.float32)
            start = x.ctypes.data
            for number in range(len(x)):
                run(net.pointer, start + number * step)
                y[number] = outputs
            return y

        return forward(case, call, config=Path(fann._name).name, threads=1)


@dataclass(frozen=True)
class FannTraining(FannBaseline):
    """FANN's training; epochs after the checked ones in one call.

    One network trains on one core, several on all cores, one after the other on each.
    """

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the training of networks read from a file that clnet wrote."""
        fann = self.loaded()
        network = case.network(fann=True)
        samples, first = samples_of(fann, *case.data), network_of(fann, network)
        algorithm = fann.fann_get_training_algorithm(first.pointer)

        def train_one(epochs: int) -> Trained:
            trained = Handle(fann.fann_copy(first.pointer), fann.fann_destroy)
            # FANN 2.2.0 does not copy it.
            fann.fann_set_training_algorithm(trained.pointer, algorithm)
            clock = Clock()
            errors = []
            for _ in range(min(1 + epochs, case.checked)):
                errors.append(fann.fann_train_epoch(trained.pointer, samples.pointer))
                clock()
            if len(errors) <= epochs:
                fann.fann_train_on_data(
                    trained.pointer, samples.pointer, 1 + epochs - len(errors), 0, 0.0
                )
                clock()
            return Trained(errors, clock.seconds)

        threads = min(cores(), case.networks)

        def train(epochs: int) -> Trained:
            if case.networks == 1:
                return train_one(epochs)
            with ThreadPoolExecutor(threads) as pool:  # ctypes releases Python's lock
                outcomes = list(pool.map(train_one, [epochs] * case.networks))
            return Trained(outcomes[0].errors, math.nan)

        return trainer(
            case, train, expected=lambda: case.fann_errors,
            config=Path(fann._name).name, threads=threads,
        )

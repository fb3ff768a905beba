"""Scaling over the GPUs of one process: steps of a training, and predictions of a file.

PyTorch's DistributedDataParallel, a process a GPU, adds gradients by NCCL.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import clnet
from clnet.ir import reference
from clnet.nn.optimisers import Adam
from clnet.opencl.device import Device
from clnet.runtime.data_parallel import alike
from clnet.training.callbacks import Training
from clnet.training.history import Epoch

from ..candidates import Candidate, Prepared, RefusedError, Timer
from ..cases.dense import Array, WrongError
from ..cases.training import Clock, Trained, TrainingCase, compare, timer
from ..harness import Trial
from ..processes import LIMIT, Processes
from .rank_processes import serve_ddp

DEVICES = (1, 2, 4)
STEP: tuple[int, ...] = (784, 4096, 4096, 10)
SAMPLES = 16384  # a step of all devices
STEPS = 2  # an epoch
CHECKED = 512  # samples of the checked training
PREDICTED: dict[tuple[int, ...], int] = {STEP: 1 << 18, (64, 256, 256, 10): 1 << 20}
LONG = 2000  # epochs, of which the first are timed


@dataclass(frozen=True)
class DevicesCase(TrainingCase):
    """A training by devices."""

    devices: int = 1


@dataclass(frozen=True)
class FileCase(DevicesCase):
    """Predictions for the samples of a memory-mapped file, or of an array."""

    @cached_property
    def data(self) -> tuple[Array, Array]:
        """Inputs [samples, n_in], and no targets."""
        rng = np.random.default_rng(self.seed)
        x = rng.random((self.samples, self.sizes[0]), np.float32)
        return x, x[:, :0]


def trials(device: Device) -> tuple[Trial, ...]:
    """Return the trials of a device and those like it."""
    counts = [n for n in DEVICES if n <= len(_alike(device))]
    training = Devices(), Devices("clnet-long", LONG), Ddp()
    trials = [
        Trial("devices", _case(STEP, n), training, against=("clnet",), roofline=False)
        for n in counts
    ]
    for sizes, samples in PREDICTED.items():
        for n in counts:
            name = f"{'-'.join(map(str, sizes))} x{n}"
            case = FileCase(
                name, sizes, Adam(), "", samples, samples, 1, "epoch", hidden="relu",
                output="softmax", devices=n,
            )
            ways = Predictions("clnet-file", True), Predictions("clnet-array", False)
            trials.append(Trial("file", case, ways, roofline=False))
    return tuple(trials)


def _case(sizes: tuple[int, ...], n: int) -> DevicesCase:
    name = f"{'-'.join(map(str, sizes))} x{n}"
    return DevicesCase(
        name, sizes, Adam(), "categorical_cross_entropy", STEPS * SAMPLES, SAMPLES, 2,
        "step", hidden="relu", output="softmax", devices=n,
    )


def _alike(device: Device) -> list[Device]:
    return [other for other in clnet.devices() if alike([other, device])]


def _used(case: DevicesCase, device: Device) -> list[Device]:
    alike = _alike(device)
    if len(alike) < case.devices:
        raise RefusedError(f"there are {len(alike)} like {device.name}")
    return alike[: case.devices]


def _prepared(
    case: DevicesCase, make: Callable[[DevicesCase], Callable[[int], Trained]]
) -> Prepared:
    """Return a training whose errors are checked on fewer samples than are timed."""
    few = _few(case)

    def check() -> float:
        return compare(few, make(few)(0).errors, _errors(replace(few, devices=1)))

    return Prepared(
        check, {case.basis: lambda: timer(case, make(case))}, threads=case.devices
    )


@lru_cache
def _errors(case: DevicesCase) -> list[float]:
    """Return the oracle's errors, which take seconds, once for all candidates."""
    return case.errors


def _few(case: DevicesCase) -> DevicesCase:
    return replace(case, name="", samples=CHECKED, batch=CHECKED // 2)


@dataclass(frozen=True)
class Devices(Candidate):
    """`Network.fit` with devices."""

    name: str = "clnet"
    # Those that the kernels are chosen for, at least: a callback ends the training. Few
    # do not pay for building the fastest ones
    epochs: int = 0
    timeout: ClassVar[float | None] = 60.0

    def prepare(self, case: DevicesCase, device: Device) -> Prepared:
        """Return the training."""
        where = _used(case, device)

        def make(case: DevicesCase) -> Callable[[int], Trained]:
            options = case.options

            def train(epochs: int) -> Trained:
                clock = Clock()

                def ends(training: Training, epoch: Epoch) -> bool:
                    clock()
                    return len(training.history.loss) > epochs

                history = case.network().fit(
                    epochs=max(1 + epochs, self.epochs), devices=where,
                    callbacks=[ends], **options,
                )
                return case.outcome(history, clock.seconds)

            return train

        return _prepared(case, make)


@dataclass(frozen=True)
class Predictions(Candidate):
    """`Network.predict` for a memory-mapped file, or an array."""

    name: str
    mapped: bool  # True: a file
    timeout: ClassVar[float | None] = 60.0

    def prepare(self, case: FileCase, device: Device) -> Prepared:
        """Return the prediction."""
        where = _used(case, device)
        x = case.data[0]
        folder = tempfile.mkdtemp()
        path = Path(folder) / "x.npy"
        if self.mapped:
            np.save(path, x)
        network = case.network()

        def predict() -> Any:
            inputs = np.load(path, mmap_mode="r") if self.mapped else x
            return network.predict(inputs, where)

        weakref.finalize(predict, shutil.rmtree, folder, ignore_errors=True)

        def check() -> float:
            y = predict()
            rows = np.linspace(0, case.samples - 1, 64).astype(int)
            expected = reference.run(
                network.program, x[rows].astype(np.float64),
                network.parameters.astype(np.float64),
            )
            error = float(np.abs(y[rows] - expected).max() / expected.max())
            if not error <= case.tolerance:
                raise WrongError(f"it differs from the oracle by {error:.2g}")
            return error

        def repeated() -> Timer:
            def run(repeats: int) -> float:
                clock = Clock()
                clock()
                for _ in range(repeats):
                    predict()
                clock()
                return clock.seconds / repeats

            return run

        return Prepared(check, {case.basis: repeated}, threads=case.devices)


@dataclass(frozen=True)
class Ddp(Candidate):
    """PyTorch's DistributedDataParallel by NCCL."""

    name: str = "torch-ddp"
    timeout: ClassVar[float | None] = 2 * LIMIT
    requires: ClassVar[tuple[str, ...]] = ("torch",)

    def prepare(self, case: DevicesCase, device: Device) -> Prepared:
        """Return the training by processes, which stay until the last round."""
        import torch

        if torch.cuda.device_count() < case.devices:
            raise RefusedError(f"PyTorch finds {torch.cuda.device_count()} GPUs")
        processes = ddp_processes(case, _few(case))
        return _prepared(
            case, lambda case: lambda epochs: Trained(*processes(case.samples, epochs))
        )


def ddp_processes(*cases: DevicesCase, backend: str = "nccl") -> Processes:
    """Return a process a device; call it with samples and a number of epochs."""
    size = cases[0].devices
    return Processes([(serve_ddp, cases, rank, size, backend) for rank in range(size)])

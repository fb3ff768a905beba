"""Scaling over the GPUs of one process: steps of a training, and predictions of a file.

PyTorch's DistributedDataParallel, a process a GPU, adds gradients by NCCL.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import clnet
from clnet.ir import reference
from clnet.nn.optimisers import Adam
from clnet.opencl.device import Device
from clnet.runtime.data_parallel import alike

from ..candidates import Candidate, Prepared, RefusedError, Timer
from ..cases.dense import WrongError
from ..cases.training import Clock, Trained, TrainingCase, compare, timer
from ..harness import Trial
from ..subprocess_guard import CHILD
from .rank_processes import RanksError

DEVICES = (1, 2, 4)
STEP: tuple[int, ...] = (784, 4096, 4096, 10)
SAMPLES = 16384  # a step of all devices
STEPS = 2  # an epoch
CHECKED = 512  # samples of the checked training
PREDICTED: dict[tuple[int, ...], int] = {STEP: 1 << 18, (64, 256, 256, 10): 1 << 20}
ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class DevicesCase(TrainingCase):
    """A training by devices.

    Attributes
    ----------
    devices : int
        Their number.
    """

    devices: int = 1


@dataclass(frozen=True)
class FileCase(DevicesCase):
    """Predictions for the samples of a memory-mapped file."""


def trials(device: Device) -> tuple[Trial, ...]:
    """Return the trials of a device and those like it."""
    counts = [n for n in DEVICES if n <= len(_alike(device))]
    training = Devices(), Ddp()
    found = [
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
            found.append(Trial("file", case, (FromFile(),), roofline=False))
    return tuple(found)


def _case(sizes: tuple[int, ...], n: int) -> DevicesCase:
    name = f"{'-'.join(map(str, sizes))} x{n}"
    return DevicesCase(
        name, sizes, Adam(), "categorical_cross_entropy", STEPS * SAMPLES, SAMPLES, 2,
        "step", hidden="relu", output="softmax", devices=n,
    )


def _alike(device: Device) -> list[Device]:
    return [one for one in clnet.devices() if alike([one, device])]


def _used(case: DevicesCase, device: Device) -> list[Device]:
    found = _alike(device)
    if len(found) < case.devices:
        raise RefusedError(f"there are {len(found)} like {device.name}")
    return found[: case.devices]


def _prepared(
    case: DevicesCase, make: Callable[[DevicesCase], Callable[[int], Trained]]
) -> Prepared:
    """Return a training whose errors are checked on fewer samples than are timed."""
    few = replace(case, samples=CHECKED, batch=CHECKED // 2)

    def check() -> float:
        return compare(few, make(few)(0).errors, few.errors)

    return Prepared(
        check, {case.basis: lambda: timer(case, make(case))}, threads=case.devices
    )


@dataclass(frozen=True)
class Devices(Candidate):
    """`Network.fit` with devices."""

    name: str = "clnet"

    def prepare(self, case: DevicesCase, device: Device) -> Prepared:
        """Return the training."""
        where = _used(case, device)

        def make(case: DevicesCase) -> Callable[[int], Trained]:
            x, t = case.data

            def train(epochs: int) -> Trained:
                clock, network = Clock(), case.network()
                history = network.fit(
                    x, t, optimiser=case.optimiser, loss=case.loss, epochs=1 + epochs,
                    batch_size=case.batch, shuffle=False, seed=case.seed,
                    devices=where, callbacks=[lambda *_: clock()],
                )
                return Trained(list(history.loss), clock.seconds)

            return train

        return _prepared(case, make)


@dataclass(frozen=True)
class FromFile(Candidate):
    """`Network.predict` for a memory-mapped file."""

    name: str = "clnet"

    def prepare(self, case: FileCase, device: Device) -> Prepared:
        """Return the prediction."""
        where = _used(case, device)
        folder = tempfile.mkdtemp()
        path = Path(folder) / "x.npy"
        np.save(path, case.data[0])
        network = case.network()

        def predict() -> Any:
            return network.predict(np.load(path, mmap_mode="r"), where)

        weakref.finalize(predict, shutil.rmtree, folder, ignore_errors=True)

        def check() -> float:
            y = predict()
            rows = np.linspace(0, case.samples - 1, 64).astype(int)
            expected = reference.run(
                network.program, case.data[0][rows].astype(np.float64),
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
    timeout: ClassVar[float | None] = ANSWER_SECONDS
    requires: ClassVar[tuple[str, ...]] = ("torch",)

    def prepare(self, case: DevicesCase, device: Device) -> Prepared:
        """Return the training by processes, which stay until the last round."""
        import torch

        if torch.cuda.device_count() < case.devices:
            raise RefusedError(f"PyTorch finds {torch.cuda.device_count()} GPUs")
        return _prepared(case, lambda case: DdpProcesses(case))


class DdpProcesses:
    """A training by a process a GPU; call it with a number of epochs.

    The processes read these from their input, and write outcomes.
    """

    def __init__(self, case: DevicesCase) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._processes = []
        for rank in range(case.devices):
            given = Path(self._folder.name) / f"{rank}.pickle"
            given.write_bytes(
                pickle.dumps(list(clnet.__path__))
                + pickle.dumps((_ddp_rank, case, rank, self._folder.name))
            )
            code = CHILD.replace("sys.stdin.buffer", "open(sys.argv[1], 'rb')")
            paths = os.pathsep.join([str(Path(clnet.__file__).parents[1]), *sys.path])
            self._processes.append(subprocess.Popen(
                [sys.executable, "-c", code, str(given)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths},
            ))

    def __call__(self, epochs: int) -> Trained:
        """Return the first process's outcome."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"%d\n" % epochs)
            process.stdin.flush()
        found = []
        for process in self._processes:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
                raise RanksError(f"no answer in {ANSWER_SECONDS:g} s")
            line = process.stdout.readline()
            if not line:
                raise RanksError("a process crashed")
            found.append(json.loads(line))
        return Trained(*found[0])

    def __del__(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._folder.cleanup()


def _ddp_rank(case: DevicesCase, rank: int, folder: str) -> None:
    """Train as one of the processes, as often as the input asks."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from ..baselines.training import sequential, torch_rule

    torch.cuda.set_device(rank)
    torch.set_float32_matmul_precision(case.precision)
    size = case.devices
    distributed.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )
    x, t = torch.from_numpy(case.data[0]), torch.from_numpy(case.labels)
    batches = [
        (rows.tensor_split(size)[rank].cuda(), targets.tensor_split(size)[rank].cuda())
        for rows, targets in zip(x.split(case.batch), t.split(case.batch), strict=True)
    ]
    for line in sys.stdin:
        model = DistributedDataParallel(sequential(case).cuda(), device_ids=[rank])
        rule, _ = torch_rule(case, list(model.parameters()), capturable=False)
        clock, errors = Clock(), []
        for _ in range(1 + int(line)):
            total = torch.zeros((), device="cuda")
            for rows, targets in batches:
                rule.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(model(rows), targets)
                loss.backward()
                rule.step()
                total += loss.detach() * len(rows)
            distributed.all_reduce(total)
            torch.cuda.synchronize()
            errors.append(float(total) / case.samples)
            clock()
        print(json.dumps([errors, clock.seconds]), flush=True)

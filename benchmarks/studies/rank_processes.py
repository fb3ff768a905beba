"""Measurements by ranks of MPI: processes that `mpiexec` starts, one on each core.

The ranks of a candidate stay between the rounds. Rank 0 reads numbers of epochs from
its input, and writes the outcomes. Ranks that wait sleep, and leave their cores free.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import clnet
from clnet.errors import ClnetError
from clnet.runtime.ranks import Ranks

from ..cases.training import Clock, Trained, TrainingCase
from ..subprocess_guard import CHILD

if TYPE_CHECKING:
    from ..cases.dense import Array

Serve = Callable[[int], list[Any]]
"""A function that all ranks call with a number of epochs; rank 0's result counts."""

LIMIT = 120.0  # seconds of an answer
END_SECONDS = 5.0
PAUSE = 0.005  # seconds between looks for the next number
REPEATS = 20  # messages of a measurement
WORK = 1 << 19  # numbers that ranks add between exchanges
ENVIRONMENT = {
    # One thread a rank, of BLAS, OpenMP and PoCL.
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
         "POCL_MAX_PTHREAD_COUNT"), "1",
    ),
    # Open MPI refuses more ranks than cores, and root.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # The interface of gloo's ranks on one host.
    "GLOO_SOCKET_IFNAME": "lo",
}


class RanksError(ClnetError):
    """The ranks of a measurement failed."""


def mpiexec() -> str | None:
    """Return the launcher beside this Python, or on the path; None if missing."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")


class RankProcesses:
    """Ranks that repeat a measurement until this object is gone.

    Parameters
    ----------
    ranks : int
        Their number.
    make : callable
        A module's function that returns a `Serve`, on each rank.
    *values
        The function's arguments, pickled.

    Raises
    ------
    RanksError
        From a call, if ranks fail or do not answer in `LIMIT` seconds.
    """

    def __init__(
        self, ranks: int, make: Callable[..., Serve], *values: object
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        given = folder / "given.pickle"
        given.write_bytes(
            pickle.dumps(list(clnet.__path__)) + pickle.dumps((serve, make, *values))
        )
        self._errors = (folder / "errors").open("w+b")
        launcher = mpiexec()
        assert launcher is not None
        paths = os.pathsep.join([str(Path(clnet.__file__).parents[1]), *sys.path])
        code = CHILD.replace("sys.stdin.buffer", "open(sys.argv[1], 'rb')")
        self._process = subprocess.Popen(
            [launcher, "-n", str(ranks), sys.executable, "-c", code, str(given)],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": paths},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )

    def __call__(self, epochs: int) -> list[Any]:
        """Return rank 0's result for a number of epochs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(b"%d\n" % epochs)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RanksError(self._last_line()) from None
        if not select.select([self._process.stdout], [], [], LIMIT)[0]:
            self.end()
            raise RanksError(f"the ranks did not answer in {LIMIT:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RanksError(self._last_line())
        found: list[Any] = json.loads(line)
        return found

    def end(self) -> None:
        """End the ranks, which end at the end of their input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # mpiexec ends its ranks
            self._process.wait(END_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()
        self._folder.cleanup()

    __del__ = end

    def _last_line(self) -> str:
        """Return the last exception that a rank wrote."""
        self._process.wait(LIMIT)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        raised = [line for line in lines if "Error: " in line]
        return (raised or ["the ranks crashed"])[0]


# In the ranks -----------------------------------------------------------------------


def serve(make: Callable[..., Serve], *values: object) -> None:
    """Measure as one of the ranks, as often as rank 0's input asks."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    pin(comm.Get_rank())
    call = make(comm, *values)
    number = np.zeros(1, np.int64)
    while True:
        if comm.Get_rank() == 0:
            number[0] = int(sys.stdin.readline() or 0)
        request = comm.Ibcast(number)
        while not request.Test():
            time.sleep(PAUSE)
        if not number[0]:
            return
        found = call(int(number[0]))
        if comm.Get_rank() == 0:
            print(json.dumps(found), flush=True)


def pin(rank: int) -> None:
    """Bind this process to a core of its own, where the system can.

    The second threads of cores come after all first ones.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0), key=lambda core: (_place(core), core))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def _place(thread: int) -> int:
    """Return how many threads of the same core come before a processor's one."""
    file = Path(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list")
    with contextlib.suppress(OSError, ValueError):
        spans = [part.split("-") for part in file.read_text().strip().split(",")]
        return sum(
            max(0, min(thread, int(span[-1]) + 1) - int(span[0])) for span in spans
        )
    return 0


def _outcome(found: Trained) -> list[Any]:
    return [[float(error) for error in found.errors], found.seconds]


def clnet_training(
    comm: Any, case: TrainingCase, index: str, blocks: int | None
) -> Serve:
    """Return `Network.fit` with ranks, each on one compute unit."""
    device = clnet.device(index, units=1)
    x, t = case.data

    def train(epochs: int) -> list[Any]:
        clock = Clock()
        network = case.network()
        history = network.fit(
            x, t, optimiser=case.optimiser, loss=case.loss, epochs=1 + epochs,
            batch_size=case.batch, shuffle=False, seed=case.seed, device=device,
            callbacks=[lambda *_: clock()], comm=comm, blocks=blocks,
        )
        if comm.Get_rank():  # callbacks are called by rank 0
            return []
        return _outcome(Trained(list(history.loss), clock.seconds))

    return train


def torch_training(comm: Any, case: TrainingCase) -> Serve:
    """Return PyTorch's DistributedDataParallel by gloo."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from ..baselines.training import sequential, torch_rule

    torch.set_num_threads(1)
    rank, size = comm.Get_rank(), comm.Get_size()
    distributed.init_process_group(
        "gloo", init_method=f"file://{sys.argv[1]}.store", rank=rank, world_size=size
    )
    inputs, _ = case.data
    x, t = torch.from_numpy(inputs), torch.from_numpy(case.labels)
    batches = [
        (rows.tensor_split(size)[rank], targets.tensor_split(size)[rank], len(rows))
        for rows, targets in zip(x.split(case.batch), t.split(case.batch), strict=True)
    ]

    def train(epochs: int) -> list[Any]:
        model = DistributedDataParallel(sequential(case))
        rule, _ = torch_rule(case, list(model.parameters()), capturable=False)
        clock, errors = Clock(), []
        for _ in range(1 + epochs):
            total = torch.zeros(())
            for rows, targets, samples in batches:
                rule.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(model(rows), targets)
                # DDP averages the ranks' gradients: their weight is their share.
                (loss * (size * len(rows) / samples)).backward()
                rule.step()
                total += loss.detach() * len(rows)
            distributed.all_reduce(total)
            errors.append(float(total) / case.samples)
            clock()
        return _outcome(Trained(errors, clock.seconds))

    return train


def sklearn_training(comm: Any, case: TrainingCase) -> Serve:
    """Return scikit-learn's MLPClassifier, on one rank."""
    from ..baselines.training import ScikitLearnTraining

    train = ScikitLearnTraining().prepare(case, clnet.device()).train
    assert train is not None
    return lambda epochs: _outcome(train(epochs))


def messages(comm: Any, kind: str, size: int) -> Serve:
    """Return the mean of messages between ranks, of sums by MPI, or of additions.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Two ranks for messages.
    kind : {"message", "all-reduce", "addition", "exchange"}
        A message is half of its way to the other rank and back. An exchange is one
        message each way, for which ranks wait as in a training: asleep, and after work
        whose time, which differs among them, is not counted.
    size : int
        Bytes.
    """
    own = np.ones(max(1, size // 4), np.float32)
    received = np.zeros_like(own)
    other = 1 - comm.Get_rank()
    work = np.ones(WORK, np.float32)

    def add() -> None:
        np.add(work, 1.0, out=work)

    def exchange() -> None:
        add()
        ranks.wait(comm.Irecv(received, other), comm.Isend(own, other))

    action: Callable[[], object] = {
        "message": lambda: _ping_pong(comm, other, own, received),
        "all-reduce": lambda: comm.Allreduce(own, received),
        "addition": lambda: np.add(own, 1.0, out=received),
        "exchange": exchange,
    }[kind]
    ranks = Ranks(comm)
    ways = 2 if kind == "message" else 1

    def mean(action: Callable[[], object], repeats: int) -> float:
        action()
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            action()
        return (time.perf_counter() - start) / repeats

    def measure(repeats: int) -> list[Any]:
        count = REPEATS * repeats
        seconds = mean(action, count)
        if kind == "exchange":
            seconds = max(0.0, seconds - mean(add, count))
        return [[], seconds / ways * repeats]

    return measure


def _ping_pong(comm: Any, other: int, own: Array, received: Array) -> None:
    if comm.Get_rank() == 0:
        comm.Send(own, other)
        comm.Recv(received, other)
    else:
        comm.Recv(received, other)
        comm.Send(own, other)

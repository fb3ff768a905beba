"""Measurements by ranks of MPI: processes that `mpiexec` starts, one on each core.

The ranks of a candidate stay between the rounds. Rank 0 reads numbers of epochs from
its input, and writes the outcomes. Ranks that wait sleep, and leave their cores free.
PyTorch's trainings by GPUs are processes without MPI.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import clnet
from clnet.runtime.ranks import Ranks

from ..cases.training import Clock, Trained, TrainingCase
from ..processes import LIMIT, Processes

if TYPE_CHECKING:
    from ..cases.dense import Array

Serve = Callable[[int], list[Any]]
"""A function that all ranks call with a number of epochs; rank 0's result counts."""

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


def mpiexec() -> str | None:
    """Return the launcher beside this Python, or on the path; None if missing."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")


def start_ranks(
    ranks: int, make: Callable[..., Serve], *values: object
) -> Processes:
    """Return ranks that repeat a measurement; `make` returns a `Serve` on each."""
    launcher = mpiexec()
    assert launcher is not None
    return Processes(
        [(serve, make, *values)], [launcher, "-n", str(ranks)], ENVIRONMENT
    )


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
        answer = call(int(number[0]))
        if comm.Get_rank() == 0:
            print(json.dumps(answer), flush=True)


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


def _outcome(trained: Trained) -> list[Any]:
    return [[float(error) for error in trained.errors], trained.seconds]


def clnet_training(
    comm: Any, case: TrainingCase, index: str, blocks: int | None
) -> Serve:
    """Return `Network.fit` with ranks, each on one compute unit."""
    device, options = clnet.device(index, units=1), case.options

    def train(epochs: int) -> list[Any]:
        clock = Clock()
        history = case.network().fit(
            epochs=1 + epochs, device=device, callbacks=[lambda *_: clock()], comm=comm,
            blocks=blocks, **options,
        )
        if comm.Get_rank():  # callbacks are called by rank 0
            return []
        return _outcome(case.outcome(history, clock.seconds))

    return train


def torch_training(comm: Any, case: TrainingCase) -> Serve:
    """Return PyTorch's DistributedDataParallel by gloo."""
    import torch

    torch.set_num_threads(1)
    train = ddp_training([case], comm.Get_rank(), comm.Get_size(), "gloo")
    return lambda epochs: train(case.samples, epochs)


def ddp_training(
    cases: Sequence[TrainingCase], rank: int, size: int, backend: str
) -> Callable[[int, int], list[Any]]:
    """Return PyTorch's DistributedDataParallel, called with samples and epochs.

    Cases are of different numbers of samples. CPUs have the backend ``"gloo"``, GPUs
    ``"nccl"``.
    """
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from ..baselines.training import sequential, torch_rule

    place = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    torch.set_float32_matmul_precision(cases[0].precision)
    distributed.init_process_group(
        backend, init_method=f"file://{Path(sys.argv[1]).parent}/store", rank=rank,
        world_size=size, timeout=timedelta(seconds=LIMIT),
    )
    batches = {
        case.samples: [
            [rows.tensor_split(size)[rank].to(place) for rows in pair] + [len(pair[0])]
            for pair in zip(
                torch.from_numpy(case.data[0]).split(case.batch),
                torch.from_numpy(case.labels).split(case.batch), strict=True,
            )
        ]
        for case in cases
    }

    def train(samples: int, epochs: int) -> list[Any]:
        model = DistributedDataParallel(sequential(cases[0]).to(place))
        rule, _ = torch_rule(cases[0], list(model.parameters()), capturable=False)
        clock, errors = Clock(), []
        for _ in range(1 + epochs):
            total = torch.zeros((), device=place)
            for rows, targets, count in batches[samples]:
                rule.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(model(rows), targets)
                # DDP averages the ranks' gradients: their weight is their share.
                share = size * len(rows) / count
                (loss if share == 1 else loss * share).backward()
                rule.step()
                total += loss.detach() * len(rows)
            distributed.all_reduce(total)
            errors.append(float(total) / samples)  # waits for the device
            clock()
        return _outcome(Trained(errors, clock.seconds))

    return train


def serve_ddp(
    cases: Sequence[TrainingCase], rank: int, size: int, backend: str
) -> None:
    """Train as one of the processes, as often as the input asks."""
    train = ddp_training(cases, rank, size, backend)
    for line in sys.stdin:
        print(json.dumps(train(*map(int, line.split()))), flush=True)


def sklearn_training(comm: Any, case: TrainingCase) -> Serve:
    """Return scikit-learn's MLPClassifier, on one rank."""
    from ..baselines.training import ScikitLearnTraining

    train = ScikitLearnTraining().prepare(case, clnet.device()).train
    assert train is not None
    return lambda epochs: _outcome(train(epochs))


def messages(comm: Any, action_name: str, size: int) -> Serve:
    """Return the mean of messages between ranks, of sums by MPI, or of additions.

    Of ``"message"``, ``"all-reduce"``, ``"addition"`` and ``"exchange"``, of `size`
    bytes. A message is half of its way to the other of two ranks and back. An exchange
    is one message each way, for which ranks wait as in a training: asleep, and after
    work whose time, which differs among them, is not counted.
    """
    sent = np.ones(max(1, size // 4), np.float32)
    received = np.zeros_like(sent)
    other = 1 - comm.Get_rank()
    work = np.ones(WORK, np.float32)

    def add() -> None:
        np.add(work, 1.0, out=work)

    def exchange() -> None:
        add()
        ranks.wait(comm.Irecv(received, other), comm.Isend(sent, other))

    action: Callable[[], object] = {
        "message": lambda: _ping_pong(comm, other, sent, received),
        "all-reduce": lambda: comm.Allreduce(sent, received),
        "addition": lambda: np.add(sent, 1.0, out=received),
        "exchange": exchange,
    }[action_name]
    ranks = Ranks(comm)
    ways = 2 if action_name == "message" else 1

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
        if action_name == "exchange":
            seconds = max(0.0, seconds - mean(add, count))
        return [[], seconds / ways * repeats]

    return measure


def _ping_pong(comm: Any, other: int, sent: Array, received: Array) -> None:
    if comm.Get_rank() == 0:
        comm.Send(sent, other)
        comm.Recv(received, other)
    else:
        comm.Recv(received, other)
        comm.Send(sent, other)

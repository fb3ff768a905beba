"""Predictions as a service: a plan shared by threads, and a plan in each process."""

from __future__ import annotations

import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import clnet

Array = NDArray[np.float32]

BATCH = 32  # samples of a request, at most
NETWORK = Path(__file__).with_name("parity8.net")
state: dict[str, Any] = {}


def start(path: str) -> None:
    """Load the network and compile it: once a process, before its first request."""
    net = clnet.load(path, memory_limit=64 << 20)
    state["plan"] = net.compile(batch=BATCH)


def answer(x: Array) -> Array:
    """Return the outputs for a request, x [samples, n_in]."""
    full = np.zeros((BATCH, x.shape[1]), np.float32)
    full[: len(x)] = x
    y: Array = state["plan"](full)
    return y[: len(x)]


def serve(pool: Executor, requests: list[Array]) -> list[Array]:
    """Return the answers of a pool to requests."""
    with pool:
        return list(pool.map(answer, requests))


def main() -> None:
    """Answer requests by threads of this process, and by two processes."""
    path = sys.argv[1] if len(sys.argv) > 1 else str(NETWORK)
    start(path)
    rng = np.random.default_rng(0)
    requests = [rng.random((n, 8), np.float32) for n in range(1, BATCH)]
    threads = serve(ThreadPoolExecutor(4), requests)
    processes = serve(
        ProcessPoolExecutor(
            2, mp_context=get_context("spawn"), initializer=start, initargs=(path,)
        ),
        requests,
    )
    same = all(map(np.allclose, threads, processes))
    print(f"{len(requests)} requests, the same answers: {same}")


if __name__ == "__main__":
    main()

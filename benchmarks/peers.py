"""Peers: what a user would take instead, each as its own manual would write it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from clnet.nn.activations import activation
from clnet.opencl.device import Device

from .candidates import Candidate, Prepared, RefusedError, Timer, forward
from .cases import Array, Case
from .versions import blas_threads

PATIENCE = 120.0  # seconds until a peer must be ready
WARM_RUNS = 3  # before a graph is captured, and after a compilation

PLAIN: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "relu": lambda v: np.maximum(v, 0),
}


@dataclass(frozen=True)
class NumPy:
    """``f(x @ W.T + b)``, layer by layer, weights [n_out, n_in] contiguous."""

    name: str = "numpy"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return None: clnet needs it."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over the layers, in all threads of NumPy's BLAS."""
        network = case.network
        layers = [
            (np.ascontiguousarray(network.weights(i)).T, network.biases(i))
            for i in range(len(network.layers))
        ]
        f = PLAIN.get(case.activation) or activation(case.activation).value

        def call(x: Array) -> Array:
            for weights, biases in layers:
                x = f(x @ weights + biases)
            return x

        return forward(case, call, threads=blas_threads(), spins=True)


@dataclass(frozen=True)
class Torch:
    """PyTorch: a Sequential of Linear and activation, in inference mode.

    Of the highest precision in float32, of ``"high"`` with TF32 products, of
    ``"medium"`` in bfloat16 from the first layer to the last.

    Attributes
    ----------
    name : str
        ``"torch"`` on the CPU; on a CUDA device ``"torch-cuda"``, run op by op,
        ``"torch-graph"``, replayed as one CUDA graph, ``"torch-compile"``, with mode
        max-autotune, or ``"torch-compile-graph"``, the same kernels as one graph that
        is captured here: replaying that mode's own takes the host longer than many
        networks take.
    """

    name: str = "torch"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return what is not installed, or that CUDA has no device."""
        return missing_torch(cuda=self.name != "torch")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the module, on the CPU or on CUDA's first device."""
        import torch

        torch.set_float32_matmul_precision(case.precision)
        model = _module(case)
        if case.precision == "medium":
            model = _in_bfloat16(model)
        if self.name == "torch":

            def call(x: Array) -> Array:
                with torch.inference_mode():
                    y: Array = model(torch.from_numpy(x)).numpy()
                return y

            return forward(
                case, call, threads=torch.get_num_threads(), spins=True
            )
        model.to("cuda")
        graph = self.name.endswith("graph")
        if "compile" in self.name:
            torch._dynamo.reset()  # after eight networks it would stop compiling
            mode = "max-autotune-no-cudagraphs" if graph else "max-autotune"
            model = torch.compile(model, mode=mode)
        return graphed(case, model) if graph else eager(case, model)


def missing_torch(cuda: bool) -> str | None:
    """Return that PyTorch is not installed, or lacks the CUDA device it needs."""
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if cuda and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    return None


def _module(case: Case) -> Any:
    """Return the network as a `torch.nn.Sequential` on the CPU."""
    import torch
    from torch import nn

    kinds: dict[str, Any] = {
        "identity": nn.Identity, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU
    }
    if case.activation not in kinds:
        raise RefusedError(f"no module for {case.activation} is written down here")
    network = case.network
    dtype = getattr(torch, case.dtype)
    parts: list[Any] = []
    n_in = network.n_in
    for number, n_out in enumerate(network.sizes[1:]):
        linear = nn.utils.skip_init(nn.Linear, n_in, n_out, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(network.weights(number)))
            linear.bias.copy_(torch.tensor(network.biases(number)))
        parts += [linear, kinds[case.activation]()]
        n_in = n_out
    return nn.Sequential(*parts).eval().requires_grad_(False)


def _in_bfloat16(model: Any) -> Any:
    """Return a module that computes in bfloat16, from and to float32."""
    import torch
    from torch import nn

    class Converted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.to(torch.bfloat16)

        def forward(self, x: Any) -> Any:
            return self.inner(x.to(torch.bfloat16)).float()

    return Converted().eval()


def eager(case: Case, model: Any) -> Prepared:
    """Return a module on CUDA, called from Python."""
    import torch

    def call(x: Array) -> Array:
        with torch.inference_mode():
            y: Array = model(torch.from_numpy(x).to("cuda")).cpu().numpy()
        return y

    for _ in range(WARM_RUNS):
        call(case.inputs[0])
    x = torch.from_numpy(case.inputs[0]).to("cuda")

    def run() -> None:
        with torch.inference_mode():
            model(x)

    return forward(case, call, _cuda_timers(run))


def graphed(case: Case, model: Any) -> Prepared:
    """Return a module on CUDA, captured once and replayed, with pinned host memory."""
    import torch

    x = torch.from_numpy(case.inputs[0]).to("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_RUNS):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    graph.model = model  # whose memory it reads
    pinned_x = torch.empty_like(x, device="cpu", pin_memory=True)
    pinned_y = torch.empty_like(y, device="cpu", pin_memory=True)
    host_x, host_y = pinned_x.numpy(), pinned_y.numpy()

    def call(values: Array) -> Array:
        host_x[...] = values
        x.copy_(pinned_x, non_blocking=True)
        graph.replay()
        pinned_y.copy_(y, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        found: Array = host_y.copy()
        return found

    return forward(case, call, _cuda_timers(graph.replay))


def _cuda_timers(run: Callable[[], None]) -> dict[str, Callable[[], Timer]]:
    """Return what makes the timers of something that is enqueued on CUDA.

    By the device's clock, too, runs follow each other: an event before a single one
    would count the time that the host takes to enqueue it.
    """
    import torch

    def stream(repeats: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / repeats

    def clock(repeats: int) -> float:
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        run()
        first.record()
        for _ in range(repeats):
            run()
        last.record()
        last.synchronize()
        return 1e-3 * float(first.elapsed_time(last)) / repeats

    return {"stream": lambda: stream, "device": lambda: clock}


PEERS: tuple[Candidate, ...] = (
    NumPy(),
    Torch("torch"),
    Torch("torch-cuda"),
    Torch("torch-graph"),
    # In this order: what is compiled first is forgotten, but not what was captured.
    Torch("torch-compile-graph"),
    Torch("torch-compile"),
)
"""Every peer, in the order of the tables."""

"""Inference of fully connected networks, each as in the library's manual."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from clnet.nn.activations import activation
from clnet.opencl.device import Device

from ..candidates import (
    Baseline,
    Candidate,
    Prepared,
    RefusedError,
    Timer,
    back_to_back,
    forward,
)
from ..cases.dense import Array, Case
from ..environment import blas_threads
from ..processes import Guarded
from .fann import Fann
from .layers import name_elsewhere, torch_module, weights_and_biases

WARM_RUNS = 3  # before a graph is captured, and after a compilation

PLAIN: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "relu": lambda v: np.maximum(v, 0),
}


@dataclass(frozen=True)
class NumPy(Baseline):
    """``f(x @ W.T + b)``, layer by layer, weights [n_out, n_in] contiguous."""

    name: str = "numpy"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over the layers, on all threads of NumPy's BLAS."""
        layers = [(w.T, b) for w, b in weights_and_biases(case)]
        f = PLAIN.get(case.activation) or activation(case.activation).value

        def call(x: Array) -> Array:
            for weights, biases in layers:
                x = f(x @ weights + biases)
            return x

        return forward(case, call, threads=blas_threads(), spins=True)


class OnTorch(Baseline):
    """A baseline of PyTorch's; its name determines the device."""

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    on_cpu: ClassVar[tuple[str, ...]] = ("torch", "torch-cpu-compile")

    def missing(self) -> str | None:
        """Return None, or that PyTorch or a CUDA device is missing."""
        reason = super().missing()
        if reason is None and self.name not in self.on_cpu:
            import torch

            return None if torch.cuda.is_available() else "torch finds no CUDA device"
        return reason


@dataclass(frozen=True)
class Torch(OnTorch):
    """PyTorch: a Sequential of Linear and activation, in inference mode.

    The highest precision is float32, ``"high"`` has TF32 products, and ``"medium"`` is
    bfloat16 from the first layer to the last.
    """

    # ``"torch"`` on the CPU; on a CUDA device ``"torch-cuda"``, run op by op,
    # ``"torch-graph"``, one CUDA graph, ``"torch-compile"``, with mode max-autotune,
    # or ``"torch-compile-graph"``, its kernels captured here as one graph, which the
    # host replays faster than that mode's
    name: str = "torch"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the module, on the CPU or on CUDA's first device."""
        import torch

        torch.set_float32_matmul_precision(case.precision)
        model = torch_module(case.network).requires_grad_(False)
        if case.precision == "medium":
            model = _in_bfloat16(model)
        if self.name == "torch":

            def call(x: Array) -> Array:
                with torch.inference_mode():
                    y: Array = model(torch.from_numpy(x)).numpy()
                return y

            return forward(case, call, threads=torch.get_num_threads(), spins=True)
        model.to("cuda")
        graph = self.name.endswith("graph")
        if "compile" in self.name:
            torch._dynamo.reset()  # it compiles eight networks at most
            mode = "max-autotune-no-cudagraphs" if graph else "max-autotune"
            model = torch.compile(model, mode=mode)
        return graphed(case, model) if graph else eager(case, model)


def _in_bfloat16(model: Any) -> Any:
    """Return a module that computes in bfloat16, from and to float32."""
    import torch
    from torch import nn

    class Converted(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.to(torch.bfloat16)

        def forward(self, x: Any) -> Any:
            return self.inner(x.to(torch.bfloat16)).float()

    return Converted().eval()


def eager(case: Case, model: Any) -> Prepared:
    """Return a module on CUDA, run op by op."""
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
    graph, y = captured(lambda: model(x))
    graph.model = model  # the graph reads its memory
    pinned_x = torch.empty_like(x, device="cpu", pin_memory=True)
    pinned_y = torch.empty_like(y, device="cpu", pin_memory=True)
    host_x, host_y = pinned_x.numpy(), pinned_y.numpy()

    def call(values: Array) -> Array:
        host_x[...] = values
        x.copy_(pinned_x, non_blocking=True)
        graph.replay()
        pinned_y.copy_(y, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        outputs: Array = host_y.copy()
        return outputs

    return forward(case, call, _cuda_timers(graph.replay))


def captured(run: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a function as a CUDA graph, and the result that replays overwrite."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_RUNS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def _cuda_timers(run: Callable[[], None]) -> dict[str, Callable[[], Timer]]:
    """Return the timers of a function that enqueues work on CUDA.

    By the device's clock runs are timed back to back too: the time of a single run
    after an event would include the host's enqueueing.
    """
    import torch

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

    stream = back_to_back(run, torch.cuda.synchronize)
    return {"stream": lambda: stream, "device": lambda: clock}


@dataclass(frozen=True)
class OnnxRuntime(Baseline):
    """ONNX Runtime on the CPU: Gemm and activation, layer by layer."""

    name: str = "onnxruntime"

    requires: ClassVar[tuple[str, ...]] = ("onnxruntime", "onnx")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return a session of all cores."""
        import onnxruntime

        if case.activation not in PLAIN:
            raise RefusedError(f"{case.activation} is not one node of ONNX")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "network.onnx")
            case.network.save(file)
            session = onnxruntime.InferenceSession(
                file, providers=["CPUExecutionProvider"]
            )

        def call(x: Array) -> Array:
            (y,) = session.run(None, {"x": x})
            return np.asarray(y)

        return forward(
            case, call, config=f"onnxruntime {onnxruntime.__version__}", spins=True
        )


@dataclass(frozen=True)
class ScikitLearn(Baseline):
    """scikit-learn's MLPRegressor with the case's weights."""

    name: str = "sklearn"

    requires: ClassVar[tuple[str, ...]] = ("sklearn",)

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return `predict` of a model that is not fitted."""
        from sklearn.neural_network import MLPRegressor

        function = name_elsewhere(
            case.activation, {"sigmoid": "logistic", "tanh": "tanh", "relu": "relu"}
        )
        model = MLPRegressor(case.sizes[1:-1], activation=function)
        layers = weights_and_biases(case)
        model.coefs_ = [np.ascontiguousarray(weights.T) for weights, _ in layers]
        model.intercepts_ = [biases for _, biases in layers]
        model.n_features_in_, model.n_outputs_ = case.sizes[0], case.sizes[-1]
        model.n_layers_, model.out_activation_ = len(case.sizes), function

        def call(x: Array) -> Array:
            return np.asarray(model.predict(x)).reshape(len(x), -1)

        return forward(
            case, call, config=f"scikit-learn {metadata.version('scikit-learn')}",
            threads=blas_threads(), spins=True,
        )


def _set_opencl_path() -> None:
    """Point tinygrad to pyopencl's OpenCL loader if the system has none."""
    import pyopencl

    bundled = Path(pyopencl.__file__).parent.glob(".libs/libOpenCL*")
    if find_library("OpenCL") is None and (file := next(bundled, None)):
        os.environ.setdefault("OPENCL_PATH", str(file))


@dataclass(frozen=True)
class Tinygrad(Baseline):
    """tinygrad on the first OpenCL device, the whole network under its TinyJit."""

    name: str = "tinygrad"

    requires: ClassVar[tuple[str, ...]] = ("tinygrad",)

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the captured calls, if tinygrad's device is the same."""
        _set_opencl_path()
        from tinygrad import Device as TinygradDevice
        from tinygrad import Tensor, TinyJit

        used = TinygradDevice["CL"].device_name.strip()
        if used not in {place.name for place in device.places}:
            raise RefusedError(f"tinygrad takes {used}, not {device.name}")
        function = name_elsewhere(
            case.activation, {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu"}
        )
        layers = [
            tuple(Tensor(np.array(a), device="CL").realize() for a in layer)
            for layer in weights_and_biases(case)
        ]

        @TinyJit  # type: ignore[untyped-decorator]
        def model(x: Any) -> Any:
            for weights, biases in layers:
                x = getattr(x @ weights.T + biases, function)()
            return x.realize()

        def call(x: Array) -> Array:
            return np.asarray(model(Tensor(x, device="CL").realize()).numpy())

        for _ in range(WARM_RUNS):  # the second one captures
            call(case.inputs[0])
        version = metadata.version("tinygrad")
        return forward(case, call, config=f"tinygrad {version} on {used}")


@dataclass(frozen=True)
class CuPy(Baseline):
    """``f(x @ W.T + b)`` by CuPy on CUDA's first device."""

    name: str = "cupy"
    requires: ClassVar[tuple[str, ...]] = ("cupy",)

    def missing(self) -> str | None:
        """Return None, or that CuPy or a CUDA device is missing."""
        reason = super().missing()
        if reason is None:
            import cupy

            return None if cupy.cuda.is_available() else "cupy finds no CUDA device"
        return reason

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over the layers."""
        import cupy

        functions: dict[str, Callable[[Any], Any]] = {
            "sigmoid": lambda v: 1 / (1 + cupy.exp(-v)), "tanh": cupy.tanh,
            "relu": lambda v: cupy.maximum(v, 0),
        }
        f = name_elsewhere(case.activation, functions)
        layers = [
            (cupy.asarray(weights).T, cupy.asarray(biases))
            for weights, biases in weights_and_biases(case)
        ]

        def model(x: Any) -> Any:
            for weights, biases in layers:
                x = f(x @ weights + biases)
            return x

        return on_cupy(case, model)


def on_cupy(case: Case, model: Callable[[Any], Any]) -> Prepared:
    """Return CuPy's timers of a model from device array to device array."""
    import cupy

    x = cupy.asarray(case.inputs[0])
    wait = cupy.cuda.get_current_stream().synchronize
    stream = back_to_back(lambda: model(x), wait)
    return forward(
        case, lambda x: cupy.asnumpy(model(cupy.asarray(x))), {"stream": lambda: stream}
    )


def dense_baselines(fann_library: str | None) -> tuple[Candidate, ...]:
    """Return every baseline, in the order of the tables.

    Those that may crash the process run in a child process first.
    """
    return (
        NumPy(),
        # A reset drops what torch.compile compiled before, but no captured graph.
        *(Torch(name) for name in (
            "torch", "torch-cuda", "torch-graph", "torch-compile-graph", "torch-compile"
        )),
        Guarded(Fann(fann_library)), Guarded(OnnxRuntime()), ScikitLearn(),
        Guarded(Tinygrad()), CuPy(),
    )

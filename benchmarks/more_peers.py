"""Peers that only the feed-forward studies have: other libraries' inference."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from clnet.opencl.device import Device

from .candidates import Candidate, Prepared, RefusedError, Timer, forward
from .cases import Array, Case
from .fann_library import FannPeer, Head, Owned
from .guard import Guarded
from .peers import PATIENCE, WARM_RUNS
from .versions import blas_threads

# FANN's number of a function, and the steepness that makes it the function.
FANN_FUNCTIONS = {"sigmoid": (3, 0.5), "tanh": (5, 1.0)}
OPSET, IR_VERSION = 17, 8  # ONNX: what all releases since 2022 read


def not_installed(module: str, name: str = "") -> str | None:
    """Return None if a module is there, else that it is not, in a sentence."""
    return None if find_spec(module) else f"{name or module} is not installed"


def _layers(case: Case) -> list[tuple[Array, Array]]:
    """Return weights [n_out, n_in] and biases of each layer."""
    network = case.network
    return [
        (np.ascontiguousarray(network.weights(i)), network.biases(i))
        for i in range(len(network.layers))
    ]


def _written(case: Case, known: Any) -> Any:
    """Return what a case's activation is called elsewhere."""
    if case.activation not in known:
        raise RefusedError(f"no name of {case.activation} is written down here")
    return known[case.activation]


@dataclass(frozen=True)
class Fann(FannPeer):
    """FANN's `fann_run`, a call a sample, on one core."""

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over samples; weights are put into FANN's own array."""
        fann = self.loaded()
        if case.dtype != "float32":
            raise RefusedError(f"this FANN computes in float32, not in {case.dtype}")
        function, steepness = _written(case, FANN_FUNCTIONS)
        sizes = (ctypes.c_uint * len(case.sizes))(*case.sizes)
        net = Owned(
            fann.fann_create_standard_array(len(sizes), sizes), fann.fann_destroy
        )
        for part in ("hidden", "output"):
            getattr(fann, f"fann_set_activation_function_{part}")(net.pointer, function)
            getattr(fann, f"fann_set_activation_steepness_{part}")(
                net.pointer, steepness
            )
        n_in, n_out = case.sizes[0], case.sizes[-1]
        head = ctypes.cast(net.pointer, ctypes.POINTER(Head)).contents
        if (head.num_input, head.num_output) != (n_in, n_out):
            raise RefusedError("this FANN's network is laid out in an unknown way")
        # Each neuron's weights, its bias last, neuron by neuron.
        count = fann.fann_get_total_connections(net.pointer)
        weights = np.ctypeslib.as_array(head.weights, (count,))
        weights[:] = np.concatenate(
            [np.column_stack(layer).ravel() for layer in _layers(case)]
        )
        run, step = fann.fann_run, n_in * np.dtype(case.dtype).itemsize

        def call(x: Array) -> Array:
            y = np.empty((len(x), n_out), np.float32)
            start = x.ctypes.data
            for number in range(len(x)):
                found = run(net.pointer, start + number * step)
                y[number] = np.ctypeslib.as_array(found, (n_out,))
            return y

        return forward(case, call, config=Path(fann._name).name, threads=1)


@dataclass(frozen=True)
class OnnxRuntime:
    """ONNX Runtime on the CPU: Gemm and activation, layer by layer."""

    name: str = "onnxruntime"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return what is not installed: the runtime, or what writes models."""
        return not_installed("onnxruntime") or not_installed("onnx")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return a session of all cores."""
        import onnxruntime

        session = onnxruntime.InferenceSession(
            _onnx(case), providers=["CPUExecutionProvider"]
        )

        def call(x: Array) -> Array:
            (y,) = session.run(None, {"x": x})
            return np.asarray(y)

        return forward(
            case, call, config=f"onnxruntime {onnxruntime.__version__}", spins=True
        )


def _onnx(case: Case) -> bytes:
    """Return a case's network as an ONNX model from ``x`` to ``y``."""
    from onnx import TensorProto, helper, numpy_helper

    kind = _written(case, {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu"})
    real = helper.np_dtype_to_tensor_dtype(np.dtype(case.dtype))
    assert real in (TensorProto.FLOAT, TensorProto.DOUBLE)
    nodes, tensors = [], []
    last = len(case.sizes) - 2
    for i, (weights, biases) in enumerate(_layers(case)):
        tensors += [
            numpy_helper.from_array(weights, f"w{i}"),
            numpy_helper.from_array(np.ascontiguousarray(biases), f"b{i}"),
        ]
        x, y = f"x{i}" if i else "x", "y" if i == last else f"x{i + 1}"
        nodes += [
            helper.make_node("Gemm", [x, f"w{i}", f"b{i}"], [f"v{i}"], transB=1),
            helper.make_node(kind, [f"v{i}"], [y]),
        ]
    values = [
        helper.make_tensor_value_info(name, real, [case.batch, n])
        for name, n in (("x", case.sizes[0]), ("y", case.sizes[-1]))
    ]
    graph = helper.make_graph(nodes, "mlp", values[:1], values[1:], tensors)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    data: bytes = model.SerializeToString()
    return data


@dataclass(frozen=True)
class ScikitLearn:
    """scikit-learn's MLPRegressor, its weights put in by hand."""

    name: str = "sklearn"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return that it is not installed."""
        return not_installed("sklearn", "scikit-learn")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return `predict` of a model that was never fitted."""
        from sklearn.neural_network import MLPRegressor

        kind = _written(case, {"sigmoid": "logistic", "tanh": "tanh", "relu": "relu"})
        model = MLPRegressor(case.sizes[1:-1], activation=kind)
        layers = _layers(case)
        model.coefs_ = [np.ascontiguousarray(weights.T) for weights, _ in layers]
        model.intercepts_ = [biases for _, biases in layers]
        model.n_features_in_, model.n_outputs_ = case.sizes[0], case.sizes[-1]
        model.n_layers_, model.out_activation_ = len(case.sizes), kind

        def call(x: Array) -> Array:
            return np.asarray(model.predict(x)).reshape(len(x), -1)

        return forward(
            case, call, config=f"scikit-learn {metadata.version('scikit-learn')}",
            threads=blas_threads(), spins=True,
        )


def _lend_opencl() -> None:
    """Let tinygrad find the OpenCL that pyopencl brings, where the system has none."""
    import pyopencl

    brought = Path(pyopencl.__file__).parent.glob(".libs/libOpenCL*")
    if find_library("OpenCL") is None and (file := next(brought, None)):
        os.environ.setdefault("OPENCL_PATH", str(file))


@dataclass(frozen=True)
class Tinygrad:
    """tinygrad on the first OpenCL device, the whole network under its TinyJit."""

    name: str = "tinygrad"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return that it is not installed."""
        return not_installed("tinygrad")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the captured calls, if its device is ours."""
        _lend_opencl()
        from tinygrad import Device as Places
        from tinygrad import Tensor, TinyJit

        found = Places["CL"].device_name.strip()
        if found not in {place.name for place in device.places}:
            raise RefusedError(f"tinygrad takes {found}, not {device.name}")
        kind = _written(case, {name: name for name in ("sigmoid", "tanh", "relu")})
        layers = [
            tuple(Tensor(np.array(a), device="CL").realize() for a in layer)
            for layer in _layers(case)
        ]

        @TinyJit
        def model(x: Any) -> Any:
            for weights, biases in layers:
                x = getattr(x @ weights.T + biases, kind)()
            return x.realize()

        def call(x: Array) -> Array:
            return np.asarray(model(Tensor(x, device="CL").realize()).numpy())

        for _ in range(WARM_RUNS):  # the second one captures
            call(case.inputs[0])
        version = metadata.version("tinygrad")
        return forward(case, call, config=f"tinygrad {version} on {found}")


@dataclass(frozen=True)
class CuPy:
    """``f(x @ W.T + b)`` by CuPy on CUDA's first device."""

    name: str = "cupy"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return that it is not installed, or that CUDA has no device."""
        if reason := not_installed("cupy"):
            return reason
        import cupy

        return None if cupy.cuda.is_available() else "cupy finds no CUDA device"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over the layers."""
        import cupy

        functions: dict[str, Callable[[Any], Any]] = {
            "sigmoid": lambda v: 1 / (1 + cupy.exp(-v)), "tanh": cupy.tanh,
            "relu": lambda v: cupy.maximum(v, 0),
        }
        f = _written(case, functions)
        layers = [
            (cupy.asarray(weights).T, cupy.asarray(biases))
            for weights, biases in _layers(case)
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

    def stream(repeats: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(repeats):
            model(x)
        wait()
        return (time.perf_counter() - start) / repeats

    timers: dict[str, Callable[[], Timer]] = {"stream": lambda: stream}
    return forward(case, lambda x: cupy.asnumpy(model(cupy.asarray(x))), timers)


def more_peers(fann_library: str | None) -> tuple[Candidate, ...]:
    """Return every one, in the order of the tables.

    Those that call other libraries' code without a net are tried in a child process
    first: one that dies is a row then, and not the end.
    """
    return (
        Guarded(Fann(fann_library)), Guarded(OnnxRuntime()), ScikitLearn(),
        Guarded(Tinygrad()), CuPy(),
    )

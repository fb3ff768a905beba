"""Who trains: clnet, and what a user would take instead."""

from __future__ import annotations

import ctypes
import ctypes.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from clnet.device import Device
from clnet.history import Epoch
from clnet.optimisers import RPROP_LEAST_STEP, Adam, Incremental, Rprop
from clnet.training import Training

from .candidates import Candidate, Prepared, RefusedError
from .cases import Array
from .peers import PATIENCE, WARM_RUNS, missing_torch
from .training_cases import Clock, Trained, TrainingCase, trainer
from .versions import blas_threads

FANN_LIBRARIES = ("floatfann", "fann")  # both are FANN's single-precision build


@dataclass(frozen=True)
class Fitted:
    """`Network.fit`: what a user of clnet gets."""

    name: str = "planned"
    patience: float | None = None

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return `fit` with a callback that reads the clock."""
        x, t = case.data

        def train(epochs: int) -> Trained:
            clock = Clock()

            def note(training: Training, epoch: Epoch) -> None:
                clock()

            history = case.network().fit(
                x, t, optimiser=case.optimiser, loss=case.loss, epochs=1 + epochs,
                batch_size=case.batch, shuffle=False, seed=case.seed, device=device,
                callbacks=[note],
            )
            return Trained(history.loss if case.by_loss else history.mse, clock.seconds)

        threads = device.compute_units if device.type == "cpu" else None
        return trainer(case, train, threads=threads)


class _Layers:
    """A network in NumPy: values and slopes preallocated, parameters in one array."""

    def __init__(self, case: TrainingCase) -> None:
        self.case = case
        network = case.network()
        dtype = np.dtype(case.dtype)
        self.start = np.concatenate([
            part.ravel() for i in range(len(case.sizes) - 1)
            for part in (network.weights(i), network.biases(i))
        ]).astype(dtype)
        self.flat = self.start.copy()
        self.slope = np.zeros_like(self.flat)
        self._weights, self._biases = zip(*_parts(self.flat, case.sizes), strict=True)
        self._dw, self._db = zip(*_parts(self.slope, case.sizes), strict=True)
        batch = case.batch
        self._y = [np.empty((batch, n), dtype) for n in case.sizes[1:]]
        self._d = [np.empty((batch, n), dtype) for n in case.sizes[1:]]
        self._spare = [np.empty((batch, n), dtype) for n in case.sizes[1:]]
        self._ones = np.ones(batch, dtype)

    def step(self, x: Array, t: Array) -> float:
        """Fill the slopes of one batch; return its summed error."""
        n = len(x)
        values = [y[:n] for y in self._y]
        before = x
        for y, w, b in zip(values, self._weights, self._biases, strict=True):
            np.matmul(before, w.T, out=y)
            y += b
            if y is not values[-1]:
                _HIDDEN[self.case.hidden](y)
            before = y
        error, d = self._error(values[-1], t)
        for i in reversed(range(len(values))):
            previous = values[i - 1] if i else x
            np.matmul(d.T, previous, out=self._dw[i])
            np.dot(self._ones[:n], d, out=self._db[i])
            if i:
                d_before = self._d[i - 1][:n]
                np.matmul(d, self._weights[i], out=d_before)
                _BACK[self.case.hidden](d_before, values[i - 1], self._spare[i - 1][:n])
                d = d_before
        return error

    def _error(self, y: Array, t: Array) -> tuple[float, Array]:
        """Turn the last layer's sums into outputs; return error and slope."""
        d, n = self._d[-1][: len(y)], len(y)
        if self.case.output == "softmax":
            y -= y.max(axis=1, keepdims=True)
            np.exp(y, out=d)
            sums = d.sum(axis=1, keepdims=True)
            error = float(np.log(sums).sum()) - float(np.vdot(t, y))
            d /= sums
            d -= t
            d *= d.dtype.type(1 / n)
            return error, d
        np.negative(y, out=y)
        np.exp(y, out=y)
        y += 1
        np.reciprocal(y, out=y)
        np.subtract(y, t, out=d)
        error = float(np.vdot(d, d))
        spare = self._spare[-1][:n]
        np.subtract(1, y, out=spare)
        spare *= y
        d *= spare
        return error, d


def _parts(flat: Array, sizes: tuple[int, ...]) -> Iterator[tuple[Array, Array]]:
    """Yield weights [n_out, n_in] and biases [n_out] of each layer as views."""
    offset = 0
    for n_in, n_out in pairwise(sizes):
        middle = offset + n_in * n_out
        yield flat[offset:middle].reshape(n_out, n_in), flat[middle : middle + n_out]
        offset = middle + n_out


def _tanh_back(d: Array, y: Array, spare: Array) -> None:
    np.multiply(y, y, out=spare)
    np.subtract(1, spare, out=spare)
    d *= spare


def _relu_back(d: Array, y: Array, spare: Array) -> None:
    np.sign(y, out=spare)
    d *= spare


_HIDDEN: dict[str, Callable[[Array], Any]] = {
    "tanh": lambda y: np.tanh(y, out=y), "relu": lambda y: np.maximum(y, 0, out=y)
}
_BACK: dict[str, Callable[[Array, Array, Array], None]] = {
    "tanh": _tanh_back, "relu": _relu_back
}


def _rprop(rule: Rprop, layers: _Layers) -> Callable[[], None]:
    flat, slope = layers.flat, layers.slope
    delta = np.full_like(flat, rule.delta_zero)
    previous, spare = np.zeros_like(flat), np.empty_like(flat)
    turned = np.empty(flat.shape, bool)
    factors = np.array([rule.increase_factor, rule.decrease_factor], flat.dtype)

    def update() -> None:
        np.multiply(previous, slope, out=spare)
        np.less(spare, 0, out=turned)
        np.maximum(delta, RPROP_LEAST_STEP, out=delta)
        np.take(factors, turned.view(np.int8), out=spare, mode="clip")
        np.multiply(delta, spare, out=delta)
        np.minimum(delta, rule.delta_max, out=delta)
        np.copyto(slope, 0, where=turned)
        np.sign(slope, out=spare)
        np.multiply(spare, delta, out=spare)
        np.subtract(flat, spare, out=flat)
        np.copyto(previous, slope)

    return update


def _incremental(rule: Incremental, layers: _Layers) -> Callable[[], None]:
    flat, slope = layers.flat, layers.slope
    rate = flat.dtype.type(rule.learning_rate)

    def update() -> None:
        np.multiply(slope, rate, out=slope)
        np.subtract(flat, slope, out=flat)

    return update


def _adam(rule: Adam, layers: _Layers) -> Callable[[], None]:
    flat, slope = layers.flat, layers.slope
    first, second = np.zeros_like(flat), np.zeros_like(flat)
    spare = np.empty_like(flat)
    real = flat.dtype.type
    count = 0

    def update() -> None:
        nonlocal count
        count += 1
        rate = rule.learning_rate / (1 - rule.beta1**count)
        root = (1 - rule.beta2**count) ** 0.5
        np.multiply(first, real(rule.beta1), out=first)
        np.multiply(slope, real(1 - rule.beta1), out=spare)
        np.add(first, spare, out=first)
        np.multiply(second, real(rule.beta2), out=second)
        np.multiply(slope, slope, out=spare)
        np.multiply(spare, real(1 - rule.beta2), out=spare)
        np.add(second, spare, out=second)
        np.sqrt(second, out=spare)
        np.multiply(spare, real(1 / root), out=spare)
        np.add(spare, real(rule.eps), out=spare)
        np.divide(first, spare, out=spare)
        np.multiply(spare, real(rate), out=spare)
        np.subtract(flat, spare, out=flat)

    return update


_UPDATES: dict[str, Callable[[Any, _Layers], Callable[[], None]]] = {
    "rprop": _rprop, "incremental": _incremental, "adam": _adam
}


@dataclass(frozen=True)
class NumPyTraining:
    """The same rules in NumPy, in all threads of its BLAS, nothing allocated."""

    name: str = "numpy"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return None: clnet needs it."""
        return None

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs and batches."""
        layers = _Layers(case)
        x, t = case.data
        starts = range(0, case.samples, case.batch)
        batches = [(x[i : i + case.batch], t[i : i + case.batch]) for i in starts]
        numbers = case.samples * (1 if case.by_loss else case.sizes[-1])

        def train(epochs: int) -> Trained:
            layers.flat[...] = layers.start
            update = _UPDATES[case.optimiser.name](case.optimiser, layers)
            clock = Clock()
            errors = []
            for _ in range(1 + epochs):
                error = 0.0
                for rows, targets in batches:
                    error += layers.step(rows, targets)
                    update()
                errors.append(error / numbers)
                clock()
            return Trained(errors, clock.seconds)

        return trainer(case, train, threads=blas_threads(), spins=True)


@dataclass(frozen=True)
class TorchTraining:
    """PyTorch: a Sequential, its loss and its optimiser; data on the device.

    Attributes
    ----------
    name : str
        On the CPU ``"torch"``, run op by op, or ``"torch-cpu-compile"``; on a CUDA
        device ``"torch-cuda"``, op by op, ``"torch-graph"``, each step replayed as one
        CUDA graph, ``"torch-compile"``, loss and gradients compiled with mode
        reduce-overhead, or ``"torch-compile-graph"``, compiled and then captured.
    """

    name: str = "torch"
    patience: float | None = PATIENCE

    @property
    def _place(self) -> str:
        return "cpu" if self.name in ("torch", "torch-cpu-compile") else "cuda"

    def missing(self) -> str | None:
        """Return what is not installed, or that CUDA has no device."""
        return missing_torch(cuda=self._place == "cuda")

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs and batches."""
        import torch

        torch.set_float32_matmul_precision(case.precision)
        place = self._place
        model = _sequential(case).to(place)
        learnt = list(model.parameters())
        start = [p.detach().clone() for p in learnt]
        graph = self.name.endswith("-graph")
        loss_of = _torch_loss(case, model)
        if "compile" in self.name:
            if not graph:
                # Else all cases count as compilations of one function.
                torch._dynamo.reset()
            mode = "reduce-overhead" if place == "cuda" and not graph else "default"
            loss_of = torch.compile(loss_of, mode=mode, dynamic=False)
        rule, rate = _torch_rule(case, learnt, graph)
        total = torch.zeros((), device=place)
        x, t = (torch.from_numpy(a).to(place) for a in _torch_data(case))
        batches = list(zip(x.split(case.batch), t.split(case.batch), strict=True))

        def step(rows: Any, targets: Any) -> None:
            rule.zero_grad(set_to_none=True)
            loss = loss_of(rows, targets)
            loss.backward()
            rule.step()
            with torch.no_grad():
                total.add_(loss, alpha=len(rows))

        def restart() -> None:
            with torch.no_grad():
                for p, values in zip(learnt, start, strict=True):
                    p.copy_(values)
                for state in rule.state.values():
                    for name, value in state.items():
                        if value is not None:
                            value.fill_(rate if name == "step_size" else 0)
                total.zero_()

        def finish() -> None:
            if place == "cuda":
                torch.cuda.synchronize()

        run = _captured(step, batches) if graph else step
        scale = _TORCH_SCALES[case.optimiser.name](case)

        def train(epochs: int) -> Trained:
            restart()
            clock = Clock()
            errors = []
            for number in range(1 + epochs):
                for rows, targets in batches:
                    run(rows, targets)
                errors.append(total.clone())
                total.zero_()
                if number in (0, epochs):
                    finish()
                    clock()
            return Trained([float(e) * scale for e in errors], clock.seconds)

        if "compile" in self.name:
            train(0)
        expected = None
        if isinstance(case.optimiser, Rprop):  # PyTorch's is another from the third on
            def expected() -> list[float]:
                return case.errors[:TORCH_RPROP_AGREES]

        threads = torch.get_num_threads() if place == "cpu" else None
        return trainer(
            case, train, expected=expected, threads=threads, spins=place == "cpu"
        )


TORCH_RPROP_AGREES = 3  # epochs: after a turn PyTorch's step grows one epoch later
# From the epoch's sum of a step's loss times its samples to the error.
_TORCH_SCALES: dict[str, Callable[[TrainingCase], float]] = {
    "rprop": lambda case: 1 / case.samples,
    "incremental": lambda case: 2 / (case.samples * case.sizes[-1]),
    "adam": lambda case: 1 / case.samples,
}


def _sequential(case: TrainingCase) -> Any:
    import torch
    from torch import nn

    kinds: dict[str, Any] = {"tanh": nn.Tanh, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}
    network = case.network()
    parts: list[Any] = []
    last = len(case.sizes) - 2
    for i, (n_in, n_out) in enumerate(pairwise(case.sizes)):
        linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(network.weights(i)))
            linear.bias.copy_(torch.tensor(network.biases(i)))
        parts.append(linear)
        name = case.output if i == last else case.hidden
        if name != "softmax":  # the loss has it
            parts.append(kinds[name]())
    return nn.Sequential(*parts)


def _torch_loss(case: TrainingCase, model: Any) -> Callable[[Any, Any], Any]:
    from torch.nn import functional

    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "rprop": functional.mse_loss,
        "incremental": lambda y, t: 0.5 * functional.mse_loss(y, t, reduction="sum"),
        "adam": functional.cross_entropy,
    }
    kind = kinds[case.optimiser.name]
    return lambda x, t: kind(model(x), t)


def _torch_rule(
    case: TrainingCase, learnt: list[Any], capturable: bool
) -> tuple[Any, float]:
    """Return the optimiser, and the rate that it begins with."""
    from torch import optim

    rule = case.optimiser
    if isinstance(rule, Rprop):
        rate = rule.delta_zero * rule.increase_factor  # PyTorch's grows from then on
        found = optim.Rprop(
            learnt, lr=rate, etas=(rule.decrease_factor, rule.increase_factor),
            step_sizes=(RPROP_LEAST_STEP, rule.delta_max), foreach=True,
            capturable=capturable,
        )
        return found, rate
    if isinstance(rule, Adam):
        return optim.Adam(
            learnt, rule.learning_rate, (rule.beta1, rule.beta2), rule.eps,
            fused=True, capturable=capturable,
        ), rule.learning_rate
    if isinstance(rule, Incremental):
        return optim.SGD(learnt, rule.learning_rate, fused=True), rule.learning_rate
    raise RefusedError(f"{rule.name} is not written down here for PyTorch")


def _torch_data(case: TrainingCase) -> tuple[Array, Array]:
    x, t = case.data
    return x, case.labels if case.output == "softmax" else t


def _captured(
    step: Callable[[Any, Any], None], batches: list[tuple[Any, Any]]
) -> Callable[[Any, Any], None]:
    """Return a step as one CUDA graph; batches are copied to where it reads."""
    import torch

    one = len(batches) == 1
    x, t = batches[0] if one else (batch.clone() for batch in batches[0])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_RUNS):
            step(x, t)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x, t)

    def run(rows: Any, targets: Any) -> None:
        if not one:
            x.copy_(rows)
            t.copy_(targets)
        graph.replay()

    return run


@dataclass(frozen=True)
class ScikitLearn:
    """scikit-learn's MLPClassifier, an epoch a `partial_fit`."""

    name: str = "sklearn"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return what is not installed."""
        return None if find_spec("sklearn") else "scikit-learn is not installed"

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs; the start weights are put in by hand."""
        from sklearn.neural_network import MLPClassifier

        rule = case.optimiser
        if not isinstance(rule, Adam):
            raise RefusedError("MLPClassifier trains by Adam")
        network, (x, _) = case.network(), case.data
        classes = np.arange(case.sizes[-1])

        def train(epochs: int) -> Trained:
            model = MLPClassifier(
                case.sizes[1:-1], activation=case.hidden, solver="adam", alpha=0.0,
                batch_size=case.batch, learning_rate_init=rule.learning_rate,
                beta_1=rule.beta1, beta_2=rule.beta2, epsilon=rule.eps, shuffle=False,
            )
            model.partial_fit(x[:1], case.labels[:1], classes=classes)
            for i, (w, b) in enumerate(
                zip(model.coefs_, model.intercepts_, strict=True)
            ):
                w[...] = network.weights(i).T
                b[...] = network.biases(i)
            del model._optimizer  # its moments are those of other weights
            clock = Clock()
            for _ in range(1 + epochs):
                model.partial_fit(x, case.labels)
                clock()
            return Trained(model.loss_curve_[1:], clock.seconds)

        return trainer(
            case, train, config=f"scikit-learn {metadata.version('scikit-learn')}",
            threads=blas_threads(), spins=True,
        )


@dataclass(frozen=True)
class Fann:
    """FANN's library, which trains on one core.

    Attributes
    ----------
    library : str or None
        Its file; None: where the system's libraries are.
    """

    library: str | None = None
    name: str = "fann"
    patience: float | None = PATIENCE

    @property
    def _file(self) -> str | None:
        found = (ctypes.util.find_library(name) for name in FANN_LIBRARIES)
        return self.library or next((file for file in found if file), None)

    def missing(self) -> str | None:
        """Return that there is no library."""
        if self._file is None:
            return "FANN's library is not installed: see --fann-library"
        return None

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return `fann_train_epoch` on networks read from a file of ours."""
        file = self._file
        assert file is not None
        fann = _bound(file)
        network = case.network(fann=True)
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "data")
            x, t = case.data
            rows = np.concatenate([x, t], axis=1)
            header = f"{case.samples} {case.sizes[0]} {case.sizes[-1]}"
            np.savetxt(data, rows, fmt="%.9g", header=header, comments="")
            samples = _Owned(
                fann.fann_read_train_from_file(bytes(data)), fann.fann_destroy_train
            )
            net = Path(folder, "start.net")
            network.save(net)
            first = _Owned(fann.fann_create_from_file(bytes(net)), fann.fann_destroy)

        def train(epochs: int) -> Trained:
            learner = _Owned(fann.fann_copy(first.pointer), fann.fann_destroy)
            clock = Clock()
            errors = []
            for _ in range(1 + epochs):
                errors.append(fann.fann_train_epoch(learner.pointer, samples.pointer))
                clock()
            return Trained(errors, clock.seconds)

        return trainer(
            case, train, expected=lambda: case.fann_errors, config=Path(file).name,
            threads=1,
        )


class _Owned:
    """Something that FANN made, given back with the last reference."""

    def __init__(self, pointer: int | None, give_back: Callable[[int], Any]) -> None:
        if not pointer:
            raise RefusedError("FANN could not make or read what it was asked to")
        self.pointer = pointer
        self._give_back = give_back

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._give_back(self.pointer)


def _bound(file: str) -> ctypes.CDLL:
    """Return FANN's library with the types of what is called."""
    library = ctypes.CDLL(file)
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    types: dict[str, tuple[Any, list[Any]]] = {
        "fann_create_from_file": (handle, [text]),
        "fann_copy": (handle, [handle]),
        "fann_destroy": (None, [handle]),
        "fann_read_train_from_file": (handle, [text]),
        "fann_destroy_train": (None, [handle]),
        "fann_train_epoch": (ctypes.c_float, [handle, handle]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def training_peers(library: str | None) -> tuple[Candidate, ...]:
    """Return every peer, in the order of the tables."""
    names = (
        "torch", "torch-cpu-compile", "torch-cuda", "torch-graph", "torch-compile",
        "torch-compile-graph",
    )
    return (
        Fann(library), NumPyTraining(), ScikitLearn(),
        *(TorchTraining(name) for name in names),
    )

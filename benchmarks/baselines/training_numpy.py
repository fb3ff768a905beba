"""Training in NumPy, written for speed: steps allocate no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from clnet.nn.optimisers import RPROP_LEAST_STEP, Adam, Batch, Incremental, Rprop
from clnet.opencl.device import Device

from ..candidates import Baseline, Prepared, RefusedError
from ..cases.dense import Array
from ..cases.training import Clock, Trained, TrainingCase, trainer
from ..environment import blas_threads
from .layers import sigmoid_in_place

CACHE_LINE = 64  # bytes


class _Layers:
    """A network in NumPy: preallocated, its parameters in one array."""

    def __init__(self, case: TrainingCase) -> None:
        self.case = case
        network = case.network()
        dtype = np.dtype(case.dtype)
        self.start = np.concatenate([
            part.ravel() for i in range(len(case.sizes) - 1)
            for part in (network.weights(i), network.biases(i))
        ]).astype(dtype)
        self.flat = _aligned(self.start.shape, dtype)
        self.gradient = _aligned(self.start.shape, dtype)
        self._weights, self._biases = zip(*_parts(self.flat, case.sizes), strict=True)
        self._dw, self._db = zip(*_parts(self.gradient, case.sizes), strict=True)
        batch = case.batch
        self._y = [_aligned((batch, n), dtype) for n in case.sizes[1:]]
        self._d = [_aligned((batch, n), dtype) for n in case.sizes[1:]]
        self._scratch = [_aligned((batch, n), dtype) for n in case.sizes[1:]]
        self._ones = np.ones(batch, dtype)

    def step(self, x: Array, t: Array) -> float:
        """Fill the gradients of one batch; return its summed error."""
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
                scratch = self._scratch[i - 1][:n]
                _BACKWARD[self.case.hidden](d_before, values[i - 1], scratch)
                d = d_before
        return error

    def _error(self, y: Array, t: Array) -> tuple[float, Array]:
        """Apply the last activation in place; return error and gradient."""
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
        sigmoid_in_place(y)
        np.subtract(y, t, out=d)
        error = float(np.vdot(d, d))
        scratch = self._scratch[-1][:n]
        np.subtract(1, y, out=scratch)
        scratch *= y
        d *= scratch
        return error, d


def _aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros aligned to a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    first = -raw.ctypes.data % CACHE_LINE
    aligned: Array = raw[first : first + size].view(dtype).reshape(shape)
    return aligned


def _aligned_copy(array: Array) -> Array:
    copy = _aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _parts(flat: Array, sizes: tuple[int, ...]) -> Iterator[tuple[Array, Array]]:
    """Yield weights [n_out, n_in] and biases [n_out] of each layer as views."""
    offset = 0
    for n_in, n_out in pairwise(sizes):
        middle = offset + n_in * n_out
        yield flat[offset:middle].reshape(n_out, n_in), flat[middle : middle + n_out]
        offset = middle + n_out


def _tanh_backward(d: Array, y: Array, scratch: Array) -> None:
    np.multiply(y, y, out=scratch)
    np.subtract(1, scratch, out=scratch)
    d *= scratch


def _relu_backward(d: Array, y: Array, scratch: Array) -> None:
    np.sign(y, out=scratch)
    d *= scratch


_HIDDEN: dict[str, Callable[[Array], Any]] = {
    "tanh": lambda y: np.tanh(y, out=y), "relu": lambda y: np.maximum(y, 0, out=y)
}
_BACKWARD: dict[str, Callable[[Array, Array, Array], None]] = {
    "tanh": _tanh_backward, "relu": _relu_backward
}


def _rprop(rule: Rprop, layers: _Layers) -> Callable[[], None]:
    flat, gradient = layers.flat, layers.gradient
    delta = _aligned(flat.shape, flat.dtype)
    delta[...] = rule.delta_zero
    previous, scratch = (_aligned(flat.shape, flat.dtype) for _ in range(2))
    flipped = np.empty(flat.shape, bool)
    factors = np.array([rule.increase_factor, rule.decrease_factor], flat.dtype)

    def update() -> None:
        np.multiply(previous, gradient, out=scratch)
        np.less(scratch, 0, out=flipped)
        np.maximum(delta, RPROP_LEAST_STEP, out=delta)
        np.take(factors, flipped.view(np.int8), out=scratch, mode="clip")
        np.multiply(delta, scratch, out=delta)
        np.minimum(delta, rule.delta_max, out=delta)
        np.copyto(gradient, 0, where=flipped)
        np.sign(gradient, out=scratch)
        np.multiply(scratch, delta, out=scratch)
        np.subtract(flat, scratch, out=flat)
        np.copyto(previous, gradient)

    return update


def _incremental(rule: Incremental, layers: _Layers) -> Callable[[], None]:
    flat, gradient = layers.flat, layers.gradient
    rate = flat.dtype.type(rule.learning_rate)

    def update() -> None:
        np.multiply(gradient, rate, out=gradient)
        np.subtract(flat, gradient, out=flat)

    return update


def _batch(rule: Batch, layers: _Layers) -> Callable[[], None]:
    return _incremental(
        Incremental(rule.learning_rate / layers.case.samples), layers
    )


def _adam(rule: Adam, layers: _Layers) -> Callable[[], None]:
    flat, gradient = layers.flat, layers.gradient
    first, second, scratch = (_aligned(flat.shape, flat.dtype) for _ in range(3))
    real = flat.dtype.type
    count = 0

    def update() -> None:
        nonlocal count
        count += 1
        rate = rule.learning_rate / (1 - rule.beta1**count)
        root = (1 - rule.beta2**count) ** 0.5
        np.multiply(first, real(rule.beta1), out=first)
        np.multiply(gradient, real(1 - rule.beta1), out=scratch)
        np.add(first, scratch, out=first)
        np.multiply(second, real(rule.beta2), out=second)
        np.multiply(gradient, gradient, out=scratch)
        np.multiply(scratch, real(1 - rule.beta2), out=scratch)
        np.add(second, scratch, out=second)
        np.sqrt(second, out=scratch)
        np.multiply(scratch, real(1 / root), out=scratch)
        np.add(scratch, real(rule.eps), out=scratch)
        np.divide(first, scratch, out=scratch)
        np.multiply(scratch, real(rate), out=scratch)
        np.subtract(flat, scratch, out=flat)

    return update


_UPDATES: dict[str, Callable[[Any, _Layers], Callable[[], None]]] = {
    "rprop": _rprop, "incremental": _incremental, "batch": _batch, "adam": _adam
}


@dataclass(frozen=True)
class NumPyTraining(Baseline):
    """NumPy, on all threads of its BLAS."""

    name: str = "numpy"

    def prepare(self, case: TrainingCase, device: Device) -> Prepared:
        """Return the loop over epochs and batches."""
        if case.optimiser.name not in _UPDATES:
            raise RefusedError(f"{case.optimiser.name} is not implemented in NumPy")
        layers = _Layers(case)
        x, t = (_aligned_copy(array) for array in case.data)
        starts = range(0, case.samples, case.batch)
        batches = [(x[i : i + case.batch], t[i : i + case.batch]) for i in starts]
        numbers = case.samples * (1 if case.by_loss else case.sizes[-1])

        def train(epochs: int) -> Trained:
            layers.flat[...] = layers.start
            update = _UPDATES[case.optimiser.name](case.optimiser, layers)
            clock = Clock()
            errors = []
            with np.errstate(over="ignore"):  # exp of a saturated output
                for _ in range(1 + epochs):
                    error = 0.0
                    for rows, targets in batches:
                        error += layers.step(rows, targets)
                        update()
                    errors.append(error / numbers)
                    clock()
            return Trained(errors, clock.seconds)

        return trainer(case, train, threads=blas_threads(), spins=True)

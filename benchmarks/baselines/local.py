"""Inference of locally connected networks by NumPy and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clnet.nn.activations import activation
from clnet.opencl.device import Device

from ..candidates import Baseline, Prepared, RefusedError, forward
from ..cases.dense import Array, Case
from .dense import OnTorch, eager, graphed
from .layers import sigmoid_in_place

BLOCK = 16_384  # rows that NumPy computes at once, in a core's cache


@dataclass(frozen=True)
class NumPyLocal(Baseline):
    """Products and sums of shifted slices, a block of rows at a time, all in place."""

    name: str = "numpy"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over layers and blocks."""
        network = case.network
        layers = [
            (np.ascontiguousarray(network.weights(i).T), network.biases(i)[0])
            for i in range(len(network.layers))
        ]
        value = activation(case.activation).value
        values = [np.empty((case.batch, n), case.dtype) for n in case.sizes[1:]]
        scratch = np.empty((case.batch, BLOCK), case.dtype)

        def call(x: Array) -> Array:
            for (weights, bias), y in zip(layers, values, strict=True):
                for start in range(0, y.shape[1], BLOCK):
                    w = weights[:, start : start + BLOCK]
                    part = y[:, start : start + BLOCK]
                    product = scratch[:, : part.shape[1]]
                    inputs = x[:, start:]
                    np.multiply(w[0], inputs[:, : part.shape[1]], out=part)
                    for r in range(1, len(w)):
                        shifted = inputs[:, r : r + part.shape[1]]
                        np.add(part, np.multiply(w[r], shifted, out=product), out=part)
                    part += bias
                    if case.activation == "sigmoid":
                        sigmoid_in_place(part)
                    else:
                        part[...] = value(part)
                x = y
            return x.copy()

        return forward(case, call, threads=1)


@dataclass(frozen=True)
class TorchLocal(OnTorch):
    """PyTorch: the same expression, layer by layer; names as in `dense.Torch`."""

    name: str = "torch"

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over layers, on the CPU or on CUDA's first device."""
        import torch

        if case.activation != "sigmoid":
            raise RefusedError(f"{case.activation} is not implemented here")
        target = "cpu" if self.name == "torch" else "cuda"
        network = case.network
        layers = [
            (
                torch.tensor(np.ascontiguousarray(network.weights(i).T), device=target),
                torch.tensor(network.biases(i), device=target),
            )
            for i in range(len(network.layers))
        ]

        def layer(x: Any, weights: Any, bias: Any) -> Any:
            n = weights.shape[1]
            z = bias
            for r in range(len(weights)):
                z = z + weights[r] * x[:, r : r + n]
            return torch.sigmoid(z)

        if self.name in ("torch-compile", "torch-graph"):
            layer = torch.compile(layer)

        def model(x: Any) -> Any:
            with torch.inference_mode():
                for weights, bias in layers:
                    x = layer(x, weights, bias)
            return x

        if self.name == "torch":
            return forward(
                case, lambda x: np.asarray(model(torch.from_numpy(x)).numpy()),
                threads=torch.get_num_threads(), spins=True,
            )
        return (graphed if self.name == "torch-graph" else eager)(case, model)

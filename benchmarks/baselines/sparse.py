"""Inference of partially connected networks by SciPy, PyTorch and CuPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from clnet.opencl.device import Device

from ..candidates import Baseline, Prepared, forward
from ..cases.dense import Array
from ..cases.sparse import SparseCase
from .dense import PLAIN, CuPy, OnTorch, eager, graphed, on_cupy


@dataclass(frozen=True)
class SciPy(Baseline):
    """``f(x @ A.T + b)`` with A in scipy.sparse's CSR."""

    name: str = "scipy"

    requires: ClassVar[tuple[str, ...]] = ("scipy",)

    def prepare(self, case: SparseCase, device: Device) -> Prepared:
        """Return the loop over the layers; a batch is multiplied transposed."""
        from scipy import sparse

        layers = [
            (sparse.csr_array(_csr(case, i), shape=(len(b), case.sizes[i])), b)
            for i, b in _layers(case)
        ]
        f = PLAIN[case.activation]

        def call(x: Array) -> Array:
            values = x[0] if case.batch == 1 else np.ascontiguousarray(x.T)
            for matrix, b in layers:
                bias = b if case.batch == 1 else b[:, np.newaxis]
                values = f(matrix @ values + bias)
            return values[np.newaxis] if case.batch == 1 else values.T

        return forward(case, call, threads=1)


@dataclass(frozen=True)
class TorchSparse(OnTorch):
    """PyTorch on CUDA: CSR tensors, which cuSPARSE multiplies."""

    # ``"torch-sparse"``, run op by op, or ``"torch-sparse-graph"``, replayed as one
    # CUDA graph
    name: str = "torch-sparse"

    def prepare(self, case: SparseCase, device: Device) -> Prepared:
        """Return the loop over the layers."""
        import torch

        layers = []
        for number, b in _layers(case):
            values, columns, starts = map(torch.tensor, _csr(case, number))
            shape = (len(b), case.sizes[number])
            layers.append((
                torch.sparse_csr_tensor(starts, columns, values, size=shape).to("cuda"),
                torch.tensor(b, device="cuda")[:, None],
            ))
        f = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}[case.activation]

        def model(x: Any) -> Any:
            with torch.inference_mode():
                values = x.T
                for matrix, bias in layers:
                    if case.batch == 1:
                        values = f(matrix @ values[:, 0] + bias[:, 0])[:, None]
                    else:
                        values = f(matrix @ values + bias)
                return values.T

        return (graphed if self.name == "torch-sparse-graph" else eager)(case, model)


@dataclass(frozen=True)
class CuPySparse(CuPy):
    """The same by CuPy's CSR matrices, which cuSPARSE multiplies too."""

    name: str = "cupy-sparse"

    def prepare(self, case: SparseCase, device: Device) -> Prepared:  # type: ignore[override]
        """Return the loop over the layers."""
        import cupy
        from cupyx.scipy import sparse

        layers = [
            (
                sparse.csr_matrix(
                    tuple(map(cupy.asarray, _csr(case, number))),
                    shape=(len(b), case.sizes[number]),
                ),
                cupy.asarray(b),
            )
            for number, b in _layers(case)
        ]

        def model(x: Any) -> Any:
            values = x[0] if case.batch == 1 else cupy.ascontiguousarray(x.T)
            for matrix, b in layers:
                z = matrix @ values + (b if case.batch == 1 else b[:, None])
                values = (
                    cupy.tanh(z) if case.activation == "tanh"
                    else 1 / (1 + cupy.exp(-z))
                )
            return values[None] if case.batch == 1 else values.T

        return on_cupy(case, model)


def _layers(case: SparseCase) -> list[tuple[int, Array]]:
    network = case.network
    return [(i, network.biases(i)) for i in range(len(network.layers))]


def _csr(case: SparseCase, number: int) -> tuple[Array, Array, Array]:
    """Return a layer's values, columns and row pointers."""
    network = case.network
    matrix = network.matrices[number]
    rows, columns, places = matrix.entries()
    starts = np.searchsorted(rows, np.arange(matrix.n_out + 1))
    return (
        network.parameters[places], columns.astype(np.int32), starts.astype(np.int32)
    )

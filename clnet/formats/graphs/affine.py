"""Affine values of traced graphs, ``scale * atom + bias``, which linear layers take up.

An *atom* is one number a sample: an input, or a neuron of a layer to be. Graphs of ONNX
and of PyTorch both scale, shift, pick and join such values; no layer computes with them
until a matrix reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
A = TypeVar("A", bound="Affine")

NONE = -1  # atom of a constant element


def scaled(bias: Array, scale: Any, atoms: Array) -> Array:
    """Return ``bias * scale``; no bias of an atom stays none by an infinite scale."""
    product = bias * scale
    return np.where((bias == 0) & (atoms != NONE), 0.0, product)


@dataclass(frozen=True)
class Affine:
    """Numbers ``scale * atom + bias``; three arrays of one shape."""

    atoms: Array
    scale: Array
    bias: Array

    @classmethod
    def of(cls, atoms: Array) -> Affine:
        """Return atoms as they are."""
        return cls(atoms, np.ones(np.shape(atoms)), np.zeros(np.shape(atoms)))

    @classmethod
    def joined(cls, values: Sequence[Affine]) -> Affine:
        """Return values side by side."""
        return cls(*(
            np.concatenate([getattr(value, name) for value in values])
            for name in ("atoms", "scale", "bias")
        ))

    def __len__(self) -> int:
        return len(self.atoms)

    def __getitem__(self, rows: Any) -> Affine:
        return Affine(self.atoms[rows], self.scale[rows], self.bias[rows])

    @property
    def plain(self) -> bool:
        """Whether the atoms are as they are."""
        return bool((self.scale == 1).all() and (self.bias == 0).all())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the arrays."""
        return self.atoms.shape

    @property
    def T(self: A) -> A:  # noqa: N802  as NumPy's
        """The numbers of a matrix, transposed."""
        return replace(self, atoms=self.atoms.T, scale=self.scale.T, bias=self.bias.T)

    def affine(self: A, scale: Any, bias: Any = 0.0) -> A:
        """Return ``scale * self + bias``; arrays broadcast as NumPy's."""
        scale, bias = (np.asarray(constant, np.float64) for constant in (scale, bias))
        shape = np.broadcast_shapes(self.shape, scale.shape, bias.shape)
        atoms = np.broadcast_to(self.atoms, shape)
        bias = scaled(self.bias, scale, self.atoms) + bias
        return replace(
            self, atoms=atoms, scale=np.broadcast_to(self.scale * scale, shape),
            bias=np.broadcast_to(bias, shape),
        )


def spread(matrix: Array, columns: Array, scale: Array, n_in: int) -> Array:
    """Return the matrix [n_out, n_in] that reads ``scale * x[columns]`` of x [n_in]."""
    if len(columns) == n_in and (columns == np.arange(n_in)).all():
        return matrix if (scale == 1).all() else matrix * scale
    dense = np.zeros((len(matrix), n_in))
    np.add.at(dense.T, columns, (matrix * scale).T)
    return dense

"""How a network becomes its program of ops, and its parameters a flat buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from clnet.activations import FANN_SUM_LIMIT, SOFTMAX, activation
from clnet.ops import (
    PARAMETER_ALIGNMENT,
    VALUE_ALIGNMENT,
    Apply,
    BiasAct,
    Layout,
    Nonlinearity,
    Op,
    Program,
    Slot,
    Softmax,
    Value,
    round_up,
)
from clnet.storage import Storage

if TYPE_CHECKING:
    from clnet.network import Network


def layout(storages: Iterable[Storage], bias_sizes: Iterable[int]) -> Layout:
    """Lay out weights of every layer, then biases, each on an aligned offset.

    Parameters
    ----------
    storages : iterable of Storage
        One a layer.
    bias_sizes : iterable of int
        Bias values a layer; 0: none.
    """
    end = 0

    def slot(size: int) -> Slot:
        nonlocal end
        here = Slot(end, size)
        end = round_up(end + size, PARAMETER_ALIGNMENT)
        return here

    weights = tuple(slot(storage.size) for storage in storages)
    biases = tuple(slot(size) if size else None for size in bias_sizes)
    return Layout(weights, biases, end)


def lower(network: Network) -> Program:
    """Return the program of a network: two ops a layer, three with softmax.

    Parameters
    ----------
    network : Network
        The description; its parameters are not read.
    """
    ops: list[Op] = []

    def value(name: str, width: int, inner: bool = True) -> Value:
        stride = round_up(width, VALUE_ALIGNMENT) if inner else width
        return Value(name, width, stride)

    x = source = value("x", network.n_in, inner=False)
    layers = list(
        zip(network.layers, network.storages, network.layout.weights,
            network.layout.biases, strict=True)
    )
    for number, (layer, storage, weights, bias) in enumerate(layers, start=1):
        n_out, last = storage.n_out, number == len(layers)
        softmax = layer.activation == SOFTMAX
        sums = value(f"sums{number}", n_out)
        y = value(f"y{number}", n_out, inner=not last)
        acted = value(f"logits{number}", n_out) if softmax else y
        ops.append(Apply(source, sums, storage, weights))
        function = nonlinearity(
            layer.activation, layer.steepness, network.fann_compatible
        )
        ops.append(BiasAct(sums, acted, bias, function))
        if softmax:
            ops.append(Softmax(acted, y))
        source = y
    return Program(tuple(ops), x, source, network.layout, network.dtype)


def nonlinearity(
    names: str | tuple[str, ...],
    steepness: float | tuple[float, ...],
    fann_compatible: bool,
) -> Nonlinearity:
    """Return what a layer's activation and steepness mean.

    Parameters
    ----------
    names : str or tuple of str
        One activation (`softmax` allowed: it acts as the identity here), or one a
        neuron.
    steepness : float or tuple of float
        Likewise.
    fann_compatible : bool
        Whether sums are clipped as FANN does (reference: FANN's `fann_run`).
    """
    many = (names,) if isinstance(names, str) else names
    rows = [activation("identity" if name == SOFTMAX else name) for name in many]
    steep = steepness if isinstance(steepness, tuple) else (float(steepness),)
    if max(len(rows), len(steep)) > 1:
        n = max(len(rows), len(steep))
        rows = rows * (n // len(rows))
        steep = steep * (n // len(steep))
    limits = None
    if fann_compatible:
        # FANN's v is ours over the factor, and FANN's steepness likewise.
        limits = tuple(
            abs(FANN_SUM_LIMIT * row.fann_factor**2 / s) if s else float("inf")
            for row, s in zip(rows, steep, strict=True)
        )
    return Nonlinearity(tuple(row.name for row in rows), steep, limits)

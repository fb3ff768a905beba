"""Who takes part in the study of locally connected layers, and its cases."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from clnet.errors import DeviceError
from clnet.network import Network
from clnet.nn.activations import activation
from clnet.nn.layers import Local
from clnet.nn.storage.layout import round_up
from clnet.nn.storage.local import BAND_ALIGNMENT
from clnet.opencl.device import Device
from clnet.opencl.discovery import device as part_of
from clnet.runtime.binding import Step
from clnet.variants.stencil.stencil_cpu import DEEP_TILES

from .candidates import (
    ByVariant,
    Prepared,
    RefusedError,
    forward,
    prepared,
    variant,
)
from .cases import Array, Case, spread
from .peers import PATIENCE, eager, graphed, missing_torch

WINDOW = 3  # of the study
BLOCK = 16_384  # rows that NumPy computes at once: a core's cache holds them
CUDA = frozenset({"torch-cuda", "torch-graph", "torch-compile"})


@dataclass(frozen=True)
class LocalCase(Case):
    """A stack of local layers; parameters as for `Case`."""

    @property
    def network(self) -> Network:
        """The network."""
        return _network(self.sizes, self.activation, self.dtype, self.seed)


def local_case(n: int, k: int, batch: int = 1) -> LocalCase:
    """Return the case of N inputs and K layers of values."""
    sizes = tuple(n - i * (WINDOW - 1) for i in range(k))
    return LocalCase(f"N={n} K={k}", sizes, batch=batch)


@lru_cache(maxsize=1)
def _network(
    sizes: tuple[int, ...], name: str, dtype: str, seed: int
) -> Network:
    window = 1 + sizes[0] - sizes[1]
    layers = [Local(window, name)] * (len(sizes) - 1)
    return spread(Network(sizes[0], layers, seed=seed, dtype=dtype), name, seed)


@dataclass(frozen=True)
class Workers:
    """`stencil_cpu` on some of the cores, all layers in one launch.

    On a sub-device of so many cores, where the device can be split; else as many
    work-items on all of it, of which no core takes two while another is idle.

    Attributes
    ----------
    workers : int
        How many.
    """

    workers: int
    patience: float | None = None

    @property
    def name(self) -> str:
        """How many cores."""
        return f"cores-{self.workers}"

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the plan of equal tiles, as many for each core."""
        with contextlib.suppress(DeviceError):
            device = part_of(device, units=self.workers)
        stencil = ByVariant(variant("stencil_cpu"))
        (step,) = stencil.steps(case, device)
        share = -(-case.sizes[-1] // self.workers)
        tile = round_up(-(-share // -(-share // DEEP_TILES[0])), BAND_ALIGNMENT)
        config = {"workers": self.workers, "tile": tile, "stream": 0}
        only = Step(step.span, step.variant, config, step.place)
        return prepared(case, device, (only,))


@dataclass(frozen=True)
class NumPy:
    """Products and sums of shifted slices, a block of rows at a time, all in place."""

    name: str = "numpy"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return None: clnet needs it."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over layers and blocks."""
        network = case.network
        layers = [
            (np.ascontiguousarray(network.weights(i).T), network.biases(i)[0])
            for i in range(len(network.layers))
        ]
        value = activation(case.activation).value
        values = [np.empty((case.batch, n), case.dtype) for n in case.sizes[1:]]
        spare = np.empty((case.batch, BLOCK), case.dtype)

        def call(x: Array) -> Array:
            for (weights, bias), y in zip(layers, values, strict=True):
                for start in range(0, y.shape[1], BLOCK):
                    w = weights[:, start : start + BLOCK]
                    part = y[:, start : start + BLOCK]
                    product = spare[:, : part.shape[1]]
                    inputs = x[:, start:]
                    np.multiply(w[0], inputs[:, : part.shape[1]], out=part)
                    for r in range(1, len(w)):
                        beside = inputs[:, r : r + part.shape[1]]
                        np.add(part, np.multiply(w[r], beside, out=product), out=part)
                    part += bias
                    if case.activation == "sigmoid":
                        _sigmoid(part)
                    else:
                        part[...] = value(part)
                x = y
            return x.copy()

        return forward(case, call, threads=1)


def _sigmoid(v: Array) -> None:
    """Replace v by its sigmoid."""
    np.negative(v, out=v)
    np.exp(v, out=v)
    v += 1
    np.reciprocal(v, out=v)


@dataclass(frozen=True)
class Torch:
    """PyTorch: the same expression, layer by layer; names as in `peers.Torch`."""

    name: str = "torch"
    patience: float | None = PATIENCE

    def missing(self) -> str | None:
        """Return what is not installed, or that CUDA has no device."""
        return missing_torch(cuda=self.name != "torch")

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return the loop over layers, on the CPU or on CUDA's first device."""
        import torch

        if case.activation != "sigmoid":
            raise RefusedError(f"no module for {case.activation} is written down here")
        where = "cpu" if self.name == "torch" else "cuda"
        network = case.network
        layers = [
            (
                torch.tensor(np.ascontiguousarray(network.weights(i).T), device=where),
                torch.tensor(network.biases(i), device=where),
            )
            for i in range(len(network.layers))
        ]

        def layer(x: Any, weights: Any, bias: Any) -> Any:
            n = weights.shape[1]
            sums = bias
            for r in range(len(weights)):
                sums = sums + weights[r] * x[:, r : r + n]
            return torch.sigmoid(sums)

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

"""Descriptions of layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from clnet.checks import (
    INT_MAX,
    as_items,
    as_numbers,
    as_whole,
    check_flag,
    check_name,
    convert_wholes,
    is_many,
    is_number,
)
from clnet.errors import InputError, quoted
from clnet.nn.activations import SOFTMAXES, activation_name
from clnet.nn.initialisers import initialiser
from clnet.nn.storage.base import Storage
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.formats import AUTO, check_format, parts
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.pattern import Pattern, placement

Blocks = tuple[tuple[Storage, ...], ...]
"""For each source of a layer, the storages that add up to its block of the matrix."""

SHARED = "shared"
BIASES = (SHARED, "neuron")
"""Biases of a locally connected layer: one for all neurons, or one a neuron."""


class Layer(Protocol):
    """Interface of a layer's description."""

    @property
    def n_out(self) -> int:
        """Neurons."""
        ...

    @property
    def activation(self) -> str | tuple[str, ...]:
        """One activation, or one a neuron."""
        ...

    @property
    def steepness(self) -> float | tuple[float, ...]:
        """Factor of the pre-activation: one, or one a neuron."""
        ...

    @property
    def bias(self) -> bool | str | None:
        """Whether neurons have a bias; ``"shared"``: one for all."""
        ...

    @property
    def initialiser(self) -> str:
        """Name of the rule for the initial weights and biases."""
        ...

    @property
    def sources(self) -> tuple[int, ...] | None:
        """Values that the layer reads; None: its predecessor's output."""
        ...

    @property
    def dropout(self) -> float:
        """Fraction of the outputs that each step of training drops."""
        ...

    def blocks(self, widths: Sequence[int], item_size: int) -> Blocks:
        """Return the storages of the matrix: a row of blocks, one a source."""
        ...


@dataclass(frozen=True)
class Neurons:
    """Base of layers: neurons, ``y = f(steepness * (A x + b))``.

    Parameters
    ----------
    n_out : int
        Neurons, at least 1.
    activation : str or sequence of str
        A name of `clnet.nn.activations`, ``"softmax"`` or ``"log_softmax"``; or one
        name a neuron. Names of other libraries (`clnet.nn.aliases`) are replaced by
        clnet's.
    steepness : float or sequence of float
        Within float32's range; one, or one a neuron. FANN's steepness, but twice FANN's
        for its sigmoid, ``1 / (1 + exp(-2 s x))``.
    bias : bool
        Whether neurons have a bias.
    initialiser : str
        A name of `clnet.nn.initialisers`.
    sources : sequence of int or None
        Values that the layer reads, side by side: 0 is the network's input, k the
        output of the k-th layer; increasing. None: its predecessor's output.
    dropout : float
        Fraction of the outputs that each step of training drops, at least 0 and below
        1; not for the last layer. The others are scaled, which preserves means;
        inference is unaffected.

    Raises
    ------
    InputError
        If a size, name or number is not as above.
    """

    n_out: int
    activation: str | tuple[str, ...] = "identity"
    steepness: float | tuple[float, ...] = 1.0
    bias: bool = True
    initialiser: str = "glorot"
    sources: tuple[int, ...] | None = field(default=None, kw_only=True)
    dropout: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        convert_wholes(self, "n_out", most=INT_MAX)
        check_flag("bias", self.bias)
        object.__setattr__(self, "bias", bool(self.bias))
        _check_neurons(self)


def _check_neurons(layer: Neurons | Local) -> None:
    """Validate a layer's fields, and bring them into one form."""
    initialiser(layer.initialiser)
    names: Any = layer.activation
    if is_many(names):
        names = tuple(names)
        _check_one_each(layer, "activation", len(names))
        names = tuple(activation_name(name) for name in names)
        for name in names:
            if name in SOFTMAXES:
                raise InputError(f"{name} belongs to a whole layer, not to one neuron")
    else:
        names = activation_name(names)
    object.__setattr__(layer, "activation", names)
    steepness = as_numbers("steepness", layer.steepness, "float64")
    within = np.abs(steepness) <= np.finfo(np.float32).max  # kernels' type
    if steepness.ndim > 1 or not within.all():
        raise InputError(
            "a steepness must be one finite number of float32's range, or one a "
            f"neuron, not {quoted(layer.steepness)}"
        )
    single = steepness.ndim == 0
    values = float(steepness) if single else tuple(steepness.ravel().tolist())
    object.__setattr__(layer, "steepness", values)
    if not single:
        _check_one_each(layer, "steepness", steepness.size)
    fraction = layer.dropout
    if not is_number(fraction) or not 0 <= fraction < 1:
        raise InputError(
            "dropout must be a number of at least 0 and below 1, not "
            f"{quoted(fraction)}"
        )
    object.__setattr__(layer, "dropout", float(fraction))
    if layer.sources is not None:
        object.__setattr__(layer, "sources", _sources(layer.sources))


def _check_one_each(layer: Neurons | Local, name: str, count: int) -> None:
    if isinstance(layer, Local) and layer.n_in is None:
        return  # its neurons are not known yet
    if count != layer.n_out:
        raise InputError(
            f"{name} has {count} entries for {layer.n_out} neurons: give one, or "
            "one a neuron"
        )


def _sources(values: object) -> tuple[int, ...]:
    sources = tuple(as_whole("each of the sources", n, 0) for n in as_items(values))
    if not sources or sources != tuple(sorted(set(sources))):
        raise InputError(
            "sources must be whole numbers of at least 0, increasing, as in (0, 1), "
            f"not {quoted(values)}"
        )
    return sources


@dataclass(frozen=True)
class Dense(Neurons):
    """A fully connected layer; parameters as for `Neurons`.

    Examples
    --------
    >>> clnet.Network(4, [clnet.Dense(3, "relu"), clnet.Dense(1)]).sizes
    (4, 3, 1)

    A shortcut: the last layer reads the input too.

    >>> net = clnet.Network(4, [clnet.Dense(3, "relu"), clnet.Dense(1, sources=(0, 1))])
    >>> net.weights(1).shape
    (1, 7)
    """

    def blocks(self, widths: Sequence[int], item_size: int) -> Blocks:
        """Return one dense storage for each source."""
        return tuple((DenseStorage(self.n_out, width),) for width in widths)


@dataclass(frozen=True)
class Sparse(Neurons):
    """A partially connected layer.

    Only existing connections have a weight and a gradient; training never adds one.

    Parameters
    ----------
    n_out, activation, steepness, bias, initialiser, sources
        As for `Neurons`.
    density : float or None
        Share of all connections, in (0, 1], that is placed at random (FANN's
        connection rate).
    pattern : Pattern, mask [n_out, n_in] of bool, or scipy.sparse matrix, or None
        The connections; those of a sparse matrix are its stored entries, whatever their
        values. Either this or a density.
    placement : str
        Rule of the random connections: ``"uniform"``, all sets alike; ``"rows"``,
        equally many a neuron; ``"fann"``, at least one for every neuron and input.
    seed : int
        Seed of the placement; equal seeds give equal connections.
    format : str
        Storage of the matrix: a name of `clnet.nn.storage.formats.FORMATS`.
        ``"auto"``: csr; where plans are measured, products are computed in a format
        that is faster by more than 5%, dense included.
    memory_limit : int or None
        Bytes of weights and their index arrays at most.

    Raises
    ------
    InputError
        If an argument is not as above.

    Examples
    --------
    >>> net = clnet.Network(100, [clnet.Sparse(10, density=0.05)], seed=0)
    >>> net.matrices[0].count
    50

    Given connections: each neuron reads its input and the one before.

    >>> mask = np.eye(4, dtype=bool) | np.eye(4, k=-1, dtype=bool)
    >>> net = clnet.Network(4, [clnet.Sparse(4, pattern=mask)], seed=0)
    >>> net.matrices[0].count
    7
    """

    density: float | None = field(default=None, kw_only=True)
    pattern: Any = field(default=None, kw_only=True)  # a Pattern, once it is checked
    placement: str = field(default="uniform", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    format: str = field(default=AUTO, kw_only=True)
    memory_limit: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        placement(self.placement)
        check_format(self.format)
        if self.memory_limit is not None:
            convert_wholes(self, "memory_limit")
        convert_wholes(self, "seed", least=0)
        if (self.density is None) == (self.pattern is None):
            raise InputError("a sparse layer needs either a density or a pattern")
        if self.density is not None:
            if not is_number(self.density) or not 0 < self.density <= 1:
                raise InputError(
                    f"a density must be in (0, 1], not {quoted(self.density)}"
                )
            object.__setattr__(self, "density", float(self.density))
            return
        pattern = Pattern.of(self.pattern)
        if pattern.n_out != self.n_out:
            raise InputError(
                f"a pattern is [{pattern.n_out}, {pattern.n_in}] for {self.n_out} "
                "neurons, expected a row for each"
            )
        object.__setattr__(self, "pattern", pattern)

    def connections(self, n_in: int) -> Pattern:
        """Return the connections with n_in inputs, unless the pattern has others."""
        if self.pattern is None:
            assert self.density is not None
            rng = np.random.default_rng(self.seed)
            return placement(self.placement)(rng, self.n_out, n_in, self.density)
        pattern: Pattern = self.pattern
        if pattern.n_in != n_in:
            raise InputError(
                f"a pattern is [{self.n_out}, {pattern.n_in}], expected "
                f"[{self.n_out}, {n_in}] for {n_in} inputs"
            )
        return pattern

    def blocks(self, widths: Sequence[int], item_size: int) -> Blocks:
        """Return the storages of the format; raise InputError as `connections`."""
        patterns = self.connections(sum(widths)).blocks(widths)
        return parts(patterns, self.format, item_size, self.memory_limit)


@dataclass(frozen=True)
class Local:
    """A locally connected layer: neuron i reads the inputs i … i + window - 1.

    Each neuron has weights of its own. The layer maps n_in inputs to
    ``n_in - window + 1`` outputs; a network infers n_in from the layer before. Windows
    with strides, or with padding at the edges, are patterns of `Sparse` layers: of
    format ``"ell"``, or ``"dia"``.

    Parameters
    ----------
    window : int
        Inputs of a neuron, at least 1.
    activation, steepness, initialiser, sources, dropout
        As for `Neurons`; one source at most.
    bias : {"shared", "neuron"} or None
        One bias for all neurons, one for each, or none.
    n_in : int or None
        Inputs; None: inferred by the network.

    Raises
    ------
    InputError
        If an argument is not as above, or the window is wider than the inputs.

    Examples
    --------
    >>> clnet.Network(100, [clnet.Local(5, "relu"), clnet.Local(5)]).sizes
    (100, 96, 92)
    """

    window: int
    activation: str | tuple[str, ...] = "identity"
    steepness: float | tuple[float, ...] = 1.0
    bias: str | None = SHARED
    initialiser: str = "glorot"
    sources: tuple[int, ...] | None = field(default=None, kw_only=True)
    dropout: float = field(default=0.0, kw_only=True)
    n_in: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        convert_wholes(self, "window", most=INT_MAX)
        if self.n_in is not None:
            convert_wholes(self, "n_in", most=INT_MAX)
            if self.n_in < self.window:
                raise InputError(
                    f"a window of {self.window} is wider than its {self.n_in} inputs"
                )
        if self.bias is not None:
            check_name("bias of a local layer", self.bias, BIASES)
        _check_neurons(self)
        if self.sources is not None and len(self.sources) > 1:
            raise InputError(
                "a locally connected layer reads one source, found "
                f"{quoted(self.sources)}"
            )

    @property
    def n_out(self) -> int:
        """Neurons; raises InputError where the inputs are not known."""
        if self.n_in is None:
            raise InputError(
                "the neurons of a local layer follow from its inputs: put it into a "
                "network"
            )
        return self.n_in - self.window + 1

    def blocks(self, widths: Sequence[int], item_size: int) -> Blocks:
        """Return the one storage."""
        (n_in,) = widths
        return ((LocalStorage(n_in - self.window + 1, n_in, self.window),),)


def infer_sizes(n_in: int, layers: Iterable[Layer]) -> Iterator[Layer]:
    """Yield a network's layers one by one, the inputs of each `Local` filled in.

    InputError: a window is wider than the inputs that are left to it.
    """
    sizes = [n_in]
    run = 0  # consecutive local layers
    for number, layer in enumerate(layers):
        if isinstance(layer, Local):
            source = number if layer.sources is None else layer.sources[0]
            width = sizes[min(source, number)]
            if width < layer.window:
                start = f"layer {number} has a window of {layer.window}, and {width}"
                if run == 0:
                    raise InputError(f"{start} input{'s' * (width > 1)}")
                raise InputError(
                    f"{start} {'input is' if width == 1 else 'inputs are'} left of "
                    f"{sizes[number - run]}: such a stack can be {run} "
                    f"{'layer' if run == 1 else 'layers'} deep at most"
                )
            layer = replace(layer, n_in=width)
            run += 1
        else:
            run = 0
        sizes.append(layer.n_out)
        yield layer


def bias_size(layer: Layer) -> int:
    """Return the number of a layer's biases."""
    if not layer.bias:
        return 0
    return 1 if layer.bias == SHARED else layer.n_out

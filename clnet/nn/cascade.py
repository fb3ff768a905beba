"""Cascade training without OpenCL: constants, neurons, rules, networks that grow.

FANN's cascade2: Fahlman and Lebiere, "The cascade-correlation learning architecture",
1990, with candidates that have output weights, and are judged by the squared error that
they leave. Start with `Cascade`, then `Shortcut`: a network as rows of neurons, each of
which reads the inputs, the constant 1 and all neurons of earlier layers, in this order.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from clnet.checks import is_among
from clnet.errors import InputError
from clnet.nn.activations import FANN_SUM_LIMIT, SOFTMAXES, activation, sum_limit
from clnet.nn.conversion import like
from clnet.nn.fann_parameters import FannParameters
from clnet.nn.layers import Dense
from clnet.nn.optimisers import (
    CASCADE,
    Optimiser,
    as_fann_parameters,
    fann_optimiser,
    optimiser,
)

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]

RULES = ("rprop", "quickprop", "sarprop")  # of FANN's, those that train by whole sets
_PREFIX = "cascade_"  # of FannParameters' fields
SCALE_ENDS = 0.5, 8.0  # of candidates' initial weights
SCALE_FACTOR, SCALE_SHARE = 2.0, 0.7


@dataclass(frozen=True)
class Cascade:
    """Cascade training: a shortcut network grows a neuron at a time.

    Output weights are trained; then candidates, one for each activation function,
    steepness and group; the best becomes a neuron that reads all earlier ones; and so
    on. The constants have FANN's names and defaults.

    Parameters
    ----------
    rule : str or Optimiser
        The update rule of the weights: ``"rprop"``, ``"quickprop"``, ``"sarprop"``, or
        a row of these.
    output_change_fraction, candidate_change_fraction : float
        Change of the error's improvement, or of the best candidate's score, that counts
        as progress.
    output_stagnation_epochs, candidate_stagnation_epochs : int
        Epochs without progress after which the training of outputs, or of candidates,
        ends.
    max_out_epochs, min_out_epochs, max_cand_epochs, min_cand_epochs : int
        Epochs of the training of outputs, and of candidates, at most and at least.
    num_candidate_groups : int
        Candidates of each function and steepness.
    candidate_limit : float
        Share of the squared error that the best candidate cancels, from which on the
        training of candidates ends.
    weight_multiplier : float
        Factor of the best candidate's output weights.
    activation_functions : sequence of str
        Of candidates; FANN's.
    activation_steepnesses : sequence of float
        Of candidates; FANN's steepnesses: ``1 / (1 + exp(-2 s x))`` is its sigmoid.

    Raises
    ------
    InputError
        If a value is not as above.

    Examples
    --------
    >>> cascade = clnet.Cascade(activation_functions=["tanh"], num_candidate_groups=8)
    >>> cascade.candidates
    32
    """

    rule: str | Optimiser = "rprop"
    output_change_fraction: float = FannParameters.cascade_output_change_fraction
    output_stagnation_epochs: int = FannParameters.cascade_output_stagnation_epochs
    candidate_change_fraction: float = FannParameters.cascade_candidate_change_fraction
    candidate_stagnation_epochs: int = (
        FannParameters.cascade_candidate_stagnation_epochs
    )
    max_out_epochs: int = FannParameters.cascade_max_out_epochs
    min_out_epochs: int = FannParameters.cascade_min_out_epochs
    max_cand_epochs: int = FannParameters.cascade_max_cand_epochs
    min_cand_epochs: int = FannParameters.cascade_min_cand_epochs
    num_candidate_groups: int = FannParameters.cascade_num_candidate_groups
    candidate_limit: float = FannParameters.cascade_candidate_limit
    weight_multiplier: float = FannParameters.cascade_weight_multiplier
    activation_functions: tuple[str, ...] = FannParameters.cascade_activation_functions
    activation_steepnesses: tuple[float, ...] = (
        FannParameters.cascade_activation_steepnesses
    )

    def __post_init__(self) -> None:
        rule = optimiser(self.rule)
        if rule.name not in RULES:
            raise InputError(
                f"cascade training updates weights by one of {', '.join(RULES)}, not "
                f"by {rule.name}"
            )
        object.__setattr__(self, "rule", rule)
        checked = FannParameters(**self._fields())
        for name in self._fields():
            object.__setattr__(self, name[len(_PREFIX):], getattr(checked, name))
        for name in ("max_out_epochs", "max_cand_epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} of cascade training must be at least 1")
        if not self.candidates:
            raise InputError(
                "cascade training needs candidates: at least one activation function, "
                "one steepness and one group"
            )

    @property
    def update(self) -> Optimiser:
        """The rule as a row."""
        assert isinstance(self.rule, Optimiser)
        return self.rule

    @property
    def candidates(self) -> int:
        """Their number."""
        functions = len(self.activation_functions) * len(self.activation_steepnesses)
        return functions * self.num_candidate_groups

    def neurons(self) -> tuple[Neuron, ...]:
        """Return the candidates, in FANN's order."""
        return tuple(
            neuron
            for name in self.activation_functions
            for steepness in self.activation_steepnesses
            for neuron in self.num_candidate_groups * (_candidate(name, steepness),)
        )

    @classmethod
    def of_fann(cls, parameters: FannParameters) -> Cascade:
        """Return the training that FANN's parameters describe, or raise InputError."""
        return cls(fann_optimiser(parameters), **{
            field.name: getattr(parameters, f"{_PREFIX}{field.name}")
            for field in dataclasses.fields(cls) if field.name != "rule"
        })

    def as_fann(self) -> dict[str, Any]:
        """Return the fields of FannParameters that describe the training."""
        return {**as_fann_parameters(self.update), **self._fields()}

    def _fields(self) -> dict[str, Any]:
        return {
            f"{_PREFIX}{field.name}": getattr(self, field.name)
            for field in dataclasses.fields(self) if field.name != "rule"
        }


def is_cascade(optimiser: object) -> TypeGuard[str | Cascade]:
    """Return whether an optimiser is the name or the constants of cascade training."""
    return isinstance(optimiser, Cascade) or is_among(optimiser, [CASCADE])


def cascade_of(network: Model, optimiser: str | Cascade) -> Cascade:
    """Return cascade training by its name or as it is.

    By name, constants are those of the network's FannParameters, or the defaults.
    """
    if isinstance(optimiser, Cascade):
        return optimiser
    return Cascade() if network.fann is None else Cascade.of_fann(network.fann)


@dataclass(frozen=True)
class Neuron:
    """One neuron: ``y = f(steepness * clip(sum))``."""

    activation: str
    steepness: float = 1.0  # clnet's
    limit: float = math.inf  # Of the sum's magnitude


@cache
def network_neuron(name: str, steepness: float, fann_compatible: bool) -> Neuron:
    """Return a neuron of a network."""
    limit = math.inf
    if fann_compatible and steepness:
        limit = sum_limit(activation(name), steepness) / abs(steepness)
    return Neuron(name, steepness, limit)


@cache
def _candidate(name: str, steepness: float) -> Neuron:
    """Return a candidate of FANN's steepness."""
    return Neuron(
        name, activation(name).fann_factor * steepness,
        FANN_SUM_LIMIT / abs(steepness) if steepness else math.inf,
    )


def candidate_gradient(name: str) -> tuple[bool, Literal["y", "v", "x"]]:
    """Return how FANN takes the derivative of a candidate's activation.

    The first tells whether it is the row's ``fann_gradient``, the second its argument:
    the output, the sum times the steepness, or the sum. FANN hands its derivatives the
    sum without the steepness here, which makes those of gaussians, sines and cosines
    exact, and those of elliots read another place.
    """
    if name.startswith("elliot"):
        return False, "x"
    row = activation(name)
    return not name.startswith(("gaussian", "sin", "cos")), row.reads


def initial_weights(
    rng: np.random.Generator, candidates: int, n_in: int, read: int, outputs: int
) -> NDArray[Any]:
    """Return candidates' weights [candidates, read + outputs], as FANN draws them."""
    width = SCALE_FACTOR * (SCALE_SHARE * (read - n_in)) ** (1 / n_in)
    width = min(max(width, SCALE_ENDS[0]), SCALE_ENDS[1])
    weights = rng.uniform(0, width, (candidates, read + outputs))
    weights[:, n_in] = rng.uniform(-width, width, candidates)
    return weights


class Stagnation:
    """FANN's rule of the end of a training: no change of a value for some epochs."""

    def __init__(self, fraction: float, patience: int, least: int, most: int) -> None:
        self._fraction, self._patience, self._least = fraction, patience, least
        self._up, self._down = 0.0, -1e20
        self._end = most

    def earliest(self, done: int) -> int:
        """Return the number of epochs after which the training may end, at least.

        `done` epochs have been told of.
        """
        return max(min(self._end, done + self._patience), self._least) + 1

    def ends(self, epoch: int, value: float, *, falling: bool = False) -> bool:
        """Return whether a training ends after an epoch, counted from 0.

        With `falling`, a value below 0 changes by going down, as the improvement of
        outputs does in FANN.
        """
        changed = value > self._up or value < self._down
        if falling and self._up < 0:
            changed = value < self._up or value > self._down
        if changed:
            self._up = value * (1 + self._fraction)
            self._down = value * (1 - self._fraction)
            self._end = epoch + self._patience
        return epoch >= self._end and epoch >= self._least


@dataclass(frozen=True)
class Row:
    """A layer of a shortcut network."""

    layer: Dense  # Its description
    weights: Array  # Of each neuron, that of the constant 1 behind the inputs'

    def neurons(self, fann_compatible: bool) -> tuple[Neuron, ...]:
        """Return its neurons."""
        layer = self.layer
        names, steep = layer.activation, layer.steepness
        n = layer.n_out
        if isinstance(names, str):
            names = (names,) * n
        if not isinstance(steep, tuple):
            steep = (steep,) * n
        return tuple(
            network_neuron(name, s, fann_compatible)
            for name, s in zip(names, steep, strict=True)
        )


@dataclass(frozen=True)
class Shortcut:
    """A shortcut network."""

    n_in: int  # Inputs
    hidden: tuple[Row, ...]  # The hidden layers
    output: Row  # The last layer

    @classmethod
    def of(cls, network: Model) -> Shortcut:
        """Return a network's rows."""
        refusal = _refusal(network)
        if refusal is not None:
            raise InputError(
                "cascade training grows a shortcut network, such as "
                f"Network({network.n_in}, [Dense({network.n_out})]), and this one "
                f"{refusal}"
            )
        rows = []
        for number, layer in enumerate(network.layers):
            assert isinstance(layer, Dense)
            weights = np.insert(
                network.weights(number), network.n_in, network.biases(number), axis=1
            )
            rows.append(Row(layer, weights))
        return cls(network.n_in, tuple(rows[:-1]), rows[-1])

    @property
    def read(self) -> int:
        """Values that an output reads: inputs, the constant, all hidden neurons."""
        return self.n_in + 1 + sum(row.layer.n_out for row in self.hidden)

    def grown(self, row: Row, output_weights: Array) -> Shortcut:
        """Return the network with one more hidden layer before the output."""
        return Shortcut(
            self.n_in, (*self.hidden, row), replace(self.output, weights=output_weights)
        )

    def with_output(self, weights: Array) -> Shortcut:
        """Return the network with other weights of the last layer."""
        return replace(self, output=replace(self.output, weights=weights))

    def network(self, before: Model) -> Model:
        """Return the network, with all else of the network before it grew."""
        rows = (*self.hidden, self.output)
        network = like(before, [
            replace(row.layer, sources=tuple(range(number + 1)))
            for number, row in enumerate(rows)
        ])
        network.set_layers(
            (np.delete(row.weights, self.n_in, axis=1), row.weights[:, self.n_in])
            for row in rows
        )
        return network


def _refusal(network: Model) -> str | None:
    """Return why a network is no shortcut network that can grow, or None."""
    if network.dtype != "float32":
        return f"is in {network.dtype}, not in float32"
    for number, layer in enumerate(network.layers):
        if not isinstance(layer, Dense):
            return f"has a {type(layer).__name__} layer"
        earlier = tuple(range(number + 1))
        if (layer.sources or (number,)) != earlier:
            return f"has a layer {number} that does not read all earlier ones"
        if not layer.bias:
            return f"has a layer {number} without biases"
        if layer.dropout:
            return f"has a layer {number} with dropout"
        if layer.activation in SOFTMAXES:
            return f"has {layer.activation} outputs, whose neurons are not separate"
    return None

"""A layer's bias and activation, forward and backward; softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clnet.ir.op import Array, Derivatives, Function, Op, Value, Values, gradient_of
from clnet.nn.activations import activation
from clnet.nn.losses import log_softmax, softmax
from clnet.nn.storage.base import rounded_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clnet.nn.storage.layout import Slot


@dataclass(frozen=True)
class Nonlinearity:
    """``y = f(v)``, ``v = steepness * (A x + b)``, clipped to ±limit if any."""

    names: tuple[str, ...]  # One activation for all neurons, or one a neuron
    steepness: tuple[float, ...] = (1.0,)  # Likewise
    # FANN's limits of v, likewise; None: v is not clipped
    limits: tuple[float, ...] | None = None

    @property
    def uniform(self) -> bool:
        """Whether all neurons have the same function, steepness and limit."""
        return len(self.names) == 1 and len(self.steepness) == 1

    @property
    def fann_compatible(self) -> bool:
        """Whether v is clipped, and derivatives are taken, as FANN does."""
        return self.limits is not None

    @property
    def plain(self) -> bool:
        """Whether y is ``A x + b`` itself."""
        return self == Nonlinearity(("identity",))

    @property
    def signature(self) -> str:
        """Text that is equal for functions that cost the same."""
        clip = "" if self.limits is None else "clip"
        return ("+".join(sorted(set(self.names))) if self.uniform else "mixed") + clip

    def bound(self, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
        """Return the function from ``A x + b`` [batch, width] to y."""
        argument = self.argument(dtype)
        rows = [(activation(name).value, np.asarray(self.names) == name)
                for name in sorted(set(self.names))]
        if len(rows) == 1:
            value = rows[0][0]
            return value if argument is None else lambda z: value(argument(z))

        def mixed(z: Array) -> Array:
            v = z if argument is None else argument(z)
            y = np.empty_like(v)
            for value, columns in rows:
                y[:, columns] = value(v[:, columns])
            return y

        return mixed

    def argument(self, dtype: np.dtype[Any]) -> Callable[[Array], Array] | None:
        """Return the function from ``A x + b`` to v, or None if they are the same."""
        steepness = np.asarray(self.steepness, dtype)
        steep = self.steepness != (1.0,)
        if self.limits is None:
            return (lambda z: z * steepness) if steep else None
        high = np.asarray(self.limits, dtype)
        low = -high
        if steep:
            return lambda z: np.minimum(np.maximum(z * steepness, low), high)
        return lambda z: np.minimum(np.maximum(z, low), high)


@dataclass(frozen=True)
class BiasAct(Op):
    """``y = f(steepness * (z + bias))``; the bias is left out where it is None.

    A bias of size 1 serves all neurons.
    """

    NAME: ClassVar[str] = "act"
    READS: ClassVar[tuple[str, ...]] = ("z",)
    WRITES: ClassVar[tuple[str, ...]] = ("y",)

    z: Value
    y: Value
    bias: Slot | None
    nonlinearity: Nonlinearity

    @property
    def shared(self) -> bool:
        """Whether one bias serves all neurons."""
        return self.bias is not None and self.bias.size < self.y.width

    @property
    def signature(self) -> str:
        """The function's, with the width."""
        bias = "" if self.bias is None else "shared-" * self.shared + "bias-"
        return f"{bias}{self.nonlinearity.signature}[{rounded_size(self.y.width)}]"

    @property
    def parameter_slots(self) -> tuple[Slot, ...]:
        """The biases, if there are any."""
        return () if self.bias is None else (self.bias,)

    def run(self, values: Values, parameters: Array) -> None:
        """Compute in the dtype of z, which may be wider than the parameters'."""
        values[self.y.name] = self._bound(parameters, values[self.z.name].dtype)(values)

    def bound(self, parameters: Array) -> Function:
        """Decide on the functions once."""
        return self._bound(parameters, parameters.dtype)

    def _bound(self, parameters: Array, dtype: np.dtype[Any]) -> Function:
        z, function = self.z.name, self.nonlinearity.bound(dtype)
        if self.bias is None:
            return lambda values: function(values[z])
        bias = self.bias.of(parameters)
        return lambda values: function(values[z] + bias)

    def backward(self, d: Derivatives) -> Iterator[Op]:
        """``dz = dy f'(v) steepness``, or dy itself, and the biases' gradient."""
        dy = d[self.y]
        if self.nonlinearity.plain:
            d[self.z] = dy
        else:
            reads = {activation(name).reads for name in self.nonlinearity.names}
            yield ActGrad(
                dy, d[self.z], self.y if "y" in reads else None,
                self.z if "v" in reads else None, self.bias, self.nonlinearity,
            )
        if self.bias is not None:
            yield BiasGrad(d[self.z], gradient_of(self.bias), self.bias)


@dataclass(frozen=True)
class ActGrad(Op):
    """``dz = dy * f'(v) * steepness``, with ``v = steepness * (z + bias)``."""

    NAME: ClassVar[str] = "act'"
    READS: ClassVar[tuple[str, ...]] = ("dy", "y", "z")
    WRITES: ClassVar[tuple[str, ...]] = ("dz",)

    # Derivatives of the loss by the layer's output, and by its pre-activation
    dy: Value
    dz: Value
    # Arguments of the functions' derivatives; None: no derivative reads it
    y: Value | None
    z: Value | None
    bias: Slot | None  # The layer's biases
    nonlinearity: Nonlinearity  # f; where it is FANN-compatible, so are its derivatives

    @property
    def shared(self) -> bool:
        """Whether one bias serves all neurons."""
        return self.bias is not None and self.bias.size < self.dz.width

    @property
    def signature(self) -> str:
        """The function's, with the width."""
        return f"d{self.nonlinearity.signature}[{rounded_size(self.dz.width)}]"

    def run(self, values: Values, parameters: Array) -> None:
        """Apply each function's derivative to its neurons."""
        dy, function = values[self.dy.name], self.nonlinearity
        width = dy.shape[1]
        steepness = np.resize(np.asarray(function.steepness, dy.dtype), width)
        y = None if self.y is None else values[self.y.name]
        v = None
        if self.z is not None:
            v = values[self.z.name]
            if self.bias is not None:
                v = v + self.bias.of(parameters)
            argument = function.argument(v.dtype)
            v = v if argument is None else argument(v)
        slope = np.empty_like(dy)
        names = np.resize(np.asarray(function.names), width)
        distinct = set(function.names)
        for name in distinct:
            row = activation(name)
            columns = names == name if len(distinct) > 1 else slice(None)
            reads = v if row.reads == "v" else y
            assert reads is not None
            at = reads[:, columns]
            if function.fann_compatible and row.fann_gradient is not None:
                slope[:, columns] = row.fann_gradient(at, steepness[columns])
            else:
                slope[:, columns] = row.gradient(at, at)
        values[self.dz.name] = dy * (slope * steepness)


@dataclass(frozen=True)
class BiasGrad(Op):
    """The biases' gradient: ``dz`` summed over the batch.

    Summed over the neurons too, where they share one bias. It is added to the gradient
    so far if `accumulate`: layers may share biases.
    """

    NAME: ClassVar[str] = "bias'"
    READS: ClassVar[tuple[str, ...]] = ("dz",)
    WRITES: ClassVar[tuple[str, ...]] = ("gradient",)

    dz: Value
    gradient: Value
    bias: Slot
    accumulate: bool = False

    @property
    def signature(self) -> str:
        """The name, with the width, whether all share one bias, and whether it adds."""
        name = f"{'+=' * self.accumulate}d{'shared-' * self.shared}bias"
        return f"{name}[{rounded_size(self.dz.width)}]"

    @property
    def shared(self) -> bool:
        """Whether one bias serves all neurons."""
        return self.bias.size < self.dz.width

    @property
    def gradient_slots(self) -> Mapping[Value, Slot]:
        """The biases'."""
        return {self.gradient: self.bias}

    def run(self, values: Values, parameters: Array) -> None:
        """Sum over the samples."""
        dz, axis = values[self.dz.name], None if self.shared else 0
        gradient = dz.sum(axis=axis).reshape(1, -1)
        if self.accumulate:
            gradient = gradient + values[self.gradient.name]
        values[self.gradient.name] = gradient


@dataclass(frozen=True)
class Softmax(Op):
    """``y = exp(x - max x) / sum of the same``, sample by sample; or its logarithm.

    It has no gradient rule: the loss that trains it includes it.
    """

    NAME: ClassVar[str] = "softmax"
    READS: ClassVar[tuple[str, ...]] = ("x",)
    WRITES: ClassVar[tuple[str, ...]] = ("y",)

    x: Value
    y: Value
    log: bool = False

    @property
    def signature(self) -> str:
        """The name, with the width."""
        return f"{'log_' * self.log}softmax[{self.y.width}]"

    def run(self, values: Values, parameters: Array) -> None:
        """Apply it to each row."""
        values[self.y.name] = self.bound(parameters)(values)

    def bound(self, parameters: Array) -> Function:
        """Apply it to each row."""
        function = log_softmax if self.log else softmax
        return lambda values: function(values[self.x.name])

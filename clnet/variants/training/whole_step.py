"""Shared by the variants that compute whole training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.activation import BiasAct, Nonlinearity
from clnet.ir.batch import Dropout, Gather
from clnet.ir.loss import RECORD, Loss, Tally
from clnet.ir.product import Apply
from clnet.ir.program import LayerOps, Span
from clnet.ir.update import GradientNorm, Update
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.layout import PARAMETER_ALIGNMENT, round_up
from clnet.opencl.launch import EPOCH_TABLE, GRADIENTS, Argument, Scalar
from clnet.variants.macros import (
    gradient_defines,
    gradient_function,
    kernel_function,
    loss_defines,
    rows_macro,
)
from clnet.variants.training.optimisers import (
    NO_REGULARISATION,
    live_table,
    rule_defines,
)

if TYPE_CHECKING:
    from clnet.ir.op import Value

LANES = 8  # values of a vector of CPU kernels (WIDTH)
MAX_CONSTANT_LAYERS, MAX_CONSTANT_WEIGHTS = 4, 256  # of tables that are macros
APART = 8  # values reserved for a record behind partial gradients: a whole vector
# Arguments of launches of several epochs: RUN_ARGUMENTS of steps.h.
RUN: tuple[Argument, ...] = (
    Scalar("record_offset"), Scalar("record_stride"), EPOCH_TABLE, Scalar("scheduled"),
    Scalar("squares_limit", "real"), Scalar("fails_limit", "real"),
)
# Arguments of the optimisers' rules.
RULE = (
    Scalar("seen"), Scalar("fresh"), Scalar("rate", "real"), Scalar("count"),
    Scalar("seed", "uint"),
)

LAYER = np.dtype([  # a row of the table of layers (steps.h)
    (name, np.int32) for name in (
        "n_in", "n_out", "stride", "weights", "bias", "values", "pre_activations",
        "neuron",
    )
])
NEURON = np.dtype([  # a row of the table of neurons
    ("function", np.int32), ("steepness", np.float32), ("limit", np.float32),
    ("error_scale", np.float32),
])


@dataclass(frozen=True)
class WholeStep:
    """The ops of a training step of a chain of layers."""

    # Of the mini-batch; None where the data set is the mini-batch
    gather: Gather | None
    layers: tuple[LayerOps, ...]  # The forward pass
    drops: tuple[Dropout | None, ...]  # Of each layer's outputs
    loss: Loss  # The loss and its gradient
    tally: Tally  # The sum of the records
    backward: bool  # Whether there is a backward pass
    update: Update | None  # The optimiser's step, if there is one
    batch: int  # Samples of the mini-batch
    dtype: str  # As of `Span`

    @property
    def samples(self) -> int:
        """Samples of the data set."""
        return self.batch if self.gather is None else self.gather.samples

    @property
    def slots(self) -> int:
        """The optimiser's states of each parameter."""
        return 0 if self.update is None else self.update.optimiser.slots

    @property
    def clips_norm(self) -> bool:
        """Whether the gradient is clipped by its norm."""
        return self.update is not None and self.update.norm is not None

    @property
    def size(self) -> int:
        """Elements of the flat buffer, up to the step's last slot."""
        if self.update is not None:
            return self.update.layout.size
        slots = [layer.apply.weights for layer in self.layers]
        slots += [x.act.bias for x in self.layers if x.act.bias is not None]
        end = max(slot.offset + slot.size for slot in slots)
        return round_up(end, PARAMETER_ALIGNMENT)

    @property
    def data(self) -> tuple[Value, ...]:
        """The samples: x, t, and the weights if there are any."""
        if self.gather is not None:
            return self.gather.data
        weight = () if self.loss.weight is None else (self.loss.weight,)
        return (self.layers[0].apply.x, self.loss.t, *weight)

    @property
    def weight(self) -> Value:
        """The samples' weights; the targets, if there are none."""
        return self.data[-1]

    @property
    def bit_fail_limit(self) -> float:
        """The error from which on an output has failed."""
        return float(self.loss.bit_fail_limit)

    @property
    def functions(self) -> list[tuple[str, str, str]]:
        """The distinct activations: function, derivative, the derivative's input."""
        functions: dict[tuple[str, str, str], None] = {}
        for layer in self.layers:
            function = layer.act.nonlinearity
            for name in function.names:
                functions[function_of(name, function)] = None
        return list(functions)

    @property
    def defines(self) -> dict[str, int | str]:
        """The macros of ``steps.h``, except those of the optimiser."""
        gather = self.gather
        return {
            "FUNCTIONS(X)": rows_macro(self.functions),
            **gradient_defines(self), **loss_defines(self.loss, self),
            "BACKWARD": int(self.backward), "UPDATE": int(self.update is not None),
            "RECORD": len(RECORD), "APART": APART,
            "GATHERED": 0 if gather is None else 1 + gather.shuffled,
        }

    @property
    def rule(self) -> dict[str, int | str]:
        """The macros of the optimiser."""
        if self.update is None:
            return dict(NO_REGULARISATION)
        return rule_defines(self.update, self)

    @property
    def live(self) -> Argument:
        """The `live_table` of the optimiser, if there is one."""
        return GRADIENTS if self.update is None else live_table(self.update)

    def layer_table(
        self, allocate: Callable[[int], int], pitch: int, rows_of: int
    ) -> NDArray[Any]:
        """Return the kernels' table of layers."""
        rows = np.zeros(len(self.layers), LAYER)
        neuron = 0
        for row, layer in zip(rows, self.layers, strict=True):
            storage, bias = layer.apply.storage, layer.act.bias
            assert isinstance(storage, DenseStorage)
            row["n_in"], row["n_out"] = layer.n_in, layer.n_out
            row["stride"] = storage.stride
            row["weights"] = layer.apply.weights.offset
            row["bias"] = -1 if bias is None else bias.offset
            row["neuron"], neuron = neuron, neuron + layer.n_out
            values = round_up(layer.n_out, rows_of) * pitch
            row["values"] = allocate(values)
            function = layer.act.nonlinearity
            read = any(
                function_of(name, function)[2] == "AT_PRE_ACTIVATION"
                for name in function.names
            )
            row["pre_activations"] = allocate(values) if read else -1
        return rows

    @cached_property
    def neurons(self) -> NDArray[Any]:
        """The kernels' table of neurons."""
        functions = self.functions
        tables = []
        for layer in self.layers:
            function, n = layer.act.nonlinearity, layer.n_out
            rows = np.zeros(n, NEURON)
            codes = [functions.index(function_of(x, function)) for x in function.names]
            rows["function"] = np.resize(codes, n)
            rows["steepness"] = np.resize(function.steepness, n)
            rows["limit"] = np.resize(function.limits or (np.inf,), n)
            rows["error_scale"] = 1.0
            tables.append(rows)
        tables[-1]["error_scale"] = np.resize(np.where(self.loss.halved, 0.5, 1.0), n)
        return np.concatenate(tables)

    @property
    def layer_neurons(self) -> NDArray[Any]:
        """One neuron of each layer; function is -1 where its neurons differ."""
        neurons = self.neurons
        ends = list(accumulate(layer.n_out for layer in self.layers))
        rows = neurons[[end - 1 for end in ends]]
        for row, start, end in zip(rows, [0, *ends], ends, strict=False):
            if (neurons[start:end] != neurons[start]).any():
                row["function"] = -1
        return rows

    def layer_defines(self, layers: NDArray[Any]) -> dict[str, int | str]:
        """Return the macros of kernels that have the table of layers as a constant."""
        return {
            "LAYERS": len(layers), "LAYER_TABLE": rows_text(layers), "SIZE": self.size,
            "LAYER_NEURONS": rows_text(self.layer_neurons),
        }

    def constant_tables(self, layers: NDArray[Any]) -> dict[str, int | str]:
        """Return the macros of a small network's tables; none for others."""
        weights = sum(layer.n_in * layer.n_out for layer in self.layers)
        if len(layers) > MAX_CONSTANT_LAYERS or weights > MAX_CONSTANT_WEIGHTS:
            return {}
        return {
            "CONSTANT_LAYERS": rows_text(layers),
            "CONSTANT_NEURONS": rows_text(self.neurons),
        }


def whole_step(span: Span) -> WholeStep | None:
    """Return a span as a training step of a chain of layers, or None if it is not."""
    ops = list(span.ops)
    gather = ops.pop(0) if ops and isinstance(ops[0], Gather) else None
    layers: list[LayerOps] = []
    drops: list[Dropout | None] = []
    y: Value | None = None
    while len(ops) > 1 and isinstance(ops[0], Apply) and isinstance(ops[1], BiasAct):
        apply, act = ops[0], ops[1]
        follows = y is None or apply.x == y
        if apply.accumulate or act.z != apply.z or not follows:
            return None
        layers.append(LayerOps(apply, act))
        del ops[:2]
        drop = ops.pop(0) if ops and isinstance(ops[0], Dropout) else None
        assert drop is None or isinstance(drop, Dropout)
        y = act.y if drop is None else drop.y
        drops.append(drop)
    if len(ops) < 2 or not layers:
        return None
    loss, tally = ops.pop(0), ops.pop(0)
    if not isinstance(loss, Loss) or not isinstance(tally, Tally):
        return None
    if loss.y != y:
        return None
    backward = bool(ops)
    last = ops.pop() if ops and isinstance(ops[-1], Update) else None
    update = last if isinstance(last, Update) else None
    clipped = update is not None and update.norm is not None
    if clipped and not (ops and isinstance(ops.pop(), GradientNorm)):
        return None
    if not span.derived:
        return None
    assert gather is None or isinstance(gather, Gather)
    return WholeStep(
        gather, tuple(layers), tuple(drops), loss, tally, backward, update, span.batch,
        span.dtype,
    )


def accepted_step(span: Span) -> WholeStep:
    """Return the step of a span, which was not refused."""
    step = whole_step(span)
    assert step is not None
    return step


@dataclass
class Allocator:
    """Allocates values of a worker's memory, aligned, one after the other."""

    alignment: int = 1
    end: int = 0

    def __call__(self, size: int) -> int:
        """Return the offset of so many values."""
        offset = self.end
        self.end += round_up(size, self.alignment)
        return offset


def refuse_unless_whole_step(
    span: Span, drops: bool = False, clips_norm: bool = True
) -> str | None:
    """Return why a span is not a training step of dense layers, or None.

    `drops`: whether layers may drop outputs; `clips_norm`: whether the gradient may be
    clipped by its norm, for which all of it is stored.
    """
    step = whole_step(span)
    if step is None:
        return "it computes a step of training of a chain of layers, and this is none"
    if not drops and any(step.drops):
        return "it drops no outputs, and a layer here does"
    if not clips_norm and step.clips_norm:
        return "it never stores a whole gradient; here one is clipped by its norm"
    for layer in step.layers:
        if not isinstance(layer.apply.storage, DenseStorage):
            return f"it trains dense layers, not {layer.apply.storage.name}"
        if layer.act.bias is not None and layer.act.bias.size != layer.n_out:
            return "it needs a bias for each neuron, and here all share one"
    return None


def refuse_unless_float32_step(
    span: Span, drops: bool = False, clips_norm: bool = True
) -> str | None:
    """Refuse other dtypes too."""
    if span.dtype != "float32":
        return "it computes in float32 only"
    return refuse_unless_whole_step(span, drops, clips_norm)


def function_of(name: str, function: Nonlinearity) -> tuple[str, str, str]:
    """Return an activation of a layer as `WholeStep.functions` lists it."""
    gradient, by_v = gradient_function(name, function.fann_compatible)
    reads = "AT_PRE_ACTIVATION" if by_v else "AT_Y"
    return kernel_function(name), gradient, reads


def rows_text(rows: NDArray[Any]) -> str:
    """Return a table's rows as a C initialiser of an array of structs."""
    def text(number: float) -> str:
        if isinstance(number, int):
            return str(number)
        # INFINITY is no constant expression to some compilers (GPU driver 580).
        return "1e38f * 1e38f" if np.isinf(number) else f"{number!r}f"

    return ", ".join(
        "{" + ", ".join(text(number) for number in row) + "}" for row in rows.tolist()
    ).join("{}")

"""The program of a network: a flat sequence of ops.

Data flows one way: description (`nn`) → program of ops (here; made by `lowering`) →
plan (`planning`) → launches (`variants`) → results (`runtime`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clnet.checks import PRECISIONS, check_precision
from clnet.errors import InputError
from clnet.ir.activation import BiasAct
from clnet.ir.batch import Gather
from clnet.ir.loss import Loss
from clnet.ir.op import ACCUMULATE, Op, Value, gradients, inputs_of
from clnet.ir.product import Apply
from clnet.ir.update import GradientNorm, Update
from clnet.nn.storage.base import rounded_size
from clnet.nn.storage.layout import Slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clnet.ir.op import Array, Function, Values
    from clnet.nn.storage.layout import Layout


@dataclass(frozen=True)
class LayerOps:
    """The ops of one layer, ``y = f(A x + b)``, found in a span."""

    apply: Apply  # The two ops
    act: BiasAct

    @property
    def n_in(self) -> int:
        """Inputs of the layer."""
        return self.apply.storage.n_in

    @property
    def n_out(self) -> int:
        """Neurons of the layer."""
        return self.apply.storage.n_out


@dataclass(frozen=True)
class Span:
    """A contiguous part of a program for one batch size: the unit of a variant."""

    ops: tuple[Op, ...]  # In order
    batch: int  # Samples
    dtype: str  # `"float32"` or `"float64"`
    # Written values that are read outside the span: a variant writes these or refuses.
    # All others need not exist.
    outputs: tuple[Value, ...]
    precision: str = PRECISIONS[0]  # Precision of its products, one of `PRECISIONS`

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Values that are read before any op of the span writes them."""
        return inputs_of(self.ops)

    @property
    def item_size(self) -> int:
        """Bytes of a number."""
        return 8 if self.dtype == "float64" else 4

    @property
    def flops(self) -> int:
        """Floating-point operations, in any variant."""
        return sum(op.flops(self.batch) for op in self.ops)

    @property
    def bytes(self) -> int:
        """The least traffic: parameters, inputs and outputs once."""
        numbers = sum(slot.size for op in self.ops for slot in op.parameter_slots)
        values = sum(
            value.width * value.height(self.batch)
            for value in (*self.inputs, *self.outputs)
        )
        return self.item_size * (numbers + values)

    @cached_property
    def shares_weights(self) -> bool:
        """Whether an op adds to a gradient, as of weights that layers share."""
        return any(
            getattr(op, ACCUMULATE, False) and op.gradient_slots for op in self.ops
        )

    @cached_property
    def derived(self) -> bool:
        """Whether a step has no gradients, or those of its forward pass, unshared.

        Kernels of whole steps derive them from the forward pass alone.
        """
        at = next((i for i, op in enumerate(self.ops) if isinstance(op, Loss)), None)
        if at is None or self.shares_weights:
            return False
        loss = self.ops[at]
        assert isinstance(loss, Loss)
        forward = [op for op in self.ops[:at] if not isinstance(op, Gather)]
        rest = self.ops[at + 2 :]  # behind the loss and its tally
        ends = (GradientNorm, Update)
        backward = tuple(op for op in rest if not isinstance(op, ends))
        return not backward or backward == gradients(forward, loss.y, loss.dy)

    @cached_property
    def layers(self) -> tuple[LayerOps, ...] | None:
        """The chain, or None if more than its last output is read outside."""
        chain = self.chain
        alone = chain is not None and self.outputs == (chain[-1].act.y,)
        return chain if alone else None

    @cached_property
    def chain(self) -> tuple[LayerOps, ...] | None:
        """The span as a chain of whole layers, or None if it is not one.

        A chain: every layer is one plain `Apply` and one `BiasAct`, and reads only its
        predecessor's output.
        """
        if len(self.ops) % 2 or not self.ops:
            return None
        chain: list[LayerOps] = []
        for apply, act in zip(self.ops[::2], self.ops[1::2], strict=True):
            if not (isinstance(apply, Apply) and isinstance(act, BiasAct)):
                return None
            follows = not chain or apply.x == chain[-1].act.y
            if apply.accumulate or act.z != apply.z or not follows:
                return None
            chain.append(LayerOps(apply, act))
        return tuple(chain)

    @cached_property
    def signature(self) -> str:
        """Text that is equal for spans that cost the same on one device.

        Runs of equal layers are written once with their count, so that the text of a
        deep network stays short.
        """
        layers = self.layers
        if layers is not None:
            parts = [f"{x.apply.signature}-{x.act.signature}" for x in layers]
        else:
            parts = [op.signature for op in self.ops]
            widths = (str(rounded_size(value.width)) for value in self.outputs)
            parts.append("->" + ",".join(widths))
        text: list[str] = []
        start = 0
        for i in range(1, len(parts) + 1):
            if i == len(parts) or parts[i] != parts[start]:
                text.append(parts[start] + (f"*{i - start}" if i - start > 1 else ""))
                start = i
        suffix = "" if self.precision == PRECISIONS[0] else f" {self.precision}"
        return f"{self.dtype}{suffix} batch {self.batch}: " + " ".join(text)


@dataclass(frozen=True)
class Program:
    """A network's ops in order."""

    ops: tuple[Op, ...]  # Every op reads only values written before it, or an input
    inputs: tuple[Value, ...]  # Values that the caller gives and receives
    outputs: tuple[Value, ...]
    layout: Layout  # The flat parameter buffer's
    dtype: str = "float32"  # `"float32"` or `"float64"`
    precision: str = PRECISIONS[0]  # One of `PRECISIONS`

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: hashes of text differ between processes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def at(self, precision: str) -> Program:
        """Return the program with products of a precision of `PRECISIONS`."""
        check_precision(precision)
        if precision != PRECISIONS[0] and self.dtype != "float32":
            raise InputError(
                f"precision {precision!r} is of float32 products, and this network is "
                f"{self.dtype}"
            )
        return replace(self, precision=precision)

    @property
    def input(self) -> Value:
        """The first input."""
        return self.inputs[0]

    @property
    def output(self) -> Value:
        """The first output."""
        return self.outputs[0]

    def span(self, start: int, stop: int, batch: int) -> Span:
        """Return ops start … stop-1 as a span, one object for equal arguments."""
        key = start, stop, batch
        if key not in self._spans:
            ops = self.ops[start:stop]
            written = dict.fromkeys(value for op in ops for value in op.writes)
            last = self._last_reads
            outputs = tuple(v for v in written if last.get(v.name, 0) >= stop)
            self._spans[key] = Span(ops, batch, self.dtype, outputs, self.precision)
        return self._spans[key]

    @cached_property
    def _spans(self) -> dict[tuple[int, int, int], Span]:
        return {}

    @cached_property
    def _last_reads(self) -> dict[str, int]:
        """The last op that reads a value, by its name; of outputs, the end."""
        readers = {v.name: i for i, op in enumerate(self.ops) for v in op.reads}
        return {**readers, **{v.name: len(self.ops) for v in self.outputs}}


def split_program(program: Program) -> tuple[Program, Program]:
    """Return the program of a step's gradients and the program of its update."""
    start = next(
        i for i, op in enumerate(program.ops) if isinstance(op, (GradientNorm, Update))
    )
    (update,) = (op for op in program.ops if isinstance(op, Update))
    outputs = (update.totals, *update.gradients)
    gradients = replace(program, ops=program.ops[:start], outputs=outputs)
    return gradients, replace(program, ops=program.ops[start:], inputs=outputs)


@dataclass(frozen=True)
class Ensemble(Op):
    """``y[b, m] = f(x[b])`` by the parameters of network m, which follow each other."""

    NAME: ClassVar[str] = "networks"
    READS: ClassVar[tuple[str, ...]] = ("x",)
    WRITES: ClassVar[tuple[str, ...]] = ("y",)

    x: Value
    y: Value  # The outputs of a sample, network after network
    program: Program  # Of one network, with the input x
    members: int

    @property
    def size(self) -> int:
        """Parameters of one network."""
        return self.program.layout.size

    @property
    def signature(self) -> str:
        """The number of networks, and the ops of one."""
        ops = " ".join(op.signature for op in self.program.ops)
        return f"{self.members}*({ops})"

    @property
    def parameter_slots(self) -> tuple[Slot, ...]:
        """The parameters of all networks."""
        return (Slot(0, self.members * self.size),)

    def run(self, values: Values, parameters: Array) -> None:
        """Run the ops of each network."""
        outputs = []
        for row in self._rows(parameters):
            inner: Values = {self.x.name: values[self.x.name]}
            for op in self.program.ops:
                op.run(inner, row)
            outputs.append(inner[self.program.output.name])
        values[self.y.name] = np.concatenate(outputs, axis=1)

    def bound(self, parameters: Array) -> Function:
        """Bind the ops of each network to its parameters."""
        members = [
            [(op.writes[0].name, op.bound(row)) for op in self.program.ops]
            for row in self._rows(parameters)
        ]

        def outputs(values: Values) -> Array:
            found = []
            for functions in members:
                inner: Values = {self.x.name: values[self.x.name]}
                for name, function in functions:
                    inner[name] = function(inner)
                found.append(inner[self.program.output.name])
            return np.concatenate(found, axis=1)

        return outputs

    def flops(self, batch: int) -> int:
        """Return those of all networks."""
        return self.members * sum(op.flops(batch) for op in self.program.ops)

    def _rows(self, parameters: Array) -> Iterator[Array]:
        return iter(parameters.reshape(self.members, self.size))


def ensemble(program: Program, members: int) -> Program:
    """Return the program of many networks, from that of one."""
    x, width = program.input, members * program.output.width
    op = Ensemble(x, Value("ys", width, width), program, members)
    return Program((op,), (x,), (op.y,), program.layout, program.dtype)

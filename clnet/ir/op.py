"""The base of ops. An op is one array operation, and says all that is known of it.

Its record names the values that it reads and writes; `Op.run` is its meaning in NumPy,
`Op.backward` the rule of its gradient, `Op.flops` its cost. Values are arrays ``[batch,
width]``. Its kernel on every device is a row of `variants.reference.generic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from clnet.nn.storage.layout import Slot

VALUE_ALIGNMENT = 4  # values; rows of inner values can be read as float4
ACCUMULATE = "accumulate"  # the field of ops that may add to what they write

Array = NDArray[Any]
Values = MutableMapping[str, Array]
"""Arrays by the names of their values, with the scalars of a step."""
Function = Callable[[Values], Array]
"""An op of an inference, from the values to its output."""


@dataclass(frozen=True)
class Value:
    """An array [batch, width], or [rows, width], that ops read and write."""

    name: str  # Unique within a program
    width: int  # Elements per sample
    # Elements from one sample to the next. The input and the output of a program are
    # contiguous; inner values have padded rows. Padding is zero: kernels may read it
    # and must not write anything else there.
    stride: int
    # Rows of an array whose size does not depend on the batch; None: one per sample
    rows: int | None = None
    # Whether its elements are of int32, and not of the program's type
    whole: bool = False

    def height(self, batch: int) -> int:
        """Return the rows of the array for a batch of `batch` samples."""
        return batch if self.rows is None else self.rows

    def type_in(self, dtype: str) -> str:
        """Return the type of its elements in a program of a type."""
        return "int32" if self.whole else dtype


def gradient_of(slot: Slot) -> Value:
    """Return the value for the gradient of a slot of the parameters."""
    return Value(f"gradient{slot.offset}", slot.size, slot.size, rows=1)


class Derivatives:
    """The derivatives of the loss by the values of a program, as rules name them."""

    def __init__(self, ops: Sequence[Op], y: Value, dy: Value) -> None:
        # Names of the values that depend on parameters; others need no derivative.
        self._inner = {value.name for op in ops for value in op.writes}
        self._known = {y.name: dy}

    def __contains__(self, value: Value) -> bool:
        """Return whether a value depends on parameters."""
        return value.name in self._inner

    def __getitem__(self, value: Value) -> Value:
        """Return the derivative by a value."""
        name = value.name
        if name not in self._known:
            self._known[name] = Value(f"d{name}", value.width, value.stride, value.rows)
        return self._known[name]

    def __setitem__(self, value: Value, derivative: Value) -> None:
        """Take another value's derivative as that by this value."""
        self._known[value.name] = derivative

    def reach(self, op: Op) -> bool:
        """Return whether the loss depends on what an op writes."""
        return any(value.name in self._known for value in op.writes)


@dataclass(frozen=True)
class Op:
    """Base of all ops; every op names the values that it reads and writes."""

    NAME: ClassVar[str] = "op"  # Printed; a prime marks the backward pass
    # Names of the attributes that hold those values: one Value, a tuple, or None
    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """Values that the op reads; those that it adds to are the last."""
        added = self.writes if getattr(self, ACCUMULATE, False) else ()
        return (*self._values(self.READS), *added)

    @cached_property
    def writes(self) -> tuple[Value, ...]:
        """Values that the op writes."""
        return self._values(self.WRITES)

    @property
    def signature(self) -> str:
        """Text that is equal for ops that cost the same."""
        raise NotImplementedError

    @property
    def parameter_slots(self) -> tuple[Slot, ...]:
        """Slots of the parameters that an op of the forward pass reads."""
        return ()

    @property
    def gradient_slots(self) -> Mapping[Value, Slot]:
        """The slots whose gradients are among the op's values."""
        return {}

    def run(self, values: Values, parameters: Array) -> None:
        """Compute the op in NumPy, in the dtype of `values`, which get its outputs."""
        raise NotImplementedError(f"no NumPy meaning for {type(self).__name__}")

    def bound(self, parameters: Array) -> Function:
        """Return an op of an inference with its parameters; values are of their dtype.

        What does not change from call to call is decided here.
        """
        raise NotImplementedError(f"no inference has {type(self).__name__}")

    def backward(self, d: Derivatives) -> Iterable[Op]:
        """Return the ops that take the derivative by the output to all that it reads.

        They write ``d[value]`` of values in `d`, and `gradient_of` slots. The first of
        the `READS` of each is the derivative that it takes. Each writes as if it were
        the only one; those that may have to add have a field `accumulate`.
        """
        raise NotImplementedError(f"no gradient rule for {type(self).__name__}")

    def flops(self, batch: int) -> int:
        """Return the floating-point operations of a batch, in any variant."""
        return 4 * sum(value.width * value.height(batch) for value in self.writes)

    def _values(self, names: tuple[str, ...]) -> tuple[Value, ...]:
        values: list[Value] = []
        for name in names:
            value = getattr(self, name)
            values += (value,) if isinstance(value, Value) else value or ()
        return tuple(values)


def inputs_of(ops: Iterable[Op]) -> tuple[Value, ...]:
    """Return the values that are read before any op writes them."""
    written: set[Value] = set()
    read: dict[Value, None] = {}
    for op in ops:
        read.update(dict.fromkeys(v for v in op.reads if v not in written))
        written.update(op.writes)
    return tuple(read)


def gradients(ops: Sequence[Op], y: Value, dy: Value) -> tuple[Op, ...]:
    """Return the backward pass of ops by the chain rule, from dy to all gradients.

    Of the ops that read one derivative, gradients of parameters come first, in the
    order of the forward pass, and derivatives of inputs follow: kernels compute a
    layer's gradients together, and a product with the derivative of the function below.
    Where several ops write one value, all but the first add to it.
    """
    d = Derivatives(ops, y, dy)
    rules = [
        (number, rule) for number, op in reversed(tuple(enumerate(ops)))
        if d.reach(op) for rule in op.backward(d)
    ]
    ordered: list[Op] = []
    written: set[str] = set()
    for _, readers in groupby(rules, lambda rule: getattr(rule[1], rule[1].READS[0])):
        for _, op in sorted(readers, key=lambda x: (not x[1].gradient_slots, x[0])):
            names = [value.name for value in op.writes]
            if written.isdisjoint(names):
                ordered.append(op)
            elif hasattr(op, ACCUMULATE):
                ordered.append(replace(op, **{ACCUMULATE: True}))
            else:
                name = type(op).__name__
                raise NotImplementedError(f"{name} cannot add to what another op wrote")
            written.update(names)
    return tuple(ordered)

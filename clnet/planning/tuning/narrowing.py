"""Programs of sparse inputs with fewer inputs, which the oracle computes in no time.

A first layer of a million inputs has more parameters than a float64 oracle has memory
for. Its kernels, and those of the optimiser, are the same ones for fewer inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.ir.op import Value, gradient_of
from clnet.ir.sparse_input import SPARSE_INPUT_OPS
from clnet.ir.update import Update
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.layout import Layout, Slot, layout

if TYPE_CHECKING:
    from clnet.ir.op import Op
    from clnet.ir.program import Program
    from clnet.nn.storage.base import Storage
    from clnet.runtime.binding import PlanStep

INPUTS = 1 << 12  # of a comparison, at most


class Parameters(Protocol):
    """A network, as trials see it."""

    @property
    def parameters(self) -> NDArray[Any]:
        """The flat buffer."""
        ...

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Storages of all layers."""
        ...


@dataclass(frozen=True)
class Narrowed:
    """A program with fewer inputs, and the parameters of these."""

    parameters: NDArray[Any]  # The flat buffer
    storages: tuple[Storage, ...]  # Storages of all layers
    program: Program  # The program; its ops are those of the other one, in order
    values: dict[Value, Value]  # Its values in place of others

    def steps(self, program: Program, steps: Sequence[PlanStep]) -> list[PlanStep]:
        """Return the same steps of this program instead of another."""
        narrow = []
        for step in steps:
            first = program.ops.index(step.span.ops[0])
            stop = first + len(step.span.ops)
            span = self.program.span(first, stop, step.span.batch)
            narrow.append(replace(step, span=span))
        return narrow


def narrowed(network: Parameters, program: Program) -> Narrowed | None:
    """Return a program with `INPUTS` sparse inputs; None: it has no more of them."""
    wide = {
        op.weights: op.storage for op in program.ops
        if isinstance(op, SPARSE_INPUT_OPS) and op.storage.n_in > INPUTS
    }
    if not wide:
        return None
    before = program.layout
    storages = tuple(
        DenseStorage(wide[slot].n_out, INPUTS) if slot in wide else storage
        for storage, slot in zip(network.storages, before.weights, strict=True)
    )
    after = layout(storages, [0 if b is None else b.size for b in before.biases])
    slots = {
        old: new for old, new in zip(
            (*before.weights, *before.biases), (*after.weights, *after.biases),
            strict=True,
        ) if old is not None and new is not None
    }
    values: dict[Value, Value] = {}
    for op in program.ops:
        values |= {v: gradient_of(slots[slot]) for v, slot in op.gradient_slots.items()}
        if isinstance(op, Update):
            values[op.parameters] = replace(
                op.parameters, width=after.size, stride=after.size
            )

    def mapped(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(mapped, item))
        if isinstance(item, Slot):
            return slots[item]
        if isinstance(item, Layout):
            return after
        return values.get(item, item) if isinstance(item, Value) else item

    def op_of(op: Op) -> Op:
        changed = {field.name: mapped(getattr(op, field.name)) for field in fields(op)}
        if "storages" in changed:
            changed["storages"] = storages
        if isinstance(op, SPARSE_INPUT_OPS) and op.weights in wide:
            changed["storage"] = DenseStorage(op.storage.n_out, INPUTS)
        return replace(op, **changed)

    parameters = np.zeros(after.size, network.parameters.dtype)
    for old, new in slots.items():
        values_of_slot = old.of(network.parameters)
        if old in wide:  # rows of INPUTS need no padding
            values_of_slot = wide[old].matrix(values_of_slot)[:, :INPUTS].ravel()
        new.of(parameters)[...] = values_of_slot
    return Narrowed(
        parameters, storages,
        replace(
            program, ops=tuple(map(op_of, program.ops)), layout=after,
            outputs=mapped(program.outputs),
        ),
        values,
    )

"""The NumPy meaning of every op: the oracle of the tests, and the host's arithmetic.

Values are held in a dict from name to array [batch, width] in the span's dtype (the
tests pass float64 arrays for the oracle).
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clnet.activations import activation
from clnet.ops import Apply, BiasAct, Nonlinearity, Op, Program, Slot, Softmax

Array = NDArray[Any]
Values = MutableMapping[str, Array]


def run(program: Program, x: Array, parameters: Array) -> Array:
    """Return the output [batch, n_out] of a program for x [batch, n_in].

    Parameters
    ----------
    program : Program
        What to compute.
    x : ndarray, shape [batch, n_in]
        Inputs; computed in their dtype.
    parameters : ndarray, shape [layout.size]
        The flat parameter buffer, in the dtype of `x`.
    """
    values: dict[str, Array] = {program.input.name: x}
    run_ops(program.ops, values, parameters)
    return values[program.output.name]


def run_ops(ops: Iterable[Op], values: Values, parameters: Array) -> None:
    """Run ops in order on `values`, which holds their inputs and receives the rest."""
    for op in ops:
        run_op(op, values, parameters)


@singledispatch
def run_op(op: Op, values: Values, parameters: Array) -> None:
    """Run one op on `values`."""
    raise NotImplementedError(f"no NumPy meaning for {type(op).__name__}")


@run_op.register
def _apply(op: Apply, values: Values, parameters: Array) -> None:
    matrix = op.storage.matrix(_array(op.weights, parameters))
    sums = values[op.x.name] @ matrix.T
    if op.accumulate:
        sums += values[op.sums.name]
    values[op.sums.name] = sums


@run_op.register
def _bias_act(op: BiasAct, values: Values, parameters: Array) -> None:
    sums = values[op.sums.name]
    if op.bias is not None:
        sums = sums + _array(op.bias, parameters)
    values[op.y.name] = act(op.nonlinearity, sums)


@run_op.register
def _softmax(op: Softmax, values: Values, parameters: Array) -> None:
    x = values[op.x.name]
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    exponentials /= exponentials.sum(axis=1, keepdims=True)
    values[op.y.name] = exponentials


def act(function: Nonlinearity, sums: Array) -> Array:
    """Return ``f(steepness * sums)`` [batch, width] for a layer's nonlinearity."""
    steepness = np.asarray(function.steepness, sums.dtype)
    v = sums if function.steepness == (1.0,) else sums * steepness
    if function.limits is not None:
        limits = np.asarray(function.limits, sums.dtype)
        v = np.clip(v, -limits, limits)
    if len(function.names) == 1:
        return activation(function.names[0]).value(v)
    y = np.empty_like(v)
    names = np.asarray(function.names)
    for name in set(function.names):
        columns = names == name
        y[:, columns] = activation(name).value(v[:, columns])
    return y


def _array(slot: Slot, parameters: Array) -> Array:
    return parameters[slot.offset : slot.offset + slot.size]

"""The NumPy meaning of every op: the oracle of the tests, and the host's arithmetic.

Values are held in a dict from name to array [batch, width] in the span's dtype (the
tests pass float64 arrays for the oracle). The scalars of a training step
(`opencl.launch.Scalar`) and the optimiser's ``state`` [slots, size] are in the same
dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import copy_context
from functools import partial, singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.ir.ops import Apply, BiasAct, Nonlinearity, Op, Program, Softmax
from clnet.ir.sparse_input import SparseInputApply, SparseInputOuter, SparseRows
from clnet.ir.training_ops import (
    RECORD,
    ActGrad,
    ApplyT,
    BiasGrad,
    Dropout,
    Gather,
    GradientNorm,
    Loss,
    Outer,
    Tally,
    Update,
)
from clnet.nn.activations import activation
from clnet.nn.losses import log_softmax, loss_function, sigmoid, softmax
from clnet.nn.random import hashes, permuted
from clnet.nn.storage.dense import DenseStorage, RowStorage
from clnet.nn.storage.layout import Slot, copy_live, live_elements
from clnet.nn.storage.local import LocalStorage
from clnet.nn.storage.sparse import SparseStorage

if TYPE_CHECKING:
    from clnet.nn.storage.base import Storage

UPDATED = 1 << 14  # parameters that a rule updates at a time
Array = NDArray[Any]
Values = MutableMapping[str, Array]
Function = Callable[[Values], Array]
"""An op of an inference, from the values to its output."""


def silent() -> np.errstate:
    """Return the context of all of this arithmetic: infinity and NaN are results.

    NumPy would warn of them; the device does not.
    """
    return np.errstate(all="ignore")


def silent_caller() -> Callable[..., None]:
    """Return a function that calls others in `silent`, for one thread at a time.

    It enters a context that is made once, which takes a tenth of the time of `silent`.
    NumPy 1 keeps the state of errors by threads, not by contexts.
    """
    if int(np.__version__.partition(".")[0]) > 1:
        context = copy_context()
        context.run(np.seterr, all="ignore")
        return context.run

    def call(function: Callable[..., None], *arguments: Any) -> None:
        with silent():
            function(*arguments)

    return call


def run(program: Program, x: Array, parameters: Array) -> Array:
    """Return the output [batch, n_out] of a program for x [batch, n_in]."""
    values: dict[str, Array] = {program.input.name: x}
    run_ops(program.ops, values, parameters)
    return values[program.output.name]


def run_ops(ops: Iterable[Op], values: Values, parameters: Array) -> None:
    """Run ops in order on `values`: it holds their inputs and gets their outputs."""
    with silent():
        for op in ops:
            run_op(op, values, parameters)


@singledispatch
def run_op(op: Op, values: Values, parameters: Array) -> None:
    """Run one op on `values`."""
    raise NotImplementedError(f"no NumPy meaning for {type(op).__name__}")


def bound(op: Op, parameters: Array) -> Function:
    """Return an op of an inference with its parameters; values are of their dtype.

    What does not change from call to call is decided here.
    """
    if isinstance(op, Apply):
        return _bound_apply(op, parameters)
    if isinstance(op, BiasAct):
        return _bound_bias_act(op, parameters, parameters.dtype)
    if isinstance(op, Softmax):
        function = log_softmax if op.log else softmax
        return lambda values: function(values[op.x.name])
    raise NotImplementedError(f"no inference has {type(op).__name__}")


@run_op.register
def _apply(op: Apply, values: Values, parameters: Array) -> None:
    values[op.z.name] = _bound_apply(op, parameters)(values)


def _bound_apply(op: Apply, parameters: Array) -> Function:
    x, z, weights = op.x.name, op.z.name, _array(op.weights, parameters)
    if isinstance(op.storage, RowStorage):
        columns = op.storage.matrix(weights).T
        product: Callable[[Array], Array] = lambda x: x @ columns  # noqa: E731
    else:
        product = partial(
            _product, storage=op.storage, weights=weights, transposed=False
        )
    if op.accumulate:
        return lambda values: product(values[x]) + values[z]
    return lambda values: product(values[x])


def _product(x: Array, storage: Storage, weights: Array, transposed: bool) -> Array:
    """Return ``A x`` sample by sample, or ``Aᵀ x``: x [batch, n_in], or [batch, n_out].

    Storages of whole rows multiply all entries, so that 0 · ∞ is NaN where a masked one
    has no connection. The others multiply their live entries alone. BLAS on the whole
    matrix gives the same where x is finite; it serves there unless a sparse storage has
    fewer multiplications at live entries than the matrix has entries.
    """
    if isinstance(storage, LocalStorage):
        return _windows(x, storage, weights, transposed)
    few = isinstance(storage, SparseStorage) and (
        len(x) * len(storage.pattern) < storage.n_out * storage.n_in
    )
    if isinstance(storage, RowStorage) or (not few and np.isfinite(x).all()):
        matrix = storage.matrix(weights)
        product: Array = x @ (matrix if transposed else matrix.T)
        return product
    if isinstance(storage, SparseStorage):
        pattern, values = storage.pattern, weights[storage.slots]
        rows, columns = pattern.rows, pattern.columns
    else:
        entries = storage.entries()
        live = entries.live
        rows, columns, values = entries.rows[live], entries.columns[live], weights[live]
    if transposed:
        rows, columns = columns, rows
    n = storage.n_in if transposed else storage.n_out
    sums = [np.bincount(rows, sample[columns] * values, n) for sample in x]
    return np.array(sums, x.dtype)


def _windows(
    x: Array, storage: LocalStorage, weights: Array, transposed: bool
) -> Array:
    """Return ``sum over r: w[r] x[:, r : r + n_out]``, or its transpose."""
    n_out = storage.n_out
    sums = np.zeros((len(x), storage.n_in if transposed else n_out), x.dtype)
    for r, band in enumerate(storage.bands(weights)):
        if transposed:
            sums[:, r : r + n_out] += band * x
        else:
            sums += band * x[:, r : r + n_out]
    return sums


@run_op.register
def _bias_act(op: BiasAct, values: Values, parameters: Array) -> None:
    function = _bound_bias_act(op, parameters, values[op.z.name].dtype)
    values[op.y.name] = function(values)


def _bound_bias_act(op: BiasAct, parameters: Array, dtype: np.dtype[Any]) -> Function:
    z, function = op.z.name, _bound_act(op.nonlinearity, dtype)
    if op.bias is None:
        return lambda values: function(values[z])
    bias = _array(op.bias, parameters)
    return lambda values: function(values[z] + bias)


@run_op.register
def _softmax(op: Softmax, values: Values, parameters: Array) -> None:
    values[op.y.name] = bound(op, parameters)(values)


def _ordered(values: Values, samples: int, shuffled: bool) -> Array:
    """Return the rows of a data set that make a batch."""
    rows: Array = (int(values["first"]) + np.arange(int(values["batch"]))) % samples
    return permuted(rows, samples, values["key"]) if shuffled else rows


@run_op.register
def _gather(op: Gather, values: Values, parameters: Array) -> None:
    rows = _ordered(values, op.samples, op.shuffled)
    for data, batch in zip(op.data, op.batch, strict=True):
        values[batch.name] = values[data.name][rows]


@run_op.register
def _dropout(op: Dropout, values: Values, parameters: Array) -> None:
    x = values[op.x.name]
    words = hashes(int(values["seed"]) ^ op.stream, int(values["count"]), x.size)
    mask = words.reshape(x.shape) >= op.threshold
    values[op.y.name] = np.where(mask, x * x.dtype.type(op.factor), x.dtype.type(0))


@run_op.register
def _loss(op: Loss, values: Values, parameters: Array) -> None:
    y, t = values[op.y.name], values[op.t.name]
    row = loss_function(op.loss)
    half = np.where(op.halved, 0.5, 1.0).astype(y.dtype)
    each, slope = row.value(y, t, half), row.gradient(y, t, half)
    if row.mean:
        slope = slope / y.dtype.type(op.y.width)
    total = each.mean(axis=1) if row.mean else each.sum(axis=1)
    outputs = {None: lambda z: z, "sigmoid": sigmoid, "softmax": softmax}[row.fused](y)
    error = (t - outputs) * half
    record = np.empty((len(y), len(RECORD)), y.dtype)
    record[:, 0] = total
    record[:, 1] = np.square(error).sum(axis=1)
    if op.weight is not None:
        weight = values[op.weight.name]
        # A weight of 0 counts for nothing, where 0 times an overflow would be NaN.
        record[:, :2] = np.where(weight == 0, 0, record[:, :2] * weight)
        slope = np.where(weight == 0, y.dtype.type(0), slope * weight)
    record[:, 2] = (np.abs(error) >= y.dtype.type(op.bit_fail_limit)).sum(axis=1)
    counted = np.arange(len(y))[:, np.newaxis] < values.get("samples", len(y))
    values[op.dy.name] = np.where(counted, slope, y.dtype.type(0))
    values[op.record.name] = np.where(counted, record, y.dtype.type(0))


@run_op.register
def _tally(op: Tally, values: Values, parameters: Array) -> None:
    record = values[op.record.name]
    sums = np.concatenate([record.sum(axis=0), np.zeros(len(RECORD), record.dtype)])
    if not values.get("fresh", True):
        sums = sums + values[op.totals.name][0]
    values[op.totals.name] = sums[np.newaxis]


@run_op.register
def _act_grad(op: ActGrad, values: Values, parameters: Array) -> None:
    dy = values[op.dy.name]
    function = op.nonlinearity
    width = dy.shape[1]
    steepness = np.resize(np.asarray(function.steepness, dy.dtype), width)
    y = None if op.y is None else values[op.y.name]
    v = None
    if op.z is not None:
        z = values[op.z.name]
        if op.bias is not None:
            z = z + _array(op.bias, parameters)
        v = _argument(function, z)
    slope = np.empty_like(dy)
    names = np.resize(np.asarray(function.names), width)
    kinds = set(function.names)
    for name in kinds:
        row = activation(name)
        columns = names == name if len(kinds) > 1 else slice(None)
        argument = v if row.reads == "v" else y
        assert argument is not None
        at = argument[:, columns]
        if function.fann_compatible and row.fann_gradient is not None:
            slope[:, columns] = row.fann_gradient(at, steepness[columns])
        else:
            slope[:, columns] = row.gradient(at, at)
    values[op.dz.name] = dy * (slope * steepness)


@run_op.register
def _apply_t(op: ApplyT, values: Values, parameters: Array) -> None:
    weights = _array(op.weights, parameters)
    dx = _product(values[op.dz.name], op.storage, weights, transposed=True)
    if op.accumulate:
        dx += values[op.dx.name]
    values[op.dx.name] = dx


@run_op.register
def _outer(op: Outer, values: Values, parameters: Array) -> None:
    dz, x = values[op.dz.name], values[op.x.name]
    gradient = np.zeros((1, op.weights.size), dz.dtype)
    values[op.gradient.name] = gradient
    if isinstance(op.storage, LocalStorage):
        for r, band in enumerate(op.storage.bands(gradient[0])):
            band[...] = (dz * x[:, r : r + op.storage.n_out]).sum(axis=0)
        return
    full = dz.T @ x
    if isinstance(op.storage, DenseStorage):  # needs no list of its entries
        op.storage.matrix(gradient[0])[...] = full
        return
    entries = op.storage.entries()
    live = entries.live
    gradient[0, live] = full[entries.rows[live], entries.columns[live]]


def _sparse_batch(x: SparseRows, values: Values) -> Iterator[tuple[Array, Array]]:
    """Yield the columns and the numbers of each sample of a batch."""
    starts, columns, numbers = (values[value.name][:, 0] for value in x.values)
    for row in _ordered(values, x.shape.samples, x.shuffled):
        part = slice(starts[row], starts[row + 1])
        yield columns[part], numbers[part]


@run_op.register
def _sparse_input_apply(
    op: SparseInputApply, values: Values, parameters: Array
) -> None:
    matrix = op.storage.matrix(_array(op.weights, parameters))
    values[op.z.name] = np.array([
        matrix[:, columns] @ numbers for columns, numbers in _sparse_batch(op.x, values)
    ])


@run_op.register
def _sparse_input_outer(
    op: SparseInputOuter, values: Values, parameters: Array
) -> None:
    dz = values[op.dz.name]
    gradient = np.zeros((1, op.weights.size), dz.dtype)
    full = op.storage.matrix(gradient[0])
    batch = _sparse_batch(op.x, values)
    for derivatives, (columns, numbers) in zip(dz, batch, strict=True):
        full[:, columns] += np.outer(derivatives, numbers)
    values[op.gradient.name] = gradient


@run_op.register
def _bias_grad(op: BiasGrad, values: Values, parameters: Array) -> None:
    axis = None if op.shared else 0
    values[op.gradient.name] = values[op.dz.name].sum(axis=axis).reshape(1, -1)


@run_op.register
def _gradient_norm(op: GradientNorm, values: Values, parameters: Array) -> None:
    live = live_elements(op.layout, op.storages)
    samples = int(values["samples"])
    flat = _penalised(op, values, parameters)
    norm = np.linalg.norm(flat[live] / flat.dtype.type(samples))
    values[op.norm.name] = np.reshape(norm, (1, 1)).astype(flat.dtype)


def _penalised(op: GradientNorm | Update, values: Values, parameters: Array) -> Array:
    """Return the flat gradient, those of the penalties included."""
    flat = np.zeros(op.layout.size, parameters.dtype)
    for value, slot in zip(op.gradients, op.slots, strict=True):
        _array(slot, flat)[...] = values[value.name][0]
    samples = int(values["samples"])
    return op.regularisation.penalised(
        parameters, flat, samples, op.layout.biases_start
    )


@run_op.register
def _update(op: Update, values: Values, parameters: Array) -> None:
    """Change parameters and state in place."""
    from clnet.nn.optimisers import StepInfo

    norm = 0.0 if op.norm is None else float(values[op.norm.name][0, 0])
    flat = op.regularisation.clipped(
        _penalised(op, values, parameters), int(values["samples"]), norm
    )
    moment = StepInfo(
        rate=float(values["rate"]), samples=int(values["samples"]),
        count=int(values["count"]),
        mse=float(values[op.totals.name][0, 1]) / (int(values["seen"]) * op.outputs),
        seed=int(values["seed"]),
    )
    w, state = parameters.copy(), values["state"].copy()
    # A rule for each element, in parts that stay in a core's cache.
    size = w.size if op.optimiser.uses_offset else UPDATED
    for first in range(0, w.size, size):
        part = slice(first, first + size)
        op.optimiser.step(w[part], flat[part], state[:, part], moment)
    copy_live(op.layout, op.storages, w, parameters)
    for new, old in zip(state, values["state"], strict=True):
        copy_live(op.layout, op.storages, new, old)
    values[op.parameters.name] = parameters[np.newaxis]


def act(function: Nonlinearity, z: Array) -> Array:
    """Return ``f(steepness * z)`` [batch, width] for a layer's nonlinearity."""
    return _bound_act(function, z.dtype)(z)


def _bound_act(
    function: Nonlinearity, dtype: np.dtype[Any]
) -> Callable[[Array], Array]:
    argument = _bound_argument(function, dtype)
    rows = [(activation(name).value, np.asarray(function.names) == name)
            for name in sorted(set(function.names))]
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


def _argument(function: Nonlinearity, z: Array) -> Array:
    """Return ``v = steepness * z``, clipped where FANN clips it."""
    argument = _bound_argument(function, z.dtype)
    return z if argument is None else argument(z)


def _bound_argument(
    function: Nonlinearity, dtype: np.dtype[Any]
) -> Callable[[Array], Array] | None:
    """Return the function from z to v, or None if they are the same."""
    steepness = np.asarray(function.steepness, dtype)
    steep = function.steepness != (1.0,)
    if function.limits is None:
        return (lambda z: z * steepness) if steep else None
    high = np.asarray(function.limits, dtype)
    low = -high
    if steep:
        return lambda z: np.minimum(np.maximum(z * steepness, low), high)
    return lambda z: np.minimum(np.maximum(z, low), high)


def _array(slot: Slot, parameters: Array) -> Array:
    return parameters[slot.offset : slot.offset + slot.size]

"""Lowering: the translation of a network into its programs.

`lower` makes the program of inference, `lower_training` that of a training step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clnet.checks import INT_MAX, is_sparse
from clnet.errors import InputError
from clnet.ir.activation import BiasAct, Nonlinearity, Softmax
from clnet.ir.batch import Dropout, Gather
from clnet.ir.loss import RECORD, Loss, Tally
from clnet.ir.op import VALUE_ALIGNMENT, Op, Value, gradients
from clnet.ir.product import Apply
from clnet.ir.program import Program, ensemble
from clnet.ir.sparse_input import SparseInputApply, SparseRows, SparseShape
from clnet.ir.update import GradientNorm, Update
from clnet.nn.activations import (
    LOG_SOFTMAX,
    SOFTMAX,
    SOFTMAXES,
    activation,
    each_activation,
    sum_limit,
)
from clnet.nn.fann_parameters import bit_fail_limit
from clnet.nn.labels import symmetric_outputs
from clnet.nn.regularisation import PLAIN, Regularisation
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.layout import round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clnet.nn.losses import LossFunction
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.nn.storage.layout import Slot

# Where products with sparse samples are faster than dense ones, as measured by PoCL.
SPARSE_RATIO = 40  # of the inputs to the entries of a sample, at least
SPARSE_INPUTS = 1024  # at least; of fewer a kernel may compute whole steps


def lower(network: Model, sparse: SparseShape | None = None) -> Program:
    """Return the program of a network: two ops per layer, three with softmax.

    A layer of several storages or sources has one `Apply` for each.
    """
    x = _value("x", network.n_in, inner=False)
    rows = None if sparse is None else SparseRows.of(sparse)
    ops: list[Op] = []
    ys = {0: x}
    last = len(network.layers)
    for number in range(1, last + 1):
        layer = network.layers[number - 1]
        applies, act = _forward(network, number, ys, rows)
        y = _value(f"y{number}", layer.n_out, inner=number != last)
        ys[number] = y
        ops += applies
        if layer.activation in SOFTMAXES:
            ops += [act, Softmax(act.y, y, layer.activation == LOG_SOFTMAX)]
        else:
            ops.append(replace(act, y=y))
    inputs = (x,) if rows is None else rows.values
    program = Program(tuple(ops), inputs, (ys[last],), network.layout, network.dtype)
    return program if network.members == 1 else ensemble(program, network.members)


def lower_training(
    network: Model,
    loss: LossFunction,
    optimiser: Optimiser | None,
    *,
    samples: int | None = None,
    shuffled: bool = False,
    weighted: bool = False,
    regularisation: Regularisation = PLAIN,
    dropout: bool = True,
    sparse: SparseShape | None = None,
) -> Program:
    """Return the program of one step of training.

    Layers without a connection to the output, as pruning may leave them, are left out:
    their gradients are zero.
    """
    widths = {"x": network.n_in, "t": network.n_out}
    if weighted:
        widths["weight"] = 1
    inputs = [_value(name, width, inner=False) for name, width in widths.items()]
    x, t, *weight = inputs
    rows = None if sparse is None else SparseRows.of(sparse, shuffled)
    gathered = inputs if rows is None else inputs[1:]
    gather: list[Op] = []
    if samples is not None:
        data = [replace(v, name=f"{v.name}s", rows=samples) for v in gathered]
        gather.append(Gather(tuple(data), tuple(gathered), shuffled))
        gathered = data
    inputs = gathered if rows is None else [*rows.values, *gathered]
    forward: list[Op] = []
    layers = _read_layers(network)
    ys = {0: x}
    for number in layers:
        layer = network.layers[number - 1]
        applies, act = _forward(network, number, ys, rows)
        if number == layers[-1]:
            act = _fused(network, act, loss)
        elif layer.activation in SOFTMAXES:
            raise InputError(
                f"layer {number} is {layer.activation}, which trains as the last layer "
                f"only: give the others another activation, as in ['relu', "
                f"'{layer.activation}']"
            )
        forward += [*applies, act]
        ys[number] = act.y
        if layer.dropout > 0 and dropout:
            ys[number] = replace(act.y, name=f"dropped{number}")
            forward.append(Dropout(act.y, ys[number], number, layer.dropout))
    y = ys[layers[-1]]
    dy = replace(y, name=f"d{y.name}")
    record = Value("record", len(RECORD), len(RECORD))
    totals = Value("totals", 2 * len(RECORD), 2 * len(RECORD), rows=1)
    halved = tuple(
        symmetric and (network.fann_compatible or loss.fann)
        for symmetric in symmetric_outputs(network)
    )
    backward = gradients(forward, y, dy)
    slots: dict[Value, Slot] = {}  # of each gradient
    for op in backward:
        slots |= op.gradient_slots
    ops = [
        *gather, *forward,
        Loss(y, t, weight[0] if weight else None, dy, record, loss.name, halved,
             bit_fail_limit(network.fann)),
        Tally(record, totals), *backward,
    ]
    outputs = tuple(slots)
    if optimiser is not None:
        where = network.layout
        parameters = Value("parameters", where.size, where.size, rows=1)
        flat = outputs, tuple(slots.values())
        norm = None
        if regularisation.clip_norm is not None:
            norm = Value("norm", 1, 1, rows=1)
            ops.append(
                GradientNorm(*flat, norm, regularisation, where, network.storages)
            )
        ops.append(
            Update(*flat, totals, parameters, optimiser, where, network.storages,
                   network.n_out, regularisation, norm)
        )
        outputs = (parameters,)
    return Program(
        tuple(ops), tuple(inputs), (totals, *outputs), network.layout, network.dtype
    )


def reads_sparse(network: Model, x: Any) -> bool:
    """Return whether a network reads inputs as the sparse matrix that they are.

    It does where that is faster, and where all layers that read them are dense.
    """
    return (
        is_sparse(x) and x.ndim == 2 and x.shape[1] == network.n_in >= SPARSE_INPUTS
        and SPARSE_RATIO * x.nnz <= x.shape[0] * x.shape[1] and x.nnz < INT_MAX // 2
        and all(
            isinstance(block.storage, DenseStorage)
            for matrix in network.matrices for block in matrix.parts
            if block.source == 0
        )
    )


def _value(name: str, width: int, inner: bool = True) -> Value:
    return Value(name, width, round_up(width, VALUE_ALIGNMENT) if inner else width)


def _read_layers(network: Model) -> list[int]:
    """Return the layers, counted from 1, that have a connection to the output."""
    read = {len(network.layers)}
    for number in range(len(network.layers), 0, -1):
        if number in read:
            read |= {block.source for block in network.matrices[number - 1].parts}
    return sorted(read - {0})


def _forward(
    network: Model, number: int, ys: Mapping[int, Value], rows: SparseRows | None
) -> tuple[list[Apply | SparseInputApply], BiasAct]:
    """Return the ops of a layer, counted from 1, without softmax.

    ys: the input, and the outputs of the layers before; rows: the input if it is
    sparse.
    """
    layer, matrix = network.layers[number - 1], network.matrices[number - 1]
    z = _value(f"z{number}", layer.n_out)
    softmax = layer.activation in SOFTMAXES
    y = _value(f"{'logits' if softmax else 'y'}{number}", layer.n_out)
    function = nonlinearity(layer.activation, layer.steepness, network.fann_compatible)
    applies: list[Apply | SparseInputApply] = [
        Apply(ys[block.source], z, block.storage, block.weights, accumulate=i > 0)
        for i, block in enumerate(matrix.parts)
    ]
    first = matrix.parts[0]
    if rows is not None and first.source == 0:
        assert isinstance(first.storage, DenseStorage)
        applies[0] = SparseInputApply(rows, z, first.storage, first.weights)
    bias = network.layout.biases[number - 1]
    return applies, BiasAct(z, y, bias, function)


def _fused(network: Model, act: BiasAct, loss: LossFunction) -> BiasAct:
    """Return the last layer's op without the activation that the loss includes."""
    names = network.layers[-1].activation
    functions = {SOFTMAX} if names in SOFTMAXES else set(act.nonlinearity.names)
    if loss.fused is None and functions == {SOFTMAX}:
        raise InputError(
            f"loss {loss.name} does not fit a last layer of {names}, expected "
            "categorical_cross_entropy"
        )
    if loss.positive:
        below = [name for name in sorted(functions) if activation(name).limits[0] < 0]
        if below:
            raise InputError(
                f"loss {loss.name} needs outputs of at least 0, as of a last layer of "
                f"{loss.activation}, found {', '.join(below)}"
            )
    if loss.fused is None:
        return act
    if functions != {loss.fused}:
        raise InputError(
            f"loss {loss.name} needs a last layer of {loss.fused}, found "
            f"{', '.join(sorted(functions))}"
        )
    plain = ("identity",) * len(act.nonlinearity.names)
    logits = replace(act.y, name=f"logits{len(network.layers)}")
    return replace(act, y=logits, nonlinearity=replace(act.nonlinearity, names=plain))


def nonlinearity(
    names: str | tuple[str, ...],
    steepness: float | tuple[float, ...],
    fann_compatible: bool,
) -> Nonlinearity:
    """Return the nonlinearity of a layer's activation and steepness."""
    rows = [
        activation("identity" if name in SOFTMAXES else name)
        for name in each_activation(names)
    ]
    steep = steepness if isinstance(steepness, tuple) else (float(steepness),)
    n = max(len(rows), len(steep))
    rows, steep = rows * (n // len(rows)), steep * (n // len(steep))
    limits = None
    if fann_compatible:
        limits = tuple(map(sum_limit, rows, steep))
    return Nonlinearity(tuple(row.name for row in rows), steep, limits)

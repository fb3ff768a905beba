"""The products of a first layer with sparse samples, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bounds import unit
from training_oracle import DEVICE, SESSION

from clnet import Dense, Network
from clnet.ir import reference
from clnet.ir.lowering import lower_training
from clnet.ir.sparse_input import SparseInputApply, SparseInputOuter, SparseShape
from clnet.nn.losses import loss_function
from clnet.nn.random import key, permuted
from clnet.runtime.binding import PlanStep
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.sparse.sparse_outer import SparseInput

SAMPLES, ROOM = 37, 500


def sparse_rows(n_in, dtype, seed=0):
    """Return the arrays of rows of 0 to n_in entries, and the rows dense."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, min(n_in, 12) + 1, SAMPLES)
    lengths[[0, 5, -1]] = 0, min(n_in, 12), 0
    x = np.zeros((SAMPLES, n_in), dtype)
    columns, numbers = np.zeros((2, ROOM, 1))
    starts = np.append(0, np.cumsum(lengths))
    for row, start in enumerate(starts[:-1]):
        part = slice(start, starts[row + 1])
        columns[part, 0] = np.sort(rng.choice(n_in, lengths[row], replace=False))
        numbers[part, 0] = rng.uniform(-1, 1, lengths[row])
        x[row, columns[part, 0].astype(int)] = numbers[part, 0]
    columns[starts[-1] :] = n_in  # the room behind the entries is not read
    numbers[starts[-1] :] = np.nan
    return [starts[:, np.newaxis], columns, numbers], x


def first_layer(network, shuffled, batch):
    """Return the spans of the two ops of the first layer."""
    program = lower_training(
        network, loss_function("mse"), None, samples=SAMPLES, shuffled=shuffled,
        sparse=SparseShape(SAMPLES, ROOM),
    )
    spans = [program.span(i, i + 1, batch) for i in range(len(program.ops))]
    (apply,) = (s for s in spans if isinstance(s.ops[0], SparseInputApply))
    (outer,) = (s for s in spans if isinstance(s.ops[0], SparseInputOuter))
    return apply, outer


class AsOnGpu(SparseInput):
    """The launches for GPUs on any device."""

    def launches(self, span, config, device):
        return super().launches(span, config, replace(device, type="gpu"))


def bound_to(network, span, arrays, variant):
    state = TrainState(SESSION, network.parameters, np.zeros((0, network.layout.size)))
    step = PlanStep(span, variant, {}, DEVICE)
    replay = Replay(SESSION, [step], network.layout, state)
    for value, array in zip(span.ops[0].x.values, arrays, strict=True):
        replay.write(value, array)
    return replay


@pytest.mark.parametrize(("n_in", "n_out", "batch"), [
    (1, 1, 1), (3, 2, 5), (4, 64, 37), (127, 65, 16), (1001, 7, 64), (130, 129, 36),
])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("variant", [SparseInput(), AsOnGpu()], ids=["own", "gpu"])
def test_products_with_sparse_samples(n_in, n_out, batch, dtype, shuffled, variant):
    if dtype == "float64" and not DEVICE.fp64:
        pytest.skip("the device has no float64")
    network = Network(n_in, [Dense(n_out, "tanh")], seed=n_in, dtype=dtype)
    arrays, x = sparse_rows(n_in, dtype)
    apply, outer = first_layer(network, shuffled, batch)
    rng = np.random.default_rng(1)
    dz = rng.uniform(-1, 1, (batch, n_out)).astype(dtype).astype(np.float64)
    numbers = {"first": 9, "key": key(3, 1)}
    values = {
        "batch": np.array(batch), outer.ops[0].dz.name: dz, **numbers, **{
            value.name: array.astype(value.type_in(dtype))
            for value, array in zip(apply.ops[0].x.values, arrays, strict=True)
        },
    }
    parameters = network.parameters.astype(np.float64)
    reference.run_ops((*apply.ops, *outer.ops), values, parameters)
    order = (9 + np.arange(batch)) % SAMPLES
    if shuffled:
        order = permuted(order, SAMPLES, numbers["key"])
    rows, weights = x[order].astype(np.float64), network.weights(0).astype(np.float64)
    u = unit(dtype)

    replay = bound_to(network, apply, arrays, variant)
    replay.set(**numbers)
    replay.run()
    op = apply.ops[0]
    z = replay.read(op.z)
    terms = (rows != 0).sum(axis=1, keepdims=True) + 1
    assert (np.abs(z - rows @ weights.T) <= terms * u * (
        np.abs(rows) @ np.abs(weights.T)
    )).all()
    np.testing.assert_allclose(values[op.z.name], rows @ weights.T, rtol=0, atol=1e-13)

    op = outer.ops[0]
    replay = bound_to(network, outer, arrays, variant)
    replay.write(op.dz, dz)
    replay.set(**numbers)
    replay.write_gradients(np.full(network.layout.size, np.nan, dtype))
    replay.run()
    flat = replay.read_gradients()[: op.weights.size]
    gradient = op.storage.matrix(flat)
    terms = (rows != 0).sum(axis=0) + 1
    assert (np.abs(gradient - dz.T @ rows) <= terms * u * (
        np.abs(dz.T) @ np.abs(rows)
    )).all()
    expected = op.storage.matrix(values[op.gradient.name][0])
    np.testing.assert_allclose(expected, dz.T @ rows, rtol=0, atol=1e-13)
    replay.run()
    np.testing.assert_array_equal(flat, replay.read_gradients()[: op.weights.size])

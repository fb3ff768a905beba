"""The oracle, on cases worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import entry_matrix

from clnet import Dense, Network
from clnet.ir import reference
from clnet.ir.activation import BiasAct, Nonlinearity, Softmax
from clnet.ir.op import Op, Value
from clnet.ir.product import Apply
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.layout import Slot


def value(name, width):
    return Value(name, width, width)


def run(op, parameters, **values):
    values = {name: np.array(x, np.float64) for name, x in values.items()}
    op.run(values, np.array(parameters, np.float64))
    return values


# A = [1 2 3; 4 5 6] in rows of four, after two other values.
PARAMETERS = [9, 9, 1, 2, 3, 0, 4, 5, 6, 0, 0.5, -1]
APPLY = Apply(value("x", 3), value("z", 2), DenseStorage(2, 3), Slot(2, 8))


def test_apply():
    found = run(APPLY, PARAMETERS, x=[[1, 0, -1], [2, 2, 2]])
    np.testing.assert_array_equal(found["z"], [[-2, -2], [12, 30]])


def test_apply_accumulates():
    op = Apply(APPLY.x, APPLY.z, APPLY.storage, APPLY.weights, accumulate=True)
    before = [[100, 200]]
    found = run(op, PARAMETERS, x=[[1, 1, 1]], z=before)
    np.testing.assert_array_equal(found["z"], [[106, 215]])
    assert op.reads == (op.x, op.z)


def test_bias_and_function():
    op = BiasAct(
        value("z", 2), value("y", 2), Slot(10, 2), Nonlinearity(("relu",), (2.0,))
    )
    found = run(op, PARAMETERS, z=[[1, 1], [-3, 2]])
    np.testing.assert_array_equal(found["y"], [[3, 0], [0, 2]])
    np.testing.assert_array_equal(found["z"], [[1, 1], [-3, 2]])


def test_without_bias():
    op = BiasAct(value("z", 2), value("y", 2), None, Nonlinearity(("identity",)))
    found = run(op, PARAMETERS, z=[[1, -1]])
    np.testing.assert_array_equal(found["y"], [[1, -1]])


def test_neurons_that_differ_and_limits():
    function = Nonlinearity(
        ("identity", "threshold", "identity", "relu"), (1.0, -1.0, 3.0, 1.0),
        (10.0, 10.0, 10.0, float("inf")),
    )
    op = BiasAct(value("z", 4), value("y", 4), None, function)
    found = run(op, [], z=[[11, 2, -5, 99], [1, -2, 1, -1]])
    np.testing.assert_array_equal(found["y"], [[10, 0, -10, 99], [1, 1, 3, 0]])


def test_softmax():
    op = Softmax(value("x", 3), value("y", 3))
    found = run(op, [], x=[[0, math.log(2), math.log(5)], [1e4, 1e4, -1e4]])
    np.testing.assert_allclose(
        found["y"], [[1 / 8, 2 / 8, 5 / 8], [0.5, 0.5, 0]], rtol=1e-14
    )


def test_softmax_of_one_sample_with_nan():
    op = Softmax(value("x", 2), value("y", 2))
    found = run(op, [], x=[[0, 0], [np.nan, 0]])["y"]
    np.testing.assert_array_equal(found, [[0.5, 0.5], [np.nan, np.nan]])


def test_an_unknown_op():
    with pytest.raises(NotImplementedError, match="Op"):
        Op().run({}, np.zeros(1))


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    batch=st.integers(1, 4),
    seed=st.integers(0, 99),
    bias=st.booleans(),
    steepness=st.floats(-2, 2),
)
def test_a_network_by_loops(sizes, batch, seed, bias, steepness):
    """y_j = tanh(s (sum_i A_ji x_i + b_j)), layer after layer, in plain Python."""
    layers = [Dense(n, "tanh", steepness, bias, "uniform") for n in sizes[1:]]
    network = Network(sizes[0], layers, seed=seed, dtype="float64")
    x = np.random.default_rng(seed).standard_normal((batch, sizes[0]))
    found = reference.run(network.program, x, network.parameters)
    assert found.shape == (batch, sizes[-1])
    for sample, y in zip(x.tolist(), found, strict=True):
        values = sample
        for number in range(len(layers)):
            weights = network.weights(number).tolist()
            biases = network.biases(number).tolist() or [0.0] * len(weights)
            values = [
                math.tanh(steepness * (sum(map(float.__mul__, row, values)) + b))
                for row, b in zip(weights, biases, strict=True)
            ]
        np.testing.assert_allclose(y, values, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_is_kept(dtype):
    network = Network(
        3, [Dense(4, "gelu", 0.3), Dense(5, "softmax")], seed=1, dtype=dtype,
        fann_compatible=True,
    )
    y = reference.run(network.program, np.ones((2, 3), dtype), network.parameters)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)


def test_dense_matrix_is_a_view_equal_to_its_entries():
    storage = DenseStorage(3, 5)
    values = np.arange(float(storage.size))
    matrix = storage.matrix(values)
    assert matrix.base is not None
    assert matrix.shape == (3, 5)
    np.testing.assert_array_equal(matrix, entry_matrix(storage, values))
    assert storage.count == 15

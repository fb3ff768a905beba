"""Training steps: their programs, and the oracle's gradients by finite differences."""

import numpy as np
import pytest
from deviations import differences

from clnet import Dense, Local, Network, Sparse
from clnet.errors import InputError
from clnet.ir import reference
from clnet.ir.activation import ActGrad, BiasAct, BiasGrad
from clnet.ir.batch import Gather
from clnet.ir.loss import Loss, Tally
from clnet.ir.lowering import lower_training
from clnet.ir.product import Apply, ApplyT, Outer
from clnet.ir.update import Update
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.losses import LOSSES, loss_function
from clnet.nn.optimisers import optimiser

# Their gradients are not derivatives: FANN trains through steps and jumps.
INEXACT = ("threshold", "threshold_symmetric", "sigmoid_stepwise", "tanh_stepwise")


def gradient_of(network, loss, x, t, weight=None):
    """Return the loss summed over samples, and the flat gradient."""
    program = lower_training(
        network, loss_function(loss), None, weighted=weight is not None
    )
    values = {"x": x, "t": t, "weight": weight}
    reference.run_ops(program.ops, values, network.parameters)
    assert np.isfinite(values["totals"]).all()
    flat = np.zeros(network.layout.size)
    for op in program.ops:
        for value, slot in op.gradient_slots.items():
            flat[slot.offset : slot.offset + slot.size] = values[value.name][0]
    return values["totals"][0, 0], flat


def problem(activation, loss, seed=1, **options):
    """Return a small network whose loss has no kink nearby, and its data."""
    rng = np.random.default_rng(seed)
    output = LOSSES[loss].activation or activation
    layers = [
        Dense(4, activation, 0.7, initialiser="uniform"),
        Dense(3, output, 1.0 if output == "softmax" else 1.3, initialiser="uniform"),
    ]
    network = Network(3, layers, seed=seed, dtype="float64", **options)
    x = rng.uniform(-1, 1, (5, 3))
    t = rng.uniform(0, 1, (5, 3))
    if output == "softmax":
        t /= t.sum(axis=1, keepdims=True)
    return network, x, t


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a not in INEXACT])
def test_gradients_by_finite_differences(activation, loss):
    network, x, t = problem(activation, loss)
    total, found = gradient_of(network, loss, x, t)
    assert np.isfinite(total)
    expected = differences(network, lambda: gradient_of(network, loss, x, t)[0])
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-8)


LAYERS = {
    "an activation a neuron, no bias": (4, [
        Dense(3, ("tanh", "sin", "relu"), (0.5, -1.5, 2.0), initialiser="uniform"),
        Dense(2, ("identity", "gelu"), bias=False, initialiser="uniform"),
    ]),
    "shortcuts": (4, [
        Dense(6, "tanh", sources=(0,)), Dense(5, "sigmoid", sources=(0, 1)),
        Dense(3, "tanh", sources=(0, 1, 2)),
    ]),
    "sparse": (4, [
        Dense(6, "tanh"), Sparse(5, "tanh", density=0.5, format="hyb", sources=(0, 1)),
        Dense(3, "sigmoid", sources=(1, 2)),
    ]),
    **{
        f"windows of {window}": (12, [
            Local(window, "tanh"), Local(2, "gelu", bias="neuron"), Dense(11, "tanh"),
            Local(window, "sigmoid", bias=None), Local(2, "gaussian"), Dense(2),
        ]) for window in (1, 3, 4)
    },
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_layers_by_finite_differences(name):
    n_in, layers = LAYERS[name]
    network = Network(n_in, layers, seed=3, dtype="float64")
    rng = np.random.default_rng(3)
    x, t = rng.uniform(-1, 1, (6, n_in)), rng.uniform(-1, 1, (6, network.n_out))
    _, found = gradient_of(network, "mse", x, t)
    expected = differences(network, lambda: gradient_of(network, "mse", x, t)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_sample_weights_scale_losses_and_gradients(loss):
    network, x, t = problem("tanh", loss)
    weight = np.array([[0], [1], [2.5], [0.1], [3]])
    total, found = gradient_of(network, loss, x, t, weight)
    each = [gradient_of(network, loss, x[[i]], t[[i]]) for i in range(5)]
    parts = [w * g for w, (_, g) in zip(weight[:, 0], each, strict=True)]
    np.testing.assert_allclose(found, np.sum(parts, axis=0), rtol=1e-12, atol=1e-15)
    sums = [w * s for w, (s, _) in zip(weight[:, 0], each, strict=True)]
    np.testing.assert_allclose(total, np.sum(sums), rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_sample_of_weight_0_counts_for_nothing(loss):
    """Also where its squared error overflows: 0 times infinity would be NaN."""
    network, x, t = problem("tanh", loss)
    t[0] = 1e200
    total, found = gradient_of(network, loss, x, t, np.array([[0], [1], [1], [1], [1]]))
    rest, expected = gradient_of(network, loss, x[1:], t[1:])
    assert total == pytest.approx(rest, rel=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


FANN_DERIVATIVES = {  # section 6 of FANN's reference manual, as d(v, y, s)
    "identity": lambda v, y, s: s,
    "threshold": lambda v, y, s: 0,
    "sigmoid": lambda v, y, s: s * (y := np.clip(y, 0.01, 0.99)) * (1 - y),
    "tanh": lambda v, y, s: s * (1 - np.clip(y, -0.98, 0.98) ** 2),
    "gaussian": lambda v, y, s: -2 * v * y * s * s,
    "gaussian_symmetric": lambda v, y, s: -2 * v * (y + 1) * s * s,
    "gaussian_stepwise": lambda v, y, s: 0,
    "elliot": lambda v, y, s: s / (2 * (1 + np.abs(v)) ** 2),
    "elliot_symmetric": lambda v, y, s: s / (1 + np.abs(v)) ** 2,
    "linear_piece": lambda v, y, s: s,
    "linear_piece_symmetric": lambda v, y, s: s,
    "sin_symmetric": lambda v, y, s: s * np.cos(s * v),
    "cos_symmetric": lambda v, y, s: -s * np.sin(s * v),
    "sin": lambda v, y, s: s * np.cos(s * v) / 2,
    "cos": lambda v, y, s: -s * np.sin(s * v) / 2,
    "relu": lambda v, y, s: s,
    "leaky_relu": lambda v, y, s: np.where(y < 0, 0.01 * s, s),
}


@pytest.mark.parametrize("name", FANN_DERIVATIVES)
def test_derivatives_of_fann(name):
    s = 1.7
    network = Network(1, [Dense(1, name, s)], fann_compatible=True, dtype="float64")
    network.set_layer(0, [[1.0]], [0.25])
    op = lower_training(network, loss_function("fann_linear"), None).ops[4]
    assert isinstance(op, ActGrad)
    sums = np.linspace(-6, 6, 41)[:, np.newaxis]
    v = s * (sums + 0.25)
    y = ACTIVATIONS[name].value(v)
    values = {"dy1": np.full_like(v, 3), "z1": sums, "y1": y}
    op.run(values, network.parameters)
    expected = 3 * (FANN_DERIVATIVES[name](v, y, s) + np.zeros_like(v))
    np.testing.assert_allclose(values["dz1"], expected, rtol=1e-12, atol=1e-13)


def test_the_ops_of_a_step():
    network = Network(3, [Dense(4, "tanh"), Dense(2, "identity", bias=False)])
    program = lower_training(
        network, loss_function("mse"), optimiser("adam"), samples=10, shuffled=True
    )
    assert [type(op) for op in program.ops] == [
        Gather, Apply, BiasAct, Apply, BiasAct, Loss, Tally, Outer, ApplyT, ActGrad,
        Outer, BiasGrad, Update,
    ]
    assert [v.name for v in program.inputs] == ["xs", "ts"]
    assert [v.name for v in program.outputs] == ["totals", "parameters"]
    written = set(program.inputs)
    for op in program.ops:
        assert set(op.reads) <= written
        written |= set(op.writes)
    # tanh's derivative reads its output: the pre-activations need not exist.
    forward = program.span(1, 3, 5)
    assert [v.name for v in forward.outputs] == ["y1"]
    assert forward.layers is not None


def test_the_order_of_the_backward_pass():
    """A layer's gradients, then its inputs' derivatives; several readers add up."""
    both, long = np.ones((2, 4 + 5), bool), np.eye(5, 4, dtype=bool)
    long[0] = True  # a row that is stored apart
    layers = [
        Dense(4, "tanh", dropout=0.5),
        Sparse(5, "identity", pattern=long, format="hyb"),
        Sparse(2, "gelu", pattern=both, sources=(1, 2)),
    ]
    network = Network(3, layers, seed=1)
    program = lower_training(network, loss_function("mse"), None)
    start = next(i for i, op in enumerate(program.ops) if isinstance(op, Tally)) + 1
    assert [
        " ".join((
            "+=" * getattr(op, "accumulate", False) + op.NAME,
            *(value.name for value in op.writes if not op.gradient_slots),
        ))
        for op in program.ops[start:]
    ] == [
        "act' dz3", "weights'", "weights'", "bias'", "product' ddropped1",
        "product' dy2",
        "weights'", "weights'", "bias'", "+=product' ddropped1", "+=product' ddropped1",
        "dropout dy1", "act' dz1", "weights'", "bias'",
    ]


def test_pre_activations_are_written_if_the_derivative_reads_them():
    network = Network(3, [Dense(4, "gelu"), Dense(2)])
    program = lower_training(network, loss_function("mse"), None)
    assert {v.name for v in program.span(0, 2, 5).outputs} == {"z1", "y1"}


@pytest.mark.parametrize(("last", "loss", "sentence"), [
    ("softmax", "mse", "expected categorical_cross_entropy"),
    ("tanh", "categorical_cross_entropy", "needs a last layer of softmax"),
    ("softmax", "binary_cross_entropy", "needs a last layer of sigmoid"),
    (("sigmoid", "tanh"), "binary_cross_entropy", "found sigmoid, tanh"),
])
def test_losses_that_do_not_fit(last, loss, sentence):
    network = Network(3, [Dense(2, last)])
    with pytest.raises(InputError, match=sentence):
        lower_training(network, loss_function(loss), None)


def test_softmax_in_a_hidden_layer_is_refused():
    network = Network(3, [Dense(2, "softmax"), Dense(2)])
    with pytest.raises(InputError, match="layer 1 is softmax"):
        lower_training(network, loss_function("mse"), None)


def test_layers_without_a_connection_to_the_output_train_as_not_there():
    """A pattern without entries in a source's block: nothing reads layers 1 and 2."""
    mask = np.zeros((3, 4 + 2), bool)
    mask[:, :4] = True
    layers = [
        Dense(5, "tanh", dropout=0.5), Dense(2, "tanh"),
        Sparse(3, "tanh", pattern=mask, sources=(0, 2), initialiser="uniform"),
    ]
    network = Network(4, layers, seed=1, dtype="float64")
    rng = np.random.default_rng(2)
    x, t = rng.uniform(-1, 1, (6, 4)), rng.uniform(-1, 1, (6, 3))
    _, flat = gradient_of(network, "mse", x, t)
    expected = differences(network, lambda: gradient_of(network, "mse", x, t)[0])
    np.testing.assert_allclose(flat, expected, atol=1e-7)
    before = network.parameters.copy()
    network.fit(x, t, optimiser="rprop", epochs=2)
    moved = network.parameters != before
    weights, biases = network.layout.weights, network.layout.biases
    for slot, live in zip((*weights, *biases), (False, False, True) * 2, strict=True):
        assert moved[slot.offset : slot.offset + slot.size].any() == live


def test_the_record_counts_as_fann_does():
    """Halved errors for symmetric outputs, bit fails at the limit itself."""
    layers = [Dense(2, ("tanh", "identity"))]
    network = Network(1, layers, fann_compatible=True, dtype="float64")
    network.set_layer(0, [[0.0], [0.0]], [0.0, 0.0])
    program = lower_training(network, loss_function("fann_linear"), None)
    values = {"x": np.zeros((2, 1)), "t": np.array([[0.6, 0.35], [-0.7, 0.1]])}
    reference.run_ops(program.ops[:4], values, network.parameters)
    expected = [[0.5 * 0.36 / 2 + 0.35**2 / 2, 0.3**2 + 0.35**2, 1],
                [0.5 * 0.49 / 2 + 0.005, 0.35**2 + 0.01, 1]]
    np.testing.assert_allclose(values["record"], expected, rtol=1e-12)
    np.testing.assert_allclose(values["dy1"], [[-0.3, -0.35], [0.35, -0.1]])
    np.testing.assert_allclose(values["totals"][0, :3], np.sum(expected, axis=0))


def test_rows_beyond_the_last_sample_are_ignored():
    network, x, t = problem("tanh", "mse")
    program = lower_training(network, loss_function("mse"), None)
    values = {"x": x, "t": t, "samples": 2}
    reference.run_ops(program.ops, values, network.parameters)
    total, expected = gradient_of(network, "mse", x[:2], t[:2])
    assert values["totals"][0, 0] == pytest.approx(total, rel=1e-12)
    slot = network.layout.weights[0]
    np.testing.assert_allclose(
        values["gradient0"][0], expected[slot.offset : slot.offset + slot.size],
        rtol=1e-12,
    )

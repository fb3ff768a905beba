"""The ops of training on a device against the float64 oracle, a step at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bounds import FLOAT32, FLOAT64, LAMBDA, WITH_PARAMETERS
from deviations import deviations
from spans import results_of, samples_for, slot_of
from storages import entry_matrix
from training_oracle import DEVICE, SESSION, agree, run_both
from variant_cases import alternate, selected

from clnet import Dense, Network
from clnet.ir.loss import Tally
from clnet.ir.lowering import lower_training
from clnet.ir.product import Outer
from clnet.ir.update import GradientNorm
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.losses import LOSSES, loss_function
from clnet.nn.optimisers import (
    OPTIMISERS,
    SGD,
    AdamW,
    Incremental,
    RMSprop,
    Rprop,
    Sarprop,
)
from clnet.nn.regularisation import Regularisation
from clnet.nn.storage.base import Entries, Storage
from clnet.nn.storage.layout import live_elements
from clnet.planning.training_planner import TRAINING_VARIANTS
from clnet.variants import VARIANTS
from clnet.variants.reference.generic import GenericBackward
from clnet.variants.training.gemm_backward import TiledOuter

ARITHMETIC = {"float32": FLOAT32, "float64": FLOAT64}
NAMES = (*ACTIVATIONS, *WITH_PARAMETERS)
JUMPING = ("threshold", "threshold_symmetric", "sigmoid_stepwise", "tanh_stepwise")


def check_gradients(
    network, loss, batch, *, weighted=False, planned=False, samples=None
):
    program = lower_training(network, loss_function(loss), None, weighted=weighted)
    data = samples_for(network, loss, batch, weighted)
    numbers = {"samples": samples or batch, "fresh": 1}
    replay, *_ = run_both(network, program, batch, data, [numbers], planned)
    inputs = {v.name: data[v.name].astype(network.dtype) for v in program.inputs}
    exact, deviation = deviations(
        program.ops, inputs, network.parameters, ARITHMETIC[network.dtype], [numbers]
    )

    def right(name, found):
        off = np.abs(found - exact[name][0])
        assert (off <= LAMBDA * deviation[name][0]).all(), name

    flat = replay.read_gradients()
    for op in program.ops:
        slot = slot_of(op)
        if slot is not None:
            right(op.gradient.name, flat[slot.offset : slot.offset + slot.size])
    assert not flat[~live_elements(network.layout, network.storages)].any()
    totals = replay.read(program.output)[0]
    right("totals", np.append(totals[:3] + totals[3:], np.zeros(3)))


SMOOTH = tuple(name for name in NAMES if name not in JUMPING)


@pytest.mark.unoptimised
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.sweep] * (i % 6 > 0))
    for i, name in enumerate(SMOOTH)
])
def test_every_activation(name):
    index = NAMES.index(name)
    dtype = "float64" if index % 5 == 4 and DEVICE.fp64 else "float32"
    network = Network(
        7, [Dense(9, name, 0.8, initialiser="uniform"), Dense(3, name, bias=False)],
        seed=index, dtype=dtype, fann_compatible=index % 3 == 2,
    )
    check_gradients(network, "mse", 5)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gaussian", "relu", "sin"])
def test_derivatives_of_fann(name):
    network = Network(
        7, [Dense(9, name, 1.8), Dense(3, "tanh", 5)], seed=1, fann_compatible=True
    )
    check_gradients(network, "fann_tanh", 65)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("loss", "planned"), alternate(LOSSES, [False, True]))
def test_every_loss(loss, planned):
    last = LOSSES[loss].activation or "tanh"
    network = Network(5, [Dense(6, "tanh"), Dense(3, last, initialiser="he")], seed=3)
    check_gradients(network, loss, 67, weighted=True, planned=planned, samples=60)


@pytest.mark.parametrize("batch", [1, 2, 63, 64, 65, 129, 300])
def test_batches(batch):
    network = Network(33, [Dense(70, "tanh"), Dense(1, "sigmoid")], seed=batch)
    check_gradients(network, "mse", batch, planned=batch % 2 == 0)


def test_records_of_many_samples():
    """Enough samples for several groups."""
    batch = 5001
    network = Network(3, [Dense(2)], seed=5)
    program = lower_training(network, loss_function("mse"), None)
    number = next(i for i, op in enumerate(program.ops) if isinstance(op, Tally))
    span = program.span(number, number + 1, batch)
    (record,) = span.inputs
    rows = np.random.default_rng(1).uniform(0, 1, (batch, record.width))
    results = results_of(
        network, span, GenericBackward(), {}, {record.name: rows}, {"fresh": 1},
        {"fresh": 0},
    )
    totals = results[program.output.name][0]
    agree(totals[:3] + totals[3:], 2 * rows.sum(axis=0), "float32")


@pytest.mark.parametrize(
    ("n_in", "n_out", "batch"),
    [(1, 1, 1), (2, 3, 70), (5, 1, 129), (15, 9, 300), (16, 4, 64), (17, 5, 1000),
     (31, 8, 65), (125, 32, 700)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outer_in_every_configuration(n_in, n_out, batch, dtype):
    if dtype == "float64" and not DEVICE.fp64:
        pytest.skip("the device has no float64")
    variant = TiledOuter()
    network = Network(n_in, [Dense(n_out, "tanh")], seed=n_in, dtype=dtype)
    program = lower_training(network, loss_function("mse"), None)
    number = next(i for i, op in enumerate(program.ops) if isinstance(op, Outer))
    span = program.span(number, number + 1, batch)
    op = span.ops[0]
    rng = np.random.default_rng(n_in)
    data = {value.name: rng.uniform(-1, 1, (batch, value.width)) for value in op.reads}
    values = {name: rows.astype(dtype) for name, rows in data.items()}
    values = {name: rows.astype(np.float64) for name, rows in values.items()}
    op.run(values, network.parameters)
    configs = list(variant.space(span, DEVICE))
    configs.append({**configs[0], "parts": 3})
    for config in configs:
        found = results_of(network, span, variant, config, data)[op.gradient.name][0]
        np.testing.assert_allclose(
            found, values[op.gradient.name][0], rtol=0,
            atol=20 * np.finfo(dtype).eps * np.sqrt(batch),
        )
        assert (found[~op.storage.live()] == 0).all()


@pytest.mark.unoptimised
@pytest.mark.parametrize(("dtype", "fann"), [
    ("float32", False), ("float64", False), ("float32", True), ("float64", True),
])
def test_one_activation_a_neuron(dtype, fann):
    if dtype == "float64" and not DEVICE.fp64:
        pytest.skip("the device has no float64")
    layers = [Dense(len(SMOOTH), SMOOTH, 0.8, initialiser="uniform"), Dense(2)]
    network = Network(4, layers, seed=3, dtype=dtype, fann_compatible=fann)
    check_gradients(network, "huber", 11)


@dataclasses.dataclass(frozen=True)
class Sparse(Storage):
    """A storage that only generic kernels support; every third slot is padding."""

    n_out: int
    n_in: int
    name = "sparse"

    @property
    def size(self):
        return 3 * self.n_out

    @property
    def signature(self):
        return f"sparse[{self.n_out},{self.n_in}]"

    def entries(self):
        slots = np.arange(self.size)
        slots = slots[slots % 3 < 2]
        return Entries(slots % self.n_out, (slots * 7) % self.n_in, slots)

    def matrix(self, values):
        return entry_matrix(self, values)


@dataclasses.dataclass(frozen=True)
class SparseLayer:
    n_out: int
    activation: str = "tanh"
    steepness: float = 1.0
    bias: bool = True
    initialiser: str = "uniform"
    sources: tuple[int, ...] | None = None
    dropout: float = 0.0

    def blocks(self, widths, item_size):
        return tuple((Sparse(self.n_out, width),) for width in widths)


def test_a_storage_that_is_not_dense():
    network = Network(11, [SparseLayer(8), SparseLayer(5)], seed=1)
    check_gradients(network, "mse", 19)


RULES = [
    # Incremental's default rate is for one sample and diverges on twenty.
    *(row() for row in OPTIMISERS.values() if row is not Incremental),
    Incremental(0.01, 0.3),
    SGD(0.1, 0.9, 0.01, True), AdamW(0.01, 0.5, 0.7),
    Rprop(delta_zero=0.01, moves_at_zero=True),
    RMSprop(0.01, weight_decay=0.1, momentum=0.5, centered=True),
]


@pytest.mark.unoptimised
@pytest.mark.parametrize(("rule", "dtype"), selected(
    {repr(rule): rule for rule in RULES},
    {name: name for name in ("float32", "float64")},
    quick=lambda rule, dtype: rule % 2 == dtype,
))
def test_every_optimiser(rule, dtype):
    if dtype == "float64" and not DEVICE.fp64:
        pytest.skip("the device has no float64")
    network = Network(5, [Dense(6, "tanh"), Dense(3)], seed=2, dtype=dtype)
    program = lower_training(network, loss_function("mse"), rule)
    rng = np.random.default_rng(0)
    data = {"x": rng.uniform(-1, 1, (20, 5)), "t": rng.uniform(-1, 1, (20, 3))}
    data["x"][:, 0] = 0
    scalars = [
        {"first": 0, "samples": 20, "seen": 20, "fresh": 1, "count": count, "seed": 9,
         "rate": rule.rate}
        for count in range(4)
    ]
    _, train_state, values, parameters = run_both(network, program, 20, data, scalars)
    SESSION.finish()
    found, state = train_state.values()
    live = live_elements(network.layout, network.storages)
    assert not found[~live].any()
    assert (found[live] != network.parameters[live]).any()
    # Adam and RMSprop divide by gradients near zero, which amplifies rounding errors.
    np.testing.assert_allclose(
        found, parameters, rtol=0, atol={"float32": 2e-4, "float64": 1e-10}[dtype]
    )
    agree(state[:, live], values["state"][:, live], dtype)


@pytest.mark.unoptimised
@pytest.mark.parametrize("rule", [Rprop(), Sarprop(weight_decay_shift=-1000.0)])
def test_slopes_whose_product_underflows(rule):
    """Their signs decide: the weight oscillates about 0.5."""
    network = Network(1, [Dense(1, bias=False)], seed=2)
    network.parameters = np.full(network.layout.size, 0.45)
    program = lower_training(network, loss_function("mse"), rule)
    data = {"x": np.array([[1e-12]]), "t": np.array([[0.5e-12]])}
    scalars = [
        {"first": 0, "samples": 1, "seen": 1, "fresh": 1, "count": count, "seed": 9,
         "rate": rule.rate}
        for count in range(4)
    ]
    _, train_state, values, parameters = run_both(network, program, 1, data, scalars)
    SESSION.finish()
    found, state = train_state.values()
    agree(found, parameters, "float32")
    agree(state, values["state"], "float32")


@pytest.mark.unoptimised
@pytest.mark.parametrize(("options", "dtype", "planned"), alternate(
    [
        {"l1": 0.01}, {"l2": 0.3}, {"clip_value": 0.05, "l1": 0.02},
        {"clip_norm": 0.1, "l1": 0.02, "l2": 0.1}, {"clip_norm": 1e9},
    ],
    ["float32", "float64"], [False, True],
))
def test_penalties_and_clipping(options, dtype, planned):
    if dtype == "float64" and not DEVICE.fp64:
        pytest.skip("the device has no float64")
    network = Network(33, [Dense(70, "tanh"), Dense(3)], seed=2, dtype=dtype)
    program = lower_training(
        network, loss_function("mse"), SGD(0.5, 0.9),
        regularisation=Regularisation(**options),
    )
    rng = np.random.default_rng(0)
    data = {"x": rng.uniform(-1, 1, (20, 33)), "t": rng.uniform(-1, 1, (20, 3))}
    scalars = [
        {"first": 0, "samples": 20, "seen": 20, "fresh": 1, "count": count, "seed": 9,
         "rate": 0.5} for count in range(3)
    ]
    replay, train_state, values, parameters = run_both(
        network, program, 20, data, scalars, planned
    )
    SESSION.finish()
    agree(train_state.values()[0], parameters, dtype)
    norm = next((op.norm for op in program.ops if isinstance(op, GradientNorm)), None)
    if norm is not None and not planned:  # one launch need not store it
        agree(replay.read(norm), values["norm"], dtype)


def test_bitwise_reproducible():
    network = Network(33, [Dense(70, "tanh"), Dense(3, "sigmoid")], seed=1)
    rng = np.random.default_rng(1)
    data = {"x": rng.uniform(-1, 1, (500, 33)), "t": rng.uniform(0, 1, (500, 3))}
    program = lower_training(network, loss_function("mse"), Rprop())
    scalars = [{"first": 0, "samples": 500, "seen": 500, "fresh": 1, "count": i,
                "seed": 0, "rate": 0} for i in range(3)]
    found = []
    for _ in range(2):
        _, train_state, *_ = run_both(
            network, program, 500, data, scalars, planned=True
        )
        SESSION.finish()
        found.append(train_state.values()[0])
    np.testing.assert_array_equal(*found)


def test_forward_variants_refuse_training_ops():
    network = Network(3, [Dense(2, "tanh")])
    program = lower_training(network, loss_function("mse"), Rprop())
    for number in range(2, len(program.ops)):
        span = program.span(number, number + 1, 4)
        eligible = [v.name for v in TRAINING_VARIANTS if v.refuse(span, DEVICE) is None]
        assert eligible
        assert not {variant.name for variant in VARIANTS} & set(eligible)
    assert all(variant.name != "host" for variant in TRAINING_VARIANTS)

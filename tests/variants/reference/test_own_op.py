"""An op of one's own, and weights that layers share: a gated recurrent network.

The op is a record with its meaning, gradient rule and kernel, outside the package.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from training_oracle import DEVICE, SESSION, run_step
from variant_cases import selected

from clnet import Dense, Local, Network
from clnet.ir import reference
from clnet.ir.activation import BiasAct, BiasGrad, Nonlinearity
from clnet.ir.loss import RECORD, Loss, Tally
from clnet.ir.op import Op, Value, gradients
from clnet.ir.product import Apply, Outer
from clnet.ir.program import Program
from clnet.ir.sparse_input import SparseInputApply, SparseInputOuter, SparseRows
from clnet.ir.update import Update
from clnet.nn.optimisers import SGD
from clnet.nn.storage.layout import live_elements
from clnet.opencl.launch import Launch
from clnet.planning.training_planner import TRAINING_VARIANTS, plan_training
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.variants.base import Untuned
from clnet.variants.cost import span_cost
from clnet.variants.macros import real
from clnet.variants.reference.generic import Generic, GenericBackward
from clnet.variants.training.optimisers import Optimisers

BATCH, UNITS = 5, 6
KERNEL = """
__kernel void product(__global const REAL *a, __global const REAL *b, __global REAL *y,
                      const int stride, const int width, const int accumulate)
{
    const int i = get_global_id(0), at = i / width * stride + i % width;
    y[at] = (accumulate ? y[at] : 0) + a[at] * b[at];
}
"""


@dataclass(frozen=True)
class Product(Op):
    """``y = a b``, element by element, or ``y += a b``."""

    NAME = "gate"
    READS = ("a", "b")
    WRITES = ("y",)

    a: Value
    b: Value
    y: Value
    accumulate: bool = False

    @property
    def signature(self):
        return f"product[{self.y.width}]"

    def run(self, values, parameters):
        y = values[self.a.name] * values[self.b.name]
        values[self.y.name] = y + values[self.y.name] if self.accumulate else y

    def backward(self, d):
        yield Product(d[self.y], self.b, d[self.a])
        yield Product(d[self.y], self.a, d[self.b])


@dataclass(frozen=True)
class ProductKernel(Untuned):
    """The op's kernel."""

    source: str
    name: str = "product"
    reach: Any = "op"

    def refuse(self, span, device):
        return None if isinstance(span.ops[0], Product) else "it multiplies"

    def cost(self, span, config, device):
        return span_cost(span, device, 0, 1)

    def launches(self, span, config, device):
        (op,) = span.ops
        return (Launch(
            self.source, "product", {"REAL": real(span)}, (BATCH * op.y.width,), (1,),
            (op.a, op.b, op.y, op.y.stride, op.y.width, int(op.accumulate)),
        ),)


@pytest.fixture
def product(tmp_path):
    path = tmp_path / "product.cl"
    path.write_text(KERNEL)
    return ProductKernel(str(path))


def network_of(dtype="float64", between=None):
    """Return a network that holds the parameters: its own program is another."""
    layers = [Dense(UNITS), between or Dense(UNITS), Dense(2)]
    return Network(3, layers, seed=1, dtype=dtype)


def program_of(network, rule=None):
    """Return a program whose middle layer is two steps of a gated recurrent one."""
    x, t = Value("x", 3, 3), Value("t", 2, 2)
    forward = []

    def layer(number, step, source, name="tanh"):
        n_out = network.layers[number].n_out
        z, y = Value(f"z{step}", n_out, 8), Value(f"y{step}", n_out, 8)
        forward.append(Apply(
            source, z, network.storages[number], network.layout.weights[number]
        ))
        forward.append(
            BiasAct(z, y, network.layout.biases[number], Nonlinearity((name,)))
        )
        return y

    hidden = layer(0, 1, x)
    state = hidden
    for step in 2, 3:
        gate = layer(1, step, state)
        state = Value(f"state{step}", UNITS, 8)
        forward.append(Product(gate, hidden, state))
    y = layer(2, 4, state, "identity")
    dy, record = Value("dy", 2, 8), Value("record", len(RECORD), len(RECORD))
    totals = Value("totals", 6, 6, rows=1)
    backward = gradients(forward, y, dy)
    slots = {v: slot for op in backward for v, slot in op.gradient_slots.items()}
    ops = (*forward, Loss(y, t, None, dy, record, "mse", (False,), 0.35),
           Tally(record, totals), *backward)
    outputs = tuple(slots)
    if rule is not None:
        size = network.layout.size
        outputs = (Value("parameters", size, size, rows=1),)
        ops += (Update(tuple(slots), tuple(slots.values()), totals, *outputs, rule,
                       network.layout, network.storages, 2),)
    return Program(ops, (x, t), (totals, *outputs), network.layout, network.dtype)


def data(dtype="float64"):
    rng = np.random.default_rng(2)
    return {"x": rng.uniform(-1, 1, (BATCH, 3)).astype(dtype),
            "t": rng.uniform(-1, 1, (BATCH, 2)).astype(dtype)}


def flat_gradient(program, network):
    """Return the loss, and the gradient [size], by the oracle."""
    values, flat = data(), np.zeros(network.layout.size)
    reference.run_ops(program.ops, values, network.parameters)
    for op in program.ops:
        for value, slot in op.gradient_slots.items():
            slot.of(flat)[...] = values[value.name][0]
    return values["totals"][0, 0], flat


def test_the_chain_rule_adds_the_gradients_of_shared_weights():
    network = network_of()
    ops = program_of(network).ops
    weights = network.layout.weights[1]
    outers = [op for op in ops if isinstance(op, Outer) and op.weights == weights]
    assert [op.accumulate for op in outers] == [False, True]
    assert outers[0].gradient == outers[1].gradient == outers[1].reads[-1]
    assert Counter(op.accumulate for op in ops if isinstance(op, BiasGrad)) == {
        False: 3, True: 1
    }
    # The first layer's outputs have three readers.
    assert [op.accumulate for op in ops if op.writes[0].name == "dy1"] == [
        False, True, True
    ]


def test_its_gradient_by_finite_differences():
    network = network_of()
    program = program_of(network)
    _, gradient = flat_gradient(program, network)
    before = network.parameters.copy()
    live = np.flatnonzero(live_elements(network.layout, network.storages))
    for i in live:
        ends = []
        for sign in (1, -1):
            moved = before.copy()
            moved[i] += sign * 1e-6
            network.parameters = moved
            ends.append(flat_gradient(program, network)[0])
        assert gradient[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("between", "dtype", "planned"), selected(
    {"dense": Dense(UNITS), "shared bias": Local(1, bias="shared"), "local": Local(1)},
    {"float32": "float32", "float64": "float64"}, {"generic": False, "planned": True},
    quick=lambda between, dtype, planned: (between + dtype) % 2 == planned,
))
def test_it_trains_as_the_oracle(product, between, dtype, planned):
    """Planned among all variants: those that overwrite gradients refuse them."""
    if dtype == "float64" and not DEVICE.fp64:
        pytest.skip("the device has no float64")
    network = network_of(dtype, between)
    program = program_of(network, SGD(momentum=0.5))
    variants = [Generic(), GenericBackward(), Optimisers(), product]
    if planned:
        variants = [*TRAINING_VARIANTS, product]
    steps = plan_training(
        network, program, DEVICE, BATCH, tune=False, variants=variants
    ).steps
    state = np.zeros((1, network.layout.size), dtype)
    train_state = TrainState(SESSION, network.parameters, state)
    replay = Replay(SESSION, steps, network.layout, train_state)
    values = {**data(dtype), "state": state.astype(np.float64)}
    for name in ("x", "t"):
        replay.write(Value(name, *2 * [values[name].shape[1]]), values[name])
        values[name] = values[name].astype(np.float64)
    parameters = network.parameters.astype(np.float64)
    for count in range(3):
        numbers = {"rate": 0.1, "samples": BATCH, "seen": BATCH, "count": count,
                   "seed": 0, "fresh": 1}
        run_step(replay, numbers)
        reference.run_ops(program.ops, values | numbers, parameters)
    found = train_state.values()[0]
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(found, parameters, rtol=0, atol=tolerance)
    assert np.abs(found - network.parameters).max() > 0.01


def test_only_generic_kernels_add_to_gradients():
    network = network_of("float32")
    program = program_of(network)
    for start, op in enumerate(program.ops):
        if not (op.gradient_slots and op.accumulate):
            continue
        for first in range(max(0, start - 3), start + 1):
            for stop in range(start + 1, min(start + 4, len(program.ops)) + 1):
                span = program.span(first, stop, BATCH)
                takers = {v.name for v in TRAINING_VARIANTS
                          if v.refuse(span, DEVICE) is None}
                assert takers <= {"generic_backward", "host"}
    whole = program.span(0, len(program.ops), BATCH)
    assert {v.name for v in TRAINING_VARIANTS if v.reach == "program"
            and v.refuse(whole, DEVICE) is None} == set()


def test_ops_that_cannot_add_are_named():
    """Products with sparse samples are of a first layer, which shares no weights."""
    network = network_of()
    x = SparseRows(Value("starts", 1, 1), Value("columns", 1, 1), Value("n", 1, 1))
    z, other, y = (Value(name, UNITS, 8) for name in ("z", "other", "y"))
    slot = network.layout.weights[0]
    ops = [SparseInputApply(x, v, network.storages[0], slot) for v in (z, other)]
    with pytest.raises(NotImplementedError, match="SparseInputOuter cannot add"):
        gradients([*ops, Product(z, other, y)], y, Value("dy", UNITS, 8))
    assert isinstance(gradients(ops[:1], z, other)[0], SparseInputOuter)
    with pytest.raises(NotImplementedError, match="no gradient rule for Tally"):
        gradients([Tally(z, y)], y, other)

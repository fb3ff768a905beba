"""Programs: lowering, spans, layout, signatures."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clnet import Dense, Network
from clnet.ir.activation import BiasAct, Nonlinearity, Softmax
from clnet.ir.lowering import nonlinearity
from clnet.ir.op import VALUE_ALIGNMENT, Op
from clnet.ir.product import Apply
from clnet.nn.storage.dense import DenseStorage
from clnet.nn.storage.layout import PARAMETER_ALIGNMENT, layout, round_up

NETWORK = Network(
    5, [Dense(7, "tanh"), Dense(3, "softmax", bias=False), Dense(2, ("relu", "sin"))]
)


@given(n=st.integers(0, 1000), multiple=st.integers(1, 100))
def test_round_up(n, multiple):
    found = round_up(n, multiple)
    assert found % multiple == 0
    assert n <= found < n + multiple


# Lowering ---------------------------------------------------------------------------


def test_two_ops_per_layer_and_three_with_softmax():
    kinds = [type(op) for op in NETWORK.program.ops]
    assert kinds == [Apply, BiasAct, Apply, BiasAct, Softmax, Apply, BiasAct]


def test_every_op_reads_values_written_before():
    program = NETWORK.program
    written = {program.input}
    names = [program.input.name]
    for op in program.ops:
        assert set(op.reads) <= written
        assert not set(op.writes) & written
        written |= set(op.writes)
        names += [value.name for value in op.writes]
    assert program.output in program.ops[-1].writes
    assert len(set(names)) == len(names)


def test_only_the_ends_are_contiguous():
    program = NETWORK.program
    assert (program.input.stride, program.output.stride) == (5, 2)
    for op in program.ops:
        for value in (*op.reads, *op.writes):
            if value not in (program.input, program.output):
                assert value.stride == round_up(value.width, VALUE_ALIGNMENT)


def test_attributes_of_the_ops():
    apply1, act1, apply2, act2, softmax, _, act3 = NETWORK.program.ops
    assert apply1.storage == DenseStorage(7, 5)
    assert apply1.weights == NETWORK.layout.weights[0]
    assert act1.bias == NETWORK.layout.biases[0]
    assert act1.nonlinearity == Nonlinearity(("tanh",))
    assert act2.bias is None
    assert act2.nonlinearity.names == ("identity",)
    assert (apply2.x, softmax.x) == (act1.y, act2.y)
    assert act3.nonlinearity.names == ("relu", "sin")
    assert not act3.nonlinearity.uniform
    assert NETWORK.program.dtype == "float32"


def test_a_program_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        NETWORK.program.ops[0].accumulate = True
    assert NETWORK.program is NETWORK.program


def test_the_base_of_ops_is_abstract():
    assert Op().reads == Op().writes == ()
    with pytest.raises(NotImplementedError):
        Op().signature  # noqa: B018  a property


# Nonlinearities ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "steepness", "limit"), [
    # FANN clips its s x to ±150 / s.
    ("tanh", 0.5, 300), ("tanh", 2.0, 75), ("identity", -0.5, 300),
    # Its sigmoid's v is half of ours, and so is its steepness.
    ("sigmoid", 1.0, 600), ("sigmoid", 2.0, 300), ("sigmoid_stepwise", 1.0, 600),
    ("relu", 0.0, float("inf")),
])
def test_limits_of_fann(name, steepness, limit):
    function = nonlinearity(name, steepness, fann_compatible=True)
    assert function.limits == (limit,)
    assert nonlinearity(name, steepness, fann_compatible=False).limits is None


def test_names_and_steepness_are_paired():
    function = nonlinearity(("tanh", "relu"), 0.5, fann_compatible=True)
    assert function.names == ("tanh", "relu")
    assert function.steepness == (0.5, 0.5)
    assert function.limits == (300, 300)
    function = nonlinearity("tanh", (1.0, 3.0, 2.0), fann_compatible=False)
    assert function.names == ("tanh",) * 3
    assert not function.uniform


def test_aliases_and_softmax():
    assert nonlinearity("linear", 1, fann_compatible=False).names == ("identity",)
    assert nonlinearity("softmax", 1, fann_compatible=False).names == ("identity",)


# Layout -----------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40), st.booleans()),
        min_size=1, max_size=6,
    )
)
def test_arrays_are_aligned_and_apart(shapes):
    storages = [DenseStorage(n_out, n_in) for n_out, n_in, _ in shapes]
    found = layout(storages, [n_out if bias else 0 for n_out, _, bias in shapes])
    slots = [*found.weights, *(slot for slot in found.biases if slot is not None)]
    for slot in slots:
        assert slot.offset % PARAMETER_ALIGNMENT == 0
    for before, after in pairwise(slots):
        assert before.offset + before.size <= after.offset
    assert found.size % PARAMETER_ALIGNMENT == 0
    assert slots[-1].offset + slots[-1].size <= found.size
    assert [slot.size for slot in found.weights] == [s.size for s in storages]
    assert [slot is not None for slot in found.biases] == [b for *_, b in shapes]


# Spans ------------------------------------------------------------------------------


def test_inputs_and_outputs_of_spans():
    program = NETWORK.program
    n = len(program.ops)
    whole = program.span(0, n, 4)
    assert whole.inputs == (program.input,)
    assert whole.outputs == (program.output,)
    assert (whole.batch, whole.dtype) == (4, "float32")
    for i, op in enumerate(program.ops):
        one = program.span(i, i + 1, 1)
        assert one.ops == (op,)
        assert one.inputs == op.reads
        assert one.outputs == op.writes
    middle = program.span(2, 5, 1)
    assert [value.name for value in middle.inputs] == ["y1"]
    assert [value.name for value in middle.outputs] == ["y2"]


def test_a_value_read_later_is_an_output():
    first, act, *_ = NETWORK.program.ops
    again = dataclasses.replace(NETWORK.program.ops[5], x=act.y)
    program = dataclasses.replace(NETWORK.program, ops=(first, act, again))
    assert program.span(0, 1, 1).outputs == (first.z,)
    assert program.span(0, 2, 1).outputs == (act.y,)


def test_layers_of_a_span():
    program = NETWORK.program
    (layer,) = program.span(0, 2, 1).layers
    assert (layer.n_in, layer.n_out) == (5, 7)
    assert (layer.apply, layer.act) == program.ops[:2]
    chain = program.span(0, 4, 1).layers
    assert [x.n_out for x in chain] == [7, 3]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (1, 2), (1, 3), (0, 3), (0, 5), (4, 5), (3, 5), (0, 0)]
)
def test_spans_that_are_no_layers(start, stop):
    assert NETWORK.program.span(start, stop, 1).layers is None


def test_broken_chains():
    program = Network.mlp([3, 4, 4, 4]).program
    span = program.span(0, 6, 1)
    a1, b1, a2, b2, a3, b3 = span.ops
    assert len(span.layers) == 3
    # The third layer reads the first one's output.
    skips = (a1, b1, a2, b2, dataclasses.replace(a3, x=b1.y), b3)
    assert dataclasses.replace(span, ops=skips).layers is None
    # It accumulates.
    adds = (a1, b1, dataclasses.replace(a2, accumulate=True), b2, a3, b3)
    assert dataclasses.replace(span, ops=adds).layers is None
    # A hidden value is read outside.
    more = dataclasses.replace(span, outputs=(b1.y, b3.y))
    assert more.layers is None


# Signatures -------------------------------------------------------------------------


def signature(network, batch=1, stop=None):
    ops = network.program.ops
    return network.program.span(0, stop or len(ops), batch).signature


def test_equal_costs_have_equal_signatures():
    one, other = (Network.mlp([5, 6, 7], "tanh", seed=seed) for seed in (1, 2))
    assert signature(one) == signature(other)
    steeper = Network(5, [Dense(6, "tanh", 0.5), Dense(7, "tanh")])
    assert signature(one) == signature(steeper)


def test_other_costs_have_other_signatures():
    one = Network.mlp([5, 6, 7], "tanh")
    others = [
        signature(one, batch=2),
        signature(one, stop=2),
        signature(one, stop=1),
        signature(Network.mlp([5, 6, 7], "relu")),
        signature(Network.mlp([5, 7, 6], "tanh")),
        signature(Network.mlp([5, 6, 7], "tanh", dtype="float64")),
        signature(Network.mlp([5, 6, 7], "tanh", fann_compatible=True)),
        signature(Network(5, [Dense(6, "tanh", bias=False), Dense(7, "tanh")])),
        signature(Network(5, [Dense(6, "tanh"), Dense(7, ("tanh",) * 7)])),
    ]
    assert len({signature(one), *others}) == len(others) + 1


def test_deep_networks_have_short_signatures():
    text = signature(Network.mlp([32] * 101, "tanh"))
    assert "*100" in text
    assert len(text) < 100
    # Order counts: 8-9-8-9 is not 8-8-9-9.
    assert signature(Network.mlp([8, 9, 8, 9])) != signature(Network.mlp([8, 8, 9, 9]))


def test_signature_of_an_op_that_accumulates():
    op = NETWORK.program.ops[0]
    assert dataclasses.replace(op, accumulate=True).signature == f"+={op.signature}"

"""Tables of every variant hold what its kernels assume, whatever the pattern."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from devices import DEVICE, H200, posing
from hypothesis import given, settings
from hypothesis import strategies as st
from storages import Contents
from test_keys import ALL, FEW, NETWORKS, assert_checked, spans_of
from variants.table_contents import fault

from clnet import Dense, Local, Network, Pattern, Sparse
from clnet.ir.lowering import lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam
from clnet.nn.storage.formats import FORMATS
from clnet.nn.storage.sparse import EllStorage, SellStorage
from clnet.opencl.launch import Constant
from clnet.variants.sparse.sell import Sell

PLACES = (DEVICE, posing(3), H200)


# Those with tables of a pattern.
VARIANTS = [
    variant for variant in ALL if variant.name in (
        "generic", "generic_backward", "csr", "sell", "dia", "sparse_team",
        "sparse_outer", "fused_sparse", "persistent_mixed", "optimisers",
    )
]


def tables_of(program, batch):
    """The tables of these variants and configurations by key, with their launches."""
    return {
        argument.name: (argument, launch, span)
        for variant, place in product(VARIANTS, PLACES)
        for span in spans_of(program, variant, batch)
        if len(span.ops) < 7 and variant.refuse(span, place) is None
        for config in list(variant.space(span, place))[:FEW]
        for launch in variant.launches(span, config, place)
        for argument in launch.arguments if isinstance(argument, Constant)
    }


@st.composite
def patterns(draw, n_out, n_in):
    """Patterns with empty rows and columns, long rows, diagonals, single entries."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    density = draw(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    mask = rng.random((n_out, n_in)) < density
    mask[rng.integers(n_out), : draw(st.integers(0, n_in))] = True
    if draw(st.booleans()):
        mask |= np.eye(n_out, n_in, draw(st.integers(1 - n_out, n_in - 1)), dtype=bool)
    if draw(st.booleans()):
        mask[rng.random(n_out) < 0.5] = False
    mask[draw(st.integers(0, n_out - 1)), draw(st.integers(0, n_in - 1))] = True
    return Pattern.of(mask)


SIZES = st.sampled_from([1, 2, 3, 7, 31, 32, 33, 40, 65, 130])


@settings(max_examples=5, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(["float32", "float64"]))
@pytest.mark.parametrize("form", FORMATS)
def test_tables_of_any_pattern(form, data, dtype):
    n_in, hidden, n_out = (data.draw(SIZES) for _ in range(3))
    layers = [
        Sparse(hidden, "tanh", pattern=data.draw(patterns(hidden, n_in)), format=form),
        Sparse(n_out, pattern=data.draw(patterns(n_out, hidden)), format=form),
    ]
    if data.draw(st.booleans()):
        layers.insert(1, Dense(hidden, "relu"))
    elif data.draw(st.booleans()) and hidden > 3:
        layers = [layers[0], Local(3), Dense(n_out)]
    network = Network(n_in, layers, seed=1, dtype=dtype)
    program = network.program
    if data.draw(st.booleans()):
        program = lower_training(network, loss_function("mse"), Adam(), samples=100)
    tables = tables_of(program, data.draw(st.sampled_from([1, 20])))
    assert tables
    for table in tables.values():
        assert_checked(*table)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), form=st.sampled_from(["ell", "sell"]))
def test_slices_name_every_entry_once(data, form):
    """As ``sell.cl`` reads them: slots start + k * stride + row of the slice."""
    n_out, n_in = data.draw(SIZES), data.draw(SIZES)
    pattern = data.draw(patterns(n_out, n_in))
    network = Network(n_in, [Sparse(n_out, pattern=pattern, format=form)], seed=1)
    span = network.program.span(0, 2, 1)
    (storage,) = network.storages
    assert isinstance(storage, (EllStorage, SellStorage))
    for config in Sell().space(span, H200):
        *_, launch = Sell().launches(span, config, H200)
        starts, lengths, order, columns = (
            a.make() for a in launch.arguments if isinstance(a, Constant)
        )
        stride = launch.arguments[launch.arguments.index(
            next(a for a in launch.arguments if isinstance(a, Constant))
        ) + 1]
        height = launch.defines["HEIGHT"]
        found = np.zeros((n_out, n_in), np.int64)
        matrix = np.zeros((n_out, n_in))
        for number, start in enumerate(starts):
            for lane in range(height):
                at = number * height + lane
                for k in range(lengths[at]):
                    slot = start + k * stride + lane
                    assert 0 <= slot < storage.size
                    found[order[at], columns[slot]] += 1
                    value = network.parameters[network.layout.weights[0].offset + slot]
                    matrix[order[at], columns[slot]] = value
        np.testing.assert_array_equal(found, pattern.mask())
        np.testing.assert_array_equal(matrix, network.weights(0))


# The check ----------------------------------------------------------------------------


@pytest.mark.parametrize(("contents", "right", "wrong"), [
    (Contents(3, 5), [5, 0, 5], [5, 0, 6]),
    (Contents(3, 5), [5, 0, 5], [5, -1, 5]),
    (Contents(3, 5), [5, 0, 5], [5, 0]),
    (Contents(3, 5, least=-2), [-2, 0, 5], [-3, 0, 5]),
    (Contents(3, 5, order="sorted"), [1, 1, 4], [1, 0, 4]),
    (Contents(3, 5, order="ascending"), [1, 2, 4], [1, 1, 4]),
    (Contents(3, 5, order="distinct"), [4, 1, 2], [4, 1, 4]),
    (Contents(4, 5, order="distinct", padding=2), [4, 0, 0, 0], [4, 0, 0, 1]),
    (Contents.starts(3, 5), [0, 2, 2, 5], [1, 2, 2, 5]),
    (Contents.starts(3, 5), [0, 2, 2, 5], [0, 2, 2, 4]),
    (Contents.starts(3, 5), [0, 2, 2, 5], [0, 3, 2, 5]),
    (Contents.starts(3, 5), [0, 2, 2, 5], [0, 2, 5]),
])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint16", "uint8"])
def test_a_fault_is_found(contents, right, wrong, dtype):
    if min(*right, *wrong) < 0 and dtype.startswith("u"):
        pytest.skip("unsigned")
    assert contents.fault(np.array(right, dtype)) is None
    fault = contents.fault(np.array(wrong, dtype))
    assert "expected" in fault.sentence
    assert 0 <= fault.at < len(wrong)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-3, 8), max_size=8), st.integers(-2, 2), st.integers(2, 7),
    st.sampled_from(["any", "sorted", "ascending", "distinct"]), st.integers(0, 3),
)
def test_the_check_is_its_definition(values, least, most, order, padding):
    padding = min(padding, len(values))
    contents = Contents(len(values), most, least, order, padding=padding)
    used, rest = values[: len(values) - padding], values[len(values) - padding :]
    right = all(least <= n <= most for n in values) and not any(rest) and {
        "any": True, "sorted": used == sorted(used),
        "ascending": used == sorted(set(used)), "distinct": len(set(used)) == len(used),
    }[order]
    assert (contents.fault(np.array(values, np.int64)) is None) == right


@pytest.mark.parametrize(
    "name", ["mixed", "hyb float32", "sell float32", "dia float32"]
)
def test_the_check_of_tables_finds_a_wrong_number(name):
    tables = tables_of(NETWORKS[name]().program, 5)
    assert tables
    for table, launch, span in tables.values():
        wrong = table.make().copy()
        if wrong.dtype.kind == "f" or wrong.dtype.itemsize < 4:
            continue
        numbers = wrong.reshape(-1).view(np.int32)
        numbers[numbers.size // 2 // 16 * 16] = 1 << 30  # a record's first field
        assert fault(table, wrong, launch, span) is not None, table.name

"""Variants of single ops, with mixed activations, softmax and unknown storages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from storages import entry_matrix
from variant_cases import (
    NAMES,
    Bound,
    assert_within_bounds,
    check,
    configs,
)

from clnet import Dense, Network
from clnet.ir.product import Apply
from clnet.ir.program import Span
from clnet.nn.storage.base import Entries, Storage
from clnet.variants import ALL_VARIANTS


def op_variants():
    found = [v for v in ALL_VARIANTS if v.reach == "op"]
    return pytest.mark.parametrize("variant", found, ids=lambda v: v.name)


@op_variants()
@pytest.mark.parametrize("fann", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mixed_activations(variant, dtype, fann, place):
    steepness = tuple(np.linspace(-2, 2, len(NAMES)).tolist())
    network = Network(
        13, [Dense(len(NAMES), NAMES, steepness, initialiser="uniform")],
        seed=1, dtype=dtype, fann_compatible=fann,
    )
    span = network.program.span(1, 2, 6)
    for config in configs(variant, span, place):
        check(network, span, variant, config, place, 1)


@op_variants()
@pytest.mark.parametrize(("width", "batch"), [(1, 1), (2, 3), (10, 65), (1000, 2)])
def test_softmax(variant, width, batch, place):
    network = Network(3, [Dense(width, "softmax"), Dense(2)], seed=1)
    span = network.program.span(2, 3, batch)
    for config in configs(variant, span, place):
        check(network, span, variant, config, place, 1)
        # Large exponents do not overflow.
        run = Bound(network, span, variant, config, place)
        exponents = np.linspace(-900, 900, batch * width, dtype=np.float32)
        inputs = {"logits1": exponents.reshape(batch, width)}
        assert_within_bounds(span, inputs, network.parameters, run(inputs))


@dataclass(frozen=True)
class Scattered(Storage):
    """A storage described by `entries` alone, with slots that are not live."""

    n_out: int
    n_in: int
    name = "scattered"

    @property
    def size(self):
        return 2 * self.n_out + 3

    @property
    def signature(self):
        return f"scattered[{self.n_out},{self.n_in}]"

    def entries(self):
        rng = np.random.default_rng(self.n_out)
        rows = rng.integers(self.n_out, size=self.size)
        columns = rng.integers(self.n_in, size=self.size)
        live = np.arange(self.size) % 5 != 2
        return Entries(rows[live], columns[live], np.flatnonzero(live))

    def matrix(self, values):
        return entry_matrix(self, values)


@dataclass(frozen=True)
class ScatteredLayer:
    n_out: int
    activation: str = "tanh"
    steepness: float = 1.0
    bias: bool = True
    initialiser: str = "uniform"
    sources: tuple[int, ...] | None = None
    dropout: float = 0.0

    def blocks(self, widths, item_size):
        return tuple((Scattered(self.n_out, width),) for width in widths)


@pytest.mark.parametrize("variant", ALL_VARIANTS, ids=lambda v: v.name)
def test_an_unknown_storage(variant, place):
    """Variants that read entries compute it; all others refuse."""
    network = Network(11, [ScatteredLayer(23), ScatteredLayer(4)], seed=1)
    ops = {"op": 1, "pair": 2, "layer": 2, "run": 4}[variant.reach]
    span = network.program.span(0, ops, 6)
    refusal = variant.refuse(span, place)
    if variant.reach == "op":
        assert refusal is None
        for config in configs(variant, span, place):
            # The bounds' matrix has zeros without entries: 0 * NaN.
            check(network, span, variant, config, place, 1, missing=1.0)
    elif place.type == "cpu":  # others name what they lack first
        assert "scattered" in refusal
    else:
        assert refusal is not None


def test_pre_activations_accumulate(place):
    """Two storages of one layer: the second op adds to the result of the first."""
    network = Network.mlp([9, 14], seed=1)
    first = network.program.ops[0]
    assert isinstance(first, Apply)
    span = Span(
        (dataclasses.replace(first, accumulate=True),), 3, "float32", (first.z,)
    )
    rng = np.random.default_rng(1)
    for variant in ALL_VARIANTS:
        if variant.reach != "op" or variant.name == "host":
            continue
        run = Bound(network, span, variant, configs(variant, span, place)[0], place)
        inputs = {
            v.name: rng.standard_normal((3, v.width)).astype("float32")
            for v in span.inputs
        }
        assert_within_bounds(span, inputs, network.parameters, run(inputs))

"""The variants of sparse products against the oracle, over patterns and batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bounds import close
from devices import CPU, DEVICE, GPU, LaunchesFor
from spans import program_of, results_of
from variant_cases import selected

from clnet import Dense, Network, Sparse
from clnet.ir import reference
from clnet.ir.activation import BiasAct
from clnet.ir.product import ApplyT, Outer
from clnet.ir.program import Span
from clnet.variants.sparse.sell import Dia, Sell
from clnet.variants.sparse.sparse import Csr, SparseTeam
from clnet.variants.sparse.sparse_outer import SparseOuter

RNG = np.random.default_rng(1)
LENGTHS = np.array([0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0])
ROWS = np.arange(70)[:, np.newaxis]
PATTERNS = {  # several of one shape, which share kernels
    "row lengths": np.arange(90) < np.resize(LENGTHS, ROWS.shape),
    "random": RNG.random((70, 90)) < 0.1,
    "banded": np.abs(np.subtract.outer(np.arange(133), np.arange(131))) < 3,
    "wide indices": np.arange(70_000) % 10_007 == np.array([[3], [70]]),
    "empty rows": (RNG.random((70, 90)) < 0.3) & (ROWS % 3 > 0),
    "full": np.ones((9, 37), bool),
    "single entry": 90 * ROWS + np.arange(90) == 6299,
    "one long row": np.eye(36, 300, dtype=bool) | (ROWS[:36] == 4),
}
BATCHES = {
    "row lengths": (1, 7), "random": (32,), "banded": (33,), "wide indices": (2,),
    "empty rows": (32,), "full": (5,), "single entry": (3,), "one long row": (1,),
}
FORMATS = {  # of each variant: one for each way to find an entry's value
    "csr": ("csr", "hyb", "dia"), "sparse_team": ("csr", "hyb"),
    "sell": ("sell", "ell"), "sparse_outer": ("coo", "sell"), "dia": ("dia",),
}


def run(network, span, variant, config, device):
    """Compare the outputs of a span with the oracle."""
    assert variant.refuse(span, device) is None
    rng, op = np.random.default_rng(span.batch), span.ops[0]
    values = {
        value.name: rng.uniform(-1, 1, (span.batch, value.width)).astype(network.dtype)
        for value in span.inputs
    }
    results = results_of(network, span, LaunchesFor(variant, device), config, values)
    values = {name: rows.astype(np.float64) for name, rows in values.items()}
    values["batch"] = np.array(span.batch)
    flat = results.pop("gradients").copy()
    if isinstance(op, Outer):
        flat[op.weights.offset + op.storage.slots] = 0
        assert not flat.any(), "a slot without an entry was written"
    parameters = network.parameters.astype(np.float64)
    sizes = {name: np.abs(array) for name, array in values.items()}
    reference.run_ops(span.ops, values, parameters)
    op.run(sizes, np.abs(parameters))
    most = sizes[op.writes[0].name].max(initial=0)
    for name, y in results.items():
        terms = span.batch if isinstance(op, Outer) else op.storage.pattern.longest
        close(y, values[name].reshape(y.shape), most, terms)


def all_spans(network, batch):
    """The products of a network: `Apply`, with `BiasAct`, and `ApplyT`."""
    program = network.program
    n = len(program.ops)
    for i in range(n):
        for stop in (i + 1, i + 2):
            span = program.span(i, min(stop, n), batch)
            if len(span.ops) == stop - i and not isinstance(span.ops[0], BiasAct):
                yield span
    backward = program_of(network)
    for i, op in enumerate(backward.ops):
        if isinstance(op, (ApplyT, Outer)):
            yield backward.span(i, i + 1, batch)


def check(variant, network, batch, device, choose=lambda listed: listed):
    tried = 0
    for span in all_spans(network, batch):
        if variant.refuse(span, device) is None:
            for config in choose(list(variant.space(span, device))):
                run(network, span, variant, config, device)
                tried += 1
    return tried


def network_of(mask, form, name="tanh", dtype="float32"):
    """A network whose second layer has the pattern, so that `ApplyT` has it too."""
    layers = [Dense(mask.shape[1]), Sparse(len(mask), name, pattern=mask, format=form)]
    network = Network(2, layers, seed=1, dtype=dtype)
    network.parameters = RNG.uniform(-1, 1, network.parameters.shape)
    return network


VARIANTS = [
    (Csr(), CPU), (SparseOuter(), CPU), (SparseTeam(), GPU), (Sell(), GPU),
    (SparseOuter(), GPU), (Dia(), CPU), (Dia(), GPU),
]
CASES = [
    pytest.param(
        variant, device, name, form, batch,
        id=f"{variant.name}-{device.type}-{name}-{form}-{batch}",
        marks=[
            *[pytest.mark.sweep] * (i > 1 and (i + j) % 2),
            *[pytest.mark.unoptimised] * (i > 0),
        ],
    )
    for variant, device in VARIANTS
    for i, name in enumerate(PATTERNS)
    for j, form in enumerate(FORMATS[variant.name][:2])
    for batch in BATCHES[name]
    if j == 0 or batch == BATCHES[name][0]
]


@pytest.mark.parametrize(("variant", "device", "name", "form", "batch"), CASES)
def test_patterns(variant, device, name, form, batch):
    network = network_of(PATTERNS[name], form)
    assert check(
        variant, network, batch, device, lambda listed: [listed[batch % len(listed)]]
    )


def test_long_inputs_are_copied_in_stages():
    """Local memory holds only a part of x."""
    for name, dtype, size in (
        ("one long row", "float64" if DEVICE.fp64 else "float32", 4 << 10),
        ("random", "float32", 1 << 10),
    ):
        small = dataclasses.replace(GPU, local_memory=size, largest_group=64)
        network = network_of(np.tile(PATTERNS[name], (1, 4)), "csr", dtype=dtype)
        span = network.program.span(2, 4, 1)
        listed = [c for c in SparseTeam().space(span, small) if c["stages"] > 1]
        assert listed
        for config in listed[:2]:
            run(network, span, SparseTeam(), config, small)


@pytest.mark.unoptimised
@pytest.mark.parametrize(("number", "setting"), selected(
    {
        f"{variant.name}-{device.type}": i
        for i, (variant, device) in enumerate(VARIANTS)
    },
    {"sigmoid": (0, 9), "gelu": (1, 1), "relu": (2, 70)},
    quick=lambda number, setting: (number + setting) % 3 != 2,
))
def test_dtypes_activations_and_other_batches(number, setting):
    (variant, device), (i, batch) = VARIANTS[number], setting
    name, forms = ("sigmoid", "gelu", "relu")[i], FORMATS[variant.name]
    dtype = "float64" if DEVICE.fp64 and i < 2 else "float32"
    network = network_of(PATTERNS["random"], forms[i % len(forms)], name, dtype)
    assert check(variant, network, batch, device, lambda listed: listed[-1:])


def test_refusals():
    sparse = network_of(PATTERNS["random"], "csr").program
    dense = Network.mlp([4, 5, 3], "tanh").program
    for variant in (SparseTeam(), Sell(), Csr()):
        device = CPU if variant == Csr() else GPU
        assert "not dense" in variant.refuse(dense.span(0, 1, 1), device)
        assert "this op does not" in variant.refuse(dense.span(1, 2, 1), device)
    team = SparseTeam()
    twice = Span((sparse.ops[2], sparse.ops[2]), 1, "float32", ())
    assert "other ops" in team.refuse(twice, GPU)
    assert "not csr" in Sell().refuse(sparse.span(2, 4, 1), GPU)
    assert "not csr" in Dia().refuse(sparse.span(2, 4, 1), GPU)
    tiny = dataclasses.replace(GPU, largest_group=8)
    ell = network_of(PATTERNS["random"], "ell").program
    assert "allows 8" in Sell().refuse(ell.span(2, 4, 1), tiny)
    assert "this op does not" in SparseOuter().refuse(sparse.span(2, 3, 1), GPU)
    old = dataclasses.replace(GPU, fp64=False)
    double = network_of(PATTERNS["random"], "csr", dtype="float64").program
    assert "no float64" in team.refuse(double.span(2, 4, 1), old)
    mixed = Network(90, [Sparse(70, ["tanh", "relu"] * 35, pattern=PATTERNS["random"])])
    assert "neurons differ" in team.refuse(mixed.program.span(0, 2, 1), GPU)
    backward = program_of(network_of(PATTERNS["random"], "ell"))
    (op,) = [i for i, op in enumerate(backward.ops) if isinstance(op, ApplyT)]
    assert "transpose" in Sell().refuse(backward.span(op, op + 1, 1), GPU)

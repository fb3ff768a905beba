"""The csr variant against the oracle, and its refusals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from bounds import span_bound
from test_sparse_variants import PATTERNS
from variant_cases import alternate

import clnet
from clnet import Dense, Network, Sparse
from clnet.ir import reference
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.storage.pattern import Pattern
from clnet.opencl.session import session
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.variants.sparse.sparse import Csr, bounds

CPU = clnet.device("cpu")
RNG = np.random.default_rng(1)


def run(network, batch, device, runs, x):
    span = network.program.span(0, 2, batch)
    assert Csr().refuse(span, device) is None
    step = PlanStep(span, Csr(), {"runs": runs, "tile": 1}, device)
    executable = Executable(session(CPU), network, [step], span.inputs, span.outputs)
    executable.x["x"][...] = x
    executable.run()
    return span, executable.result("y1")


def check(network, batch, device, runs):
    x = RNG.uniform(-1, 1, (batch, network.n_in)).astype(network.dtype)
    span, y = run(network, batch, device, runs, x)
    exact, bound = span_bound(span, {"x": x}, network.parameters)
    assert (np.abs(y - exact["y1"]) <= bound["y1"]).all()


@pytest.mark.unoptimised
@pytest.mark.parametrize(("name", "batch"), alternate(PATTERNS, [1, 3]))
def test_patterns(name, batch):
    mask = PATTERNS[name]
    network = Network(
        mask.shape[1], [Sparse(len(mask), "tanh", pattern=mask)], seed=1
    )
    for device in CPU.places:
        for runs in (1, 2, len(mask)):
            check(network, batch, device, runs)


@pytest.mark.unoptimised
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.sweep] * (i % 5 > 0))
    for i, name in enumerate(ACTIVATIONS)
])
def test_activations(name):
    """`test_variants` has all of them: they are the same in every kernel."""
    dtype = "float64" if CPU.fp64 and len(name) % 2 else "float32"
    layer = Sparse(70, name, 0.5, len(name) % 3 > 0, pattern=PATTERNS["random"])
    network = Network(90, [layer], seed=2, dtype=dtype, fann_compatible=name < "g")
    check(network, 2, CPU, 3)


def test_runs_are_balanced():
    pattern = Pattern.of(PATTERNS["one long row"])
    assert bounds(pattern.starts, 1).tolist() == [0, 36]
    first_rows = bounds(pattern.starts, 4)
    assert first_rows[0] == 0 and first_rows[-1] == 36
    assert (np.diff(first_rows) >= 0).all()
    lengths = [int(pattern.lengths[a:b].sum()) for a, b in pairwise(first_rows)]
    assert max(lengths) <= 300 + 36
    even = bounds(Pattern.of(np.ones((64, 5), bool)).starts, 4)
    assert even.tolist() == [0, 16, 32, 48, 64]


def test_a_network():
    network = Network(90, [Sparse(70, "tanh", pattern=PATTERNS["random"]), Dense(4)])
    x = RNG.uniform(-1, 1, (5, 90)).astype("float32")
    plan = network.compile("cpu", 5, tune=False, variants=["csr", "generic"])
    assert "csr" in plan.explain().split("spans that lost")[0]
    np.testing.assert_allclose(
        plan(x), reference.run(network.program, x, network.parameters), atol=1e-5
    )
    before = plan(x)
    network.parameters = 2 * network.parameters
    assert (plan(x) != before).any()


def test_refusals():
    mask = PATTERNS["random"]

    def refusal(layers, stop=2, device=CPU):
        network = Network(90, layers)
        return Csr().refuse(network.program.span(0, stop, 1), device)

    gpu = clnet.Device("some gpu", "gpu")
    sparse = Sparse(70, pattern=mask)
    assert refusal([sparse]) is None
    assert "not dense" in refusal([Dense(70)])
    assert refusal([Sparse(70, pattern=mask, format="ell")]) is None
    assert refusal([sparse], 1) is None
    assert "some gpu is a gpu" in refusal([sparse], device=gpu)
    names = ["tanh", "relu"] * 35
    assert "neurons differ" in refusal([Sparse(70, names, pattern=mask)])

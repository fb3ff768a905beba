"""Every variant over one list of cases, against the float64 oracle.

On another device: ``CLNET_DEVICE=… pytest tests/variants/test_variants.py``. Every
point of every tuning space: ``-m sweep``.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import product

import numpy as np
import pyopencl as cl
import pytest
from kernel_corpus import spans as spans_of
from variant_cases import (
    H200,
    LAPTOP,
    LEAST,
    NAMES,
    SMALL,
    Case,
    check,
    configs,
    spans,
)

from clnet import Dense, Network, Sparse
from clnet.ir.activation import Nonlinearity
from clnet.ir.lowering import lower_training
from clnet.ir.op import Value
from clnet.ir.program import Span
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.layers import Local
from clnet.nn.losses import loss_function
from clnet.nn.storage.dense import DenseStorage
from clnet.opencl.discovery import device
from clnet.opencl.launch import Scratch
from clnet.opencl.program import WARP_GROUP_MMA
from clnet.opencl.session import session
from clnet.variants import ALL_VARIANTS
from clnet.variants.cost import Cost
from clnet.variants.dense.mma import tile_memory
from clnet.variants.sparse.sparse_outer import SparseOuter

# The cases ---------------------------------------------------------------------------

BATCHES = (1, 2, 3, 17, 64, 129)
# Around whole vectors, teams, groups, tiles and stages; 1 and primes.
N_IN = (1, 2, 3, 4, 5, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 499,
        1023, 1024, 1025, 1031)
N_OUT = (1, 7, 8, 9, 2, 15, 16, 17, 3, 31, 32, 33, 61, 63, 64, 65, 127, 128, 129, 5,
         255, 256, 257)
EDGES = tuple(
    # The input of every other one is an inner value, with padded rows.
    Case((n_in, n_out) if i % 2 else (9, n_in, n_out), BATCHES[i % 6])
    for i, (n_in, n_out) in enumerate(zip(N_IN, N_OUT, strict=True))
) + tuple(Case((37, 70), batch) for batch in BATCHES)
FUNCTIONS = tuple(
    Case(
        (5, 40, 35) if i % 2 else (39, 36), 5, name,
        "float64" if i % 6 == 4 else "float32",
        steepness=(1.0, 0.5, 2.0, -1.0)[i % 4], bias=i % 5 != 3, fann=i % 3 == 2,
    )
    for i, name in enumerate((*ACTIVATIONS, "clip(-0.5, inf)"))
)
CHAINS = (
    Case((1, 1), 1, "tanh"),
    Case((4, 3), 2, "identity"),
    Case((5, 1, 7, 1, 3), 17, "tanh"),
    Case((63, 64, 65), 64, ("relu", "elliot")),
    Case((200, 400, 500, 100), 1),
    Case((33, 129, 4, 257, 10), 129, ("tanh", "sigmoid", "elu", "identity")),
    Case((30, 67, 1030, 9), 3, "tanh", bias=False),
    Case((14, *[21] * len(NAMES)), 5, NAMES),
    Case((14, *[21] * len(NAMES)), 2, NAMES[::-1], steepness=1.5, fann=True),
    Case((31, 67, 12), 3, ("tanh", "gelu"), "float64"),
    Case((64, 130, 5), 17, "softplus", "float64", steepness=0.5),
)
CASES = EDGES + FUNCTIONS + CHAINS


def check_case(variant, case, place, choose):
    network, found = spans(case, variant)
    tried = 0
    for span in found:
        listed = configs(variant, span, place)
        for config in choose(listed):
            check(network, span, variant, config, place, case.seed)
            tried += 1
    if not tried:
        pytest.skip(variant.refuse(found[0], place) or "no config")


def pairs(run_cases, other_cases):
    return [
        pytest.param(variant, case, id=f"{variant.name}-{case}")
        for variant in ALL_VARIANTS
        for case in (run_cases if variant.reach == "run" else other_cases)
    ]


@pytest.fixture(scope="module")
def companion(place):
    if not place.companions:
        pytest.skip("the device has no companion")
    return place.companions[0]


@pytest.mark.parametrize(("variant", "case"), pairs((), EDGES))
def test_edges(variant, case, place):
    """Sizes and batches around every tile edge; one program serves most of them."""
    check_case(variant, case, place, lambda listed: listed[:1])


def some(found):
    """Take two of seven cases of a variant, and two of seven variants of a case."""
    return [
        case if (number + ALL_VARIANTS.index(case.values[0])) % 7 in (0, 3)
        else pytest.param(*case.values, id=case.id, marks=pytest.mark.sweep)
        for number, case in enumerate(found)
    ]


def check_in_turn(variant, case, place):
    """Check one config; together, the cases check all."""
    number = CASES.index(case)
    check_case(
        variant, case, place,
        lambda listed: listed[number % len(listed) :][:1] if listed else [],
    )


@pytest.mark.unoptimised
@pytest.mark.parametrize(("variant", "case"), some(pairs((), FUNCTIONS)))
def test_functions(variant, case, place):
    """Every activation, and every other feature."""
    check_in_turn(variant, case, place)


@pytest.mark.parametrize(("variant", "case"), pairs(CHAINS, ()))
def test_chains(variant, case, place):
    check_in_turn(variant, case, place)


@pytest.mark.parametrize(("variant", "case"), pairs(CHAINS[3:4], EDGES[-2:]))
def test_companion(variant, case, companion):
    check_case(variant, case, companion, lambda listed: listed[-1:])


@pytest.mark.sweep
@pytest.mark.parametrize(("variant", "case"), pairs(CHAINS, EDGES))
def test_all_configs(variant, case, place):
    check_case(variant, case, place, lambda listed: listed)


# Descriptions -----------------------------------------------------------------------

# Variants that read sparse layers, and a format of each.
STENCILS = ("stencil", "stencil_cpu", "stencil_reduction", "trapezoid")
SPARSE = {
    "csr": "csr", "sparse_team": "csr", "sell": "sell", "dia": "dia",
    "fused_sparse": "csr", "persistent_mixed": "csr",
}
# Variants that can store pre-activations too.
STORES_Z = ("gemm", "mma", "csr", "sparse_team", "sell", "dia")


def every_variant():
    return pytest.mark.parametrize("variant", ALL_VARIANTS, ids=lambda v: v.name)


DESCRIBED = (
    Case((1, 1), 1), Case((200, 400, 500, 100), 1), Case((37, 70, 4), 129),
    Case((2000, 1000), 1024), Case((300, 4), 2, dtype="float64"), Case((20_000, 3), 1),
)


ROW = np.arange(36)[:, np.newaxis] == 4  # a row much longer than others
LISTED = {
    form: Network(300, [
        Dense(90), Sparse(36, "tanh", pattern=np.eye(36, 90, dtype=bool) | ROW,
                          format=form), Dense(4, sources=(1, 2)),
    ], seed=1)
    for form in ("csr", "sell", "dia")
}


@cache
def described_spans(case, variant):
    """The spans of a case, or of a network of sparse layers and a batch, both ways."""
    if isinstance(case, Case):
        return spans(case, variant)[1]
    form, batch = case
    network = LISTED[form]
    backward = lower_training(network, loss_function("mse"), None)
    return [
        span for program in (network.program, backward)
        for span in spans_of(program, batch, variant)
    ]


def test_names_are_unique():
    names = [variant.name for variant in ALL_VARIANTS]
    assert len(set(names)) == len(names)
    assert names[-2:] == ["generic", "host"]


@pytest.mark.parametrize(
    "variant", [*ALL_VARIANTS, SparseOuter()], ids=lambda v: v.name
)
@pytest.mark.parametrize("case", [*DESCRIBED, *product(LISTED, (1, 3, 40))], ids=str)
@pytest.mark.parametrize("where", [H200, LAPTOP, SMALL, LEAST], ids=lambda d: d.name)
def test_space_cost_and_launches(variant, case, where):
    for span in described_spans(case, variant):
        refusal = variant.refuse(span, where)
        if refusal is not None:
            assert_is_a_sentence(refusal)
            continue
        space = list(variant.space(span, where))
        assert 1 <= len(space) <= 16
        assert all(space.count(config) == 1 for config in space)
        for config in space:
            cost = variant.cost(span, config, where)
            assert isinstance(cost, Cost)
            assert cost.flops > 0
            written = span.outputs[0]
            assert cost.bytes >= written.height(span.batch) * written.width * 4
            assert 1 <= cost.compute_units <= where.compute_units
            launches = variant.launches(span, config, where)
            calls = [launch for launch in launches if launch.when == "call"]
            assert cost.launches == len(calls)
            scratch = {a for x in calls for a in x.arguments if isinstance(a, Scratch)}
            assert cost.scratch >= sum(a.size for a in scratch)
            for launch in launches:
                assert all(
                    g > 0 and g % n == 0
                    for g, n in zip(launch.global_size, launch.local_size, strict=True)
                )
                assert np.prod(launch.local_size) <= where.largest_group
                # Some devices count groups in y and z in 16 bits.
                groups = np.floor_divide(launch.global_size, launch.local_size)
                assert all(n <= 65535 for n in groups[1:])


def assert_is_a_sentence(text):
    assert text == text.strip()
    assert text[-1] not in ".!?"
    assert "\n" not in text
    assert ". " not in text


@every_variant()
def test_refusals(variant):
    network = Network.mlp([8, 9, 10], "tanh", dtype="float64")
    if variant.name in SPARSE:
        network = network.prune(density=0.5).stored_as(SPARSE[variant.name])
    if variant.name in STENCILS:
        network = Network(8, [Local(3, "tanh")] * 2, dtype="float64")
    ops = {"op": 1, "pair": 2, "layer": 2, "run": 4}[variant.reach]
    batches = {"persistent": 1, "persistent_mixed": 1, "mma_chain": 64}
    batch = batches.get(variant.name, 2)
    span = network.program.span(0, ops, batch)
    single = dataclasses.replace(span, dtype="float32")
    cpu = dataclasses.replace(
        LEAST, local_memory=1 << 20, largest_group=4096, compute_capability=(9, 0)
    )
    assert None in (variant.refuse(single, H200), variant.refuse(single, cpu))
    refusal = variant.refuse(span, LAPTOP)
    assert refusal is not None or variant.name == "host"
    if variant.reach != "op":
        if variant.reach != "pair":  # an op alone is no layer
            assert_is_a_sentence(variant.refuse(network.program.span(0, 1, 2), cpu))
        mixed = Network(3, [Dense(2, ("tanh", "relu"))]).program.span(0, 2, 1)
        assert_is_a_sentence(variant.refuse(mixed, cpu))
        # The hidden value is needed outside.
        needed = dataclasses.replace(
            single, outputs=(single.ops[0].writes[0], *single.outputs)
        )
        refusal = variant.refuse(needed, cpu)
        if variant.name in STORES_Z and len(span.ops) == 2:
            assert refusal is None
        else:
            assert_is_a_sentence(refusal)


def test_fused_local_reports_its_local_memory():
    (variant,) = [v for v in ALL_VARIANTS if v.name == "fused_local"]
    small = dataclasses.replace(H200, local_memory=9000)
    span = Network.mlp([10, 1500, 800, 5]).program.span(0, 6, 1)
    assert f"{4 * 2300} bytes" in variant.refuse(span, small)
    assert f"{small.local_memory}" in variant.refuse(span, small)
    # Local memory holds neither the last layer's output nor more than two layers.
    span = Network.mlp([600, 500, 600, 1500]).program.span(0, 6, 1)
    assert variant.refuse(span, small) is None


def test_local_memory_is_not_more_than_the_device_has(place):
    """The local memory of kernels by the compiler's count, for configs of a GPU."""
    where = session(device())
    network = Network.mlp([300, 700, 40], seed=1)
    asked = []
    for variant in ALL_VARIANTS:
        for batch in (1, 129):
            span = network.program.span(0, 4 if variant.reach == "run" else 2, batch)
            if variant.reach == "op" or variant.refuse(span, H200):
                continue
            for config in list(variant.space(span, H200))[::8]:
                for launch in variant.launches(span, config, H200):
                    if launch.source == "dense/persistent_ring.cl":  # PTX throughout
                        continue
                    kernel = where.kernel(launch, place)
                    size = kernel.get_work_group_info(
                        cl.kernel_work_group_info.LOCAL_MEM_SIZE, place.handle
                    )
                    room = H200.local_memory
                    # PTX may use more than OpenCL reports.
                    if variant.name in ("mma", "mma_chain"):
                        room = tile_memory(config.get("units", WARP_GROUP_MMA), H200)
                    assert size <= room, (variant.name, config)
                    asked.append(size)
    if not any(asked):
        pytest.skip("the driver reports no kernel's local memory")
    assert max(asked) > 30_000


def test_rows_of_odd_width_use_scalar_loads():
    """Vector loads of a contiguous input of odd width would read the next sample."""
    for stride, expected in ((5, 0), (8, 1), (6, 0)):
        x, y = Value("x", 5, stride), Value("y", 3, 3)
        network = Network.mlp([5, 3])
        apply, act = network.program.ops
        span = Span(
            (dataclasses.replace(apply, x=x), dataclasses.replace(act, y=y)),
            2, "float32", (y,),
        )
        for variant in ALL_VARIANTS:
            if variant.name in ("split", "gemm"):
                config = next(iter(variant.space(span, H200)))
                (launch,) = variant.launches(span, config, H200)
                assert launch.defines["X_PADDED"] == expected


def test_constants_of_a_kernel_are_exact():
    """A steepness and a limit reach the kernel exactly, of any size."""
    from clnet.variants.macros import number

    network = Network.mlp([2, 2])
    span = network.program.span(0, 2, 1)
    assert isinstance(span.ops[1].nonlinearity, Nonlinearity)
    assert isinstance(span.ops[0].storage, DenseStorage)
    assert [number(v, span) for v in (0.1, 1e-30, -3, float("inf"), float("-inf"))] == [
        "0.1f", "1e-30f", "-3.0f", "INFINITY", "-INFINITY",
    ]

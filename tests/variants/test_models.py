"""The cost models take every time from the record of rates.

A device that is `FACTOR` times as fast in all takes a `FACTOR`th of the time. A number
of seconds, of clocks, or of bytes or operations a second within a model would not.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from devices import H200

from clnet import Dense, Local, Network, Sparse
from clnet.ir.lowering import lower, lower_training
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import Adam, Rprop
from clnet.opencl.device import Device, Rates
from clnet.planning.candidates import eligible
from clnet.planning.training_planner import TRAINING_VARIANTS
from clnet.variants import ALL_VARIANTS, VARIANTS
from clnet.variants.cost import modelled
from clnet.variants.members import members_variants
from clnet.variants.reference import generic

FACTOR = 8.0  # a power of two: nothing is rounded
CARD = replace(H200, measured=Rates(
    flops=6e13, matrix=4e14, warp_group=9e14, memory=4e12, cache=1e13,
    cache_bytes=48 << 20, latency=1.6e-7, handover=1e-6, launch=5e-6, sync=5e-6,
))
CORES = Device(
    "cores", "cpu", compute_units=4, vector_width=8, operator_math=True,
    largest_group=4096, local_memory=1 << 19,
)
NETWORKS = {
    "narrow": Network(64, [Dense(64, "relu")] * 4, seed=0),
    "wide": Network(200, [Dense(1000, "sigmoid")] * 3, seed=0),
    "mixed": Network(
        400, [Dense(400), Sparse(400, density=0.1), Local(window=3)], seed=0
    ),
    "long": Network(5000, [Local(window=3)] * 3, seed=0),
}
PACKAGE = Path(__file__).parents[2] / "clnet"
CARDS = re.compile(r"\b(?:[ABHV]\d00|RTX|EPYC|Xeon|MI\d{3})\b")


def faster(device):
    """The device with all speeds times the factor."""
    def scaled(name, rate):
        if name == "cache_bytes":
            return rate
        seconds = name in ("latency", "handover", "launch", "sync")
        return rate / FACTOR if seconds else rate * FACTOR

    rates = asdict(device.rates)
    return replace(
        device, measured=Rates(**{n: scaled(n, rate) for n, rate in rates.items()})
    )


def priced(program, batch, variants, device):
    """The variants' spans, configurations and modelled seconds, without the host's."""
    found = eligible(
        program, batch, batch, variants, device,
        lambda variant, span, device: list(variant.space(span, device)), {},
    )
    return [
        ((one.start, one.stop, one.step.variant.name, dict(one.step.config)),
         one.modelled)
        for one in found if one.step.device is not None
    ]


def compare(program, batch, variants, device):
    slow = priced(program, batch, variants, device)
    fast = priced(program, batch, variants, faster(device))
    assert [what for what, _ in slow] == [what for what, _ in fast]  # in order
    for (what, seconds), (_, less) in zip(slow, fast, strict=True):
        assert less == pytest.approx(seconds / FACTOR, rel=1e-12), what
    return {what[2] for what, _ in slow}


@pytest.mark.parametrize("device", [CARD, CORES], ids=lambda device: device.name[:5])
def test_models_of_predictions_take_the_record_alone(device):
    seen = set()
    for network in NETWORKS.values():
        for batch, precision in ((1, "highest"), (32, "highest"), (2048, "high")):
            program = lower(network).at(precision)
            seen |= compare(program, batch, ALL_VARIANTS, device)
    many = {"persistent", "persistent_mma", "persistent_mixed", "mma", "mma_chain",
            "fused_mma", "gemm"}
    assert seen >= (many if device is CARD else {"cpu", "stencil_cpu", "csr"})


@pytest.mark.parametrize("device", [CARD, CORES], ids=lambda device: device.name[:5])
def test_models_of_training_take_the_record_alone(device):
    seen = set()
    for name, rule in (("narrow", Rprop()), ("wide", Adam()), ("mixed", Adam())):
        program = lower_training(NETWORKS[name], loss_function("mse"), rule)
        for batch in (64, 4096):
            seen |= compare(program, batch, TRAINING_VARIANTS, device)
    own = {"fused_step", "mma_backward", "group_step"} if device is CARD else {"epoch"}
    assert seen >= own | {"gemm_backward", "optimisers"}


@pytest.mark.parametrize("device", [CARD, CORES], ids=lambda device: device.name[:5])
def test_models_of_populations_take_the_record_alone(device):
    seen = set()
    for sizes, members in (([2, 3, 1], 10_000), ([48, 96, 3], 100), ([8, 33, 5], 1000)):
        network = Network.mlp(sizes, "tanh", seed=0)
        program = lower_training(network, loss_function("mse"), Rprop())
        variants = members_variants(device, members, 256, False, True)
        seen |= compare(program, 256, variants, device)
    on_cores = {"vector_members", "members"}
    assert seen >= ({"lane_members", "group_members"} if device is CARD else on_cores)


def test_models_hold_no_rate_of_a_card():
    """Names of cards, and numbers as large or small as rates and times are."""
    for path in sorted((PACKAGE / "variants").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not CARDS.search(text), path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, float):
                if node.value == generic.CALL_SECONDS:  # of NumPy's, on no device
                    continue
                assert node.value == 0 or 1e-3 <= abs(node.value) <= 1e3, (
                    f"{path}:{node.lineno}: {node.value} may be of one device"
                )
    others = (PACKAGE / "planning").rglob("*.py"), (PACKAGE / "opencl").rglob("*.py")
    for path in itertools.chain(*others):
        assert not CARDS.search(path.read_text(encoding="utf-8")), path


def test_the_faster_card_differs():
    """The models read the fields that `compare` scales."""
    assert faster(CARD).rates.flops == FACTOR * CARD.rates.flops
    assert faster(CORES).rates.launch == CORES.rates.launch / FACTOR


@pytest.mark.parametrize(("sizes", "quick", "slow"), [
    ((200, 1000, *[3000] * 7, 1000, 100),
     ("persistent_mma", 16, 3, 2, 2), ("persistent_mma", 16, 3, 1, 2)),
    ((64,) * 12, ("fused_mma", 4, 1, 2, 1), ("fused_local", 32, 256, 1)),
], ids=["columns read weights again", "rounds wait"])
def test_kernels_rank_as_an_h200_measured_them(sizes, quick, slow):
    """By measured rates too; see benchmarks/NOTES.md, "Picks on an H200"."""
    times = json.loads((PACKAGE / "times" / "nvidia-h200.json").read_text())
    program = lower(Network.mlp(sizes, seed=0))
    span = program.span(0, len(program.ops), 32)
    for card in (H200, replace(H200, measured=Rates(**times["rates"][0]))):
        seconds = {
            (one.name, *config.values()): modelled(one.cost(span, config, card), card)
            for one in VARIANTS if one.name in (quick[0], slow[0])
            for config in one.space(span, card)
        }
        assert seconds[quick] < seconds[slow]

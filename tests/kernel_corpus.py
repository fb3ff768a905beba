"""Every kernel in every configuration, as the variants describe them for a device.

The networks have all layers, activations, formats, losses and rules. They are small:
oclgrind interprets a case in about a second. The `large` ones, with larger tiles and
teams, are for compilers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bounds import WITH_PARAMETERS

from clnet import Dense, Local, Network, Sparse
from clnet.ir.lowering import lower, lower_training
from clnet.ir.program import Program, Span, ensemble
from clnet.ir.sparse_input import SparseShape
from clnet.nn.activations import ACTIVATIONS
from clnet.nn.cascade import RULES, Cascade, network_neuron
from clnet.nn.losses import LOSSES, loss_function
from clnet.nn.optimisers import OPTIMISERS, optimiser
from clnet.nn.regularisation import Regularisation
from clnet.opencl.device import Device
from clnet.opencl.launch import Launch
from clnet.opencl.probes import MAX_POLLS
from clnet.opencl.program import WARP_MMA, matrix_units, source_text
from clnet.planning.training_planner import TRAINING_VARIANTS
from clnet.variants import ALL_VARIANTS, STUDY_VARIANTS
from clnet.variants.base import Config, Variant
from clnet.variants.cascade.cascade import (
    CascadeSamples,
    NeuronsTraining,
    NeuronValues,
)
from clnet.variants.dense.naive import EnsembleOutputs
from clnet.variants.members.group_members import GroupMembers, LaneMembers
from clnet.variants.members.members import TrainMembers, VectorMembers
from clnet.variants.packing import merge_packings
from clnet.variants.training.optimisers import TYPES, gradient_sum, place_rows

NAMES = (*ACTIVATIONS, *WITH_PARAMETERS)
FORMATS = ("csr", "coo", "ell", "hyb", "dia", "sell", "dense")
VARIANTS = tuple(
    {v.name: v for v in (*ALL_VARIANTS, *STUDY_VARIANTS, *TRAINING_VARIANTS)}.values()
)
SHORT = 10  # ops
NUMBER = re.compile(r"[1-9]\d+|[2-9]")
FEW = ("rprop", "adam")  # rules of every network

# The records are of what the drivers report (ROCm 5 and 6, Intel's compute runtime).
GFX90A = Device(
    "gfx90a", "gpu", compute_units=104, global_memory=64 << 30, largest_buffer=54 << 30,
    local_memory=64 << 10, declared_local_memory=64 << 10, unit_local_memory=64 << 10,
    largest_group=1024, simd_width=64, fp64=True, fp16=True, forward_progress=True,
)
GFX1100 = replace(
    GFX90A, name="gfx1100", compute_units=48, global_memory=24 << 30,
    largest_buffer=20 << 30, largest_group=256, simd_width=32,
)
DG2 = Device(
    "dg2", "gpu", compute_units=512, global_memory=16 << 30, largest_buffer=4 << 30,
    local_memory=64 << 10, declared_local_memory=64 << 10, unit_local_memory=64 << 10,
    largest_group=1024, simd_width=32, fp16=True, subgroups=True, forward_progress=True,
)
PVC = replace(
    DG2, name="pvc", compute_units=1024, local_memory=128 << 10, fp64=True,
    declared_local_memory=128 << 10, unit_local_memory=128 << 10,
)
DEVICES = {device.name: device for device in (GFX1100, GFX90A, DG2, PVC)}
AMPERE = replace(
    GFX90A, name="ampere", declared_local_memory=48 << 10, simd_width=32,
    unit_local_memory=226 << 10, compute_capability=(8, 0),
)
HOPPER = replace(AMPERE, name="hopper", compute_capability=(9, 0))
CORE = replace(GFX90A, name="core", type="cpu", compute_units=1, serial=True)
CORES = replace(
    GFX90A, name="cores", type="cpu", compute_units=4, companions=(CORE,)
)
RECORDS = (*DEVICES.values(), AMPERE, HOPPER, CORE, CORES)


@dataclass(frozen=True)
class KernelCase:
    """A span of a program, in one configuration of a variant."""

    network: Network
    program: Program
    span: Span
    variant: Variant
    config: Config
    name: str

    def launches(self, device: Device) -> list[Launch]:
        """Return its launches as the runtime makes them."""
        return merge_packings(self.variant.launches(self.span, self.config, device))


@dataclass(frozen=True)
class Source:
    """A program's text, with its launches."""

    name: str
    file: str
    text: str
    launches: list[Launch]


def small() -> Iterator[tuple[str, Network, tuple[int, ...]]]:
    """Yield names, networks and batches."""
    mlp = Network.mlp
    yield "parity", mlp([5, 7, 3], "tanh", seed=4), (1, 3, 17)
    yield "narrow", mlp([16] * 4, "tanh", seed=3), (1, 17, 64)
    yield "uniform", mlp([20, 36, 19, 8], "sigmoid", seed=2), (1, 5, 33)
    yield "softmax", mlp([12, 20, 6], ("relu", "softmax"), seed=5), (4,)
    yield "double", mlp([11, 18, 5], ("tanh", "gelu"), dtype="float64", seed=6), (1, 9)
    yield "dropout", mlp([10, 20, 5], "tanh", dropout=0.2, seed=7), (8,)
    for dtype, form in itertools.product(("float32", "float64"), FORMATS):
        layers = [
            Sparse(30, density=0.2, format=form, seed=1), Dense(12, "tanh"),
            Sparse(17, density=0.3, format=form, seed=2),
        ]
        network = Network(40, layers, seed=8, dtype=dtype)
        yield f"{form}-{dtype}", network, (1, 6) if dtype == "float32" else (2,)
    for dtype in ("float32", "float64"):
        layers = [Local(window=5, activation="tanh") for _ in range(3)]
        yield f"local-{dtype}", Network(40, layers, seed=9, dtype=dtype), (1, 5)
    layers = [
        Sparse(30, density=0.2, seed=1), Local(window=7, activation="tanh"),
        Dense(16, "relu"), Dense(5),
    ]
    yield "mixed", Network(24, layers, seed=10), (1, 6)
    yield "functions", mlp([9, *[8] * len(NAMES)], NAMES, seed=1), (3,)
    yield "log_softmax", mlp([12, 20, 6], ("relu", "log_softmax"), seed=11), (4,)
    layers = [Dense(6, name, 0.5) for name in NAMES if name != "softmax"]
    yield "fann", Network(9, layers, seed=1, fann_compatible=True), (3,)


def sample() -> Iterator[tuple[str, Network, tuple[int, ...]]]:
    """Yield the small networks that together run every kernel, most at one batch."""
    for name, network, batches in small():
        if name in ("narrow", "mixed"):  # kernels of single samples
            yield name, network, batches[:1]
        last = "parity", "softmax", "log_softmax", "dropout", "mixed"
        if name in last or "float32" in name:
            yield name, network, batches[-1:]


def large() -> Iterator[tuple[str, Network, tuple[int, ...]]]:
    """Yield names, networks and batches that only compilers read."""
    mlp = Network.mlp
    yield "cfg1", mlp([200, 400, 500, 500, 400, 100], seed=0), (1, 32, 1024)
    yield "wide", mlp([784, 1024, 10], ("relu", "softmax"), seed=1), (1, 256)
    yield "deep", mlp([64] * 6, "tanh", seed=2), (64, 4096)
    yield "large-double", mlp([200, 300, 20], dtype="float64", seed=3), (1, 128)
    for form in FORMATS:
        layers = [
            Sparse(200, density=0.05, format=form, seed=1), Dense(40, "tanh"),
            Sparse(30, density=0.2, format=form, seed=2),
        ]
        yield f"large-{form}", Network(300, layers, seed=4), (1, 64)
    yield "broad", mlp([40, 3000], "softmax", seed=6), (16,)
    layers = [Local(window=5, activation="tanh") for _ in range(5)]
    yield "large-local", Network(2000, layers, seed=5), (1, 64)


def wide() -> Iterator[tuple[str, Network, tuple[int, ...]]]:
    """Yield the large networks with kernels that small ones do not need."""
    names = ("wide", "deep", "broad", "large-local")
    yield from (row for row in large() if row[0] in names)


def programs(name: str, network: Network, batch: int) -> Iterator[tuple[str, Program]]:
    """Yield the programs of a network: inference, and training by rules and losses."""
    yield "infer", lower(network)
    softmax = network.layers[-1].activation in ("softmax", "log_softmax")
    usual = loss_function("categorical_cross_entropy" if softmax else "mse")
    for rule in OPTIMISERS if name in ("parity", "csr-float32", "double") else FEW:
        if rule == "incremental" and batch > 1:
            continue
        gathered = rule == "adam"
        yield rule, lower_training(
            network, usual, optimiser(rule), shuffled=gathered,
            samples=4 * batch + 1 if gathered else None,
        )
    if name == "parity":
        for loss in LOSSES:
            if LOSSES[loss].activation is None:
                yield loss, lower_training(
                    network, loss_function(loss), optimiser("batch"), weighted=True
                )
    if name in ("parity", "double"):
        yield "sparse", lower_training(
            network, usual, optimiser("sgd"), samples=50, shuffled=True,
            sparse=SparseShape(50, 120),
        )
        for kind, regularisation in {
            "norm": Regularisation(l1=0.1, l2=0.2, clip_norm=1.0),
            "value": Regularisation(l2=0.2, clip_value=1.0),
        }.items():
            yield kind, lower_training(
                network, usual, optimiser("adam"), samples=50, shuffled=True,
                weighted=True, regularisation=regularisation,
            )


def spans(program: Program, batch: int, variant: Variant) -> Iterator[Span]:
    """Yield a program's spans of a variant's reach; of long programs, few runs."""
    n = len(program.ops)
    lengths = {
        "op": (1,), "pair": (1, 2), "layer": (2,), "triple": (1, 2, 3),
        "quad": (1, 2, 4), "output": (8,),
        "run": range(2, n + 1) if n <= SHORT else (4, n), "program": (n,),
    }[variant.reach]
    for length in lengths:
        for start in range(n - length + 1):
            yield program.span(start, start + length, batch)


def cases(device: Device, networks=small) -> Iterator[KernelCase]:
    """Yield every span, variant and configuration of the networks on a device."""
    for name, network, batches in networks():
        for batch in batches:
            for kind, program in programs(name, network, batch):
                for variant in VARIANTS:
                    for span in spans(program, batch, variant):
                        if variant.refuse(span, device) is not None:
                            continue
                        for config in variant.space(span, device):
                            yield KernelCase(
                                network, program, span, variant, config,
                                f"{name}x{batch}-{kind}-{variant.name}",
                            )


def outline(*launches: Launch) -> tuple[object, ...]:
    """Return what distinguishes launches' programs, but for numbers above 1."""
    return tuple(
        (launch.source, launch.kernel, *(
            (name, NUMBER.sub("2", str(value)))
            for name, value in sorted(launch.defines.items())
        ))
        for launch in launches
    )


def single_launches(device: Device) -> Iterator[Launch]:
    """Yield the launches that belong to no variant: probes and the reduction."""
    cpu = device.type == "cpu"
    items = 1 if cpu else min(256, device.largest_group)
    sizes = {"REAL": "float", "WIDTH": 8 if cpu else 4, "UNROLL": 8}
    waits = {"GROUP": items, "MAX_POLLS": MAX_POLLS}
    reads = ("read_chunks", "read_shares") if cpu else ("read_coalesced", "read_around")
    groups = {"global_size": (items,), "local_size": (items,), "arguments": ()}
    for source, kernel, defines in (
        ("doctor", "probe", {"SIZE": items}),
        ("forward_progress", "forward_progress",
         {**waits, "LOCAL": device.local_memory}),
        ("mapped_host_memory", "mapped_host_memory", {}),
        ("launch", "launch", {}),
        ("latency", "chase", waits),
        ("latency", "handover", waits),
        *(("bandwidth", kernel, sizes) for kernel in (*reads, "copy")),
        ("rate", "multiply_add", {**sizes, "CHAINS": 4}),
        *(
            ("matrix", "matrix", {"UNITS": units, "SPLITS": 1})
            for units in matrix_units(device) if units == WARP_MMA
        ),
    ):
        yield Launch(f"probes/{source}.cl", kernel, defines, **groups)
    for dtype in ("float32", "float64") if device.fp64 else ("float32",):
        yield gradient_sum(1000, dtype, device)
    if cpu:
        for dtype, stride, columns in itertools.product(
            ("float32", "float64"), (5, 16), (False, True)
        ):
            for types in zip(TYPES, reversed(TYPES), strict=True):
                yield place_rows(dtype, stride, types, 100, 64, columns)[0]


def member_launches(device: Device) -> Iterator[Launch]:
    """Yield the launches of populations."""
    network = Network.mlp([3, 20, 2], ("gelu", "tanh"), seed=0)
    for rule, subsets, regularisation in (
        ("adam", False, Regularisation(clip_norm=1.0)),
        ("rprop", True, Regularisation(l1=0.1, l2=0.2)),
    ):
        program = lower_training(
            network, loss_function("mse"), optimiser(rule),
            samples=50 if subsets else None, shuffled=subsets,
            regularisation=regularisation,
        )
        span = program.span(0, len(program.ops), 50)
        for variant in (
            LaneMembers(4, 50, subsets), GroupMembers(4, subsets),
            GroupMembers(4, subsets, exact=True),
            TrainMembers(device.compute_units, subsets),
            VectorMembers(device.compute_units),
        ):
            if variant.refuse(span, device) is not None:
                continue
            for config in variant.space(span, device):
                yield from variant.launches(span, config, device)


def ensemble_launches(device: Device) -> Iterator[Launch]:
    """Yield the launches of outputs of many networks."""
    variant = EnsembleOutputs()
    for output in None, "softmax", "log_softmax":
        network = Network.mlp([3, 20, 2], ("gelu", "tanh"), output=output, seed=0)
        for batch in 1, 50:
            span = ensemble(lower(network), 5).span(0, 1, batch)
            if variant.refuse(span, device) is None:
                yield from variant.launches(span, {}, device)


def cascade_launches(device: Device) -> Iterator[Launch]:
    """Yield launches of cascade training."""
    samples = CascadeSamples("training", 100, 9, 2)
    outputs = tuple(network_neuron(name, 1.0, True) for name in ("tanh", "sigmoid"))
    for rule in RULES:
        of_outputs = NeuronsTraining(
            samples, outputs, False, optimiser(rule), "fann_tanh", 0.35, 4, True, True
        )
        candidates = replace(of_outputs, neurons=Cascade().neurons(), candidates=True)
        yield of_outputs.launch(device)
        yield candidates.launch(device)
        for residuals in (False, True):
            yield NeuronValues(
                samples, outputs, of_outputs.parameters, residuals, True, True
            ).launch(device)


def launches(device: Device, networks=small) -> Iterator[tuple[str, Launch]]:
    """Yield the launches for a device, each with the name of its case."""
    for case in cases(device, networks):
        for launch in case.launches(device):
            yield f"{case.name} {dict(case.config)}", launch
    for launch in (
        *single_launches(device), *member_launches(device), *cascade_launches(device),
        *ensemble_launches(device),
    ):
        yield launch.source, launch


def sampled_launches() -> Iterator[Launch]:
    """Yield launches of all kernels and records, of few networks."""
    for device, networks in (
        *((device, sample) for device in RECORDS), (GFX90A, wide), (HOPPER, wide)
    ):
        yield from (launch for _, launch in launches(device, networks))


def sources(device: Device, networks=small) -> dict[str, Source]:
    """Return the distinct programs for a device by their text."""
    found: dict[str, Source] = {}
    for name, launch in launches(device, networks):
        text = source_text(launch.source, launch.defines, device)
        if text not in found:
            found[text] = Source(name, launch.source, text, [])
        if launch not in found[text].launches:
            found[text].launches.append(launch)
    return found

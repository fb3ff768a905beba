"""Random covers: every variant that is eligible, in any of its configurations."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from devices import LaunchesFor

from clnet.ir.program import Program, Span
from clnet.opencl.device import Device
from clnet.planning.candidates import eligible
from clnet.planning.training_planner import TRAINING_VARIANTS
from clnet.runtime.binding import PlanStep
from clnet.variants import ALL_VARIANTS
from clnet.variants.base import Config, Variant

from .cases import Case

REFERENCES = ("generic", "generic_backward")
WHOLE_STEPS = tuple(v.name for v in TRAINING_VARIANTS if v.reach == "program")
SPLIT_VARIANTS = ("mma", "mma_chain", "fused_mma", "persistent_mma", "mma_backward",
                  "fused_step")
"""The variants whose products are of fp16 splits."""

SAME = 0.75  # share of spans that another batch computes by the same variant
PREFERRED = 0.7  # share of steps in one of the season's preferred configurations
LARGEST_GROUP = 256  # of configurations for GPUs on a CPU, where a build takes long


def faces(device: Device) -> tuple[Device, ...]:
    """Return the device, and on a CPU, records of GPUs whose kernels it runs too.

    The last one has matrix units, which kernels replace by plain loops elsewhere.
    """
    if device.type != "cpu":
        return (device,)
    gpu = replace(
        device, type="gpu", companions=(), simd_width=32,
        # Groups that wait for each other are as many as the device runs.
        compute_units=device.compute_units if device.forward_progress else 132,
        local_memory=min(device.local_memory, 47 << 10),
        declared_local_memory=min(device.declared_local_memory, 48 << 10),
        largest_group=LARGEST_GROUP,
    )
    return device, gpu, replace(
        gpu, compute_capability=(9, 0), unit_local_memory=226 << 10,
        largest_group=1024,
    )


def candidates(
    program: Program, batch: int, device: Device
) -> dict[int, dict[str, list[PlanStep]]]:
    """Return the eligible steps by their first op and their variant's name."""
    trains = len(program.outputs) > 1 or program.output.rows is not None
    variants = TRAINING_VARIANTS if trains else ALL_VARIANTS
    found: dict[int, dict[str, list[PlanStep]]] = defaultdict(lambda: defaultdict(list))
    known = set()
    for face in faces(device):
        posing = [v for v in variants if _poses(v, face, device)]
        for candidate in eligible(program, batch, batch, posing, face, _space, {}):
            step = candidate.step
            if step.device is face and face is not device:
                variant = step.variant
                if face.compute_capability is None:
                    variant = LaunchesFor(variant, face)
                step = replace(step, variant=variant, device=device)
            key = (candidate.start, candidate.stop, step.variant.name,
                   *sorted(step.config.items()), step.device)
            if key not in known:
                known.add(key)
                found[candidate.start][step.variant.name].append(step)
    return found


def _poses(variant: Variant, face: Device, device: Device) -> bool:
    """Return whether a record stands for a variant: matrix units for theirs alone.

    PoCL takes minutes to compile the plain path of ``fused_step``.
    """
    return face is device or face.compute_capability is None or (
        variant.name in SPLIT_VARIANTS and variant.name != "fused_step"
    )


def _space(variant: Variant, span: Span, device: Device) -> Sequence[Config]:
    return list(variant.space(span, device))


def cover(
    program: Program, batch: int, device: Device, case: Case,
    same: dict[tuple[int, int], tuple[str, Config]],
) -> list[PlanStep]:
    """Return the steps of a random cover."""
    rng = np.random.default_rng([case.cover, batch])
    found = candidates(program, batch, device)
    steps: list[PlanStep] = []
    at = 0
    while at < len(program.ops):
        if case.only is None:
            step = _drawn(found[at], rng, at, same, case.season)
        else:
            step = _wanted(found[at], case.only)
        steps.append(step)
        start, at = at, at + len(step.span.ops)
        same[start, at] = step.variant.name, step.config
    return steps


def _drawn(
    found: Mapping[str, list[PlanStep]], rng: np.random.Generator, at: int,
    same: Mapping[tuple[int, int], tuple[str, Config]], season: int,
) -> PlanStep:
    again = [
        step for steps in found.values() for step in steps
        if same.get((at, at + len(step.span.ops))) == (step.variant.name, step.config)
    ]
    if again and rng.random() < SAME:
        return again[0]
    names = sorted(found)
    # Reference variants are eligible everywhere, variants of whole steps at one place.
    shares = np.array([
        0.3 if name in REFERENCES else 3.0 if name in WHOLE_STEPS else 1.0
        for name in names
    ])
    name = names[rng.choice(len(names), p=shares / shares.sum())]
    steps = found[name]
    if rng.random() < PREFERRED:
        steps = sorted(steps, key=lambda step: zlib.crc32(
            f"{season} {sorted(step.config.items())}".encode()
        ))[:2]
    return steps[rng.integers(len(steps))]


def _wanted(
    found: Mapping[str, list[PlanStep]], only: tuple[str, Mapping[str, int]]
) -> PlanStep:
    name, config = only
    for step in found.get(name, ()):
        if dict(step.config) == dict(config):
            return step
    return next(found[name][0] for name in REFERENCES if name in found)

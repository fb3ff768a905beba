"""Trials of cascade training's launches: no planner compares them with the oracle.

All of them run for a few epochs, beside the reference in NumPy, before the first
training counts. On an untested runtime they run in a child process first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import DeviceError, OutOfMemoryError, warn
from clnet.opencl.child_trial import death, survives
from clnet.opencl.session import session
from clnet.opencl.store import store_of
from clnet.planning.tuning.fingerprint import (
    launches_fingerprint,
    programs_fingerprint,
)
from clnet.planning.tuning.oracle import (
    ATTEMPTS,
    CHECKED_FLOPS,
    TOLERANCE,
    WrongResultError,
    difference,
    farthest,
    perturb,
    quiet_errors,
    tame_rate,
)
from clnet.training.cascade.launches import CascadeBinding, NeuronGroup, Parts
from clnet.training.cascade.reference import ReferenceBinding, ReferenceGroup
from clnet.variants.cascade.cascade import TILE

if TYPE_CHECKING:
    from clnet.opencl.device import Device
    from clnet.opencl.session import Session
    from clnet.variants.cascade.cascade import CascadeSamples, NeuronsTraining

Array = NDArray[Any]
_Call = Callable[[int, int, int], None]

EPOCHS = 2
LEAST = 4 * TILE  # samples, whatever they cost
ERROR = 0.5  # by value, of candidates' rule


def bound(parts: Parts, session: Session) -> CascadeBinding | ReferenceBinding:
    """Return launches bound to memory, or in NumPy where the kernels are wrong.

    A kept binding is taken if there is one. Right kernels are remembered: comparing
    costs once per device. Wrong ones are left out with a warning.
    """
    kept: CascadeBinding | None = session.kept.pop(parts, None)
    if kept is not None:
        return kept
    device, store = session.device, store_of(session.device)
    fact = f"compared cascade {_key_of(parts, device)}"
    if not store.fact(fact):
        kernel, few = parts.outputs.launch(device).kernel, reduced(parts)
        programs = programs_fingerprint(parts.launches(device), device)
        try:
            if device.untested and not survives(
                store, f"cascade {programs}", _run, few, device
            ):
                raise DeviceError(death(kernel, device))
            check(few, session)
        except OutOfMemoryError:
            raise
        except (DeviceError, WrongResultError) as error:
            warn(f"{kernel} is left out: {error}")
            return ReferenceBinding(parts)
        store.put_fact(fact, True)
    return CascadeBinding(session, parts)


@lru_cache(maxsize=64)
def _key_of(parts: Parts, device: Device) -> str:
    return launches_fingerprint(parts, parts.launches(device), device)


def check(parts: Parts, session: Session) -> None:
    """Compare the results of launches with the reference's."""
    tolerance = TOLERANCE[parts.outputs.dtype]
    for seed, draws in ATTEMPTS:
        with quiet_errors(session):
            actual = results(CascadeBinding(session, parts), parts, seed)
            exact = results(ReferenceBinding(parts), parts, seed)
            perturbed = farthest(exact, [
                results(ReferenceBinding(parts), parts, seed, tolerance, draw + 1)
                for draw in range(draws)
            ])
        for name, result in actual.items():
            fault = difference(result, exact[name], perturbed[name], tolerance)
            if fault is not None:
                fault = f"{fault}, in {name}"
                break
        else:
            return
    raise WrongResultError(f"{parts.outputs.launch(session.device).kernel} {fault}")


class _TwoEpochs:
    """Ends each training after `EPOCHS`, and keeps its records."""

    def __init__(self) -> None:
        self.records: list[Array] = []

    def earliest(self, done: int) -> int:
        """Return `EPOCHS`."""
        return EPOCHS

    def last(self, done: int, records: Array) -> int | None:
        """Return the number of epochs, if they are the last."""
        self.records.append(records)
        return len(records) if done + len(records) == EPOCHS else None


def results(
    binding: CascadeBinding | ReferenceBinding, parts: Parts, seed: int,
    relative: float = 0.0, draw: int = 1,
) -> dict[str, Array]:
    """Run all launches on random samples, and return their results [rows, width]."""
    rng, by_name = np.random.default_rng(seed), dict[str, Array]()
    rows, outputs = parts.outputs.samples.rows, parts.outputs.samples.outputs
    half = (rows + 1) // 2
    errors: Sequence[_Call] = binding.errors
    installs: Sequence[_Call] = binding.install

    def random(*shape: int, low: float = -1.0, high: float = 1.0) -> Array:
        values = rng.uniform(low, high, shape).astype(np.float32)
        return perturb(values, relative, draw) if relative else values

    def train(
        population: NeuronGroup | ReferenceGroup, training: NeuronsTraining,
        n_in: int, read: int,
    ) -> None:
        rule = _TwoEpochs()
        weights = random(len(training.neurons), read) / np.float32(np.sqrt(read))
        population.start(weights)
        population.train(n_in, EPOCHS, rule, error=ERROR, steps=0, seed=seed)
        of = f"of {training.name} that read {n_in} values"
        by_name[f"records {of}"] = np.concatenate(rule.records).reshape(EPOCHS, -1).T
        by_name[f"weights {of}"] = population.weights(read)

    for number, samples in enumerate(parts.samples):
        n = samples.samples
        binding.upload(number, random(half, n), random(outputs, n, low=0.0, high=0.9))
    for n_in in (half, rows):
        train(binding.outputs, parts.outputs, n_in, n_in)
        for number, error in enumerate(errors):
            for output in range(outputs):
                error(output, n_in, output)
            of = f"of {parts.samples[number].name} by {n_in} values"
            by_name[f"residuals {of}"] = binding.residuals(number)
        train(binding.candidates, parts.candidates, n_in, n_in + outputs)
        for install in installs:
            for row in range(n_in, rows):  # by as many candidates, read from now on
                install(row % len(parts.added), n_in, row)
    return by_name


def reduced(parts: Parts) -> Parts:
    """Return launches of so few samples that a check takes `CHECKED_FLOPS`, or `LEAST`.

    Their learning rate is tame. The last tile is as full as before.
    """
    first = parts.samples[0]
    neurons = len(parts.outputs.neurons) + len(parts.candidates.neurons)
    most = max(LEAST, int(CHECKED_FLOPS / (16 * EPOCHS * first.rows * neurons)))

    def fewer(samples: CascadeSamples) -> CascadeSamples:
        n = samples.samples
        if n > most:
            n = most // TILE * TILE + n % TILE
        return replace(samples, samples=n)

    samples = tuple(map(fewer, parts.samples))

    def brief(training: NeuronsTraining) -> NeuronsTraining:
        rule = training.rule
        if hasattr(rule, "learning_rate"):
            changes: dict[str, Any] = {"learning_rate": tame_rate(rule)}
            rule = replace(rule, **changes)
        return replace(training, samples=samples[0], epochs=EPOCHS, rule=rule)

    return replace(
        parts, samples=samples, outputs=brief(parts.outputs),
        candidates=brief(parts.candidates),
    )


def _run(parts: Parts, device: Device) -> None:
    """Run all launches on a device."""
    results(CascadeBinding(session(device), parts), parts, 0)

"""Cascade trainings beside the oracle: each launch of `fit`, and the network it grows.

Rules that know signs, and the choice of the best candidate, magnify roundings. So every
epoch is judged from the device's own weights before it: a launch of several must be
that of one each, bit for bit, and one epoch's gradients have bounds. The new weights
must be what the rule makes of some gradient within these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from bounds import span_bound, tiny
from deviations import FUNCTION_ROUNDINGS

from clnet import Network
from clnet.errors import ClnetWarning
from clnet.ir import cascade as oracle
from clnet.nn.losses import loss_function
from clnet.nn.optimisers import (
    Optimiser,
    Quickprop,
    Rprop,
    Sarprop,
    StepInfo,
)
from clnet.opencl.device import Device
from clnet.training.cascade import training
from clnet.training.cascade.launches import CascadeBinding, NeuronGroup, Values
from clnet.variants.cascade import cascade
from clnet.variants.cascade.cascade import NeuronsTraining

from .cascade_bounds import U, candidate_bounds, output_bounds, propagated
from .cascade_cases import CascadeOptions
from .cases import Case
from .check import Skipped, WrongError, largest

LARGEST = 1e6  # values beyond it are of a training that diverges
PREDICTED = 8  # of so many cases, one network predicts


class Cascades:
    """`Network.fit` by cascade training, each of whose launches is compared."""

    def __init__(
        self, case: Case, network: Network, device: Device, same: dict[Any, Any]
    ) -> None:
        options = case.options
        self.network = network
        self._device = device
        if device.type == "cpu":  # kernels of GPUs run there too
            self._device = replace(
                device, type=options.kernel, companions=(),
                compute_units=min(device.compute_units, options.units),
            )
        kernel = "cascade" if self._device.type == "cpu" else "group_cascade"
        config = dict(options.constants)
        if kernel == "cascade":
            config = {"BLOCK": config["BLOCK"], "units": self._device.compute_units}
        else:
            del config["BLOCK"]
        # As steps of a plan, for the report.
        self.steps = [SimpleNamespace(
            variant=SimpleNamespace(name=kernel), config=config
        )]

    def __call__(self, case: Case) -> float:
        """Run a case, and return its largest error over the bound."""
        options = case.options
        network = case.network()
        x, t = data(case, options.samples, 0)
        validation = data(case, options.validation, 1) if options.validation else None
        self._worst = 0.0
        start = len(network.layers)
        try:
            with self._checked(options):
                history = network.fit(
                    x, t, optimiser=options.chosen, loss=options.loss,
                    max_neurons=options.neurons, validation=validation,
                    seed=case.seed % (1 << 62), device=self._device,
                )
        except ClnetWarning as warning:
            if "diverged" in str(warning):  # launches so far are as the oracle's
                raise Skipped("the training diverges") from None
            if "reach" not in str(warning):
                raise
            raise Skipped("targets are out of reach") from None
        if len(network.layers) - start != len(history) - 1:
            raise WrongError(f"{len(history)} trainings of the outputs made {network}")
        if case.seed % PREDICTED == 0:
            self._predicts(network, x)
        if validation is not None:
            self._validated(case, network, validation, history)
        return self._worst

    def _predicts(self, network: Network, x: Any) -> None:
        exact, bound = outputs_of(network, x)
        y = network.predict(x, self._device)
        self._compare(np.abs(y - exact), bound, "the grown network's output")

    def _validated(
        self, case: Case, network: Network, validation: Any, history: Any
    ) -> None:
        """Compare the last errors of the validation with the grown network's."""
        x, t = validation
        exact, bound = outputs_of(network, x)
        fann = case.fann_compatible or loss_function(case.options.loss).fann
        half = np.array([
            0.5 if fann and oracle.activation(name).symmetric else 1.0
            for name in [network.layers[-1].activation] * network.n_out
        ])
        size = half * (np.abs(t) + np.abs(exact) + bound)
        mse = ((half * (t - exact)) ** 2).mean()
        error = abs(history[-1].validation.mse - mse)
        self._compare(error, (2 * size * (bound + 4 * U * size)).mean(), "validation")

    def _compare(self, error: Any, bound: Any, what: str) -> None:
        self._worst = max(self._worst, largest(error, bound + tiny("float32"), what))

    @contextlib.contextmanager
    def _checked(self, options: CascadeOptions) -> Iterator[None]:
        """Let all launches be compared, and kernels have a configuration."""
        def bound(parts: Any, session: Any) -> CascadeBinding:
            return CascadeBinding(session, parts)

        def upload(binding: Any, number: int, inputs: Any, targets: Any) -> None:
            samples = binding._parts.samples[number]
            rows = np.full((samples.rows, samples.samples), np.nan)  # not to be read
            rows[: len(inputs)] = inputs
            binding._workspace.write(samples.inputs, samples.tiled(rows))
            binding._workspace.write(samples.targets, samples.tiled(targets))

        make, values = NeuronGroup.__init__, Values.__init__

        def population(one: Any, workspace: Any, described: NeuronsTraining) -> None:
            make(one, workspace, described)
            one._launch = CheckedEpochs(self, workspace, described, one._launch)

        def value(one: Any, workspace: Any, described: Any, of: Any) -> None:
            values(one, workspace, described, of)
            one._launch = CheckedValues(self, workspace, described, of, one._launch)

        with contextlib.ExitStack() as patches:
            for name, number in options.constants:
                patches.enter_context(mock.patch.object(cascade, name, number))
            for owner, name, other in (
                (training, "bound", bound), (CascadeBinding, "upload", upload),
                (CascadeBinding, "keep", lambda binding: None),
                (NeuronGroup, "__init__", population), (Values, "__init__", value),
            ):
                patches.enter_context(mock.patch.object(owner, name, other))
            yield


def data(case: Case, samples: int, number: int) -> tuple[Any, Any]:
    """Return inputs and targets of a set."""
    rng = np.random.default_rng([case.seed, 8, number])
    scale = rng.choice([0.1, 1.0, 1.0, 3.0])
    x = rng.uniform(-scale, scale, (samples, case.n_in))
    if rng.random() < 0.3:
        x[rng.random(x.shape) < 0.5] = 0
    t = rng.uniform(0.02, 0.98, (samples, case.layers[-1].n_out))
    if rng.random() < 0.5:
        t = np.rint(t)
    return x.astype(np.float32), t.astype(np.float32)


def outputs_of(network: Network, x: Any) -> tuple[Any, Any]:
    """Return a network's exact outputs and bounds of a device's errors."""
    program = network.program
    span = program.span(0, len(program.ops), len(x))
    exact, bounds = span_bound(span, {program.input.name: x}, network.parameters)
    return exact[program.output.name], bounds[program.output.name]


@dataclass
class Epoch:
    """Neurons and their data before an epoch, in float64."""

    training: NeuronsTraining
    inputs: Any
    targets: Any
    weights: Any


class CheckedEpochs:
    """A launch of epochs, which are compared one by one."""

    def __init__(
        self, owner: Cascades, workspace: Any, described: NeuronsTraining, launch: Any
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._training, self._launch = described, launch

    def __call__(self, *, epochs: int, **now: float) -> None:
        """Run the epochs, and each of them again."""
        described, workspace = self._training, self._workspace
        count = len(described.neurons)
        halves = workspace.read(described.parameters, 2 * described.size)
        halves = halves.reshape(2, *described.shape)
        start = int(now["from"]) // described.size
        halves[1 - start] = np.nan
        workspace.write(described.parameters, halves)
        before = halves[start].copy()
        self._poison()
        self._launch(epochs=epochs, **now)
        after, records = self._results(1 - start, epochs * count)
        records = records.reshape(epochs, count, -1)
        unchanged, _ = self._results(start, 0)
        if not np.array_equal(unchanged, before):
            raise WrongError("the weights before a launch were changed")
        own = before
        for epoch in range(epochs):
            step = {
                **now, "from": 0, "to": described.size,
                "steps": now["steps"] + epoch * (not described.candidates),
                "seed": (now["seed"] + epoch * described.candidates) % 2**32,
            }
            halves[0], halves[1] = own, np.nan
            workspace.write(described.parameters, halves)
            self._poison()
            self._launch(epochs=1, **step)
            found, record = self._results(1, count)
            record = record.reshape(count, -1)
            if not np.array_equal(record, records[epoch], equal_nan=True):
                raise WrongError(f"the records of epoch {epoch} of {epochs} differ")
            self._judge(own, found, record, step)
            own = found
        if not np.array_equal(own, after, equal_nan=True):
            raise WrongError(f"the weights of {epochs} epochs differ from one by one")
        halves[start], halves[1 - start] = before, after
        workspace.write(described.parameters, halves)
        kept = np.full(described.records.size // 4, np.nan, np.float32)
        kept[: records.size] = records.ravel()
        workspace.write(described.records, kept)

    def _poison(self) -> None:
        self._workspace.write(self._training.records, np.full(
            self._training.records.size // 4, np.nan, np.float32
        ))

    def _results(self, half: int, records: int) -> tuple[Any, Any]:
        """Return a half of the parameters, and some records."""
        described = self._training
        halves = self._workspace.read(described.parameters, 2 * described.size)
        found = halves.reshape(2, *described.shape)[half].copy()
        return found, self._workspace.read(described.records, 3 * records)

    def _judge(self, before: Any, found: Any, records: Any, now: Any) -> None:
        """Compare an epoch with the oracle; arrays are as `NeuronsTraining.shape`."""
        described, workspace = self._training, self._workspace
        samples, n_in = described.samples, int(now["n_in"])
        targets = samples.residuals if described.candidates else samples.targets

        def plain(scratch: Any, rows: int) -> Any:
            flat = workspace.read(scratch, rows * samples.padded)
            return samples.plain(flat).astype(np.float64)

        read = n_in + samples.outputs * described.candidates
        epoch = Epoch(
            described, plain(samples.inputs, samples.rows)[:n_in],
            plain(targets, samples.outputs), before[:, 0, :read].astype(np.float64),
        )
        every = (epoch.inputs, epoch.targets, before[:, :, :read])
        if not all(np.abs(one).max(initial=0.0) < LARGEST for one in every):
            raise Skipped("the training diverges")
        if described.candidates:
            gradients, squares = oracle.candidates_epoch(
                epoch.inputs, epoch.targets, described.neurons, epoch.weights
            )
            exact = np.zeros((len(squares), 3))
            exact[:, 1] = squares
            bounds = candidate_bounds(epoch)
            mse, mse_error = float(now["error"]), 0.0
        else:
            scales = cascade.neuron_table(described)["error_scale"].astype(float)
            gradients, exact = oracle.outputs_epoch(
                epoch.inputs, epoch.targets, described.neurons, epoch.weights,
                loss_function(described.loss), scales,
                float(np.float32(described.bit_fail_limit)), described.fann_compatible,
            )
            bounds = output_bounds(epoch)
            total = samples.samples * samples.outputs
            mse = exact[:, 1].sum() / total
            mse_error = bounds.records[:, 1].sum() / total + 4 * U * mse
        name = described.name
        self._owner._compare(
            np.abs(records - exact), bounds.records, f"the records of {name}"
        )
        if found[:, :, read:].any():
            raise WrongError(f"padding of the weights of {name} was written")
        lows, highs = hulls(
            described, before[:, :, :read].astype(float), gradients, bounds.gradients,
            now, mse, mse_error,
        )
        own = found[:, :, :read].astype(float)
        error = np.maximum(lows - own, own - highs)
        sizes = np.maximum(np.abs(lows), np.abs(highs))
        sizes = np.maximum(sizes, np.abs(before[:, :, :read]))
        rounding = np.where(np.isfinite(sizes), FUNCTION_ROUNDINGS * U * sizes, np.inf)
        self._owner._compare(np.maximum(error, 0), rounding, f"the weights of {name}")


def hulls(
    described: NeuronsTraining, before: Any, gradients: Any, errors: Any, now: Any,
    mse: float, mse_error: float,
) -> tuple[Any, Any]:
    """Return what the rule makes of gradients within errors, at least and at most.

    Between the gradients where it changes its branch the rule is monotone. All arrays
    are [neurons, 1 + slots, read], or [neurons, read] of gradients.
    """
    rule, stride = described.rule, described.stride
    count, _, read = before.shape
    w, state = before[:, 0], before[:, 1:]
    ends, infinite = breaks(rule, w, state, now)
    errors = errors + 16 * U * sum(np.abs(end) for end in ends)
    errors = errors + 4 * U * np.abs(gradients) + tiny("float32")
    at = [gradients - errors, gradients, gradients + errors]
    for end in ends:
        beside = 1e-9 * (np.abs(end) + errors)
        at += [
            np.clip(end + by, gradients - errors, gradients + errors)
            for by in (-beside, 0.0, beside)
        ]
    lows = np.full(before.shape, np.inf)
    highs = -lows
    for g in at:
        for error in (mse - mse_error, mse, mse + mse_error)[: 3 if mse_error else 1]:
            flat, of = np.zeros((count, stride)), np.zeros((rule.slots, count, stride))
            slopes = np.zeros((count, stride))
            flat[:, :read], slopes[:, :read] = w, g
            of[:, :, :read] = state.swapaxes(0, 1)
            flat, of = flat.ravel(), of.reshape(rule.slots, -1)
            rule.step(flat, slopes.ravel(), of, StepInfo(
                float(np.float32(now["rate"])), described.samples.samples,
                int(now["steps"]), max(0.0, error), int(now["seed"]),
            ))
            result = np.concatenate([flat[np.newaxis], of]).reshape(-1, count, stride)
            result = result[:, :, :read].swapaxes(0, 1)
            lows, highs = np.minimum(lows, result), np.maximum(highs, result)
    for end in infinite:
        unbounded = (np.abs(end - gradients) <= errors)[:, np.newaxis]
        lows = np.where(unbounded, -np.inf, lows)
        highs = np.where(unbounded, np.inf, highs)
    return lows, highs


def breaks(
    rule: Optimiser, w: Any, state: Any, now: Any
) -> tuple[list[Any], list[Any]]:
    """Return the gradients where a rule changes its branch, and where it has a pole."""
    if isinstance(rule, Rprop):
        return [np.zeros_like(w)], []
    if isinstance(rule, Sarprop):
        heat = -rule.temperature * now["steps"]
        return [w * 2 ** (heat + rule.weight_decay_shift)], []
    assert isinstance(rule, Quickprop)
    decayed, previous = rule.decay * w, state[:, 1]
    pole = decayed - previous
    return [decayed, decayed - rule._shrink * previous, pole], [pole]


class CheckedValues:
    """A launch of a neuron's values, or of an output's errors, compared."""

    def __init__(
        self, owner: Cascades, workspace: Any, described: Any, population: Any,
        launch: Any,
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._values, self._of, self._launch = described, population, launch

    def __call__(self, *, number: int, offset: int, n_in: int, row: int) -> None:
        """Compute the values, and compare them."""
        described, workspace = self._values, self._workspace
        samples = described.samples
        self._launch(number=number, offset=offset, n_in=n_in, row=row)
        flat = workspace.read(described.parameters, 2 * self._of._training.size)
        inputs = samples.plain(workspace.read(
            samples.inputs, samples.rows * samples.padded
        )).astype(float)
        epoch = Epoch(
            replace(self._of._training, candidates=False), inputs[:n_in], None, None
        )
        neuron = described.neurons[number]
        w = flat[offset : offset + n_in].astype(float)
        exact, error, _, _ = propagated(epoch, neuron, w)
        if described.residuals:
            outputs = samples.outputs * samples.padded
            tiled = workspace.read(samples.residuals, outputs)
            targets = samples.plain(workspace.read(samples.targets, outputs))
            t = targets[row].astype(float)
            scale = cascade.neuron_table(described)["error_scale"][number]
            error = scale * (error + 2 * U * (np.abs(t) + np.abs(exact)))
            exact = scale * (t - exact)
            found = samples.plain(tiled)[row]
        else:
            tiled = workspace.read(samples.inputs, samples.rows * samples.padded)
            found = inputs[row]
        self._owner._compare(
            np.abs(found - exact), error + 2 * U * np.abs(exact),
            "the errors of an output" if described.residuals else "a neuron's values",
        )
        rows = len(samples.plain(tiled))
        tiles = tiled.reshape(-1, rows, cascade.TILE).transpose(1, 0, 2)
        if tiles.reshape(rows, -1)[row, samples.samples :].any():
            raise WrongError("samples beyond the last one are not zero")

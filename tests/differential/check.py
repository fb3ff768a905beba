"""Cases beside the oracle: each binds a cover, poisons its outputs, and compares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from bounds import (
    FLOAT32,
    FLOAT64,
    FP16_SPLIT,
    FUSED_STEP,
    JUMPS,
    LAMBDA,
    Arithmetic,
    span_bound,
    tiny,
    unit,
)
from deviations import DRAWS, perturbed_runs

from clnet import Network
from clnet.errors import ClnetWarning
from clnet.ir.activation import BiasAct
from clnet.ir.lowering import lower_training
from clnet.ir.program import Program
from clnet.nn.losses import loss_function
from clnet.nn.random import key, permuted
from clnet.nn.schedules import schedule
from clnet.nn.storage.layout import live_elements
from clnet.opencl.device import Device
from clnet.opencl.program import matrix_units
from clnet.opencl.session import session
from clnet.planning.training_planner import TrainingPlan
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.runtime.replay import Replay
from clnet.runtime.train_state import TrainState
from clnet.training import plans

from .cases import Case
from .covers import SPLIT_VARIANTS, cover

HUGE = 1e30  # values beyond it overflow in float32, and are not compared
DIVERGED = 1e15  # of trainings: optimisers multiply two gradients


class WrongError(AssertionError):
    """A result beyond its bound, or another broken promise."""


class Skipped(Exception):  # noqa: N818  no error
    """A case without a result to compare: a wait timed out, or the case diverged."""


def arithmetic(case: Case, steps: Sequence[PlanStep]) -> Arithmetic:
    """Return how the products of steps round."""
    if case.dtype == "float64":
        return FLOAT64
    names = {step.variant.name for step in steps}
    split = {*SPLIT_VARIANTS, *(
        step.variant.name for step in steps
        if step.variant.name == "group_members" and matrix_units(step.device)
    )}
    if not names & split:
        return FLOAT32
    return (FUSED_STEP if "fused_step" in names else FP16_SPLIT)[case.precision]


def largest(error: Any, bound: Any, what: str) -> float:
    """Return the largest error over its bound; raise WrongError if it is beyond."""
    error, bound = np.broadcast_arrays(error, bound)
    with np.errstate(all="ignore"):
        share = np.where(error == 0, 0.0, error / bound)
    share = np.where(np.isnan(share), np.inf, share)
    worst = float(share.max(initial=0.0))
    if worst > 1:
        at = np.unravel_index(np.argmax(share), share.shape)
        place = ", ".join(map(str, at))
        raise WrongError(
            f"{what}[{place}] is off by {error[at]:.3g}, {worst:.3g} times its bound; "
            f"{np.count_nonzero(share > 1)} of {share.size} are beyond"
        )
    return worst


# Inference ---------------------------------------------------------------------------


class Predict:
    """A cover of the inference program, called with host arrays."""

    def __init__(
        self, case: Case, network: Network, device: Device, same: dict[Any, Any]
    ) -> None:
        self.network = network
        self._program = program = network.program.at(case.precision)
        self.steps = cover(program, case.batch, device, case, same)
        self._executable = Executable(
            session(device), network, self.steps, [program.input], [program.output]
        )
        self._span = program.span(0, len(program.ops), case.batch)
        self._arithmetic = arithmetic(case, self.steps)
        self._live = live_elements(network.layout, network.storages)
        self._jumps = any(
            name in JUMPS for op in program.ops if isinstance(op, BiasAct)
            for name in op.nonlinearity.names
        )

    def __call__(self, case: Case) -> float:
        """Run a case, and return its largest error over the bound.

        0 for functions that jump: a sum beside the jump may round to its other side,
        and the error is then the bound.
        """
        program, run = self._program, self._executable
        self.network.parameters = case.parameters(self.network)
        x = case.inputs(case.batch, program.input.width)
        for value in {value for op in program.ops for value in op.writes}:
            if value.name in run.bound.buffers:
                run.bound.write(value, np.full((case.batch, value.width), np.nan))
        run.x[program.input.name][...] = x
        if program.output.name in run.host.values:  # else a step on the host makes it
            run.host.values[program.output.name][...] = np.nan
        run.run()
        y = run.result(program.output.name).copy()
        if run.result_timed_out(y):
            raise Skipped("a wait timed out")
        if not np.array_equal(run.x[program.input.name], x, equal_nan=True):
            raise WrongError("the inputs were changed")
        exact, bounds = span_bound(
            self._span, {program.input.name: x}, self.network.parameters,
            self._arithmetic,
        )
        wanted, bound = exact[program.output.name], bounds[program.output.name]
        if any(np.nanmax(np.abs(v), initial=0) > HUGE for v in exact.values()):
            raise Skipped("values overflow")
        if case.dtype == "float64":
            bound = 2 * bound  # the oracle rounds too
        missing = np.isnan(wanted)
        if not np.array_equal(np.isnan(y), missing):
            dia = any(storage.name == "dia" for storage in self.network.storages)
            if dia and (self.network.parameters[self._live] == 0).any():
                raise Skipped("a weight of zero is padding in DIA, NaN beside it none")
            wrong = np.argwhere(np.isnan(y) != missing)
            raise WrongError(
                f"y{wrong[0].tolist()} is {y[tuple(wrong[0])]}, expected "
                f"{wanted[tuple(wrong[0])]}"
            )
        error = np.where(missing, 0, np.abs(y - wanted))
        worst = largest(error, np.where(missing, 1, bound), "y")
        return 0.0 if self._jumps else worst


# Training ----------------------------------------------------------------------------


def lowered(case: Case, network: Network) -> Program:
    """Return the program of a case's training step."""
    options = case.options
    assert options is not None
    return lower_training(
        network, loss_function(options.loss),
        None if case.task == "gradients" else options.rule,
        samples=options.samples if options.batches and batch(case) < options.samples
        else None,
        shuffled=options.shuffled and batch(case) < options.samples,
        weighted=options.weighted, regularisation=options.regularisation,
    ).at(case.precision)


def batch(case: Case) -> int:
    """Return the samples of a step."""
    assert case.options is not None
    options = case.options
    if not options.batches:
        return options.samples
    return min(options.rule.batch or case.batch, options.samples)


def passes(
    case: Case, program: Program, weight: Any = None
) -> Iterator[dict[str, Any]]:
    """Yield the scalars of each step, and weights of mean 1 in it if there are any."""
    options = case.options
    assert options is not None
    n, size = options.samples, batch(case)
    factor = schedule(options.schedule, options.epochs)
    count = 0
    for epoch in range(options.epochs):
        for first in range(0, n, size):
            samples = min(size, n - first)
            balanced = {}
            if weight is not None:
                rows = np.arange(first, first + samples) if size > 1 else np.arange(n)
                if options.shuffled and size > 1:
                    rows = permuted(rows, n, key(case.seed, epoch))
                mean = weight[rows].mean() or 1.0  # all may be 0
                balanced[program.inputs[-1].name] = weight / mean
            yield {
                **balanced,
                "first": first, "samples": samples, "seen": first + samples,
                "fresh": first == 0, "count": count, "key": key(case.seed, epoch),
                "rate": options.rule.rate * factor(epoch), "seed": seed(case),
                "batch": size,
            }
            count += 1


def initial_state(case: Case, parameters: Any) -> Any:
    """Return the optimiser's initial state; empty for gradients alone."""
    assert case.options is not None
    if case.task == "gradients":
        return np.zeros((0, parameters.size), case.dtype)
    return case.options.rule.initial_state(parameters.size, case.dtype)


def seed(case: Case) -> int:
    """Return the seed of a step's random numbers."""
    return case.seed & 0xFFFFFFFF


class Oracle:
    """The oracle's values after a training, and bounds of their errors.

    A bound is that of `deviations.deviations`. Its draws are made one by one until all
    errors are within the part of the bound that is known: the distances only add up.

    The analysis is of first order. Where a deviation, relative to its array, is above
    the root of a rounding, terms of second order are above a rounding: a training that
    amplifies errors so has no bound here.
    """

    def __init__(
        self, case: Case, program: Program, values: Mapping[str, Any],
        parameters: Any, rounding: Arithmetic, weight: Any = None,
    ) -> None:
        self._runs = perturbed_runs(
            program.ops, values, parameters, rounding,
            list(passes(case, program, weight)),
        )
        self._linear, self._tiny = np.sqrt(unit(rounding.dtype)), tiny(rounding.dtype)
        self.exact = next(self._runs)
        for value in self.exact.values():
            if not np.abs(value).max(initial=0) < DIVERGED:  # NaN too
                raise Skipped("the training diverges")

    def check(self, found: Mapping[str, Any], part: Mapping[str, Any]) -> float:
        """Return the largest error over its bound; raise WrongError if it is beyond."""
        names = list(found)
        spread = {name: np.zeros_like(self.exact[name]) for name in names}
        errors = {name: np.abs(found[name] - self.exact[name]) for name in names}
        wrong = WrongError()
        for run in self._runs:
            for name in names:
                # No square is formed: those of numbers below 1e-154 would underflow.
                spread[name] = np.hypot(spread[name], run[name] - self.exact[name])
            try:
                worst = 0.0
                for name in names:
                    at = (..., part.get(name, slice(None)))
                    bound = LAMBDA / np.sqrt(DRAWS) * spread[name][at] + self._tiny
                    worst = max(worst, largest(errors[name][at], bound, name))
                return worst
            except WrongError as error:
                wrong = error
        for name in names:
            deviation = spread[name].max(initial=0.0) / np.sqrt(DRAWS)
            largest_linear = self._linear * np.abs(self.exact[name]).max(initial=0.0)
            if not deviation <= largest_linear:  # NaN too: a perturbed run overflowed
                raise Skipped("the training is ill-conditioned")
        raise wrong


class Train:
    """A cover of a training program, replayed."""

    def __init__(
        self, case: Case, network: Network, device: Device, same: dict[Any, Any]
    ) -> None:
        self.network, self._device = network, device
        self._program = program = lowered(case, network)
        self.steps = cover(program, batch(case), device, case, same)
        self._session = session(device)
        options = case.options
        assert options is not None
        slots = 0 if case.task == "gradients" else options.rule.slots
        size = network.layout.size
        self._state = TrainState(
            self._session, network.parameters, np.zeros((slots, size), case.dtype)
        )
        self._replay = Replay(self._session, self.steps, network.layout, self._state)
        self._arithmetic = arithmetic(case, self.steps)
        self._live = live_elements(network.layout, network.storages)

    def __call__(self, case: Case) -> float:
        """Run a case, and return its largest error over the bound."""
        options, program, network = case.options, self._program, self.network
        assert options is not None
        network.parameters = case.parameters(network)
        values = data(case, program, network)
        replay, state = self._replay, self._state
        trains = case.task != "gradients"
        start = initial_state(case, network.parameters)
        for value in program.inputs:
            replay.write(value, values[value.name])
        self._poison(case)
        state.replace(network.parameters)
        if start.size:
            state.state.write(self._session, start)
        count = 0
        for one in passes(case, program):
            if one["fresh"]:
                replay.set(rate=one["rate"], seed=one["seed"], key=one["key"])
                count += replay.run_pass(options.samples, count)
        self._session.finish()
        if replay.bound.timed_out():
            raise Skipped("a wait timed out")
        oracle = Oracle(
            case, program,
            {**values, "state": start}, network.parameters, self._arithmetic,
        )
        found, part = {}, {}
        totals = replay.read(program.output)
        found["totals"] = totals + np.roll(totals, 3, axis=1)
        part["totals"] = slice(0, 3)
        if trains:
            parameters, states = state.values()
            found["parameters"] = parameters[np.newaxis]
            found["state"] = states
            part["parameters"] = part["state"] = self._live
            if parameters[~self._live].any():
                raise WrongError("padding of the parameters was written")
            return oracle.check(found, part)
        flat = replay.read_gradients()
        for op in program.ops:
            for value, slot in op.gradient_slots.items():
                at = slice(slot.offset, slot.offset + slot.size)
                found[value.name] = flat[np.newaxis, at]
                part[value.name] = self._live[at]
        return oracle.check(found, part)

    def _poison(self, case: Case) -> None:
        """Fill all that the steps write with NaN."""
        replay, inputs = self._replay, set(self._program.inputs)
        written = {
            value for op in self._program.ops for value in op.writes
            if value not in inputs and value.name in replay.bound.buffers
        }
        for value in sorted(written, key=lambda v: v.name):
            rows = value.height(batch(case))
            replay.write(value, np.full((rows, value.width), np.nan))
        flat = np.zeros(self.network.layout.size, case.dtype)
        for op in self._program.ops:
            for slot in op.gradient_slots.values():
                flat[slot.offset : slot.offset + slot.size] = np.nan
        replay.write_gradients(flat)


def data(case: Case, program: Program, network: Network) -> dict[str, Any]:
    """Return the program's inputs by name."""
    options = case.options
    assert options is not None
    x = case.inputs(options.samples, network.n_in)
    t, weights = case.targets(options.samples, network.n_out)
    arrays = (x, t, weights)
    return {
        value.name: rows for value, rows in zip(program.inputs, arrays, strict=False)
    }


class Fit:
    """`Network.fit` with all its options, its plans replaced by random covers."""

    def __init__(
        self, case: Case, network: Network, device: Device, same: dict[Any, Any]
    ) -> None:
        self.network, self._device, self._same = network, device, same
        self._covers: dict[Any, list[PlanStep]] = {}
        self.steps: list[PlanStep] = []

    def __call__(self, case: Case) -> float:
        """Run a case, and return its largest error over the bound."""
        options, network = case.options, self.network
        assert options is not None
        network.parameters = start = case.parameters(network)
        start = network.parameters.copy()
        program = lowered(case, network)
        values = data(case, program, network)
        x, t, *weight = (values[value.name] for value in program.inputs)
        others = Case(**{**vars(case), "seed": case.seed + (1 << 40)})
        validation = None
        if options.validation:
            validation = (
                others.inputs(options.validation, network.n_in),
                others.targets(options.validation, network.n_out)[0],
            )
        self.steps.clear()
        regular = options.regularisation
        diverged = None
        try:
            with self._forced(case):
                history = network.fit(
                    x, t, optimiser=options.rule, loss=options.loss,
                    epochs=options.epochs,
                    batch_size=batch(case),
                    shuffle=options.shuffled, validation=validation,
                    sample_weight=weight[0][:, 0] if weight else None, seed=case.seed,
                    devices=devices(self._device, options.devices),
                    schedule=options.schedule, l1=regular.l1, l2=regular.l2,
                    clip_norm=regular.clip_norm, clip_value=regular.clip_value,
                    precision=case.precision, tune=False,  # keeps no plan: see `steps`
                )
        except ClnetWarning as warning:
            if "timed out" in str(warning):
                raise Skipped("a wait timed out") from None
            diverged = str(warning)
        oracle = Oracle(
            case, program,
            {**values, "state": initial_state(case, start)}, start,
            arithmetic(case, self.steps), *weight,
        )
        if diverged is not None:  # and the oracle does not
            raise WrongError(diverged)
        live = live_elements(network.layout, network.storages)
        n, last = options.samples, history[-1].training
        assert history.state is not None
        totals = np.array([[
            last.loss * n, last.mse * n * network.n_out, last.bit_fail, 0, 0, 0
        ]])
        if len(history) != options.epochs:
            raise WrongError(f"fit ran {len(history)} epochs: {history.stopped}")
        return oracle.check(
            {"parameters": network.parameters[np.newaxis], "totals": totals,
             "state": history.state.values},
            {"parameters": live, "state": live},
        )

    @contextlib.contextmanager
    def _forced(self, case: Case) -> Iterator[None]:
        def plan(network: Any, program: Program, device: Device, size: int, **_: Any):
            key = program, device, size
            if key not in self._covers:
                same = self._same.setdefault(program.outputs, {})
                self._covers[key] = cover(program, size, device, case, same)
            steps = tuple(self._covers[key])
            self.steps += steps
            return TrainingPlan(network, program, steps, "")

        with mock.patch.object(plans, "plan_training", plan):
            yield


def devices(device: Device, count: int) -> list[Device]:
    """Return a device, and records of others like it that are the same."""
    return [device, *(replace(device, index=f"9:{i}") for i in range(1, count))]

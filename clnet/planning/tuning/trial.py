"""Trials of training: steps run on random data, checked against the oracle, and timed.

A step is of one network, or of many in one launch: then a few networks, whose
parameters, rates, seeds and samples differ, train beside an oracle each. Parameters and
state are copies: no network changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.errors import counted
from clnet.ir.batch import Dropout, Gather
from clnet.ir.loss import Tally
from clnet.ir.update import Update
from clnet.nn.random import key, permuted
from clnet.opencl.session import session
from clnet.planning.tuning import measure
from clnet.planning.tuning.measure import Run
from clnet.planning.tuning.narrowing import Narrowed, Parameters, narrowed
from clnet.planning.tuning.oracle import (
    ATTEMPTS,
    CHECKED_FLOPS,
    WrongResultError,
    difference,
    farthest,
    names_of,
    ops_of,
    overflows,
    quiet_errors,
    run_ops,
    tolerance_of,
    uses_threads,
)
from clnet.planning.tuning.trial_runs import (
    DISTINCT,
    MOST,
    PARAMETERS,
    MemberRun,
    SingleRun,
    StepPass,
    TrialData,
    TrialNetwork,
    members_variant,
    samples_of,
)
from clnet.runtime.train_state import TrainState

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Program, Span
    from clnet.opencl.device import Device
    from clnet.opencl.memory import Memory
    from clnet.opencl.session import Session
    from clnet.runtime.binding import PlanStep

Array = NDArray[Any]

CHECKED_NUMBERS = 1 << 22  # that a check's ops write; larger batches are reduced
LEAST_CHECKED = 64  # samples of a check, whatever they cost
LEAST_TOGETHER = 256  # of a check of many networks
LARGE = 1 << 22  # numbers that steps write, for which the oracle takes seconds
LONGEST_SECONDS = 0.05  # a longer run is not repeated
WARM_UP_RATIO = 0.2  # of inference's warm-up: trials follow each other
STATEFUL = (Dropout, Gather, Tally, Update)  # ops that differ from step to step


class _StepOracle(NamedTuple):
    """Results in float64, those of perturbed values, and the largest of all values."""

    exact: dict[str, Array]
    perturbed: dict[str, Array]
    largest: float


@dataclass(frozen=True, eq=False)
class StepTrial:
    """Trials of steps of training, with all data on the device."""

    network: Parameters  # Trials start from its parameters
    program: Program  # The program of one step
    device: Device
    # The memory of each seed's data set, by names of values: trials share it
    _memory: dict[int, dict[str, Memory]] = field(default_factory=dict, init=False)
    # Keys of steps whose results were right
    _checked: set[tuple[Any, ...]] = field(default_factory=set, init=False)
    _oracles: dict[Any, _StepOracle] = field(default_factory=dict, init=False)

    trains: ClassVar[bool] = True
    # Candidates of a span that a search considers, the best by the model
    per_span: ClassVar[int] = 3

    @property
    def session(self) -> Session:
        """The device's session, made at the first use."""
        return session(self.device)

    @cached_property
    def _data(self) -> TrialData:
        return TrialData(self.network, self.program)

    def whole(self, step: PlanStep) -> str:
        """Return the store's name of times of whole covers with such steps."""
        alone = members_variant(step) is None
        return "training step" if alone else "step of many networks"

    def signature(self, step: PlanStep, span: Span) -> str:
        """Return the store's name of a step's span: equal where times may be.

        It has the number of networks: times of files have no other word of it.
        """
        variant = members_variant(step)
        if variant is None:
            return span.signature
        rows = ", rows of their own" if variant.subsets else ""
        return f"{counted(variant.members, 'network')}{rows}: {span.signature}"

    def ready(
        self, steps: Sequence[PlanStep], inputs: Sequence[Value],
        outputs: Sequence[Value],
        *, on_device: bool = True, alike: Sequence[PlanStep] = (),
    ) -> Run:
        """Return a run of steps, after a check of their results.

        Its time is that of one step, of all networks. All data are on the device, and
        steps alike are not timed.
        """
        with quiet_errors(self.session):
            oracles = len(self._oracles)
            self.check(steps, inputs, outputs)
            ran = len(self._oracles) > oracles
            if ran and uses_threads(ops_of(steps), steps[0].span.batch):
                time.sleep(measure.SPIN_SECONDS)
            start, share = self._bound(steps, 0).timed()
        return Run(
            start, self.session.finish, share, WARM_UP_RATIO * measure.WARM_UP_SECONDS,
            LONGEST_SECONDS,
        )

    def check(
        self, steps: Sequence[PlanStep], inputs: Sequence[Value],
        outputs: Sequence[Value]
    ) -> bool:
        """Compare steps with the oracle, once; return whether their values allow it."""
        if self._narrow is not None:
            narrow, trial = self._narrow
            return trial.check(
                narrow.steps(self.program, steps), inputs,
                [narrow.values.get(value, value) for value in outputs],
            )
        with quiet_errors(self.session):
            return self._check(self._reduced(steps), outputs)

    @cached_property
    def _narrow(self) -> tuple[Narrowed, StepTrial] | None:
        """The program with fewer inputs that is compared, if it has many."""
        narrow = narrowed(self.network, self.program)
        if narrow is None:
            return None
        return narrow, StepTrial(narrow, narrow.program, self.device)

    def _bound(
        self, steps: Sequence[PlanStep], seed: int, most: int | None = None
    ) -> SingleRun | MemberRun:
        """Return steps bound to random data, of at most so many networks."""
        variant = members_variant(steps[0])
        if variant is not None:
            return MemberRun(
                self._data, steps[0], seed, self.session, most or variant.members
            )
        updates = any(isinstance(op, Update) for op in ops_of(steps))
        return SingleRun(
            self._data, steps, self._passes(steps), seed, self.session,
            self._train_state() if updates else self._unchanged,
            self._memory.setdefault(seed, {}),
        )

    def _train_state(self) -> TrainState:
        data = self._data
        return TrainState(self.session, data.parameters.copy(), data.state)

    @cached_property
    def _unchanged(self) -> TrainState:
        """Parameters and state that steps without an update share."""
        return self._train_state()

    # Comparison -----------------------------------------------------------------

    def _check(self, steps: Sequence[PlanStep], outputs: Sequence[Value]) -> bool:
        step_keys = tuple(map(_key, steps))
        if step_keys in self._checked:
            return True
        if _large(steps) and all((one,) in self._checked for one in step_keys):
            return True
        for attempt in ATTEMPTS:
            fault, compared = self._fault(steps, outputs, *attempt)
            if fault is None:
                break
        if fault is not None:
            raise WrongResultError(f"{names_of(steps)} {fault}")
        if compared:
            self._checked.add(step_keys)
        return compared

    def _fault(
        self, steps: Sequence[PlanStep], outputs: Sequence[Value], seed: int, draws: int
    ) -> tuple[str | None, bool]:
        """Return how steps differ from the oracle's, or None.

        And whether they were compared.
        """
        run, dtype = self._bound(steps, seed, MOST), self.program.dtype
        numbers = run.numbers
        run.run()
        # The host computes while the device does.
        oracles = [
            self._oracle(run, outputs, seed, draws, number)
            for number in range(numbers.max() + 1)
        ]
        if any(
            overflows(largest, exact, perturbed, dtype)
            for exact, perturbed, largest in oracles
        ):
            return None, False
        self.session.finish()
        results = run.results(outputs)
        if PARAMETERS in oracles[0].exact:
            results |= run.trained()
        for name in oracles[0].exact:
            result = results[name]
            # Of totals, launches give the sums alone: they have compensated them.
            exact, perturbed = (
                np.concatenate([
                    np.atleast_2d(oracles[i][side][name])[:, : result.shape[1]]
                    for i in numbers
                ])
                for side in range(2)
            )
            fault = difference(result, exact, perturbed, tolerance_of(self.program))
            if fault is not None:
                return fault, True
        return None, True

    # The oracle -------------------------------------------------------------------

    def _oracle(
        self, run: SingleRun | MemberRun, outputs: Sequence[Value], seed: int,
        draws: int, number: int,
    ) -> _StepOracle:
        """Return a network's results, kept for other steps of the same ops."""
        oracle_key = run.key, seed, draws, number
        if oracle_key not in self._oracles:
            self._oracles[oracle_key] = self._computed(
                run.network(number), outputs, draws, run.trains
            )
        return self._oracles[oracle_key]

    def _computed(
        self, network: TrialNetwork, outputs: Sequence[Value], draws: int, trains: bool
    ) -> _StepOracle:
        """Run a network's steps; of several draws, each number is the farthest."""
        sides: list[tuple[dict[str, Any], Array]] = []
        data = self._data
        for _ in range(1 + draws):
            values: dict[str, Any] = {
                "batch": network.batch, "rate": data.rate(network.number),
                "seed": network.number, "state": data.state.astype(np.float64),
                **{value.name: rows for value, rows in network.inputs.items()},
            }
            sides.append((values, data.start(network.number).astype(np.float64)))
        largest, tolerance = 0.0, tolerance_of(self.program)
        for total, before, words in network.passes:
            for count, first in enumerate(range(0, total, network.batch)):
                samples = min(network.batch, total - first)
                scalars = {
                    "first": first, "samples": samples, "seen": first + samples,
                    "fresh": count == 0, "count": before + count, "key": words,
                    **_scaled_weights(network, first, samples, words),
                }
                for values, _ in sides:
                    values.update(scalars)
                largest = run_ops(
                    network.ops, sides, tolerance, self.program.dtype, largest
                )
        results: list[dict[str, Array]] = []
        for values, parameters in sides:
            result = {value.name: values[value.name] for value in outputs}
            result.pop(PARAMETERS, None)
            if trains:
                result[PARAMETERS] = parameters[data.live]
                result["state"] = values["state"][:, data.live]
            results.append(result)
        return _StepOracle(results[0], farthest(results[0], results[1:]), largest)

    # Sizes ------------------------------------------------------------------------

    def _passes(self, steps: Sequence[PlanStep]) -> list[StepPass]:
        """Return the passes of two steps; large steps without state are one step."""
        batch, order = steps[0].span.batch, key(0, 0)
        samples = samples_of(self.program.ops, batch)
        if samples > batch:
            return [StepPass(min(samples, 2 * batch), 0, order)]
        stateful = any(isinstance(op, STATEFUL) for op in ops_of(steps))
        twice = stateful or not _large(steps)
        return [StepPass(batch, number, order) for number in range(1 + twice)]

    def _reduced(self, steps: Sequence[PlanStep]) -> Sequence[PlanStep]:
        """Return the steps at a size that is cheap to check, if none refuses."""
        variant = members_variant(steps[0])
        if variant is None:
            return _reduced(steps)
        if variant.of_samples:  # the data set is small
            return steps
        # Of a data set of many batches there are two, the second as long as the last.
        span = steps[0].span
        n = samples_of(span.ops, span.batch)
        if n > 2 * span.batch:
            n = span.batch + (n % span.batch or span.batch)
        flops = DISTINCT * max(1, span.flops // span.batch)
        n = min(n, max(LEAST_TOGETHER, int(CHECKED_FLOPS / flops)))
        few = replace(span, ops=self._data.with_samples(n), batch=min(span.batch, n))
        return [replace(steps[0], span=few)]


def _scaled_weights(
    network: TrialNetwork, first: int, samples: int, words: Array
) -> dict[str, Array]:
    """Return the samples' weights, of which those of a step have a mean of 1."""
    if network.weights is None:
        return {}
    name, weights = network.weights
    gather, n = network.ops[0], len(weights)
    taken: Array = np.arange(first, first + samples)
    if network.batch == 1:
        taken = np.arange(n)
    elif isinstance(gather, Gather) and gather.shuffled:
        taken = permuted(taken, n, words)
    return {name: (weights / weights[taken].mean())[:, np.newaxis]}


def _key(step: PlanStep) -> tuple[Any, ...]:
    """Return a key that is equal for steps of equal launches on equal values."""
    span = step.span
    config = tuple(sorted(step.config.items()))
    return tuple(map(id, span.ops)), span.batch, step.variant, config, step.device


def _large(steps: Sequence[PlanStep]) -> bool:
    batch = steps[0].span.batch
    written = (value for op in ops_of(steps) for value in op.writes)
    return sum(value.width * value.height(batch) for value in written) >= LARGE


def _reduced(steps: Sequence[PlanStep]) -> Sequence[PlanStep]:
    """Return the steps at a smaller batch size, if none refuses."""
    batch = steps[0].span.batch
    flops = sum(step.span.flops for step in steps)
    written = (value for op in ops_of(steps) for value in op.writes)
    numbers = sum(value.width for value in written if value.rows is None)
    samples = max(LEAST_CHECKED, min(
        int(batch * CHECKED_FLOPS / max(1, flops)), CHECKED_NUMBERS // max(1, numbers)
    ))
    if samples >= batch:
        return steps
    reduced = [replace(step, span=replace(step.span, batch=samples)) for step in steps]
    refusals = [
        step.variant.refuse(step.span, step.device) for step in reduced
        if step.device is not None
    ]
    return steps if any(refusals) else reduced

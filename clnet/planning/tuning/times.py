"""Times of a program's spans and of whole covers: remembered, or measured now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import clnet
from clnet.errors import ClnetError, DeviceError, OutOfMemoryError, warn
from clnet.opencl.child_trial import death, survives
from clnet.opencl.store import Timing, store_of
from clnet.opencl.times_file import given_times, plain_key
from clnet.planning.cover import Candidate, Cover, PlanReport, device_name
from clnet.planning.tuning.fingerprint import (
    exact_fingerprint,
    fingerprint,
    program_fingerprint,
)
from clnet.planning.tuning.measure import SPIN_SECONDS, Run, timing, timings
from clnet.planning.tuning.oracle import WrongResultError, names_of, quiet_errors

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Program, Span
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.planning.tuning.budget import Budget
    from clnet.planning.tuning.calls import CallTrial
    from clnet.planning.tuning.trial import StepTrial
    from clnet.runtime.binding import PlanStep
    from clnet.variants.base import Variant

MAX_ALIKE = 8  # equal spans that are timed together


class Times:
    """Times of one program on one device, at one batch, by trials."""

    def __init__(
        self, trial: CallTrial | StepTrial, batch: int, report: PlanReport,
        budget: Budget, from_files: bool = False,
    ) -> None:
        self.trial = trial
        self.batch = batch
        self._report, self._budget = report, budget
        self._store = store_of(trial.device)
        self._from_files = given_times(trial.device) if from_files else {}
        self._results: dict[tuple[str, str], Timing | str] = {}
        self._keys: dict[tuple[object, ...], str] = {}
        self._host_worked = False

    def span(self, start: int, stop: int) -> Span:
        """Return ops start … stop-1 at the measured batch."""
        return self.trial.program.span(start, stop, self.batch)

    def searched(self, variants: Sequence[Variant]) -> bool:
        """Return whether a search among variants has come to its end on this device."""
        return bool(self._store.fact(self._search_name(variants)))

    def note_searched(self, variants: Sequence[Variant]) -> None:
        """Remember that a search among variants has come to its end."""
        if not self.searched(variants):
            self._store.put_fact(self._search_name(variants), True)

    def _search_name(self, variants: Sequence[Variant]) -> str:
        """Return the store's name of the fact: other kernels are another search."""
        whole = self.span(0, len(self.trial.program.ops))
        names = ",".join(variant.name for variant in variants)
        return f"searched {clnet.__version__} {names} {whole.signature}"

    def lookup(self, step: PlanStep, span: Span) -> Timing | None:
        """Return the remembered time of a step, whose `span` has the measured batch."""
        signature = self.trial.signature(step, span)
        known = self._store.times_of(signature)
        from_files = self._from_files.get(signature)
        if not known and not from_files:
            return None
        key = self.key_of(step)
        return known.get(key) or (from_files or {}).get(plain_key(key))

    def remembered(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its remembered time, if there is one."""
        span = self.span(candidate.start, candidate.stop)
        return candidate.timed(self.lookup(candidate.step, span))

    def measured(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its time, or its fault, measured once."""
        step = candidate.step
        span = self.span(candidate.start, candidate.stop)
        key = (self.trial.signature(step, span), self.key_of(step))
        if key not in self._results:
            trial, *alike = (
                replace(step, span=other) for other in self._alike(span, candidate)
            )
            try:
                with self._budget.candidate(step.variant.name):
                    self._try_in_child([trial])
                    run = self._ready(
                        [trial], span.inputs, span.outputs,
                        on_device=step.device is not None, alike=alike,
                    )
                    with quiet_errors(self.trial.session):
                        measured = timing(run)
            except (DeviceError, WrongResultError) as error:
                self._leave_out_measured(step.variant.name, error, candidate)
                self._results[key] = str(error)
            else:
                self._results[key] = measured
                self._store.put(*key, measured)
        result = self._results[key]
        if isinstance(result, str):
            return replace(candidate, timing=None, fault=result)
        return replace(candidate, timing=result, fault=None)

    def remembered_whole(self, cover: Cover) -> Cover:
        """Return a cover with its remembered whole time, if there is one."""
        return replace(cover, timing=self._store.get(*self._whole_key(cover)))

    def wholes(self, covers: Sequence[Cover]) -> list[Cover]:
        """Return the covers that do not fail, with whole times, taken in turn.

        These are new unless all are remembered. Covers with steps of the host have
        turns of their own: NumPy's threads spin after a call.
        """
        remembered = [self.remembered_whole(cover) for cover in covers]
        if all(cover.timing is not None for cover in remembered):
            return remembered
        timed = [
            cover for on_host in (False, True)
            for cover in self._in_turn([c for c in covers if _on_host(c) is on_host])
        ]
        for cover in timed:
            assert cover.timing is not None
            self._store.put(*self._whole_key(cover), cover.timing)
        return timed

    def _in_turn(self, covers: Sequence[Cover]) -> list[Cover]:
        if not covers:
            return []
        try:
            runs = [self._ready_whole(cover) for cover in covers]
            with quiet_errors(self.trial.session):
                taken = timings(runs, self._budget.pays_for)
        except (DeviceError, WrongResultError) as error:
            fault = error.with_traceback(None)  # which holds the runs' memory
        else:
            return [
                replace(cover, timing=whole)
                for cover, whole in zip(covers, taken, strict=True)
            ]
        if len(covers) > 1:  # alone each one tells whether it fails
            return [timed for cover in covers for timed in self._in_turn([cover])]
        what = f"{names_of(covers[0].steps)}, all ops"
        self._leave_out_measured(what, fault, covers[0].candidates[0])
        return []

    def _ready_whole(self, cover: Cover) -> Run:
        """Return a run of a whole cover, host arrays in and out."""
        steps = [
            replace(c.step, span=self.span(c.start, c.stop)) for c in cover.candidates
        ]
        self._budget.show(f"{names_of(steps)}, {self.trial.whole(steps[0])}")
        self._try_in_child(steps)
        program = self.trial.program
        return self._ready(steps, program.inputs, program.outputs, on_device=False)

    def wrong(self, cover: Cover) -> list[Candidate]:
        """Return the candidates of a cover that fail or give wrong results, or none.

        The cover is compared with the oracle as a whole, at the batch of its steps, and
        its candidates alone only if that fails. A right one is remembered: comparing
        costs once per device. If the candidates fail only together, all on a device are
        returned.
        """
        steps = cover.steps
        if all(step.device is None for step in steps):
            return []  # NumPy, as the oracle
        name = self._compared_as(steps)
        if self._store.fact(name):
            return []
        self._budget.show(f"{names_of(steps)}, comparison")
        self.trial.session  # noqa: B018 - its errors are no candidate's
        program = self.trial.program
        whole = program.span(0, len(program.ops), steps[0].span.batch)
        try:
            self._try_in_child(steps)
            compared = self.trial.check(steps, whole.inputs, whole.outputs)
        except (DeviceError, WrongResultError) as error:
            wrong = [c for c in cover.candidates if self._fails(c)]
            if not wrong:
                self._leave_out(names_of(steps), error)
                wrong = [c for c in cover.candidates if c.step.device is not None]
            return wrong
        if compared:
            self._store.put_fact(name, True)
        return []

    def _compared_as(self, steps: Sequence[PlanStep]) -> str:
        """Return the store's name of the fact that steps were compared."""
        exact = (f"{self.key_of(s)} {exact_fingerprint(s.span)}" for s in steps)
        return f"compared {'; '.join(exact)}"

    def _try_in_child(self, steps: Sequence[PlanStep]) -> None:
        """Raise DeviceError if a step ends a child process on an untested runtime."""
        trial = self.trial
        for step in steps if trial.device.untested else ():
            if step.device is not None:
                key = f"{self.key_of(step)} {program_fingerprint(step)}"
                if not survives(
                    self._store, key, _compare, type(trial), trial.network,
                    trial.program, trial.device, step,
                ):
                    raise DeviceError(death(step.variant.name, trial.device))

    def _fails(self, candidate: Candidate) -> bool:
        """Return whether a candidate fails alone; warns if it does."""
        step = candidate.step
        try:
            self._try_in_child([step])
            self.trial.check([step], step.span.inputs, step.span.outputs)
        except (DeviceError, WrongResultError) as error:
            self._leave_out(step.variant.name, error)
            return True
        return False

    def _whole_key(self, cover: Cover) -> tuple[str, str]:
        span = self.span(0, len(self.trial.program.ops))
        steps = [
            f"{c.start}-{c.stop} {self.key_of(c.step)}" for c in cover.candidates
        ]
        whole = self.trial.whole(cover.candidates[0].step)
        return f"{whole} {span.signature}", "; ".join(steps)

    def _ready(
        self, steps: Sequence[PlanStep], inputs: Sequence[Value],
        outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[PlanStep] = (),
    ) -> Run:
        """Return a run of steps, after a pause where NumPy's threads may still spin.

        They would take a core from a device that is the CPU.
        """
        host = any(step.device is None for step in steps)
        if self._host_worked and not host:
            time.sleep(SPIN_SECONDS)
        self._host_worked = host
        return self.trial.ready(
            steps, inputs, outputs, on_device=on_device, alike=alike
        )

    def _alike(self, span: Span, candidate: Candidate) -> list[Span]:
        """Return a span, and the later equal ones that do not overlap."""
        n, length = len(self.trial.program.ops), candidate.stop - candidate.start
        spans, end = [span], candidate.stop
        while end + length <= n and len(spans) < MAX_ALIKE:
            other = self.span(end, end + length)
            if other.signature == span.signature:
                spans.append(other)
                end += length
            else:
                end += 1
        return spans

    def key_of(self, step: PlanStep) -> str:
        """Return `key_of` a step, made once for steps whose times are comparable."""
        alike = (
            self.trial.signature(step, step.span), step.variant.name,
            tuple(step.config.items()), id(step.device),
        )
        if alike not in self._keys:
            self._keys[alike] = key_of(step)
        return self._keys[alike]

    def _leave_out_measured(
        self, what: str, error: ClnetError, candidate: Candidate
    ) -> None:
        """Leave out an eligible candidate that fails while it is measured.

        Memory that is too small for the representative batch alone is raised instead.
        """
        too_large = isinstance(error, OutOfMemoryError)
        if too_large and self.batch != candidate.step.span.batch:
            raise error
        self._leave_out(what, error)

    def _leave_out(self, what: str, error: ClnetError) -> None:
        """Add a failure to the report, and warn, unless the kernel lacks memory."""
        sentence = f"{what}: failed: {error}"
        if sentence in self._report.failures:
            return
        self._report.failures.append(sentence)
        if isinstance(error, OutOfMemoryError):
            self._report.too_large = error.with_traceback(None)
        else:
            warn(f"{what} is left out: {error}")


def _compare(
    trial: type[CallTrial | StepTrial], network: Model, program: Program,
    device: Device, step: PlanStep,
) -> None:
    """Compare a step alone with the oracle."""
    trial(network, program, device).check([step], step.span.inputs, step.span.outputs)


def _on_host(cover: Cover) -> bool:
    return any(step.device is None for step in cover.steps)


def key_of(step: PlanStep) -> str:
    """Return the store's key of a step: everything but device and span."""
    config = ",".join(f"{k}={v}" for k, v in sorted(step.config.items()))
    return f"{step.variant.name}({config}) {device_name(step)} {fingerprint(step)}"

"""Times of a program's spans and of whole covers: remembered, or measured now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clnet.errors import ClnetError, DeviceError, OutOfMemoryError, warn
from clnet.opencl.child_trial import death, survives
from clnet.opencl.session import Session, session
from clnet.opencl.store import Timing, store_of
from clnet.opencl.times_file import given_times, plain_key
from clnet.planning.cover import Candidate, Cover, PlanReport, device_name
from clnet.planning.tuning.fingerprint import (
    exact_fingerprint,
    fingerprint,
    program_fingerprint,
)
from clnet.planning.tuning.measure import (
    SPIN_SECONDS,
    Run,
    WrongResultError,
    check,
    names_of,
    quiet_errors,
    ready,
    timing,
    timings,
)
from clnet.planning.tuning.search import Search

if TYPE_CHECKING:
    from clnet.ir.op import Value
    from clnet.ir.program import Program, Span
    from clnet.nn.model import Model
    from clnet.opencl.device import Device
    from clnet.runtime.binding import Step

MAX_ALIKE = 8  # equal spans that are timed together


class Times:
    """Times of one program on one device, at one batch."""

    whole = "host to host"

    def __init__(
        self,
        network: Model,
        program: Program,
        device: Device,
        batch: int,
        report: PlanReport,
        search: Search,
        given: bool = False,
    ) -> None:
        self.network = network
        self.program = program
        self.device = device
        self.batch = batch
        self._report, self._search = report, search
        self._given = given_times(device) if given else {}
        self._results: dict[tuple[str, str], Timing | str] = {}
        self._keys: dict[tuple[object, ...], str] = {}
        self._host_worked = False

    @property
    def session(self) -> Session:
        """The device's session, made at the first use."""
        return session(self.device)

    def span(self, start: int, stop: int) -> Span:
        """Return ops start … stop-1 at the measured batch."""
        return self.program.span(start, stop, self.batch)

    def signature(self, step: Step, span: Span) -> str:
        """Return the store's name of a step's span: equal where times may be."""
        return span.signature

    def lookup(self, step: Step, span: Span) -> Timing | None:
        """Return the remembered time of a step, whose `span` has the measured batch."""
        signature = self.signature(step, span)
        known = store_of(self.device).times_of(signature)
        given = self._given.get(signature)
        if not known and not given:
            return None
        key = self._key_of(step)
        return known.get(key) or (given or {}).get(plain_key(key))

    def remembered(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its remembered time, if there is one."""
        span = self.span(candidate.start, candidate.stop)
        return candidate.timed(self.lookup(candidate.step, span))

    def measured(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its time, or its fault, measured once."""
        step = candidate.step
        span = self.span(candidate.start, candidate.stop)
        key = (self.signature(step, span), self._key_of(step))
        if key not in self._results:
            trial, *alike = (
                replace(step, span=other) for other in self._alike(span, candidate)
            )
            try:
                with self._search.candidate(step.variant.name):
                    self._try_in_child([trial])
                    run = self._ready(
                        [trial], span.inputs, span.outputs,
                        on_device=step.device is not None, alike=alike,
                    )
                    with quiet_errors(self.session):
                        found = timing(run)
            except (DeviceError, WrongResultError) as error:
                self._leave_out_measured(step.variant.name, error, candidate)
                self._results[key] = str(error)
            else:
                self._results[key] = found
                store_of(self.device).put(*key, found)
        result = self._results[key]
        if isinstance(result, str):
            return replace(candidate, timing=None, fault=result)
        return replace(candidate, timing=result, fault=None)

    def remembered_whole(self, cover: Cover) -> Cover:
        """Return a cover with its remembered whole time, if there is one."""
        return replace(cover, timing=store_of(self.device).get(*self._whole_key(cover)))

    def remember_whole(self, cover: Cover) -> None:
        """Remember a cover's whole time."""
        assert cover.timing is not None
        store_of(self.device).put(*self._whole_key(cover), cover.timing)

    def measured_wholes(self, covers: Sequence[Cover]) -> list[Cover]:
        """Return the covers that do not fail, with new whole times, taken in turn.

        Those with steps of the host have turns of their own: NumPy's threads spin after
        a call.
        """
        return [
            found for on_host in (False, True)
            for found in self._in_turn([c for c in covers if _on_host(c) is on_host])
        ]

    def _in_turn(self, covers: Sequence[Cover]) -> list[Cover]:
        if not covers:
            return []
        try:
            runs = [self._ready_whole(cover) for cover in covers]
            with quiet_errors(self.session):
                found = timings(runs, self._search.pays_for)
        except (DeviceError, WrongResultError) as error:
            fault = error.with_traceback(None)  # which holds the runs' memory
        else:
            return [
                replace(cover, timing=one)
                for cover, one in zip(covers, found, strict=True)
            ]
        if len(covers) > 1:  # alone each one tells whether it fails
            return [one for cover in covers for one in self._in_turn([cover])]
        what = f"{names_of(covers[0].steps)}, all ops"
        self._leave_out_measured(what, fault, covers[0].candidates[0])
        return []

    def _ready_whole(self, cover: Cover) -> Run:
        """Return a run of a whole cover, host arrays in and out."""
        steps = [
            replace(c.step, span=self.span(c.start, c.stop)) for c in cover.candidates
        ]
        self._search.show(f"{names_of(steps)}, {self.whole}")
        self._try_in_child(steps)
        return self._ready(
            steps, self.program.inputs, self.program.outputs, on_device=False
        )

    def wrong(self, cover: Cover) -> list[Candidate]:
        """Return the candidates of a cover that fail or give wrong results, or none.

        The cover is compared with the oracle as a whole, at the batch of its steps, and
        its candidates alone only if that fails. A right one is remembered: comparing
        costs once per device. If the candidates fail only together, all on a device are
        returned.
        """
        steps, store = cover.steps, store_of(self.device)
        if all(step.device is None for step in steps):
            return []  # NumPy, as the oracle
        name = self._compared_as(steps)
        if store.fact(name):
            return []
        self._search.show(f"{names_of(steps)}, comparison")
        device = self.session  # its errors are no candidate's
        whole = self.program.span(0, len(self.program.ops), steps[0].span.batch)
        try:
            self._try_in_child(steps)
            compared = self._compared(device, steps, whole.inputs, whole.outputs)
        except (DeviceError, WrongResultError) as error:
            found = [c for c in cover.candidates if self._fails(c)]
            if not found:
                self._leave_out(names_of(steps), error)
                found = [c for c in cover.candidates if c.step.device is not None]
            return found
        if compared:
            store.put_fact(name, True)
        return []

    def _compared_as(self, steps: Sequence[Step]) -> str:
        """Return the store's name of the fact that steps were compared."""
        exact = (f"{self._key_of(s)} {exact_fingerprint(s.span)}" for s in steps)
        return f"compared {'; '.join(exact)}"

    def compare(self, step: Step) -> None:
        """Compare a step alone with the oracle."""
        self._compared(self.session, [step], step.span.inputs, step.span.outputs)

    def _try_in_child(self, steps: Sequence[Step]) -> None:
        """Raise DeviceError if a step ends a child process on an untested runtime."""
        for step in steps if self.device.untested else ():
            if step.device is not None:
                key = f"{self._key_of(step)} {program_fingerprint(step)}"
                if not survives(
                    store_of(self.device), key, _compare, type(self), self.network,
                    self.program, self.device, step,
                ):
                    raise DeviceError(death(step.variant.name, self.device))

    def _fails(self, candidate: Candidate) -> bool:
        """Return whether a candidate fails alone; warns if it does."""
        step = candidate.step
        try:
            self._try_in_child([step])
            self.compare(step)
        except (DeviceError, WrongResultError) as error:
            self._leave_out(step.variant.name, error)
            return True
        return False

    def _compared(
        self, device: Session, steps: Sequence[Step], inputs: Sequence[Value],
        outputs: Sequence[Value],
    ) -> bool:
        """Compare steps with the oracle; return whether their values allow it."""
        return check(device, self.network, steps, inputs, outputs).compared

    def _whole_key(self, cover: Cover) -> tuple[str, str]:
        span = self.span(0, len(self.program.ops))
        parts = [
            f"{c.start}-{c.stop} {self._key_of(c.step)}" for c in cover.candidates
        ]
        return f"{self.whole} {span.signature}", "; ".join(parts)

    def _ready(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Run:
        """Return a run of steps, after a pause where NumPy's threads may still spin.

        They would take a core from a device that is the CPU.
        """
        host = any(step.device is None for step in steps)
        if self._host_worked and not host:
            time.sleep(SPIN_SECONDS)
        self._host_worked = host
        return ready(
            self.session, self.network, steps, inputs, outputs, on_device=on_device,
            alike=alike,
        )

    def _alike(self, span: Span, candidate: Candidate) -> list[Span]:
        """Return a span, and the later equal ones that do not overlap."""
        n, length = len(self.program.ops), candidate.stop - candidate.start
        found, end = [span], candidate.stop
        while end + length <= n and len(found) < MAX_ALIKE:
            other = self.span(end, end + length)
            if other.signature == span.signature:
                found.append(other)
                end += length
            else:
                end += 1
        return found

    def _key_of(self, step: Step) -> str:
        """Return `key_of` a step, made once for steps whose times are comparable."""
        found = (
            self.signature(step, step.span), step.variant.name,
            tuple(step.config.items()), id(step.device),
        )
        if found not in self._keys:
            self._keys[found] = key_of(step)
        return self._keys[found]

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
    kind: type[Times], network: Model, program: Program, device: Device, step: Step
) -> None:
    """Compare a step alone with the oracle, by a kind of times."""
    batch = step.span.batch
    kind(network, program, device, batch, PlanReport(), Search()).compare(step)


def _on_host(cover: Cover) -> bool:
    return any(step.device is None for step in cover.steps)


def key_of(step: Step) -> str:
    """Return the store's key of a step: everything but device and span."""
    config = ",".join(f"{k}={v}" for k, v in sorted(step.config.items()))
    return f"{step.variant.name}({config}) {device_name(step)} {fingerprint(step)}"

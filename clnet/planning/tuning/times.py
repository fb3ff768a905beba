"""Times of a program's spans and of whole covers: remembered, or measured now."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from clnet.errors import ClnetError, ClnetWarning, DeviceError, OutOfMemoryError
from clnet.ir.ops import Program, Span, Value
from clnet.nn.model import Model
from clnet.opencl.device import Device
from clnet.opencl.session import Session, session
from clnet.opencl.store import Store, Timing
from clnet.planning.cover import Candidate, Cover, PlanReport
from clnet.planning.tuning.fingerprint import fingerprint
from clnet.planning.tuning.measure import (
    SPIN_SECONDS,
    WrongResultError,
    measure,
    names_of,
)
from clnet.planning.tuning.search import Search
from clnet.runtime.binding import Step

ALIKE = 8  # equal spans that are timed together, at most


@cache
def store_of(device: Device) -> Store:
    """Return the process's store of a device."""
    return Store(device)


class Times:
    """Times of one program on one device, at one batch.

    Parameters
    ----------
    network : Model
        Whose parameters.
    program : Program
        Lowered from it.
    device : Device
        Where.
    batch : int
        Samples that are measured; those of the steps that are asked for may be others.
    report : PlanReport
        Told of what fails although it is eligible.
    search : Search
        Told of what is measured.

    Attributes
    ----------
    whole : str
        What the times of whole covers are of.
    """

    whole = "host to host"

    def __init__(
        self,
        network: Model,
        program: Program,
        device: Device,
        batch: int,
        report: PlanReport,
        search: Search,
    ) -> None:
        self.network = network
        self.program = program
        self.device = device
        self.batch = batch
        self._survey, self._search = report, search
        self._found: dict[tuple[str, str], Timing | str] = {}
        self._host_worked = False

    @property
    def session(self) -> Session:
        """The device's, made when it is first asked for."""
        return session(self.device)

    def span(self, start: int, stop: int) -> Span:
        """Return ops start … stop-1 at the batch that is measured."""
        return self.program.span(start, stop, self.batch)

    def lookup(self, step: Step) -> Timing | None:
        """Return the remembered time of a step."""
        span = replace(step.span, batch=self.batch)
        return store_of(self.device).get(span.signature, key_of(step))

    def remembered(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its remembered time, if there is one."""
        return replace(candidate, timing=self.lookup(candidate.step), fault=None)

    def measured(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its time, or its fault, measured once."""
        step = candidate.step
        span = self.span(candidate.start, candidate.stop)
        key = (span.signature, key_of(step))
        if key not in self._found:
            trial, *alike = (
                replace(step, span=other) for other in self._alike(span, candidate)
            )
            self._search.tell(step.variant.name)
            try:
                timing = self._timed(
                    [trial], span.inputs, span.outputs,
                    on_device=step.device is not None, alike=alike,
                )
            except (DeviceError, WrongResultError) as error:
                self._leave_out(step.variant.name, error, candidate)
                self._found[key] = str(error)
            else:
                self._found[key] = timing
                store_of(self.device).put(*key, timing)
        found = self._found[key]
        if isinstance(found, str):
            return replace(candidate, timing=None, fault=found)
        return replace(candidate, timing=found, fault=None)

    def remembered_whole(self, cover: Cover) -> Cover:
        """Return a cover with its remembered whole time, if there is one."""
        return replace(cover, timing=store_of(self.device).get(*self._whole_key(cover)))

    def remember_whole(self, cover: Cover) -> None:
        """Remember a cover's whole time."""
        assert cover.timing is not None
        store_of(self.device).put(*self._whole_key(cover), cover.timing)

    def measured_whole(self, cover: Cover) -> Cover | None:
        """Return the cover with its whole time, measured anew; None if it fails."""
        steps = [
            replace(c.step, span=self.span(c.start, c.stop)) for c in cover.candidates
        ]
        self._search.tell(f"{names_of(steps)}, {self.whole}")
        try:
            timing = self._timed(
                steps, self.program.inputs, self.program.outputs, on_device=False
            )
        except (DeviceError, WrongResultError) as error:
            self._leave_out(f"{names_of(steps)}, all ops", error, cover.candidates[0])
            return None
        return replace(cover, timing=timing)

    def _whole_key(self, cover: Cover) -> tuple[str, str]:
        span = self.span(0, len(self.program.ops))
        parts = [f"{c.start}-{c.stop} {key_of(c.step)}" for c in cover.candidates]
        return f"{self.whole} {span.signature}", "; ".join(parts)

    def _timed(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value],
        *, on_device: bool, alike: Sequence[Step] = (),
    ) -> Timing:
        """Measure steps, once the threads of the host's steps before have come to rest.

        Those would take a core from the device, where that is the CPU.
        """
        host = any(step.device is None for step in steps)
        if self._host_worked and not host:
            time.sleep(SPIN_SECONDS)
        self._host_worked = host
        return measure(
            self.session, self.network, steps, inputs, outputs, on_device=on_device,
            alike=alike,
        )

    def _alike(self, span: Span, candidate: Candidate) -> list[Span]:
        """Return a span, and the later ones of its kind that do not overlap."""
        n, length = len(self.program.ops), candidate.stop - candidate.start
        found, end = [span], candidate.stop
        while end + length <= n and len(found) < ALIKE:
            other = self.span(end, end + length)
            if other.signature == span.signature:
                found.append(other)
                end += length
            else:
                end += 1
        return found

    def _leave_out(self, what: str, error: ClnetError, candidate: Candidate) -> None:
        """Tell the user, and `explain`, of what failed although it was eligible.

        Unless the batch itself may have room where the one that is measured has none.
        """
        too_large = isinstance(error, OutOfMemoryError)
        if too_large and self.batch != candidate.step.span.batch:
            raise error
        sentence = f"{what}: failed: {error}"
        if sentence not in self._survey.failures:
            self._survey.failures.append(sentence)
            warnings.warn(f"{what} is left out: {error}", ClnetWarning, stacklevel=2)


def key_of(step: Step) -> str:
    """Return the store's key of a step: everything but device and span."""
    place = "host" if step.device is None else (
        "calling thread" if step.device.serial else "device"
    )
    config = ",".join(f"{k}={v}" for k, v in sorted(step.config.items()))
    return f"{step.variant.name}({config}) {place} {fingerprint(step)}"

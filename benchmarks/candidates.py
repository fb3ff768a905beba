"""Candidates: what can be measured, and our own among them.

A candidate is told apart from what it prepares: the first is a name in a study, the
second holds a device's memory for one case.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, groupby, islice
from typing import Any, Protocol

from clnet.errors import ClnetError, DeviceError, unknown
from clnet.ir.ops import Span
from clnet.opencl.device import Device
from clnet.opencl.discovery import devices
from clnet.opencl.session import session
from clnet.planning.tuning.measure import WrongResultError, measure
from clnet.runtime.binding import Step
from clnet.runtime.executable import DeviceTime, Executable
from clnet.runtime.plan import Plan
from clnet.variants import ALL_VARIANTS, VARIANTS
from clnet.variants.base import Config, Variant

from .cases import Array, Case, check
from .floor import Machine
from .options import Options
from .versions import blas_threads

# What a time is of; a candidate offers some of these.
BASES = {
    "wall": "host array in, host array out, by the host's clock",
    "stream": "data on the device, runs back to back, by the host's clock",
    "device": "first kernel's start to the last one's end, by the device's clock",
    "busy": "the kernels alone, by the device's clock",
}

ENQUEUE_SECONDS = 3e-5  # a launch, three times what a profiling queue took on a GPU

Timer = Callable[[int], float]
"""Runs so many times, and returns the seconds of one run."""


def bases(device: Device) -> Sequence[str]:
    """Return what is timed unasked: on a CPU, where data need no way, calls."""
    return ("wall",) if device.type == "cpu" else tuple(BASES)[:3]


class RefusedError(ClnetError):
    """A variant cannot run here; the message is its sentence."""


@dataclass(frozen=True)
class Prepared:
    """A candidate made ready for one case.

    Attributes
    ----------
    check : callable
        Returns the relative error of its results; raises `WrongError` if that is more
        than the case allows.
    timers : mapping of str to callable
        For each of the study's bases that it offers, what makes the timer.
    config : str
        What was chosen or tuned, for people.
    threads : int or None
        Of the host's cores that it uses; None: of no account, or unknown.
    spins : bool
        Whether its threads go on spinning after a call, as those of a BLAS do.
    """

    check: Callable[[], float]
    timers: Mapping[str, Callable[[], Timer]]
    config: str = ""
    threads: int | None = None
    spins: bool = False


class Candidate(Protocol):
    """Something to measure; each is for one kind of case."""

    @property
    def name(self) -> str:
        """Stable: benchmark row, and what the command line calls it."""
        ...

    @property
    def patience(self) -> float | None:
        """Seconds that `prepare` may take; None: as long as it likes."""
        ...

    def missing(self) -> str | None:
        """Return None if it is installed, else what is not, in one sentence."""
        ...

    def prepare(self, case: Any, device: Device) -> Prepared:
        """Return it ready for a case; any exception becomes a row that says so."""
        ...


def forward(
    case: Case,
    call: Callable[[Array], Array],
    timers: Mapping[str, Callable[[], Timer]] | None = None,
    config: str = "",
    threads: int | None = None,
    spins: bool = False,
) -> Prepared:
    """Return a feed-forward candidate: host array [batch, n_in] in, [batch, n_out] out.

    Parameters are those of `Prepared`; the check and the timer ``"wall"`` are made.
    """
    return Prepared(
        lambda: check(case, call),
        {"wall": lambda: wall(call, case.inputs), **(timers or {})},
        config, threads, spins,
    )


def wall(call: Callable[[Array], Array], inputs: Sequence[Array]) -> Timer:
    """Return the timer of a call on sets of inputs in turn."""

    def timer(repeats: int) -> float:
        start = time.perf_counter()
        for x in islice(cycle(inputs), repeats):
            call(x)
        return (time.perf_counter() - start) / repeats

    return timer


@dataclass(frozen=True)
class ByVariant:
    """One variant for all of the network, each span as long as the variant's reach.

    Attributes
    ----------
    variant : Variant
        Which.
    pinned : mapping of str to int
        Parts of the configuration that are given; of what is left the first counts.
    by_layer : bool
        Whether each layer is a span of its own, although the variant takes several.
    one_core : bool
        Whether it runs in the calling thread, on the device's serial companion.
    tune : bool
        Whether all configurations are measured, and the fastest taken.
    label : str
        Of the row; empty: the variant's name.
    """

    variant: Variant
    pinned: Config = field(default_factory=dict)
    by_layer: bool = False
    one_core: bool = False
    tune: bool = False
    label: str = ""
    patience: float | None = None

    @property
    def name(self) -> str:
        """The label, or the variant's name."""
        return self.label or self.variant.name

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return its plan."""
        return prepared(case, device, self.steps(case, device))

    def steps(self, case: Case, device: Device) -> tuple[Step, ...]:
        """Return the steps of a plan.

        Raises
        ------
        RefusedError
            If it cannot compute the network here.
        """
        place = serial_place(device) if self.one_core else device
        program = case.network.program.at(case.precision)
        n = len(program.ops)
        reach = "layer" if self.by_layer else self.variant.reach
        length = {"op": 1, "pair": 2, "layer": 2, "run": n}[reach]
        steps = []
        configs: dict[str, Config] = {}
        for start in range(0, n, length):
            span = program.span(start, min(start + length, n), case.batch)
            sentence = self.variant.refuse(span, place)
            if sentence is not None:
                raise RefusedError(sentence)
            if span.signature not in configs:
                configs[span.signature] = self._config(case, device, span, place)
            on_host = self.variant.name == "host"
            steps.append(
                Step(
                    span, self.variant, configs[span.signature],
                    None if on_host else place,
                )
            )
        return tuple(steps)

    def _config(
        self, case: Case, device: Device, span: Span, place: Device
    ) -> Config:
        space = [
            config for config in self.variant.space(span, place)
            if self.pinned.items() <= config.items()
        ]
        if not space:
            raise RefusedError(
                f"{self.variant.name} has no configuration with "
                f"{_config_text(self.pinned)} here"
            )
        if not self.tune or len(space) == 1:
            return space[0]
        times: list[tuple[float, int]] = []
        faults = []
        for number, config in enumerate(space):
            step = Step(span, self.variant, config, place)
            try:
                timing = measure(
                    session(device), case.network, [step], span.inputs, span.outputs,
                    on_device=True,
                )
            except (DeviceError, WrongResultError) as error:
                faults.append(str(error))
            else:
                times.append((timing.seconds, number))
        if not times:
            raise RefusedError(faults[0])
        return space[min(times)[1]]


@dataclass(frozen=True)
class Serial:
    """The naive kernel on one core, in the calling thread; of a GPU, its host's.

    The serial program of the studies; on any device, what speed-ups are told of.
    """

    name: str = "serial"
    patience: float | None = None

    def missing(self) -> str | None:
        """Return that no device here runs in the calling thread."""
        return no_core()

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return its plan, timed by the host's clock alone."""
        device = on_one_core(device)
        naive = ByVariant(variant("naive"), one_core=True)
        plan = _plan(case, device, naive.steps(case, device))
        return forward(case, plan, config=device.name, threads=1)


@dataclass(frozen=True)
class Planned:
    """The network as `Network.compile` plans it: what a user gets.

    Attributes
    ----------
    tune : bool
        Whether the whole tuning space is measured first.
    """

    tune: bool = False
    name: str = "planned"
    patience: float | None = None

    def missing(self) -> str | None:
        """Return None: it is ours."""
        return None

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Plan for host arrays; on the other bases, for data on the device."""
        tune = True if self.tune else None
        plan = case.network.compile(
            device, case.batch, tune=tune, precision=case.precision
        )
        if all(step.place is not None for step in plan.steps):
            return prepared(case, device, plan.steps)
        # The host takes part, which only host arrays allow.
        names = [variant.name for variant in VARIANTS if variant.name != "host"]

        def steps() -> tuple[Step, ...]:
            return case.network.compile(
                device, case.batch, tune=tune, variants=names, precision=case.precision
            ).steps

        return forward(
            case, plan, _timers(case, device, steps), steps_text(plan.steps),
            _threads(plan.steps), spins=True,
        )


def no_core() -> str | None:
    """Return that no device here runs in the calling thread; None: one does."""
    if any(_is_serial(found) for found in devices()):
        return None
    return "no OpenCL device here runs in the calling thread: PoCL's would"


def on_one_core(device: Device) -> Device:
    """Return a device that has a place in the calling thread: this, else the host's."""
    if _is_serial(device):
        return device
    return next(found for found in devices() if _is_serial(found))


def variant(name: str) -> Variant:
    """Return the registered variant of a name; raise InputError if there is none."""
    known = {variant.name: variant for variant in ALL_VARIANTS}
    if name not in known:
        raise unknown("variant", name, known)
    return known[name]


def named(options: Options, others: Iterable[str]) -> list[Candidate]:
    """Return the registered variants besides others, where candidates are named."""
    if options.variants is None:
        return []
    return [
        ByVariant(variant, tune=options.tune) for variant in ALL_VARIANTS
        if variant.name not in set(others)
    ]


def _is_serial(device: Device) -> bool:
    return any(place.serial for place in device.places)


def serial_place(device: Device) -> Device:
    """Return a device's place in the calling thread; raise RefusedError if none is."""
    for place in device.places:
        if place.serial:
            return place
    raise RefusedError(f"{device.name} has no place that runs in the calling thread")


def prepared(case: Case, device: Device, steps: tuple[Step, ...]) -> Prepared:
    """Return a candidate of ours that runs these steps."""
    on_host = any(step.place is None for step in steps)
    plan = _plan(case, device, steps)
    timers = {} if on_host else _timers(case, device, lambda: steps)
    return forward(
        case, plan, timers, steps_text(steps), _threads(steps), spins=on_host
    )


def _plan(case: Case, device: Device, steps: tuple[Step, ...]) -> Plan:
    same = lambda: steps  # noqa: E731
    return Plan(case.network, device, case.batch, steps, same, same, "")


def _timers(
    case: Case, device: Device, steps: Callable[[], tuple[Step, ...]]
) -> dict[str, Callable[[], Timer]]:
    """Return what makes the timers of steps that run on the device alone."""
    return {
        "stream": lambda: _stream(case, device, steps()),
        "device": lambda: _clock(case, device, steps(), lambda time: time.span),
        "busy": lambda: _clock(case, device, steps(), lambda time: time.busy),
    }


def _executable(
    case: Case, device: Device, steps: tuple[Step, ...], profiling: bool
) -> Executable:
    program = case.network.program
    return Executable(
        session(device, profiling), case.network, steps, [program.input],
        [program.output], on_device=True,
    )


def _stream(case: Case, device: Device, steps: tuple[Step, ...]) -> Timer:
    executable = _executable(case, device, steps, profiling=False)
    executable.write(case.network.program.input, case.inputs[0])
    queues = list(executable.session.queues.values())

    def timer(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            executable.run()
        for queue in queues:
            queue.finish()
        return (time.perf_counter() - start) / repeats

    return timer


def _clock(
    case: Case,
    device: Device,
    steps: tuple[Step, ...],
    read: Callable[[DeviceTime], float],
) -> Timer:
    executable = _executable(case, device, steps, profiling=True)
    x = case.network.program.input
    # A CPU's launches start at once; a GPU must not wait for the host to enqueue them.
    launches = sum(
        step.variant.cost(step.span, step.config, device).launches for step in steps
    )
    first = None
    if device.type != "cpu" and launches > 1:
        first = Machine(device).delay(launches * ENQUEUE_SECONDS)

    def timer(repeats: int) -> float:
        times = []
        for values in islice(cycle(case.inputs), repeats):
            executable.write(x, values)
            times.append(read(executable.timed_run(first)))
        return statistics.median(times)

    return timer


def steps_text(steps: Sequence[Step]) -> str:
    """Return steps in a few words; equal neighbours once, with their number."""

    def text(step: Step) -> str:
        config = _config_text(step.config)
        if step.place is not None and step.place.serial:
            config = f"{config} calling thread".strip()
        return f"{step.variant.name}({config})" if config else step.variant.name

    runs = [(name, len(list(run))) for name, run in groupby(steps, text)]
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in runs)


def _config_text(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def _threads(steps: Sequence[Step]) -> int | None:
    """Return the host's threads that steps use."""
    known = [
        blas_threads() if step.place is None else step.place.compute_units
        for step in steps if step.place is None or step.place.type == "cpu"
    ]
    return max((n for n in known if n is not None), default=None)

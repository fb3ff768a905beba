"""clnet's own candidates: variants, plans, the serial device; and their timers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from clnet.errors import DeviceError, InputError, known_row
from clnet.ir.program import Span
from clnet.opencl.commands import NANOSECOND
from clnet.opencl.device import Device
from clnet.opencl.discovery import devices
from clnet.opencl.session import session
from clnet.planning.tuning.calls import CallTrial
from clnet.planning.tuning.measure import timing
from clnet.planning.tuning.oracle import WrongResultError, quiet_errors
from clnet.runtime.binding import PlanStep
from clnet.runtime.executable import Executable
from clnet.runtime.plan import Plan
from clnet.runtime.profiling import traced
from clnet.variants import ALL_VARIANTS, VARIANTS
from clnet.variants.base import Config, Variant

from .candidates import (
    Candidate,
    Prepared,
    RefusedError,
    Timer,
    back_to_back,
    forward,
)
from .cases.dense import Case
from .environment import blas_threads
from .roofline import Roofline

if TYPE_CHECKING:
    from clnet.opencl.commands import Action

    from .harness import Options

ENQUEUE_SECONDS = 3e-5  # a launch; three times that of a GPU's profiling queue


@dataclass(frozen=True)
class ByVariant(Candidate):
    """One variant for the whole network, each span as long as its reach."""

    variant: Variant
    # Fixed parts of the configuration; the first configuration with them counts
    pinned: Config = field(default_factory=dict)
    by_layer: bool = False  # Whether each layer is a span of its own
    # Whether it runs in the calling thread, on the device's serial companion
    one_core: bool = False
    tune: bool = False  # Whether all configurations are measured, and the fastest taken
    name: str = ""  # Empty: the variant's

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.variant.name)

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return its plan."""
        return prepared(case, device, self.steps(case, device))

    def steps(self, case: Case, device: Device) -> tuple[PlanStep, ...]:
        """Return the steps of a plan, or raise RefusedError."""
        target = serial_device(device) if self.one_core else device
        program = case.network.program.at(case.precision)
        n = len(program.ops)
        reach = "layer" if self.by_layer else self.variant.reach
        length = {"op": 1, "pair": 2, "layer": 2, "run": n}[reach]
        steps = []
        configs: dict[str, Config] = {}
        for start in range(0, n, length):
            span = program.span(start, min(start + length, n), case.batch)
            refusal = self.variant.refuse(span, target)
            if refusal is not None:
                raise RefusedError(refusal)
            if span.signature not in configs:
                configs[span.signature] = self._config(case, device, span, target)
            on_host = self.variant.name == "host"
            steps.append(
                PlanStep(
                    span, self.variant, configs[span.signature],
                    None if on_host else target,
                )
            )
        return tuple(steps)

    def _config(self, case: Case, device: Device, span: Span, target: Device) -> Config:
        space = [
            config for config in self.variant.space(span, target)
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
            step = PlanStep(span, self.variant, config, target)
            try:
                run = CallTrial(case.network, case.network.program, device).ready(
                    [step], span.inputs, span.outputs, on_device=True
                )
                with quiet_errors(session(device)):
                    measured = timing(run)
            except (DeviceError, WrongResultError) as error:
                faults.append(str(error))
            else:
                times.append((measured.seconds, number))
        if not times:
            raise RefusedError(faults[0])
        return space[min(times)[1]]


@dataclass(frozen=True)
class Serial(Candidate):
    """The naive kernel on one core of the host, in the calling thread.

    It is the studies' serial program, the baseline of speed-ups on any device.
    """

    name: str = "serial"

    def missing(self) -> str | None:
        """Return None if a device runs in the calling thread."""
        return no_serial_device()

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Return its plan, timed by the host's clock alone."""
        device = with_serial_device(device)
        naive = ByVariant(variant("naive"), one_core=True)
        plan = _plan(case, device, naive.steps(case, device))
        return forward(case, plan, config=device.name, threads=1)


@dataclass(frozen=True)
class Planned(Candidate):
    """The network as `Network.compile` plans it."""

    tune: bool = False  # Whether the whole tuning space is measured first
    name: str = "planned"
    on_host: bool = True  # Whether the variant ``host`` is among the candidates

    def prepare(self, case: Case, device: Device) -> Prepared:
        """Plan for host arrays; on the other bases, for data on the device."""
        plan = self._plan(case, device, self.on_host)
        if all(step.device is not None for step in plan.steps):
            return prepared(case, device, plan.steps, plan)
        # A plan with steps of the host needs host arrays.
        timers = _timers(
            case, device, lambda: self._plan(case, device, False).steps, plan
        )
        return forward(
            case, plan, timers, steps_text(plan.steps), _threads(plan.steps), spins=True
        )

    def _plan(self, case: Case, device: Device, on_host: bool) -> Plan:
        names = [variant.name for variant in VARIANTS if variant.name != "host"]
        return case.network.compile(
            device, case.batch, tune=True if self.tune else None,
            variants=None if on_host else names, precision=case.precision,
        )


def no_serial_device() -> str | None:
    """Return None if a device runs in the calling thread, else a sentence."""
    if any(has_serial(device) for device in devices()):
        return None
    return "no OpenCL device here runs in the calling thread: PoCL's would"


def with_serial_device(device: Device) -> Device:
    """Return the device if it or a companion is serial, else another one like that."""
    if has_serial(device):
        return device
    return next(other for other in devices() if has_serial(other))


def variant(name: str) -> Variant:
    """Return the registered variant of a name; raise InputError if there is none."""
    return known_row("variant", name, {row.name: row for row in ALL_VARIANTS})


def named(options: Options, others: Iterable[str]) -> list[Candidate]:
    """Return the registered variants besides others, where candidates are named."""
    if options.variants is None:
        return []
    listed = set(others)
    return [
        ByVariant(variant, tune=options.tune) for variant in ALL_VARIANTS
        if variant.name not in listed
    ]


def has_serial(device: Device) -> bool:
    """Return whether a device, or a companion, runs kernels in the calling thread."""
    return any(place.serial for place in device.places)


def serial_device(device: Device) -> Device:
    """Return the device or its companion that runs kernels in the calling thread."""
    for place in device.places:
        if place.serial:
            return place
    raise RefusedError(f"{device.name} has no companion in the calling thread")


def prepared(
    case: Case, device: Device, steps: tuple[PlanStep, ...], plan: Plan | None = None
) -> Prepared:
    """Return a candidate that runs steps of clnet's, by their plan or a new one."""
    on_host = any(step.device is None for step in steps)
    plan = plan or _plan(case, device, steps)
    timers = {} if on_host else _timers(case, device, lambda: steps, plan)
    return forward(
        case, plan, timers, steps_text(steps), _threads(steps), spins=on_host
    )


def _plan(case: Case, device: Device, steps: tuple[PlanStep, ...]) -> Plan:
    same = lambda: steps  # noqa: E731
    return Plan(case.network, device, case.batch, steps, same, same)


def _timers(
    case: Case, device: Device, steps: Callable[[], tuple[PlanStep, ...]], plan: Plan
) -> dict[str, Callable[[], Timer]]:
    """Return the timers of steps without the host, and of a plan's device arrays."""
    return {
        "stream": lambda: _stream(case, device, steps()),
        "device": lambda: _clock(case, device, steps(), lambda time: time.span),
        "busy": lambda: _clock(case, device, steps(), lambda time: time.busy),
        "arrays": lambda: _arrays(case, plan),
    }


def _executable(
    case: Case, device: Device, steps: tuple[PlanStep, ...], profiling: bool
) -> Executable:
    program = case.network.program
    return Executable(
        session(device, profiling), case.network, steps, [program.input],
        [program.output], on_device=True,
    )


def _stream(case: Case, device: Device, steps: tuple[PlanStep, ...]) -> Timer:
    executable = _executable(case, device, steps, profiling=False)
    executable.bound.write(case.network.program.input, case.inputs[0])
    return back_to_back(executable.run, executable.session.finish)


def _arrays(case: Case, plan: Plan) -> Timer:
    import pyopencl.array

    queue, shape = plan.queue, (case.batch, case.sizes[-1])
    y = pyopencl.array.empty(queue, shape, case.dtype)
    inputs = cycle([pyopencl.array.to_device(queue, x) for x in case.inputs])
    return back_to_back(lambda: plan(next(inputs), y), queue.finish)


def _clock(
    case: Case,
    device: Device,
    steps: tuple[PlanStep, ...],
    read: Callable[[DeviceTime], float],
) -> Timer:
    executable = _executable(case, device, steps, profiling=True)
    x = case.network.program.input
    # A GPU is delayed until the host has enqueued all launches.
    launches = sum(
        step.variant.cost(step.span, step.config, device).launches for step in steps
    )
    first = None
    if device.type != "cpu" and launches > 1:
        first = Roofline(device).delay(launches * ENQUEUE_SECONDS)

    executable.run()  # uploads the parameters

    def timer(repeats: int) -> float:
        times = []
        for values in islice(cycle(case.inputs), repeats):
            executable.bound.write(x, values)
            times.append(read(timed_run(executable, first)))
        return statistics.median(times)

    return timer


class DeviceTime(NamedTuple):
    """Times of the commands of one run, by the device's clock."""

    span: float  # Seconds from the first command's start to the last one's end
    busy: float  # Seconds of the commands alone, without the gaps between them


def timed_run(executable: Executable, first: Action | None = None) -> DeviceTime:
    """Compute as `Executable.run` does, and return the times by the device's clock.

    The executable is of a session with profiling. `first` enqueues other work, not
    counted, that keeps the device busy until the host has enqueued the run: without it
    the device may idle between commands.
    """
    if first is not None:
        first()
    commands = traced(executable)
    times = [command.event.profile for command in commands if command.event is not None]
    if not times:
        raise InputError("timed_run needs a step that runs on the device")
    span = max(time.end for time in times) - min(time.start for time in times)
    busy = sum(time.end - time.start for time in times)
    return DeviceTime(NANOSECOND * span, NANOSECOND * busy)


def steps_text(steps: Sequence[PlanStep]) -> str:
    """Return steps as short text, equal neighbours counted."""

    def text(step: PlanStep) -> str:
        config = _config_text(step.config)
        if step.device is not None and step.device.serial:
            config = f"{config} calling thread".strip()
        return f"{step.variant.name}({config})" if config else step.variant.name

    runs = [(name, len(list(run))) for name, run in groupby(steps, text)]
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in runs)


def _config_text(config: Config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def _threads(steps: Sequence[PlanStep]) -> int | None:
    """Return the host threads that steps use."""
    known = [
        blas_threads() if step.device is None else step.device.compute_units
        for step in steps if step.device is None or step.device.type == "cpu"
    ]
    return max((n for n in known if n is not None), default=None)

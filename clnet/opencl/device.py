"""A device: a frozen record of its capabilities, and of the speed of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from clnet.errors import counted

TYPES = ("gpu", "accelerator", "cpu", "custom")  # best first
LOCAL_MEMORY = 1 << 15  # bytes; OpenCL's minimum for full-profile devices


@dataclass(frozen=True)
class Rates:
    """Speeds of one device, all compute units together.

    A cost model counts operations, bytes, launches and waits; this says how long each
    takes. `estimated` derives it from what the driver reports; `rate_probes` measures
    it once, and the store remembers it with the device.
    """

    flops: float  # Float32 operations a second of multiply-adds
    # Operations a second of halves, added in float32, on matrix units of a warp, and on
    # those of a warp group; where there are none, on the next best
    matrix: float
    warp_group: float
    memory: float  # Bytes a second read from memory, and from the last cache before it
    cache: float
    cache_bytes: float  # Bytes that this cache holds
    latency: float  # Seconds of a load from it that needs the load before
    # Seconds from a value that each work-group stores until all groups have all
    handover: float
    launch: float  # Seconds of a launch among many
    sync: float  # Further seconds until the host sees the end of one alone

    def bandwidth(self, size: float) -> float:
        """Return the bytes a second of reading an array of so many bytes again."""
        return self.cache if size <= self.cache_bytes else self.memory


@dataclass(frozen=True, repr=False)
class Device:
    """The capabilities of one OpenCL device.

    Every field but `name` has a default: a record can be made without OpenCL.

    Attributes
    ----------
    name, vendor, platform, platform_version, version, driver : str
        The device and its driver, as OpenCL reports them.
    type : str
        ``"gpu"``, ``"accelerator"``, ``"cpu"`` or ``"custom"``.
    index : str
        Numbers of the platform and of the device in it, as ``"0:1"``.
    compute_units : int
        Cores of a CPU, multiprocessors of a GPU.
    global_memory, largest_buffer, local_memory : int
        Bytes: of the device, of one buffer, of dynamic local memory per work-group.
    declared_local_memory : int
        Bytes of local memory for arrays declared in a kernel, as reported.
    unit_local_memory : int
        Bytes of local memory of one compute unit, shared by its work-groups; the arrays
        declared in a kernel may have as much.
    registers : int
        Registers of 4 bytes of one compute unit.
    cache : int
        Bytes of a cache of global memory, as reported: a CPU's last; 0: unknown.
    clock : float
        Clocks a second, as reported; 0: unknown.
    largest_group : int
        Maximum number of work-items in a work-group.
    vector_width : int
        Preferred vector width, in floats.
    simd_width : int
        Work-items that run in lock step.
    fp64, fp16, subgroups : bool
        Whether kernels may use double, half, and sub-groups.
    forward_progress : bool or None
        Whether the work-groups of a launch, no more than there are compute units, run
        concurrently, so that they may wait for each other. None: not probed yet.
    mapped_host_memory : bool or None
        Whether kernels can store to mapped host memory at its host address. None: not
        probed yet.
    compute_capability : (int, int) or None
        NVIDIA's major and minor number.
    fine_svm : bool
        Whether shared virtual memory needs no mapping (fine-grain buffers).
    system_svm : bool
        Whether all of the host's memory is such memory (fine-grain system).
    operator_math : bool
        Whether built-in functions are out-of-line calls, so that kernels use forms
        made of operators alone.
    serial : bool
        Whether kernels run in the calling thread on one core.
    emulated : bool
        Whether the device is software that emulates another kind of processor.
    untested : bool
        Whether kernels may kill the process: steps run in a child process first.
    late_errors : bool
        Whether only a launch's event tells that its kernel could not be compiled.
    launch_cost : float
        Estimated seconds from a kernel's enqueueing until the host sees its end.
    measured : Rates or None
        The measured rates; None: `rates` are estimates.
    build_options : tuple of str
        Further options for the device's compiler.
    barrier_build_options : tuple of str
        Further options for programs with barriers.
    registers_option : str
        The compiler's option that limits the registers of a work-item, before the
        number; ``""``: it has none.
    environment : tuple of (str, str)
        Variables that the device's compiler reads, unless the user set them.
    notes : tuple of str
        The reason of each quirk that edited this record.
    companions : tuple of Device
        Other devices of the same processor that can share a context with this one.
    handle : pyopencl.Device or None
        None for a record made without OpenCL.

    Examples
    --------
    >>> clnet.Device("a card", type="gpu", compute_units=16).fp64
    False
    """

    name: str
    type: str = "gpu"
    vendor: str = ""
    platform: str = ""
    platform_version: str = ""
    version: str = ""
    driver: str = ""
    index: str = "0:0"
    compute_units: int = 1
    global_memory: int = 1 << 30
    largest_buffer: int = 1 << 28
    local_memory: int = LOCAL_MEMORY
    declared_local_memory: int = LOCAL_MEMORY
    unit_local_memory: int = LOCAL_MEMORY
    registers: int = 1 << 16
    cache: int = 0
    clock: float = 0.0
    largest_group: int = 256
    vector_width: int = 1
    simd_width: int = 1
    fp64: bool = False
    fp16: bool = False
    subgroups: bool = False
    forward_progress: bool | None = field(default=False, compare=False)
    mapped_host_memory: bool | None = field(default=False, compare=False)
    compute_capability: tuple[int, int] | None = None
    fine_svm: bool = False
    system_svm: bool = False
    operator_math: bool = False
    serial: bool = False
    emulated: bool = False
    untested: bool = False
    late_errors: bool = False
    launch_cost: float = 1e-5
    measured: Rates | None = field(default=None, compare=False)
    build_options: tuple[str, ...] = ()
    barrier_build_options: tuple[str, ...] = ()
    registers_option: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    companions: tuple[Device, ...] = ()
    handle: Any = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash((self.index, self.name, self.compute_units))  # keys of every call

    def __repr__(self) -> str:
        units = counted(self.compute_units, "compute unit")
        return f"<Device {self.index} {self.name}: {self.type}, {units}>"

    def _repr_html_(self) -> str:
        from clnet.nn.notebook import html_table

        rows = [
            (record.name, getattr(self, record.name)) for record in fields(self)
            if record.name not in ("handle", "companions", "measured")
        ]
        return html_table(repr(self), ("", ""), rows)

    @cached_property
    def rates(self) -> Rates:
        """The rates for the cost models: measured, else estimated."""
        return self.measured or estimated(self)

    @property
    def places(self) -> tuple[Device, ...]:
        """The device, then its companions: each can run a span."""
        return (self, *self.companions)


# Float32 lanes of a compute unit, and operations of halves a clock on its matrix units,
# of a warp and of a warp group, by NVIDIA's compute capability (its programming guide).
# Where units serve warp groups, a warp reaches `WARP_SHARE` of them. The newest that is
# not newer than the device counts.
GENERATIONS: dict[tuple[int, int], tuple[int, int, int]] = {
    (5, 0): (128, 0, 0),
    (6, 0): (64, 0, 0),
    (6, 1): (128, 0, 0),
    (7, 0): (64, 1024, 0),
    (8, 0): (64, 2048, 0),
    (8, 6): (128, 512, 0),
    (8, 9): (128, 1024, 0),
    (9, 0): (128, 4096, 4096),
    (10, 0): (128, 4096, 0),
    (12, 0): (128, 1024, 0),
}
WARP_SHARE = 0.55
# Estimates where the driver tells nothing: rough, since they only rank.
CLOCK = {"cpu": 3e9, "gpu": 1.5e9}
SIMDS = 4  # vector units of a GPU's compute unit, each as wide as 16 to 32 lanes
LANES_OF_SIMD = 32
PIPES = 2  # multiply-adds that a CPU core starts in a clock
OPS_PER_BYTE = {"cpu": 4.0, "gpu": 16.0}  # of memory; GPUs with stacked memory
CACHE_SPEEDUP = 2.5  # of the last cache over memory
CACHE_OF_UNIT = 1 << 18  # bytes a GPU's compute unit has of it
LATENCY_CLOCKS = {"cpu": 50, "gpu": 270}
HANDOVER_LATENCIES = 6  # a store, polls on the way, a load, and two barriers


def with_rates(device: Device, rates: Sequence[Rates]) -> Device:
    """Return a device with its measured rates, and those of its companions."""
    main, *others = (
        replace(place, measured=own)
        for place, own in zip(device.places, rates, strict=True)
    )
    return replace(main, companions=tuple(others))


def estimated(device: Device) -> Rates:
    """Return the record by what a driver reports: clock, units, lanes."""
    device_type = "cpu" if device.type == "cpu" else "gpu"
    clock, units = device.clock or CLOCK[device_type], device.compute_units
    lanes, matrix, warp_group = _per_clock(device)
    flops = 2.0 * lanes * clock * units
    memory = flops / OPS_PER_BYTE[device_type]
    latency = LATENCY_CLOCKS[device_type] / clock
    reported = device.cache if device_type == "cpu" else 0  # GPUs report other caches
    by_warps = matrix * clock * units * (WARP_SHARE if warp_group else 1.0) or flops
    return Rates(
        flops=flops, matrix=by_warps,
        warp_group=warp_group * clock * units or by_warps, memory=memory,
        cache=CACHE_SPEEDUP * memory,
        cache_bytes=float(reported or CACHE_OF_UNIT * units), latency=latency,
        handover=HANDOVER_LATENCIES * latency, launch=device.launch_cost,
        sync=device.launch_cost,
    )


def data_sheet(device: Device) -> dict[str, float]:
    """Return rates that follow from clock, units and lanes, where these are known."""
    if not device.clock or (device.type != "cpu" and not device.compute_capability):
        return {}
    names = ("flops", "matrix", "warp_group")
    sheet = {
        name: getattr(estimated(device), name)
        for name, count in zip(names, _per_clock(device), strict=True) if count
    }
    if "warp_group" in sheet:
        sheet["matrix"] = sheet["warp_group"]  # the same units
    if device.type == "cpu" and device.cache:
        sheet["cache_bytes"] = float(device.cache)
    return sheet


def _per_clock(device: Device) -> tuple[int, int, int]:
    """Return a unit's lanes, and matrix operations, of a clock."""
    if device.type == "cpu":
        return PIPES * device.vector_width, 0, 0
    capability = device.compute_capability or (0, 0)
    known = [generation for generation in GENERATIONS if generation <= capability]
    if known:
        return GENERATIONS[max(known)]
    return SIMDS * min(device.simd_width, LANES_OF_SIMD), 0, 0

"""Rates: the speeds of one device, from which alone the cost models make times.

A model counts: operations, bytes, launches, waits. The record says how long each takes
on a device. `estimated` derives it from what the driver reports; `rate_probes` measures
it once, and the store remembers it with the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Reported(Protocol):
    """A device as its driver reports it: fields of `Device`."""

    @property
    def type(self) -> str: ...  # noqa: D102
    @property
    def compute_units(self) -> int: ...  # noqa: D102
    @property
    def clock(self) -> float: ...  # noqa: D102
    @property
    def cache(self) -> int: ...  # noqa: D102
    @property
    def vector_width(self) -> int: ...  # noqa: D102
    @property
    def simd_width(self) -> int: ...  # noqa: D102
    @property
    def compute_capability(self) -> tuple[int, int] | None: ...  # noqa: D102
    @property
    def launch_cost(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Rates:
    """Speeds of one device, all compute units together."""

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


def estimated(device: Reported) -> Rates:
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


def data_sheet(device: Reported) -> dict[str, float]:
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


def _per_clock(device: Reported) -> tuple[int, int, int]:
    """Return a unit's lanes, and matrix operations, of a clock."""
    if device.type == "cpu":
        return PIPES * device.vector_width, 0, 0
    capability = device.compute_capability or (0, 0)
    known = [generation for generation in GENERATIONS if generation <= capability]
    if known:
        return GENERATIONS[max(known)]
    return SIMDS * min(device.simd_width, LANES_OF_SIMD), 0, 0

"""Rate probes: the speeds of a device, measured by small kernels in about a second.

`measured` fills the record `Rates` of a device, once: the store keeps it with the
device and its driver, until the driver, these kernels or this module change. Single
probes are the benchmarks' roofline too.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clnet.errors import BuildError, DeviceError
from clnet.opencl.bound import Bound
from clnet.opencl.commands import seconds_of
from clnet.opencl.device import Rates, with_rates
from clnet.opencl.launch import OPENCL_TYPES, Argument, Launch, Scratch
from clnet.opencl.program import (
    WARP_GROUP_MMA,
    WARP_MMA,
    matrix_units,
    source_hash,
)
from clnet.opencl.session import Session, session
from clnet.opencl.store import store_of
from clnet.opencl.times_file import given_rates

if TYPE_CHECKING:
    from clnet.opencl.device import Device

SOURCES = tuple(
    f"probes/{stem}.cl" for stem in ("bandwidth", "rate", "latency", "launch", "matrix")
)
LAUNCHES = 5  # the fastest counts
UNROLL = 8  # loads in flight
LARGE = 1 << 30  # bytes read on a GPU: far beyond its caches
READ = 1 << 28  # bytes read on a CPU at least, in passes over one array
ITEMS = 2048  # work-items resident on a GPU's compute unit
GROUP = 256  # work-items of a group there
GROUPS_PER_CORE = 64  # a runtime balances many groups
STEPS = {True: 1 << 18, False: 1 << 12}  # multiply-adds a chain, on a CPU or else
OF_CORE = 1 << 18  # bytes that a core's own cache holds
LEAST_CACHE = 1 << 21  # bytes of the smallest cache of a GPU that is looked for
HELD_LOSS = 0.25
AROUND = 1 << 28  # bytes read of each size there
RING = 1 << 19  # indices of a ring, 2 MiB: beyond a compute unit's cache, within L2
CHASED = 2000  # loads, one after the other
ROUNDS = 200  # of handovers
MAX_POLLS = 1 << 20  # of all of them
MATRIX_STEPS = 1 << 11
TRIED_LAUNCHES = 100
PROBE_SECONDS = 3.0  # of all probes at most, builds included


def measured(device: Device, again: bool = False) -> Device:
    """Return a device with its measured rates, and those of its companions.

    From the store if they are there, else, or again, measured now. A device whose
    probes fail, an emulated and an untested one stay as they are: their rates are
    estimates.
    """
    probed = replace(device, measured=None) if again else known(device)
    unable = device.handle is None or device.emulated or device.untested
    if probed.measured is not None or unable:
        return probed
    import pyopencl as cl

    try:
        rates = _measured(probed)
    except (cl.Error, BuildError, DeviceError):
        return device
    store_of(device).put_rates(_version(), {
        f"{number} {name}": rate
        for number, record in enumerate(rates) for name, rate in asdict(record).items()
    })
    _known.cache_clear()
    return known(device)


def known(device: Device) -> Device:
    """Return a device with the rates of the store, else of a file, if there are any."""
    if device.measured is not None or device.handle is None:
        return device
    stored = _known(device)
    return given_rates(device) if stored.measured is None else stored


@cache
def _known(device: Device) -> Device:
    numbers, names = store_of(device).rates(_version()), [x.name for x in fields(Rates)]
    try:
        return with_rates(device, [
            Rates(*(numbers[f"{number} {name}"] for name in names))
            for number in range(len(device.places))
        ])
    except KeyError:  # not measured, or written in part
        return device


@cache
def _version() -> str:
    """Return a digest of this module and of its kernels."""
    text = Path(__file__).read_bytes() + "".join(map(source_hash, SOURCES)).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _measured(device: Device) -> list[Rates]:
    """Return the rates of a device and of its companions, each by its own probes.

    A companion is some of the same cores. Where other programs use the rest, its rates
    are more than its share.
    """
    plain, all_rates = session(device), []
    for place in device.places:
        launch, sync = launch_seconds(plain, place)
        rates = _rates_of(session(place, profiling=True))
        all_rates.append(replace(rates, launch=launch, sync=sync))
    return all_rates


def _rates_of(timed: Session) -> Rates:
    """Return the rates of a device, but for its launches."""
    device = timed.device
    rates = replace(device.rates, flops=multiply_add(timed, "float32"))
    if device.type == "cpu":
        return replace(
            rates, matrix=rates.flops, warp_group=rates.flops,
            cache=read_chunks(timed, OF_CORE * device.compute_units),
            memory=read_chunks(timed, min(READ, 4 * int(rates.cache_bytes))),
        )
    cache_rate, cache_bytes = read_cache(timed)
    rates = replace(
        rates, memory=read_coalesced(timed, READ), cache=cache_rate,
        cache_bytes=cache_bytes, latency=load_latency(timed),
    )
    if device.forward_progress:
        rates = replace(rates, handover=handover(timed) or rates.handover)
    for name, units in (("matrix", WARP_MMA), ("warp_group", WARP_GROUP_MMA)):
        rate = rates.matrix
        if units in matrix_units(device):
            rate = matrix_products(timed, units)
        elif name == "matrix":
            rate = rates.flops
        rates = replace(rates, **{name: rate})
    return rates


def read_coalesced(timed: Session, size: int) -> float:
    """Return the bytes a second of a GPU's work-items reading an array once."""
    device = timed.device
    size = min(size, device.largest_buffer, device.global_memory // 4)
    items = device.compute_units * ITEMS
    vector, defines = _vectors(4)
    count = _whole(size / (items * vector))
    read = count * items * vector
    launch = Launch(
        "probes/bandwidth.cl", "read_coalesced", defines, (items,),
        (group_of(device),),
        (Scratch("data", read), count, Scratch("sums", items * vector)),
    )
    return read / least_seconds(Bound(timed), launch)


def read_chunks(timed: Session, size: int) -> float:
    """Return the bytes a second of cores that read an array's parts repeatedly."""
    readers = timed.device.compute_units
    vector, defines = _vectors(8)
    count = _whole(size / (readers * vector))
    read = count * readers * vector
    passes = math.ceil(READ / read)
    tickets = Scratch("tickets", 4)
    launch = Launch(
        "probes/bandwidth.cl", "read_chunks", defines, (readers * GROUPS_PER_CORE,),
        (1,),
        (Scratch("data", read), count, passes, readers,
         Scratch("sums", readers * vector), tickets),
    )
    return read * passes / least_seconds(Bound(timed), launch, tickets)


def read_cache(timed: Session) -> tuple[float, float]:
    """Return the bytes a second from a GPU's last cache, and the bytes that it holds.

    Arrays of rising sizes are read repeatedly: those that it holds lose less than
    `HELD_LOSS` of the way from the highest rate to that of the largest array.
    """
    device = timed.device
    items, group = device.compute_units * ITEMS // 2, group_of(device)
    vector, defines = _vectors(4)
    most = min(READ, device.largest_buffer, device.global_memory // 4)
    data, sums = Scratch("data", most), Scratch("sums", items * vector)
    loads, rates = _whole(AROUND / (items * vector)), {}
    bound, size = Bound(timed), float(max(LEAST_CACHE, 2 * items * vector))
    while size <= most:
        # No multiple of the items: a compute unit's own cache must not hold its part.
        count = int(size) // vector // items * items - items // 3 // group * group
        launch = Launch(
            "probes/bandwidth.cl", "read_around", defines, (items,), (group,),
            (data, count, loads, sums),
        )
        seconds = least_seconds(bound, launch)
        rates[count * vector] = loads * items * vector / seconds
        size *= 2**0.25
    best, last = max(rates.values()), list(rates.values())[-1]
    least = best - HELD_LOSS * (best - last)
    held = [size for size, rate in rates.items() if rate >= least]
    return best, float(max(held))


def multiply_add(timed: Session, dtype: str) -> float:
    """Return the operations a second of multiply-adds of a dtype in registers."""
    device = timed.device
    cpu = device.type == "cpu"
    width, chains = (8, 12) if cpu else (4, 4)
    if dtype == "float64":
        width //= 2
    items = device.compute_units * (GROUPS_PER_CORE if cpu else ITEMS)
    steps = STEPS[cpu]
    sums = Scratch("sums", items * width * np.dtype(dtype).itemsize)
    launch = Launch(
        "probes/rate.cl", "multiply_add",
        {"REAL": OPENCL_TYPES[dtype], "WIDTH": width, "CHAINS": chains},
        (items,), (1 if cpu else group_of(device),),
        (0.999, 0.001, steps, sums),
    )
    flops = 2 * width * chains * steps * items
    return flops / least_seconds(Bound(timed, dtype), launch)


def matrix_products(timed: Session, units: int) -> float:
    """Return the operations a second of halves on a kind of matrix units."""
    # mma.m16n8k16 by 16 warps of 2 x 8 sums; wgmma of 64 x 256 x 16 by 2 warp groups.
    shape: dict[str, int | str] = {} if units == WARP_MMA else {
        "TILE_M": 128, "TILE_N": 256, "WARPS_M": 8, "WARPS_N": 1, "STEP": 4,
        "STAGES": 1, "SLICE": 4, "PRODUCER": 0, "SWIZZLE": 1,
    }
    group, each = (512, 16 * 16 * 16 * 8 * 16) if units == WARP_MMA else (
        256, 2 * 4 * 64 * 256 * 16
    )
    groups = timed.device.compute_units
    launch = Launch(
        "probes/matrix.cl", "matrix", {"UNITS": units, "SPLITS": 1, **shape},
        (groups * group,), (group,),
        (MATRIX_STEPS, Scratch("sums", 4 * groups * group)),
    )
    seconds = least_seconds(Bound(timed), launch)
    return 2 * each * groups * MATRIX_STEPS / seconds


def load_latency(timed: Session) -> float:
    """Return the seconds of a load that needs the load before, from L2."""
    order = np.random.default_rng(0).permutation(RING).astype(np.int32)
    ring = np.empty(RING, np.int32)
    ring[order] = np.roll(order, -1)
    bound, data = Bound(timed), Scratch("ring", ring.nbytes)
    bound.memory(data).write(timed, ring)
    launch = _latency_launch(
        timed, "chase", 1, 1, data, CHASED, Scratch("end", ring.itemsize)
    )
    return least_seconds(bound, launch) / CHASED


def handover(timed: Session) -> float | None:
    """Return the seconds of a round in which all groups wait for all.

    None if they waited too long, as beside another program's work.
    """
    groups = timed.device.compute_units
    bound, words, late = Bound(timed), Scratch("words", 4 * groups), Scratch("late", 4)
    launch = _latency_launch(
        timed, "handover", groups, group_of(timed.device), words, ROUNDS, late
    )
    seconds = least_seconds(bound, launch, words)
    return None if bound.memory(late).flag(timed) else seconds / ROUNDS


def _latency_launch(
    timed: Session, kernel: str, groups: int, group: int, *arguments: Argument
) -> Launch:
    defines = {"GROUP": group_of(timed.device), "MAX_POLLS": MAX_POLLS}
    return Launch(
        "probes/latency.cl", kernel, defines, (groups * group,), (group,), arguments
    )


def launch_seconds(plain: Session, device: Device) -> tuple[float, float]:
    """Return seconds of a launch among many, and how much longer one alone takes."""
    queue, bound = plain.queues[device], Bound(plain)
    groups = 2 * device.compute_units  # each unit has work
    launch = Launch(
        "probes/launch.cl", "launch", {}, (groups,), (1,), (Scratch("to", 4),)
    )
    run = bound.launch(launch, device)

    def seconds_of_each(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            run()
        queue.finish()
        return (time.perf_counter() - start) / count

    seconds_of_each(TRIED_LAUNCHES)
    many = min(seconds_of_each(TRIED_LAUNCHES) for _ in range(LAUNCHES))
    alone = float(np.median([seconds_of_each(1) for _ in range(TRIED_LAUNCHES)]))
    return many, max(0.0, alone - many)


def group_of(device: Device) -> int:
    """Return the work-items of a probe's group."""
    return min(GROUP, 1 << device.largest_group.bit_length() - 1)


def least_seconds(bound: Bound, launch: Launch, zeroed: Scratch | None = None) -> float:
    """Return the fastest launch's seconds, by the device's clock."""
    timed, times = bound.session, []
    enqueue = bound.launch(launch, timed.device)
    for _ in range(LAUNCHES):
        if zeroed is not None:
            bound.memory(zeroed).write(timed, np.zeros(zeroed.size // 4, np.int32))
        event = enqueue()
        event.wait()
        times.append(seconds_of(event))
    return min(times)


def _vectors(width: int) -> tuple[int, dict[str, int | str]]:
    """Return the bytes of a vector of floats, and the macros of the reading kernels."""
    vector = width * np.dtype(np.float32).itemsize
    return vector, {"REAL": "float", "WIDTH": width, "UNROLL": UNROLL}


def _whole(vectors: float) -> int:
    """Return a number of vectors as a multiple of UNROLL, at least one."""
    return max(UNROLL, int(vectors) // UNROLL * UNROLL)

"""Discovery: the devices present, and the one that a specification names.

pyopencl is imported at the first call of `devices` or `device`. `quirks` corrects
wrong reports of drivers; `probes` finds the capabilities of a named device that no
query reports.
"""

from __future__ import annotations

import copyreg
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

from clnet.checks import as_whole, is_many
from clnet.errors import ASK_DOCTOR, DeviceError, InputError, quoted
from clnet.opencl.device import TYPES, Device
from clnet.opencl.probes import probed
from clnet.opencl.process import check_process
from clnet.opencl.quirks import TESTED, apply_environment_quirks, apply_quirks

ALL = "all"  # every device
FASTEST = "fastest"  # the device with the shortest measured call

GET_PLATFORM = (
    "`pip install 'clnet[cpu]'` brings one for the CPU (Linux, x86-64); a GPU's driver"
    " brings its own, found through a file such as /etc/OpenCL/vendors/nvidia.icd that"
    " names its library (libnvidia-opencl.so.1)"
)
NO_PLATFORM = f"no OpenCL platform was found: {GET_PLATFORM}"

Devices = str | Device | Sequence[str | Device] | None
"""A specification of one device or several: see `device_list`."""


@dataclass(frozen=True)
class DiscoveryResult:
    """The devices found, and the platforms that failed.

    Attributes
    ----------
    devices : tuple of Device
        Best first, companions folded into their main devices.
    faults : tuple of str
        One sentence for each platform that cannot be queried or has no device.
    """

    devices: tuple[Device, ...]
    faults: tuple[str, ...] = ()


def devices() -> tuple[Device, ...]:
    """Return every OpenCL device, best first.

    Real devices come before emulated ones, GPUs before accelerators before CPUs, more
    parallel lanes before fewer, newer drivers before older ones. The two devices that
    PoCL makes of one CPU are one entry, the serial one its companion.

    Returns
    -------
    tuple of Device
        At least one.

    Raises
    ------
    DeviceError
        If there is no OpenCL platform, or no platform has a device.

    Examples
    --------
    >>> len(clnet.devices()) > 0
    True
    """
    check_process()
    discovery = discover()
    if not discovery.devices:
        raise DeviceError("; ".join([*(discovery.faults or [NO_PLATFORM]), ASK_DOCTOR]))
    return discovery.devices


def device(spec: str | Device | None = None, *, units: int | None = None) -> Device:
    """Return the device that a specification names, or a part of it.

    Parameters
    ----------
    spec : str, Device or None
        A type (``"gpu"``, ``"cpu"``), a part of the name of the device, its vendor or
        its platform in any case (``"nvidia"``, ``"pocl"``), either with a number
        counted from 0 (``"nvidia:1"``, the second match), or the numbers of platform
        and device (``"0:1"``). None: ``$CLNET_DEVICE``, else the best.
    units : int or None
        Number of compute units of a sub-device, where the driver can split the device,
        as PoCL can: the others stay free. None: all.

    Returns
    -------
    Device
        The best of those that match; a record is returned as it is.

    Raises
    ------
    DeviceError
        If no device matches; the sentence lists the devices present. If the device has
        fewer units, or cannot be split.
    InputError
        If `spec` or `units` is of another kind.

    Examples
    --------
    >>> clnet.device("cpu").type
    'cpu'
    """
    check_process()
    whole = probed(_named(spec))
    if units is None:
        return whole
    units = as_whole("units", units)
    return whole if units == whole.compute_units else _sub_device(whole, units)


def _pickled(device: Device) -> tuple[Any, ...]:
    known = {record.name: getattr(device, record.name) for record in fields(device)}
    return _found_again, ({**known, "companions": (), "handle": None},)


def _found_again(known: dict[str, Any]) -> Device:
    """Return a pickled record with the handles of this process."""
    record = Device(**known)
    present = _named(record.index)
    if record.compute_units < present.compute_units:
        present = _sub_device(present, record.compute_units)
    return replace(record, companions=present.companions, handle=present.handle)


copyreg.pickle(Device, _pickled)


@functools.cache
def _sub_device(whole: Device, units: int) -> Device:
    """Return a sub-device of so many compute units."""
    import pyopencl as cl

    if units > whole.compute_units:
        raise DeviceError(
            f"{whole.name} has {whole.compute_units} compute units, not {units}"
        )
    by_counts = cl.device_partition_property.BY_COUNTS
    try:
        handle, *_ = whole.handle.create_sub_devices([by_counts, units])
    except (AttributeError, cl.Error) as error:  # AttributeError: without OpenCL
        raise DeviceError(
            f"{whole.name} cannot be split into sub-devices: {error}"
        ) from error
    return replace(whole, compute_units=units, handle=handle)


def _named(spec: str | Device | None) -> Device:
    if isinstance(spec, Device):
        return spec
    remarks = []
    if spec is None:
        spec = os.environ.get("CLNET_DEVICE") or None
        remarks.append("from $CLNET_DEVICE")
    if spec is None:
        return devices()[0]
    if not isinstance(spec, str):
        raise InputError(
            f"a device is given as text, a Device or None, found {type(spec).__name__}"
        )
    if is_fastest(spec):
        raise InputError(
            f'"{FASTEST}" is accepted by compile and predict only: name the device here'
        )
    present = devices()
    matches, number = _matches(spec.strip().lower(), present)
    if number < len(matches):
        return matches[number]
    if spec.strip().lower() == ALL or "," in spec:
        remarks.append("one device is expected here, not several")
    if matches:
        remarks.append(f"{len(matches)} without the number, which counts from 0")
    note = f" ({', '.join(remarks)})" if remarks else ""
    listed = ", ".join(f"{d.index} {d.name} ({d.type})" for d in present)
    sentence = f"no device matches {quoted(spec)}{note}: there are {listed}"
    raise DeviceError("; ".join([sentence, *discover().faults, ASK_DOCTOR]))


def is_fastest(spec: object) -> bool:
    """Return whether a specification asks for the device that measures fastest."""
    return isinstance(spec, str) and spec.strip().lower() == FASTEST


def device_list(spec: Devices) -> tuple[Device, ...]:
    """Return the devices that a specification of several names.

    Parameters
    ----------
    spec : str, Device, None, or a sequence of these
        ``"all"``: every device, best first; else as for `device`, one or one each.

    Returns
    -------
    tuple of Device
        At least one.

    Raises
    ------
    DeviceError
        If no device matches.
    InputError
        If a device is named twice, or none is.
    """
    if isinstance(spec, str) and spec.strip().lower() == ALL:
        return tuple(device(item) for item in devices())
    if spec is None or isinstance(spec, (str, Device)):
        return (device(spec),)
    if not is_many(spec):
        raise InputError(
            f'devices are given as a list, a text as "{ALL}", a Device or None, found '
            f"{type(spec).__name__}"
        )
    chosen = tuple(device(item) for item in spec)
    if not chosen:
        raise InputError(f'the list of devices is empty: name one, or say "{ALL}"')
    for number, item in enumerate(chosen):
        if item in chosen[:number]:
            raise InputError(
                f"device {item.index} {item.name} is in the list twice, expected each "
                "once"
            )
    return chosen


def _matches(spec: str, present: Sequence[Device]) -> tuple[tuple[Device, ...], int]:
    """Return the devices that match a specification, and the number meant."""
    companions = [c for d in present for c in d.companions]
    if re.fullmatch(r"\d+:\d+", spec):
        return tuple(d for d in (*present, *companions) if d.index == spec), 0
    word, colon, number = spec.rpartition(":")
    if not (colon and number.isdecimal()):
        word, number = spec, "0"

    def matches(device: Device) -> bool:
        if word in TYPES:
            return device.type == word
        names = (device.name, device.vendor, device.platform, device.platform_version)
        return any(word in name.lower() for name in names)

    # A companion is found by a word that matches no main device, as "basic".
    matching = [*filter(matches, present)] or [*filter(matches, companions)]
    return tuple(matching) if word else (), int(number)


@functools.cache
def discover() -> DiscoveryResult:
    """Query every platform, once per process; ``discover.cache_clear()`` forgets.

    A platform that cannot be queried becomes a sentence in the faults.
    """
    apply_environment_quirks(os.environ)
    try:
        import pyopencl as cl
    except ImportError as error:
        return DiscoveryResult((), (f"pyopencl cannot be loaded: {error}",))
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        if error.code == cl.status_code.PLATFORM_NOT_FOUND_KHR:
            return DiscoveryResult((), (NO_PLATFORM,))
        return DiscoveryResult((), (f"OpenCL does not start: {error}",))
    listed: list[Device] = []
    faults: list[str] = []
    for number, platform in enumerate(platforms):
        try:
            records = [
                apply_quirks(_query(handle, f"{number}:{i}"))
                for i, handle in enumerate(platform.get_devices())
            ]
        except cl.Error as error:
            faults.append(f"platform {number} does not list its devices: {error}")
            continue
        if not records:
            faults.append(f"platform {number} ({platform.name}) has no device")
        listed += _pair(records)
    return DiscoveryResult(tuple(sorted(listed, key=_rank)), tuple(faults))


def _query(handle: Any, index: str) -> Device:
    """Return a `pyopencl.Device` as reported; raise `pyopencl.Error` if it fails."""
    import pyopencl as cl

    def ask(attribute: str, default: Any) -> Any:
        # Vendors' queries, and those newer than the driver or pyopencl, may not exist.
        try:
            return getattr(handle, attribute)
        except (AttributeError, cl.Error):
            return default

    kinds = cl.device_type
    bits = {
        "gpu": kinds.GPU,
        "accelerator": kinds.ACCELERATOR,
        "cpu": kinds.CPU,
        "custom": kinds.CUSTOM,
    }
    device_type = next((name for name in TYPES if handle.type & bits[name]), "custom")
    extensions = handle.extensions.split()
    major = ask("compute_capability_major_nv", None)
    minor = ask("compute_capability_minor_nv", None)
    svm, svm_bits = ask("svm_capabilities", 0), cl.device_svm_capabilities
    return Device(
        name=handle.name.strip(),
        type=device_type,
        vendor=handle.vendor.strip(),
        platform=handle.platform.name.strip(),
        platform_version=handle.platform.version.strip(),
        version=handle.version.strip(),
        driver=handle.driver_version.strip(),
        index=index,
        compute_units=handle.max_compute_units,
        global_memory=handle.global_mem_size,
        largest_buffer=handle.max_mem_alloc_size,
        local_memory=handle.local_mem_size,
        declared_local_memory=handle.local_mem_size,
        unit_local_memory=handle.local_mem_size,
        registers=ask("registers_per_block_nv", 0) or Device.registers,
        cache=ask("global_mem_cache_size", 0),
        clock=1e6 * ask("max_clock_frequency", 0),
        largest_group=handle.max_work_group_size,
        vector_width=max(1, handle.preferred_vector_width_float),
        simd_width=_simd_width(device_type, ask),
        fp64="cl_khr_fp64" in extensions,
        fp16="cl_khr_fp16" in extensions,
        subgroups="cl_khr_subgroups" in extensions,
        compute_capability=None if major is None or minor is None else (major, minor),
        # A CPU's threads have other work too: not probed.
        forward_progress=False if device_type == "cpu" else None,
        untested=(handle.platform.name.strip(), device_type) not in TESTED,
        fine_svm=bool(svm & svm_bits.FINE_GRAIN_BUFFER),
        system_svm=bool(svm & svm_bits.FINE_GRAIN_SYSTEM),
        handle=handle,
    )


def _simd_width(device_type: str, ask: Callable[[str, Any], Any]) -> int:
    """Return the number of work-items that run in lock step, without a build."""
    if device_type != "gpu":
        return 1
    widths = (
        "warp_size_nv",
        "wavefront_width_amd",
        "preferred_work_group_size_multiple",  # OpenCL 3.0
    )
    return next((width for name in widths if (width := ask(name, 0))), 32)


def _pair(records: Iterable[Device]) -> list[Device]:
    """Fold a platform's serial CPU devices into its parallel ones, in order."""
    others = [d for d in records if d.type != "cpu"]
    serial = [d for d in records if d.type == "cpu" and d.serial]
    parallel = [d for d in records if d.type == "cpu" and not d.serial]
    for main, companion in zip_longest(parallel, serial):
        if main is None:
            others.append(companion)
        elif companion is None:
            others.append(main)
        else:
            others.append(replace(main, companions=(companion,)))
    return others


def _rank(device: Device) -> tuple[Any, ...]:
    """Return a key that sorts the best device first."""
    lanes = device.compute_units * max(device.vector_width, device.simd_width)
    newest = tuple(-int(number) for number in re.findall(r"\d+", device.driver))
    index = tuple(int(number) for number in device.index.split(":"))
    type_rank = TYPES.index(device.type)
    return device.emulated, type_rank, device.serial, -lanes, newest, index

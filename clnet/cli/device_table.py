"""Devices in words: the table of ``clnet devices``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tabulate import tabulate

if TYPE_CHECKING:
    from clnet.opencl.device import Device


def device_table(devices: Iterable[Device]) -> str:
    """Return a table of devices for people, at most 80 columns wide."""
    listed = tuple(devices)
    rows = [
        (
            f"{d.index} {d.name}",
            d.type,
            d.compute_units,
            _binary(d.global_memory),
            _binary(d.local_memory),
            "yes" if d.fp64 else "no",
            ", ".join(_missing(d)) or "-",
        )
        for d in listed
    ]
    headers = ("device", "type", "units", "memory", "local", "fp64", "missing")
    # With these widths the widest sizes still fit 80 columns.
    widths = (23, 6, None, None, None, None, 10)
    table = tabulate(rows, headers, maxcolwidths=widths, disable_numparse=True)
    return "\n".join([str(table), *(line for d in listed for line in _remarks(d))])


def _missing(device: Device) -> list[str]:
    """Return the optional features that a device lacks, fp64 aside."""
    features = {"fp16": device.fp16, "sub-groups": device.subgroups}
    return [name for name, present in features.items() if not present]


def _remarks(device: Device) -> list[str]:
    """Return the notes on one device."""
    remarks = [
        *device.notes,
        *(f"can share its work with {c.index} {c.name}" for c in device.companions),
    ]
    if not remarks:
        return []
    lines = ["", f"{device.index} {device.name}"]
    for remark in remarks:
        lines += textwrap.wrap(
            remark, 78, initial_indent="  - ", subsequent_indent="    "
        )
    return lines


def _binary(size: int) -> str:
    """Return a number of bytes in the largest binary unit that leaves one or more."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"

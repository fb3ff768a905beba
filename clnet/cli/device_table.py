"""Devices in words: the table of ``clnet devices``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from clnet.opencl.device import data_sheet
from clnet.opencl.program import WARP_GROUP_MMA, WARP_MMA, matrix_units

if TYPE_CHECKING:
    from collections.abc import Sequence

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


# Words, unit and its size, of the rates in the order of `Rates`.
ROWS: dict[str, tuple[str, str, float]] = {
    "flops": ("float32 multiply-adds", "GFLOP/s", 1e9),
    "matrix": ("halves, units of a warp", "GFLOP/s", 1e9),
    "warp_group": ("halves, units of a warp group", "GFLOP/s", 1e9),
    "memory": ("reading memory", "GB/s", 1e9),
    "cache": ("reading the last cache", "GB/s", 1e9),
    "cache_bytes": ("that cache", "MB", 1e6),
    "latency": ("a load after a load", "us", 1e-6),
    "handover": ("a value of each group to all", "us", 1e-6),
    "launch": ("a launch among many", "us", 1e-6),
    "sync": ("more, until the host sees it", "us", 1e-6),
}
OF_GPUS = ("latency", "handover")  # alone: no model of a CPU's kernel takes them
UNITS = {"matrix": WARP_MMA, "warp_group": WARP_GROUP_MMA}
CEILINGS = ("flops", "matrix", "warp_group")
ROOFS = ("memory", "cache")
POINTS = (0.1, 1000.0)  # operations a byte, the picture's ends


def rate_table(device: Device) -> str:
    """Return a device's rates beside those of its data sheet, 80 columns at most."""
    rates, sheet = device.rates, data_sheet(device)
    shown, rows = _shown(device), []
    for name, (words, unit, size) in ROWS.items():
        rate, bound = getattr(rates, name), sheet.get(name)
        if name in shown:
            rows.append((
                words, f"{rate / size:.4g}", unit,
                "" if bound is None else f"{bound / size:.4g}",
                "" if bound is None else f"{rate / bound:.0%}",
            ))
    origin = "estimated" if device.measured is None else "measured"
    table = tabulate(
        rows, ("rate", origin, "", "data sheet", "share"), disable_numparse=True,
        colalign=("left", "right", "left", "right", "right"),
    )
    return f"{device.index} {device.name}\n{table}"


def _shown(device: Device) -> list[str]:
    """Return the names of the rates that a device has."""
    units = matrix_units(device)
    missing = {name for name, needed in UNITS.items() if needed not in units}
    if device.type == "cpu":
        missing.update(OF_GPUS)
    return [name for name in ROWS if name not in missing]


def draw_roofline(axes: Any, devices: Sequence[Device]) -> None:
    """Draw devices' rooflines: operations a second over operations a byte read."""
    giga = 1e9
    for number, device in enumerate(devices):
        rates, colour = device.rates, f"C{number}"
        ceilings = [name for name in CEILINGS if name in _shown(device)]
        top = max(getattr(rates, name) for name in ceilings)
        for name in ceilings:
            ceiling = getattr(rates, name)
            ridge = max(POINTS[0], ceiling / rates.cache)
            axes.plot(
                (ridge, POINTS[1]), (ceiling / giga,) * 2, color=colour,
                label=device.name if name == CEILINGS[0] else None,
            )
            axes.annotate(
                ROWS[name][0], (POINTS[1], ceiling / giga), (-4, 3), color=colour,
                textcoords="offset points", ha="right", fontsize="small",
            )
        for name, style in zip(ROOFS, ("-", "--"), strict=True):
            roof = getattr(rates, name)
            ends = POINTS[0], top / roof
            axes.plot(
                ends, [roof * x / giga for x in ends], style, color=colour,
            )
            axes.annotate(
                ROWS[name][0], (POINTS[0], roof * POINTS[0] / giga), (4, 4),
                color=colour, textcoords="offset points", fontsize="small",
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte read")
    axes.set_ylabel("GFLOP/s")
    axes.legend(loc="upper left", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)

"""The plan in words: the chosen cover, what lost, and what was refused and why."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tabulate import tabulate

from clnet.device import Device

if TYPE_CHECKING:
    from clnet.network import Network
    from clnet.planner import Candidate, Cover, Survey

WIDTH = 80  # columns


def explanation(
    network: Network, device: Device, batch: int, survey: Survey
) -> str:
    """Return why a plan is what it is, in at most `WIDTH` columns.

    Parameters
    ----------
    network, device, batch
        What was planned.
    survey : Survey
        What the planner saw.
    """
    sizes = "-".join(str(n) for n in network.sizes)
    chosen = survey.covers[0]
    parts = [
        textwrap.fill(
            f"{sizes}, {network.dtype}, batch {batch}, on {device.name}: "
            f"{_seconds(chosen.seconds)} a call, "
            f"{'measured host to host' if chosen.timing else _basis(chosen)}.",
            WIDTH, break_on_hyphens=False, break_long_words=True,
        ),
        "chosen\n" + _table([_row(c) for c in chosen.candidates]),
    ]
    if len(survey.covers) > 1:
        rows = [
            (_seconds(cover.seconds), _summary(cover)) for cover in survey.covers[1:]
        ]
        parts.append("whole covers that lost\n" + _plain(rows))
    taken = {id(c.step) for c in chosen.candidates}
    losers = sorted(
        (c for c in survey.candidates if id(c.step) not in taken and not c.fault),
        key=lambda c: (c.start, c.stop, c.timing is None, c.seconds),
    )
    if losers:
        parts.append("spans that lost\n" + _table([_row(c) for c in losers]))
    faults = dict.fromkeys(
        (c.step.variant.name, c.fault) for c in survey.candidates if c.fault
    )
    refusals = [
        f"{name} ({_spans(spans)}): {sentence}"
        for (name, sentence), spans in survey.refusals.items()
    ]
    refusals += [f"{name}: failed: {fault}" for name, fault in faults]
    if refusals:
        lines = [
            textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ")
            for line in refusals
        ]
        parts.append("refused\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _row(candidate: Candidate) -> tuple[str, ...]:
    step = candidate.step
    config = " ".join(f"{name}={value}" for name, value in step.config.items())
    if step.place is None:
        place = "host"
    else:
        place = "calling thread" if step.place.serial else "device"
    how = "measured" if candidate.timing else "modelled"
    return (
        _ops(candidate.start, candidate.stop), step.variant.name, config, place,
        _seconds(candidate.seconds), how,
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    headers = ("ops", "variant", "config", "place", "time", "")
    widths = (9, 11, 22, 14, 9, 8)
    text: str = tabulate(
        _collapsed(rows), headers, tablefmt="plain", maxcolwidths=list(widths),
        disable_numparse=True, stralign="left",
    )
    return text


def _collapsed(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Merge rows that differ only in their ops (equal layers)."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        merged.setdefault(row[1:], []).append(row[0])
    return [(_joined(ops), *rest) for rest, ops in merged.items()]


def _joined(ops: list[str]) -> str:
    if len(ops) == 1:
        return ops[0]
    first, last = ops[0].split("-")[0], ops[-1].split("-")[-1]
    return f"{len(ops)} in {first}-{last}"


def _plain(rows: list[tuple[str, str]]) -> str:
    return "\n".join(
        textwrap.fill(f"{time:>9}  {text}", WIDTH, subsequent_indent=" " * 11)
        for time, text in rows
    )


def _summary(cover: Cover) -> str:
    runs: list[str] = []
    for candidate in cover.candidates:
        row = _row(candidate)
        text = f"{row[1]} on {row[3]}" if row[3] != row[1] else row[1]
        text += f" ({row[2]})" if row[2] else ""
        if not runs or runs[-1] != text:
            runs.append(text)
    return ", ".join(dict.fromkeys(runs))


def _basis(cover: Cover) -> str:
    measured = all(c.timing for c in cover.candidates)
    return "the sum of measured spans" if measured else "modelled, nothing measured"


def _ops(start: int, stop: int) -> str:
    return f"{start + 1}" if stop == start + 1 else f"{start + 1}-{stop}"


def _spans(spans: list[tuple[int, int]]) -> str:
    first = min(start for start, _ in spans)
    return "ops " + _ops(first, max(stop for _, stop in spans))


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"

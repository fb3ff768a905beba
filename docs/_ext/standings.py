"""Tables of clnet beside its fastest peer, in every committed case. No Sphinx."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from row_tables import RESULTS, number, read

from benchmarks.report.standings import Standing, standings

NAMES = ("study", "table", "case", "batch", "precision", "basis")


def committed() -> Iterator[Standing]:
    """Yield every case of the committed studies that has a peer."""
    return standings(_rows())


def _rows() -> Iterator[dict[str, str]]:
    for path in sorted(RESULTS.glob("*.csv")):
        yield from read(path.name, {})


def counts(found: list[Standing]) -> list[list[str]]:
    """Return the table of cases by study and device."""
    groups: dict[tuple[str, str], list[float]] = {}
    for one in found:
        groups.setdefault((one.case["study"], one.case["device"]), []).append(one.ratio)
    return [["study", "device", "cases", "ahead", "least", "median", "most"]] + [
        [study, device, str(len(ratios)), str(sum(ratio >= 1 for ratio in ratios)),
         *(number(ratio) for ratio in (min(ratios), median(ratios), max(ratios)))]
        for (study, device), ratios in groups.items()
    ]


def behind(found: list[Standing], device: str) -> list[list[str]]:
    """Return the table of a device's cases whose peer is faster, the worst first."""
    lost = sorted(
        (one for one in found if one.ratio < 1 and device in one.case["device"]),
        key=lambda one: one.ratio,
    )
    return [[*NAMES, "clnet", "peer", "times as fast"]] + [
        [
            *(one.case[name] for name in NAMES),
            one.candidate, one.peer, number(one.ratio),
        ]
        for one in lost
    ]


def cards(first: str, second: str) -> list[list[str]]:
    """Return the table of cases on two cards, the least of the first's share first.

    Parameters
    ----------
    first, second : str
        Parts of the devices' names. Only candidates with rows of both count.
    """
    measured: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in _rows():
        device = row.get("device", "")
        card = next((one for one in (first, second) if one in device), "")
        if card and "candidate" in row:
            key = (*(row[name] for name in NAMES), row["candidate"])
            measured.setdefault(key, {})[card] = row
    shared = [row for of in measured.values() if len(of) == 2 for row in of.values()]
    sides: dict[tuple[str, ...], dict[str, Standing]] = {}
    for one in standings(shared):
        card = first if first in one.case["device"] else second
        sides.setdefault(tuple(one.case[n] for n in NAMES), {})[card] = one
    lines = [
        (a.ratio / b.ratio, a.seconds / b.seconds, a, b, case)
        for case, side in sides.items() if len(side) == 2
        for a, b in [(side[first], side[second])]
    ]
    return [[*NAMES, first, second, "of it", "clnet's time", "peer's time"]] + [
        [*case, *map(number, (a.ratio, b.ratio, share, time, share * time))]
        for share, time, a, b, case in sorted(lines, key=lambda line: line[0])
    ]

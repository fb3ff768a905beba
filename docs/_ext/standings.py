"""Tables of clnet beside its fastest peer, in every committed case. No Sphinx."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from row_tables import RESULTS, number, read

from benchmarks.report.standings import Standing, standings


def committed() -> Iterator[Standing]:
    """Yield every case of the committed studies that has a peer."""
    return standings(
        row for path in sorted(RESULTS.glob("*.csv")) for row in read(path.name, {})
    )


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
    names = ("study", "table", "case", "batch", "precision", "basis")
    lost = sorted(
        (one for one in found if one.ratio < 1 and device in one.case["device"]),
        key=lambda one: one.ratio,
    )
    return [[*names, "clnet", "peer", "times as fast"]] + [
        [
            *(one.case[name] for name in names),
            one.candidate, one.peer, number(one.ratio),
        ]
        for one in lost
    ]

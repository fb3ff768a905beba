"""clnet beside its fastest peer, in every committed case. No Sphinx.

A case is one network, batch, precision, clock and device. Its peer is the fastest
library that is not clnet. clnet's own time is that of its choice, or of its fastest
kernel by any clock where the rows hold none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from row_tables import RESULTS, number, read

from benchmarks.report.plots import BASELINES, CHOSEN

ROOFS = ("copy", "read")  # of memory: no networks
CASE = ("study", "device", "table", "case", "batch", "precision", "basis")


@dataclass(frozen=True)
class Standing:
    """A case: clnet's candidate and its peer, and the peer's time over clnet's."""

    case: dict[str, str]
    candidate: str
    peer: str
    ratio: float


def standings() -> Iterator[Standing]:
    """Yield every case of the committed studies that has a peer."""
    times: dict[tuple[str, ...], dict[str, float]] = {}
    for path in sorted(RESULTS.glob("*.csv")):
        for row in read(path.name, {}):
            if "candidate" in row and row["candidate"] not in ROOFS:
                of_case = times.setdefault(tuple(row[name] for name in CASE), {})
                of_case[row["candidate"]] = float(row["median"])  # the last one counts
    fastest: dict[tuple[str, ...], tuple[float, str]] = {}  # kernels, by any clock
    for (*network, _), of_case in times.items():
        for name, time in of_case.items():
            if name not in BASELINES:
                before = fastest.get(tuple(network), (math.inf, ""))
                fastest[tuple(network)] = min(before, (time, name))
    for case, of_case in times.items():
        _, own = fastest.get(case[:-1], (math.inf, ""))
        own = next((name for name in CHOSEN if name in of_case), own)
        peers = [name for name in of_case if name in BASELINES]
        if peers and own in of_case:
            peer = min(peers, key=of_case.__getitem__)
            yield Standing(
                dict(zip(CASE, case, strict=True)), own, peer,
                of_case[peer] / of_case[own],
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

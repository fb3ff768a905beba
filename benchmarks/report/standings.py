"""clnet beside its fastest peer, case by case: what a file of rows teaches.

A case is one network, batch, precision, clock and device. Its peer is the fastest
library that is not clnet. clnet's own time is that of its choice, or of its fastest
kernel by any clock where the rows hold none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from clnet.errors import counted

from .plots import BASELINES, CHOSEN
from .tables import number

ROOFS = ("copy", "read")  # of memory: no networks
CASE = ("study", "device", "table", "case", "batch", "precision", "basis")


@dataclass(frozen=True)
class Standing:
    """A case: clnet's candidate and its seconds, its peer, and the ratio of theirs."""

    case: dict[str, str]
    candidate: str
    seconds: float
    peer: str
    ratio: float


def standings(rows: Iterable[Mapping[str, Any]]) -> Iterator[Standing]:
    """Yield every case of measured rows that has a peer; of equal rows the last counts.

    Rows without a candidate are left out.
    """
    times: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        if "candidate" in row and row["candidate"] not in ROOFS:
            case = tuple(str(row[name]) for name in CASE)
            times.setdefault(case, {})[row["candidate"]] = float(row["median"])
    fastest: dict[tuple[str, ...], tuple[float, str]] = {}  # kernels, by any clock
    for (*network, _), of_case in times.items():
        for name, time in of_case.items():
            if name not in BASELINES:
                before = fastest.get(tuple(network), (math.inf, ""))
                fastest[tuple(network)] = min(before, (time, name))
    for case, of_case in times.items():
        _, candidate = fastest.get(case[:-1], (math.inf, ""))
        candidate = next((name for name in CHOSEN if name in of_case), candidate)
        peers = [name for name in of_case if name in BASELINES]
        if peers and candidate in of_case:
            peer = min(peers, key=of_case.__getitem__)
            yield Standing(
                dict(zip(CASE, case, strict=True)), candidate, of_case[candidate], peer,
                of_case[peer] / of_case[candidate],
            )


def learnt(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return sentences that a report opens with; none where no case has a peer."""
    listed = sorted(standings(rows), key=lambda standing: standing.ratio)
    if not listed:
        return []
    ratios = [standing.ratio for standing in listed]
    ahead = sum(ratio >= 1 for ratio in ratios)
    first, last = listed[0], listed[-1]
    return [
        f"clnet is ahead of its fastest peer in {ahead} of "
        f"{counted(len(listed), 'case')}.",
        f"In the median the peer takes {number(median(ratios))} times as long.",
        f"The largest distance is {_named(last)}: {last.peer} takes "
        f"{number(last.ratio)} times as long as {last.candidate}.",
        f"The smallest is {_named(first)}: {first.peer} takes "
        f"{number(first.ratio)} times as long as {first.candidate}.",
    ]


def _named(standing: Standing) -> str:
    case = standing.case
    return f"{case['case']}, batch {case['batch']}, by the clock {case['basis']}"

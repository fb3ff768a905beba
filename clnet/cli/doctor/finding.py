"""The result of one check of the doctor's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str  # The thing that was checked
    ok: bool | None  # None: neither good nor bad, but worth knowing
    found: str  # The result, and the cause of a fault
    cure: str = ""  # The action to take; empty if none is needed

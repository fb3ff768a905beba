"""What of a study is run, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What of a study is run, and how. None: what the study has unasked.

    Attributes
    ----------
    effort : str
        Of `rounds.EFFORTS`.
    batches : sequence of int or None
        Samples a call, where the study leaves that open.
    tables, cases : sequence of str or None
        Names, with ``*`` and ``?``.
    variants, peers : sequence of str or None
        Names of candidates, ours and others; ``["none"]``: nobody.
    bases : sequence of str or None
        Of the study's `BASES`.
    tune : bool
        Whether our variants' configurations are all measured first.
    data : str or None
        The folder of the data sets, for studies that read some.
    fann_library : str or None
        The file of FANN's library, for studies that run it; None: where the system's
        libraries are.
    resume : bool
        Whether rows that are in the file already are not measured again.
    """

    effort: str = "normal"
    batches: Sequence[int] | None = None
    tables: Sequence[str] | None = None
    cases: Sequence[str] | None = None
    variants: Sequence[str] | None = None
    peers: Sequence[str] | None = None
    bases: Sequence[str] | None = None
    tune: bool = False
    data: str | None = None
    fann_library: str | None = None
    resume: bool = False

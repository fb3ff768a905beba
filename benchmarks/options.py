"""What of a study is run, and how."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

from clnet.errors import InputError

# What only some studies leave open, and how the command line calls it.
OPEN = {
    "batches": "--batch", "precisions": "--precision", "tune": "--tune",
    "data": "--data", "fann_library": "--fann-library",
}


@dataclass(frozen=True)
class Options:
    """What of a study is run, and how. None: what the study has unasked.

    Attributes
    ----------
    effort : str
        Of `rounds.EFFORTS`.
    batches : sequence of int or None
        Samples a call.
    precisions : sequence of str or None
        What arithmetic may be used, in PyTorch's sense.
    tables, cases : sequence of str or None
        Names, with ``*`` and ``?``.
    variants, peers : sequence of str or None
        Names of candidates, ours and others; ``["none"]``: nobody.
    bases : sequence of str or None
        Of the study's `BASES`.
    tune : bool
        Whether our variants' configurations are all measured first.
    data : str or None
        The folder of the data sets.
    fann_library : str or None
        The file of FANN's library; None: where the system's libraries are.
    resume : bool
        Whether rows that are in the file already are not measured again.
    """

    effort: str = "normal"
    batches: Sequence[int] | None = None
    precisions: Sequence[str] | None = None
    tables: Sequence[str] | None = None
    cases: Sequence[str] | None = None
    variants: Sequence[str] | None = None
    peers: Sequence[str] | None = None
    bases: Sequence[str] | None = None
    tune: bool = False
    data: str | None = None
    fann_library: str | None = None
    resume: bool = False

    def check(self, study: str, taken: Collection[str]) -> None:
        """Raise InputError if something is asked for that a study does not leave open.

        Parameters
        ----------
        study : str
            Its name.
        taken : collection of str
            Of `OPEN`, what it leaves open.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in OPEN.keys() - set(taken) and value != field.default:
                others = ", ".join(OPEN[name] for name in OPEN if name in taken)
                raise InputError(
                    f"the study {study} takes no {OPEN[field.name]}"
                    + (f", but {others}" if others else "")
                )

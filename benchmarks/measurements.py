"""Measurements: a row for each time, with all it depends on, in a CSV file."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas as pd

from clnet.errors import ClnetWarning, FormatError
from clnet.opencl.device import Device

RESULTS = Path("benchmarks", "results")  # under the working directory
STATUSES = ("measured", "missing", "refused", "failed", "wrong")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The time of one candidate on one case by one clock, or the reason for none."""

    # Names of the study, its table and the case
    study: str
    table: str
    case: str
    # As in `cases.dense.Case`; sizes joined by dashes
    sizes: str
    activation: str
    batch: int
    dtype: str
    precision: str
    seed: int
    # The implementation and its configuration
    candidate: str
    config: str = ""
    status: str  # One of `STATUSES`
    reason: str = ""  # One sentence, empty if the status is ``"measured"``
    basis: str = ""  # The clock (`candidates.BASES`); empty without a time
    # Seconds of one run: the median and the quartiles of the rounds
    median: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0  # Rounds measured
    effort: str  # ``"quick"``, ``"normal"`` or ``"full"``
    # The result's relative distance from the float64 oracle, and its limit
    error: float | None = None
    tolerance: float | None
    against: str = ""  # The baseline of `ratio`
    # That baseline's median over this one: above 1, this one is faster
    ratio: float | None = None
    floor: float | None = None  # The roofline's lower bound, seconds (`roofline`)
    bound: str = ""  # Its limit: ``"bytes"`` or ``"flops"``
    over_floor: float | None = None  # The median over the floor
    # The measured bytes/s and FLOP/s behind the floor
    bandwidth: float | None = None
    rate: float | None = None
    threads: int | None = None  # Host threads that the candidate uses
    load: float | None  # Load average of the minute before the study
    # The OpenCL device
    device: str
    platform: str
    platform_version: str
    driver: str
    # Versions
    clnet: str
    numpy: str
    pyopencl: str
    torch: str
    python: str
    date: str  # UTC


COLUMNS = tuple(field.name for field in fields(Measurement))
# The columns that identify a measurement, but for its basis, and its environment.
SUBJECT = [
    "study", "table", "case", "sizes", "activation", "batch", "dtype", "precision",
    "seed", "candidate", "effort",
]
ENVIRONMENT = [
    "device", "platform", "platform_version", "driver", "clnet", "numpy", "pyopencl",
    "torch", "python",
]
_DTYPES = {
    field.name: {"str": "str", "int": "int64"}.get(str(field.type), "float64")
    for field in fields(Measurement)
}
_NUMBERS = [name for name, dtype in _DTYPES.items() if dtype != "str"]


def table_of(rows: Iterable[Measurement]) -> pd.DataFrame:
    """Return measurements as a table with `COLUMNS`."""
    table = pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))
    return table.astype(_DTYPES)


def measurements(table: pd.DataFrame) -> list[Measurement]:
    """Return the rows of a table."""
    plain = table.astype(object).where(table.notna(), None)
    return [Measurement(**record) for record in plain.to_dict("records")]


def latest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of each subject and basis, in the order of the first ones.

    A row without a basis, which says why nothing was timed, is dropped for a later one.
    """
    key = [*SUBJECT, *ENVIRONMENT]
    order = table.groupby(key, sort=False).ngroup().argsort(kind="stable")
    table = table.iloc[order]
    table = table[(table["basis"] != "") | ~table.duplicated(key, keep="last")]
    table = table.drop_duplicates([*key, "basis"], keep="last")
    return table.reset_index(drop=True)


def read(path: Path) -> pd.DataFrame:
    """Return the rows of a CSV file.

    FormatError: it cannot be read, has other columns, or a value of another type.
    """
    try:
        table = pd.read_csv(
            path, dtype=_DTYPES, keep_default_na=False,
            na_values={name: [""] for name in _NUMBERS},
        )
    except FileNotFoundError as error:
        raise FormatError(
            f"there is no {path}: give the CSV file that a bench wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise FormatError(f"results cannot be read from {path}: {error}") from error
    _check_columns(path, list(table.columns))
    return table


def _check_columns(path: Path, columns: list[str]) -> None:
    if columns != list(COLUMNS):
        raise FormatError(
            f"{path} has the columns {','.join(columns)[:60]!r}…, expected "
            f"{','.join(COLUMNS)[:60]!r}…: move it away, or choose another folder"
        )


class ResultsFile:
    """The CSV file of one study on one device.

    FormatError: the file has other columns, or cannot be read or written.
    """

    def __init__(self, folder: Path, study: str, device: Device) -> None:
        self.path: Path = folder / f"{study}-{slug(device.name)}.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._check()
            else:
                self._append(",".join(COLUMNS) + "\n")
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"results cannot go to {self.path}: {error}") from error

    def add(self, row: Measurement) -> None:
        """Append a row; it is on the disk when this returns."""
        line = table_of([row]).to_csv(
            header=False, index=False, float_format="%.6g", lineterminator="\n"
        )
        try:
            self._append(line)
        except OSError as error:
            raise FormatError(f"results cannot go to {self.path}: {error}") from error

    def _append(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _check(self) -> None:
        """Check the columns of an existing file, and cut off an unfinished row."""
        text = self.path.read_bytes().decode()
        _check_columns(self.path, text.partition("\n")[0].rstrip("\r").split(","))
        whole = text.rfind("\n") + 1
        if whole < len(text):
            warnings.warn(
                f"{self.path} ended in the middle of a row, which is cut off",
                ClnetWarning, stacklevel=4,
            )
            with self.path.open("rb+") as file:
                file.truncate(len(text[:whole].encode()))


def slug(name: str) -> str:
    """Return a name in lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"

"""Rows: one figure each, with all it depends on, appended to a CSV file at once."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from clnet.errors import ClnetWarning, FormatError
from clnet.opencl.device import Device

# What became of a candidate.
STATUSES = ("measured", "missing", "refused", "failed", "wrong")


@dataclass(frozen=True)
class Row:
    """One candidate's time for one case on one basis, or why there is none.

    Attributes
    ----------
    study, table, case : str
        Where the figure belongs.
    sizes, activation, batch, dtype, precision, seed
        As in `cases.Case`; sizes with dashes.
    candidate, config : str
        Who, and how it was set.
    status : str
        One of `STATUSES`.
    reason : str
        Of any but ``"measured"``: one sentence.
    basis : str
        What the time is of (`candidates.BASES`); empty where there is none.
    median, low, high : float or None
        Seconds of one run: the median and the quartiles of the rounds.
    rounds : int
        How many were measured.
    effort : str
        ``"quick"``, ``"normal"`` or ``"full"``.
    error, tolerance : float or None
        The result's relative distance from the float64 oracle, and what was allowed.
    against : str
        The peer of `ratio`.
    ratio : float or None
        That peer's median over this one: above 1, this one is faster.
    floor : float or None
        Seconds that bytes or operations take at least (`floor`).
    bound : str
        Which of the two.
    over_floor : float or None
        The median over the floor.
    bandwidth, rate : float or None
        Measured bytes and operations a second behind the floor.
    threads : int or None
        Of the host's cores that the candidate uses.
    load : float or None
        Cores that other work kept busy in the minute before the study.
    device, platform, platform_version, driver : str
        The device of the run.
    clnet, numpy, pyopencl, torch, python : str
        Versions.
    date : str
        UTC.
    """

    study: str
    table: str
    case: str
    sizes: str
    activation: str
    batch: int
    dtype: str
    precision: str
    seed: int
    candidate: str
    config: str
    status: str
    reason: str
    basis: str
    median: float | None
    low: float | None
    high: float | None
    rounds: int
    effort: str
    error: float | None
    tolerance: float | None
    against: str
    ratio: float | None
    floor: float | None
    bound: str
    over_floor: float | None
    bandwidth: float | None
    rate: float | None
    threads: int | None
    load: float | None
    device: str
    platform: str
    platform_version: str
    driver: str
    clnet: str
    numpy: str
    pyopencl: str
    torch: str
    python: str
    date: str


COLUMNS = tuple(field.name for field in fields(Row))
# What of a row tells what was measured, but for the basis; and with what.
SUBJECT = (
    "study", "table", "case", "sizes", "activation", "batch", "dtype", "precision",
    "seed", "candidate", "effort",
)
ENVIRONMENT = (
    "device", "platform", "platform_version", "driver", "clnet", "numpy", "pyopencl",
    "torch", "python",
)
_VALUES: dict[str, Callable[[str], Any]] = {  # from a cell, by the type in `Row`
    "str": str, "int": int, "int | None": lambda cell: int(cell) if cell else None,
    "float | None": lambda cell: float(cell) if cell else None,
}


def parts(row: Row, names: Iterable[str]) -> tuple[Any, ...]:
    """Return some of a row's values."""
    return tuple(getattr(row, name) for name in names)


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return of rows on the same subject and basis the last one each.

    A reason that there is no time gives way to a time that was measured later.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        subject = parts(row, (*SUBJECT, *ENVIRONMENT))
        found.pop((*subject, ""), None)
        found[(*subject, row.basis)] = row
    return list(found.values())


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file.

    Raises
    ------
    FormatError
        If it cannot be read, has other columns, or a value that is none.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError as error:
        raise FormatError(
            f"there is no {path}: give the CSV file that a bench wrote"
        ) from error
    except OSError as error:
        raise FormatError(
            f"results cannot be read from {path}: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(f"results cannot be read from {path}: {error}") from error
    _check_header(path, text)
    lines = csv.DictReader(io.StringIO(text))
    try:
        return [
            Row(**{
                field.name: _VALUES[str(field.type)](cells[field.name])
                for field in fields(Row)
            })
            for cells in lines
        ]
    except (TypeError, ValueError) as error:
        raise FormatError(f"{path}, line {lines.line_num}: {error}") from error


def _check_header(path: Path, text: str) -> None:
    header = text.partition("\n")[0].rstrip("\r")
    if header != ",".join(COLUMNS):
        raise FormatError(
            f"{path} has the columns {header[:60]!r}…, expected "
            f"{','.join(COLUMNS)[:60]!r}…: move it away, or choose another folder"
        )


class Results:
    """A CSV file of rows, one study's on one device.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    study : str
        Its name.
    device : Device
        Where it runs.

    Attributes
    ----------
    path : Path
        The file.

    Raises
    ------
    FormatError
        If the file is there with other columns, or cannot be read or written.
    """

    def __init__(self, folder: Path, study: str, device: Device) -> None:
        self.path = folder / f"{study}-{slug(device.name)}.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._take_up()
            else:
                self._append([",".join(COLUMNS) + "\n"])
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"results cannot go to {self.path}: {error}") from error

    def add(self, row: Row) -> None:
        """Append a row; it is on the disk when this returns.

        Raises
        ------
        FormatError
            If it cannot be written.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([_cell(value) for value in asdict(row).values()])
        try:
            self._append([text.getvalue()])
        except OSError as error:
            raise FormatError(f"results cannot go to {self.path}: {error}") from error

    def _append(self, lines: list[str]) -> None:
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())

    def _take_up(self) -> None:
        """Check the columns of a file that is there, and end it on a whole row."""
        text = self.path.read_bytes().decode()
        _check_header(self.path, text)
        whole = text.rfind("\n") + 1
        if whole < len(text):
            warnings.warn(
                f"{self.path} ended in the middle of a row, which is cut off",
                ClnetWarning, stacklevel=4,
            )
            with self.path.open("rb+") as file:
                file.truncate(len(text[:whole].encode()))


def slug(name: str) -> str:
    """Return a name in letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value

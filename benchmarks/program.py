"""Benchmarks that are programs of their own: their options, rows and table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from clnet.opencl.discovery import device as find_device

from .measurements import RESULTS, slug

Row = Mapping[str, Any]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all programs have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="as for clnet.device")
    parser.add_argument(
        "--out", type=Path, help="CSV; default: a file in benchmarks/results"
    )
    parser.add_argument(
        "--rows", type=Path, metavar="CSV", help="show these; measure nothing"
    )
    return parser


def file_of(name: str, given: argparse.Namespace) -> Path:
    """Return the file of a program's rows, in a folder that is there."""
    file: Path = given.out or (
        RESULTS / f"{name}-{slug(find_device(given.device).name)}.csv"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def append(path: Path, row: Row, digits: str = "%.4g") -> None:
    """Add a row to a CSV file, whose first line has the names of its columns."""
    pd.DataFrame([row]).to_csv(
        path, mode="a", index=False, float_format=digits, header=not path.exists()
    )


def run(
    name: str, given: argparse.Namespace, measured: Callable[[], Iterable[Row]],
    table: Callable[[pd.DataFrame], str], total: int | None = None,
    digits: str = "%.4f", anew: bool = False,
) -> None:
    """Measure, keep each of `total` rows at once, and print a table; or show earlier.

    Rows are appended to those of the file, or replace them.
    """
    file = given.rows
    if file is None:
        file = file_of(name, given)
        if anew:
            file.unlink(missing_ok=True)
        for row in tqdm(measured(), total=total):
            append(file, row, digits)
    print(table(pd.read_csv(file)))

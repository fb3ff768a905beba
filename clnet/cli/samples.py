"""Samples of the data files that commands are given; the options of tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError, InputError, counted, quoted
from clnet.formats import load_data, load_table
from clnet.formats.table import OR_TEXT

if TYPE_CHECKING:
    from clnet.nn.columns import Columns
    from clnet.nn.labels import Classes

TABLE_OPTIONS = ("target", "categories", "ignore")


@dataclass(frozen=True)
class Samples:
    """The samples of a data file.

    Attributes
    ----------
    x : ndarray, shape [samples, n_in]
        Inputs.
    t : ndarray, shape [samples, n_out], or [samples]
        Targets: numbers, or the labels of classes [samples].
    columns : Columns or None
        The columns of a table that was read by their names.
    """

    x: NDArray[Any]
    t: NDArray[Any]
    columns: Columns | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labelled(self) -> bool:
        """Whether the targets are the labels of classes."""
        return self.t.ndim == 1

    @property
    def classes(self) -> Classes:
        """The labels that occur, sorted; none where the targets are numbers."""
        return tuple(sorted(set(self.t.tolist()))) if self.labelled else ()

    @property
    def n_out(self) -> int:
        """Outputs of a network for the targets: one for each class."""
        return len(self.classes) if self.labelled else self.t.shape[1]

    @property
    def counts(self) -> str:
        """The numbers of inputs and of outputs or classes, in words."""
        outputs = (
            f"{self.n_out} classes" if self.labelled else counted(self.n_out, "output")
        )
        return f"{counted(self.x.shape[1], 'input')} and {outputs}"

    def subset(self, rows: NDArray[Any]) -> Samples:
        """Return the samples of some rows."""
        return Samples(self.x[rows], self.t[rows], self.columns)


def add_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the options of tables."""
    add = sub.add_argument_group("tables (.csv)").add_argument
    add(
        "--target", type=_names, metavar="A,B",
        help="columns to predict, by name, or by number: from 1, or -1 for the last. A "
        "column of text is of classes",
    )
    add(
        "--categories", type=_names, metavar="A,B",
        help="columns of categories, of text or numbers: each category becomes an "
        "input of its own, or the target's classes",
    )
    add("--ignore", type=_names, metavar="A,B", help="columns to leave out")
    add(
        "--outputs", type=whole, metavar="N",
        help="without names: the last N columns are targets, all of numbers; default: "
        "the columns named t, t0, t1, … or target…",
    )


def read(
    arguments: argparse.Namespace, path: str, dtype: str | None,
    columns: Columns | None = None,
) -> Samples:
    """Return the samples of a file, as the options of tables say.

    Parameters
    ----------
    arguments : Namespace
        With the options of `add_arguments`.
    path : str
        The file.
    dtype : {"float32", "float64"} or None
        As for `load_data`.
    columns : Columns or None
        Those of the network; a table is read by their names, unless --outputs is given.
    """
    asked = {name: getattr(arguments, name) for name in TABLE_OPTIONS}
    asked = {name: names for name, names in asked.items() if names is not None}
    if asked and arguments.outputs is not None:
        raise InputError(f"give --{min(asked)} or --outputs, not both")
    by_name = columns is not None and path.lower().endswith(".csv")
    if asked or (by_name and arguments.outputs is None):
        table = load_table(
            path, **asked, columns=columns, dtype=dtype,
            memory_limit=arguments.memory_limit,
        )
        return Samples(table.x, table.t, table.columns)
    try:
        x, t = load_data(
            path, dtype=dtype, outputs=arguments.outputs,
            memory_limit=arguments.memory_limit,
        )
    except FormatError as error:
        if OR_TEXT not in str(error):
            raise
        raise FormatError(
            f"{error}: name the column of classes, as by --target species"
        ) from None
    return Samples(x, t)


def check_labels(path: str, samples: Samples, classes: Classes | None) -> None:
    """Raise unless all labels are of a network's classes, if it has any."""
    other = [one for one in samples.classes if one not in (classes or samples.classes)]
    if other:
        raise InputError(
            f"{path} has the class {quoted(other[0])}, expected one of the network's "
            f"classes {quoted(list(classes or ()))}"
        )


def whole(text: str) -> int:
    """Return the whole number of an option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number")
    return int(text)


def _names(text: str) -> Sequence[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected names separated by commas"
        )
    return names


def is_binary(t: NDArray[Any], low: float) -> bool:
    """Return whether all targets are `low` or 1."""
    return bool(np.isin(t, (low, 1)).all())

"""The columns of tables that a network reads and predicts, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from clnet.checks import as_list, check_flag, is_number
from clnet.errors import InputError, quoted


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    name : str
        Its name in the header; of a table without one its number, from 1.
    categories : tuple of str
        The column is one input for each of these, 1 for the sample's category and 0 for
        the others, empty text for a missing one; none: the column is a number.
    mean : float or None
        The number in the place of a missing one, the mean of the training; None: it
        stays missing. Columns that differ in it alone are equal.
    missing : bool
        Whether a second input is 1 where the number is missing, and 0 elsewhere.
    date : bool
        Whether the number is a date's, in days since 1970.

    Examples
    --------
    >>> clnet.Column("colour", ("red", "green")).width
    2
    >>> clnet.Column("size", mean=3.5, missing=True).width
    2
    """

    name: str
    categories: tuple[str, ...] = ()
    mean: float | None = field(default=None, compare=False)
    missing: bool = False
    date: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"a column's name must be text, not {quoted(self.name)}")
        what = f"column {quoted(self.name)}"
        _distinct(f"categories of {what}", self, "categories")
        if self.mean is not None:
            if not is_number(self.mean) or not isfinite(self.mean):
                raise InputError(
                    f"the mean of {what} must be a finite number, not "
                    f"{quoted(self.mean)}"
                )
            object.__setattr__(self, "mean", float(self.mean))
        check_flag(f"missing of {what}", self.missing)
        check_flag(f"date of {what}", self.date)
        of_numbers = self.missing or self.date or self.mean is not None
        if self.categories and of_numbers:
            raise InputError(f"{what} has categories, and is no number with a mean")
        if self.missing and self.mean is None:
            raise InputError(f"{what} has missing numbers, expected their mean")

    @property
    def width(self) -> int:
        """Inputs of the network."""
        return len(self.categories) or 1 + self.missing


@dataclass(frozen=True)
class Columns:
    """The columns of tables that a network reads and predicts.

    Attributes
    ----------
    inputs : tuple of Column
        In the order of the network's inputs, at least one.
    targets : tuple of str
        The names of the outputs' columns; one if the targets are classes, none if they
        are not known.
    decimal : str or None
        The decimal sign of the text file that they were read from; None: none was seen.
        It is used where a file leaves it open. Columns that differ in it are equal.

    Raises
    ------
    InputError
        If names or categories are not text, or not different.

    Examples
    --------
    >>> colour = clnet.Column("colour", ("red", "green"))
    >>> clnet.Columns((clnet.Column("length"), colour), ("price",)).n_in
    3
    """

    inputs: tuple[Column, ...]
    targets: tuple[str, ...] = ()
    decimal: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise InputError(f"decimal is {quoted(self.decimal)}, expected . or ,")
        inputs = tuple(
            Column(**column) if isinstance(column, Mapping) else column
            for column in as_list("columns", self.inputs)
        )
        if not inputs or not all(isinstance(column, Column) for column in inputs):
            raise InputError("columns must be a list of at least one Column")
        object.__setattr__(self, "inputs", inputs)
        _distinct("targets", self, "targets")
        names = [*(column.name for column in inputs), *self.targets]
        twice = next((name for name in names if names.count(name) > 1), None) if len(
            set(names)) < len(names) else None
        if twice is not None:
            raise InputError(f"columns name {quoted(twice)} twice, expected once")

    @property
    def n_in(self) -> int:
        """Inputs of the network."""
        return sum(column.width for column in self.inputs)

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments that make the columns, for JSON."""
        return asdict(self)


def _distinct(what: str, record: Any, field: str) -> None:
    """Make a field a tuple of different texts, or raise InputError."""
    texts = tuple(as_list(what, getattr(record, field)))
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{what} are {quoted(list(texts))}, expected text")
    if len(set(texts)) < len(texts):
        raise InputError(f"{what} are {quoted(list(texts))}, expected different ones")
    object.__setattr__(record, field, texts)

"""The columns of tables that a network reads and predicts, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from clnet.checks import as_list
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
        the others; empty: the column is one input, a number.

    Examples
    --------
    >>> clnet.Column("colour", ("red", "green")).width
    2
    """

    name: str
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"a column's name must be text, not {quoted(self.name)}")
        _distinct(f"categories of column {quoted(self.name)}", self, "categories")

    @property
    def width(self) -> int:
        """Inputs of the network."""
        return len(self.categories) or 1


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

    def __post_init__(self) -> None:
        inputs = tuple(
            Column(**one) if isinstance(one, Mapping) else one
            for one in as_list("columns", self.inputs)
        )
        if not inputs or not all(isinstance(one, Column) for one in inputs):
            raise InputError("columns must be a list of at least one Column")
        object.__setattr__(self, "inputs", inputs)
        _distinct("targets", self, "targets")
        names = [*(one.name for one in inputs), *self.targets]
        twice = next((one for one in names if names.count(one) > 1), None) if len(
            set(names)) < len(names) else None
        if twice is not None:
            raise InputError(f"columns name {quoted(twice)} twice, expected once")

    @property
    def n_in(self) -> int:
        """Inputs of the network."""
        return sum(one.width for one in self.inputs)

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments that make the columns, for JSON."""
        return asdict(self)


def _distinct(what: str, record: Any, field: str) -> None:
    """Make a field a tuple of different texts, or raise InputError."""
    found = tuple(as_list(what, getattr(record, field)))
    if not all(isinstance(one, str) for one in found):
        raise InputError(f"{what} are {quoted(list(found))}, expected text")
    if len(set(found)) < len(found):
        raise InputError(f"{what} are {quoted(list(found))}, expected different ones")
    object.__setattr__(record, field, found)

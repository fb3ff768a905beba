"""Samples of the data files that commands are given; the options of tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError, InputError, counted, quoted
from clnet.formats import (
    ARROW_SUFFIXES,
    DATA_SUFFIXES,
    load_data,
    load_table,
    suffix_of,
)
from clnet.formats.delimited import TEXT_SUFFIXES
from clnet.formats.named_table import MISSING, OR_TEXT
from clnet.formats.opening import (
    SOURCE_SUFFIXES,
    is_source,
    open_data,
    source_suffix,
)
from clnet.formats.sources import Part, Source, check_buffer, rows_of
from clnet.formats.table import NAME_TARGETS
from clnet.nn.labels import count_missing, encoded, might_be_classes

if TYPE_CHECKING:
    from clnet.network import Network
    from clnet.nn.columns import Columns
    from clnet.nn.labels import Classes
    from clnet.nn.scaling import Scaling

PLAIN_TABLE = TEXT_SUFFIXES[0]  # which is read without names too
TABLE_OPTIONS = ("target", "categories", "ignore", "index", "dates", "missing",
                 "unknown")
TEXT_OPTIONS = ("header", "separator", "decimal")
"""Options of tables, and of those in text files: arguments of `load_table`."""


@dataclass(frozen=True)
class FileSamples:
    """The samples of a data file."""

    x: NDArray[Any]  # Inputs
    t: NDArray[Any]  # Targets: numbers, or the labels of classes [samples]
    # The columns of a table that was read by their names
    columns: Columns | None = None
    # The samples of a file larger than the buffer, of which x and t are the first
    source: Source | None = None
    rows: int = 1  # Samples of a part of the source
    notes: tuple[str, ...] = ()  # What was found in a table; see `Table`

    def __len__(self) -> int:
        return len(self.x) if self.source is None else self.source.samples or 0

    @property
    def arguments(self) -> tuple[Any, Any]:
        """The arguments x and t of `Network.fit`."""
        return (self.x, self.t) if self.source is None else (self.source, None)

    @property
    def validation(self) -> Any:
        """The argument `validation` of `Network.fit`."""
        return (self.x, self.t) if self.source is None else self.source

    def parts(self) -> Iterator[Part]:
        """Yield all samples: at once, or those of a source by parts."""
        if self.source is None:
            yield Part(0, self.x, self.t)
        else:
            yield from self.source.parts(self.rows)

    def targets(self) -> Iterator[Any]:
        """Yield all targets, likewise."""
        return iter([self.t]) if self.source is None else self.source.targets(self.rows)

    def scaling(
        self, inputs: Sequence[float] | None, outputs: Sequence[float] | None,
        n_out: int,
    ) -> Scaling:
        """Return the scaling of a network of so many outputs; see `Scaling.of`."""
        from clnet.nn.scaling import Scaling

        def numbers(part: Part) -> tuple[Any, Any]:
            if self.labelled:
                return part.x, np.zeros((len(part.x), n_out))
            return part.x, np.reshape(part.t, (len(part.x), -1))

        if self.source is None:
            return Scaling.of(*numbers(Part(0, self.x, self.t)), inputs, outputs)
        return Scaling.of_parts(map(numbers, self.parts()), inputs, outputs)

    def are_binary(self, low: float) -> bool:
        """Return whether all targets are `low` or 1."""
        return all(bool(np.isin(t, (low, 1)).all()) for t in self.targets())

    @property
    def labelled(self) -> bool:
        """Whether the targets are the labels of classes."""
        return self.t.ndim == 1

    @cached_property
    def classes(self) -> Classes:
        """The labels that occur, sorted; none where the targets are numbers."""
        if not self.labelled:
            return ()
        return tuple(sorted(set().union(*(t.tolist() for t in self.targets()))))

    @property
    def might_be_classes(self) -> bool:
        """Whether the target of a named table is few different whole numbers."""
        if self.labelled or self.columns is None or len(self.columns.targets) != 1:
            return False
        return might_be_classes(self.t)

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

    def balanced_weights(self) -> NDArray[np.float64]:
        """Return the weight of each sample with which all classes weigh alike.

        ``samples / (classes * samples of its class)``, scikit-learn's "balanced".
        """
        from clnet.nn.metrics import one_hot

        if self.source is not None:
            raise InputError(
                "--class-weight counts the classes of data in memory: give a --buffer "
                "in which they fit"
            )
        if self.labelled:
            labels = self.t
        elif self.t.shape[1] == 1 and len(np.unique(self.t)) <= 2:
            labels = self.t[:, 0]
        elif one_hot(self.t):
            labels = self.t.argmax(axis=1)
        else:
            raise InputError(
                "--class-weight is for classes, expected labels, one-hot targets or "
                "one target of two numbers"
            )
        classes, codes, counts = np.unique(
            labels, return_inverse=True, return_counts=True
        )
        return np.asarray((len(labels) / (len(classes) * counts))[codes.reshape(-1)])

    def subset(self, rows: NDArray[Any], notes: tuple[str, ...] = ()) -> FileSamples:
        """Return the samples of some rows, with notes of their own."""
        return FileSamples(self.x[rows], self.t[rows], self.columns, notes=notes)


def read(
    arguments: argparse.Namespace, path: str, dtype: str | None,
    columns: Columns | None = None, n_in: int | None = None,
) -> FileSamples:
    """Return the samples of a file, as the options of tables say."""
    suffixes = (*DATA_SUFFIXES, *SOURCE_SUFFIXES, *TEXT_SUFFIXES)
    suffix = suffix_of(path, suffixes, "data")
    outputs = arguments.outputs
    asked = {
        name: value for name in (*TABLE_OPTIONS, *TEXT_OPTIONS)
        if (value := getattr(arguments, name, None)) is not None
    }
    if "target" in asked and outputs is not None:
        raise InputError("give --target or --outputs, not both")
    if suffix not in TEXT_SUFFIXES:
        for name in TEXT_OPTIONS:
            if name in asked:
                raise InputError(
                    f"--{name} is for {', '.join(TEXT_SUFFIXES)}, not for {path}"
                )
    if is_source(path):
        return _opened(arguments, path, asked, columns, dtype)
    by_name = columns is not None or suffix != PLAIN_TABLE
    if asked or (by_name and outputs is None and suffix in TEXT_SUFFIXES):
        if outputs is not None:
            asked["target"] = tuple(range(-outputs, 0))
        return _loaded(arguments, path, asked, columns, dtype)
    try:
        x, t = load_data(
            path, dtype=dtype, outputs=arguments.outputs,
            memory_limit=arguments.memory_limit,
        )
    except FormatError as error:
        if n_in is not None and NAME_TARGETS in str(error):
            x, t = load_data(
                path, dtype=dtype, outputs=0, memory_limit=arguments.memory_limit
            )
            if x.shape[1] == n_in:
                return FileSamples(x, t)
        sentence = str(error).replace(
            OR_TEXT, f"{OR_TEXT}: name the column of classes, as by --target species"
        ).replace(
            NAME_TARGETS, "name them by --target, or give their number by --outputs"
        )
        raise FormatError(sentence) from None
    return FileSamples(x, t)


def _loaded(
    arguments: argparse.Namespace, path: str, asked: dict[str, Any],
    columns: Columns | None, dtype: str | None,
) -> FileSamples:
    """Return the samples of a table that `load_table` reads."""
    if asked.get("separator") == "tab":
        asked["separator"] = "\t"
    table = load_table(
        path, **asked, columns=columns, dtype=dtype, memory_limit=arguments.memory_limit
    )
    return FileSamples(table.x, table.t, table.columns, notes=table.notes)


def _opened(
    arguments: argparse.Namespace, path: str, asked: dict[str, Any],
    columns: Columns | None, dtype: str | None,
) -> FileSamples:
    """Return the samples of a file that `open_data` opens: all, or by parts."""
    outputs = arguments.outputs
    named = source_suffix(path) in ARROW_SUFFIXES and outputs is None
    buffer = check_buffer(getattr(arguments, "buffer", None))
    if columns is not None and named:
        asked["columns"] = columns
    source = open_data(path, outputs=outputs, **asked)
    large = (source.size(np.dtype(np.float64).itemsize) or 0) > buffer
    if named and not large:
        asked.pop("columns", None)
        return _loaded(arguments, path, asked, columns, dtype)
    if named and columns is None and "missing" not in asked:
        source = open_data(path, **asked, missing=MISSING[0])
    part = source.peek() if large else source.whole()
    x = np.asarray(part.x)
    t = np.zeros((len(x), 0)) if part.t is None else np.asarray(part.t)
    if t.ndim == 1 and t.dtype.kind == "f":  # numbers for one output
        t = t[:, np.newaxis]
    rows = rows_of(buffer, x.shape[1] + (t.shape[1] if t.ndim > 1 else 1), 8)
    notes = tuple(getattr(source, "notes", ()))
    return FileSamples(x, t, source.columns, source if large else None, rows, notes)


def unknown_targets(network: Network, data: FileSamples) -> str:
    """Return why outputs cannot be compared with the targets of data; or ""."""
    if not data.t.size:
        return "the data have none, see --target and --outputs"
    missing = 0
    for part in data.targets():
        missing += count_missing(np.asarray(part))
        if missing:
            continue
        try:
            t, _ = encoded(network, part, network.classes, "the target")
        except InputError as error:
            return str(error)
        if np.shape(t)[1:] != (network.n_out,):
            return f"they are {np.shape(t)[1]} numbers, expected {network.n_out}"
    return f"{missing} are missing" if missing else ""


def check_labels(path: str, samples: FileSamples, classes: Classes | None) -> None:
    """Raise unless all labels are of a network's classes, if it has any."""
    known = classes or samples.classes
    unknown = [label for label in samples.classes if label not in known]
    if unknown:
        raise InputError(
            f"{path} has the class {quoted(unknown[0])}, expected one of the network's "
            f"classes {quoted(list(classes or ()))}"
        )


def unused_scaling(path: str) -> str:
    """Return the note that a network's scaling was not used."""
    return f"{path} has scaling parameters, which were not used: see --scale"

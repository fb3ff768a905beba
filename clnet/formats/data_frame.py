"""DataFrames of pandas, which is not imported, as tables of named columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.errors import ClnetError, InputError, quoted
from clnet.formats.named_table import Texts, printed, read_table
from clnet.formats.table import OR_TEXT

if TYPE_CHECKING:
    from clnet.nn.columns import Columns


def is_frame(found: object) -> bool:
    """Return whether an object is a DataFrame of pandas, which is not imported."""
    return hasattr(found, "iloc") and hasattr(found, "columns")


class FrameSource:
    """A DataFrame of pandas.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table; its index is no column.
    what : str
        Its name, for errors.
    """

    def __init__(self, frame: Any, what: str = "the DataFrame") -> None:
        self.frame: Any = frame
        self.what: str = what
        self.names: list[str] = [str(name) for name in frame.columns]
        if not len(frame):
            raise InputError(f"{what} has no sample: give at least one")

    def numeric(self, column: int) -> bool:
        """Return whether a column is one of numbers."""
        return _numeric(self.frame.iloc[:, column])

    def read(
        self, numbers: Sequence[int], texts: Sequence[int]
    ) -> tuple[NDArray[np.float64], list[Texts]]:
        """Return columns of finite numbers [samples, columns], and columns of text."""
        values = np.zeros((len(self.frame), len(numbers)))  # [samples, columns]
        for place, at in enumerate(numbers):
            series = self.frame.iloc[:, at]
            if not _numeric(series) and not str(series.dtype).startswith("bool"):
                raise self.error(
                    f"found {quoted(series.iloc[0])}, expected a number{OR_TEXT}", 0, at
                )
            column = series.to_numpy("float64", na_value=np.nan)
            if not np.isfinite(column).all():
                row = int((~np.isfinite(column)).argmax())
                raise self.error(
                    f"found {column[row]}, expected a finite number", row, at
                )
            values[:, place] = column
        return values, [self._texts(at) for at in texts]

    def error(self, sentence: str, row: int = -1, column: int = -1) -> ClnetError:
        """Return an error that names a sample from 0, and a column."""
        if row < 0:
            return InputError(f"{self.what} {sentence}")
        return InputError(
            f"{self.what}, row {row}, column {printed(self.names[column])}: {sentence}"
        )

    def check_size(self, size: int) -> None:
        """Allow any size."""

    def _texts(self, at: int) -> Texts:
        series = self.frame.iloc[:, at]
        missing = series.isna().to_numpy()
        if missing.any():
            row = int(missing.argmax())
            raise self.error("the value is missing, expected text", row, at)
        order: dict[str, int] = {}
        codes = [order.setdefault(str(one), len(order)) for one in series.tolist()]
        return Texts(list(order), np.array(codes, np.intp))


def _numeric(series: Any) -> bool:
    """Return whether a Series holds numbers, and no categories."""
    return getattr(series.dtype, "kind", "O") in "iuf"


def named_inputs(
    columns: Columns | None, x: ArrayLike, name: str = "x"
) -> tuple[ArrayLike, Columns | None]:
    """Return inputs, and their columns: of a DataFrame by name, of others as they are.

    Parameters
    ----------
    columns : Columns or None
        The columns of a network; None: all columns of a DataFrame, which are numbers.
    x : array_like or DataFrame
        The inputs.
    name : str
        Their name, for errors.

    Raises
    ------
    InputError
        If a column is missing, or a value is missing, no number or no known category.
    """
    if not is_frame(x):
        return x, columns
    table = read_table(FrameSource(x, name), (), (), (), columns, "float64")
    return table.x, table.columns

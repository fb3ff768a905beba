"""The HTML report of a study in one file: environment, pictures, tables, rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment

from clnet.formats.files import write

from ..measurements import ENVIRONMENT
from .metrics import microseconds
from .plots import Picture
from .standings import learnt
from .tables import number

TEMPLATE = Path(__file__).with_name("report.html.jinja")


def write_report(
    path: Path, about: str, tables: str, pictures: Sequence[Picture],
    rows: pd.DataFrame,
) -> None:
    """Write the report, whole or not at all; its title is the file's stem.

    It opens with what the rows teach. A point of a picture under the pointer, or
    touched, tells its row. A click on a column's head sorts the rows, and a field above
    them leaves those that hold its words. The page loads no other file.
    """
    facts = {
        name: ", ".join(filter(None, rows[name].unique()))
        for name in [*ENVIRONMENT, "effort"]
    }
    facts["measured"] = f"{rows['date'].min()} to {rows['date'].max()}"
    facts["load average"] = f"at most {number(rows['load'].max())}"
    template = Environment(autoescape=True).from_string(TEMPLATE.read_text())
    page = template.render(
        title=path.stem, about=about, facts=facts, learnt=learnt(
            rows[rows["status"] == "measured"].to_dict("records")
        ), tables=tables, rows=_cells(rows),
        pictures=pictures,
    )
    write(path, [page.encode()])


def _cells(rows: pd.DataFrame) -> str:
    """Return the rows as an HTML table."""
    shown = rows[["table", "case", "batch", "basis", "candidate"]].assign(**{
        "µs": microseconds(rows), "quartile 1": 1e6 * rows["low"],
        "quartile 3": 1e6 * rows["high"], "rounds": rows["rounds"],
        "times as fast": rows["ratio"], "as": rows["against"],
        "over the floor": rows["over_floor"],
        "configuration or reason": rows["config"].where(
            rows["reason"] == "", rows["status"] + ": " + rows["reason"]
        ),
    })
    with pd.option_context("display.max_colwidth", None):
        return str(shown.to_html(
            index=False, na_rep="", float_format=number, border=0, table_id="rows"
        ))

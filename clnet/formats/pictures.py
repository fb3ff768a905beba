"""Pictures: matplotlib's figures, their files and their colours."""

from __future__ import annotations

import io
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from clnet.checks import installed
from clnet.errors import InputError, quoted
from clnet.formats.files import as_path, check_writable, write
from clnet.nn.notebook import in_notebook

PICTURES = (".png", ".svg", ".pdf")
DPI = 150  # of .png
COLOURS = (  # safe for any colour vision (Okabe and Ito; Tol)
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999",
    "#332288", "#882255", "#44aa99", "#999933",
)
# Variants and the bench's candidates, in the order of colours: the same colour in all
# pictures. A new one goes to the end.
NAMES = (
    "naive", "local", "split", "fused", "fused_local", "persistent", "persistent_mma",
    "gemm", "mma", "mma_chain", "fused_mma",
    "serial", "cpu", "cpu-1core", "host", "parallel", "device", "copied", "resident",
    "merged", "stencil", "stencil-tile", "trapezoid", "stencil_cpu", "by-layer", "read",
    "copy", "outer-loop", "inner-loop", "dense", "csr", "ell", "hyb", "sell", "coo",
    "dia", "predict", "fixed-order", "any-order", "message", "all-reduce", "addition",
    "exchange", "population", "one-by-one",
    "stencil_reduction", "persistent_mixed", "sparse_team", "fused_sparse", "generic",
)


def colour(name: str) -> tuple[str, int]:
    """Return the colour of one of `NAMES`, and the cycles through the colours."""
    cycles, number = divmod(NAMES.index(name), len(COLOURS))
    return COLOURS[number], cycles


def picture_file(path: str | PathLike[str]) -> Path:
    """Return the file of a picture."""
    file = as_path(path)
    suffix = file.suffix.lower()
    if suffix not in PICTURES:
        raise InputError(f"{file}: plots are {', '.join(PICTURES)}, not {suffix!r}")
    check_writable(file)
    return file


def figure() -> Any:
    """Return a new matplotlib figure without a window; a notebook shows it."""
    if in_notebook():
        pyplot = installed("matplotlib.pyplot", "a picture", "demo")
        return pyplot.figure(layout="constrained")
    module = installed("matplotlib.figure", "a picture", "demo")
    return module.Figure(layout="constrained")


def drawn(
    draw: Callable[[Any], None], path: str | PathLike[str] | None, axes: Any
) -> Any:
    """Draw on axes, write their figure to a file, and return the axes."""
    file = None if path is None else picture_file(path)
    if axes is None:
        axes = figure().subplots()
    elif not hasattr(axes, "set_xlabel"):
        raise InputError(
            f"axes must be one Axes of matplotlib or None, not {quoted(axes)}"
        )
    draw(axes)
    if file is not None:
        write(file, [_content(axes, file.suffix.lower().removeprefix("."))])
    return axes


def svg(draw: Callable[[Any], None]) -> str:
    """Return a drawing as the element of a page."""
    axes = figure().subplots()
    draw(axes)
    text = _content(axes, "svg").decode()
    return text[text.index("<svg") :]


def _content(axes: Any, suffix: str) -> bytes:
    content = io.BytesIO()
    axes.figure.savefig(content, format=suffix, dpi=DPI)
    return content.getvalue()

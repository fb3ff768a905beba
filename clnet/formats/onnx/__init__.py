"""ONNX files, ``.onnx``: feed-forward graphs are read, and networks are written.

`graph` reads the file, `reading` makes a network of its nodes by
`clnet.formats.graphs`, and `writer` writes. The package ``onnx``, of the extra of that
name, is imported at the first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from clnet.checks import installed
from clnet.errors import FormatError

if TYPE_CHECKING:
    from clnet.nn.model import Model

M = TypeVar("M", bound="Model")


def load(path: Path, network_type: type[M], memory_limit: int | None = None) -> M:
    """Return the network of an ``.onnx`` file."""
    installed("onnx", f"{path}", "onnx", FormatError)
    from clnet.formats.onnx.reading import read_network

    return read_network(path, network_type, memory_limit)


def save(network: Model, path: Path) -> None:
    """Write a network, with its scaling if it has one: ``predict(x, scale=True)``."""
    installed("onnx", f"{path}", "onnx", FormatError)
    from clnet.formats.onnx.writer import write_network

    write_network(network, path)


def check(network: Model, path: Path) -> None:
    """Raise the FormatError of `save` if the network or the package forbids it."""
    installed("onnx", f"{path}", "onnx", FormatError)
    from clnet.formats.onnx.writer import check_network

    check_network(network, path)

"""Fingerprints: the code and the capabilities from which a step's launches follow.

A variant's launches follow from the span, the configuration, the device's capabilities,
the kernels' text, and the Python that describes them. The text of the last two is
digested, not the launches: those of equal layers differ in offsets and in the keys of
tables, and those of layers whose sizes `Span.signature` rounds alike in sizes too, and
each would be measured for itself. Texts are read once in a process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from clnet.opencl.device import Device
from clnet.opencl.program import source_hash
from clnet.runtime.binding import Step
from clnet.variants.base import Variant

# Of a device: where it is, and what no launch depends on.
_APART = {
    "index", "notes", "companions", "launch_cost", "global_memory", "largest_buffer",
}
# Modules that describe launches and the arrays that these read.
_IMPORT = re.compile(
    r"^\s*(?:from|import)\s+(clnet\.(?:variants|nn\.storage|opencl\.launch)\b[\w.]*)",
    re.MULTILINE,
)


def fingerprint(step: Step) -> str:
    """Return a text that is equal for steps whose times are comparable.

    Given the same span's signature, variant's name, configuration and device.
    """
    place = step.device
    if place is None:
        return _arithmetic()
    launches = step.variant.launches(step.span, step.config, place)
    kernels = (source_hash(source) for source in {one.source for one in launches})
    return _digest((
        _capabilities(place), repr(step.variant), _code(type(step.variant)),
        *sorted(kernels),
    ))


def _arithmetic() -> str:
    """Return what computes NumPy's products: its version, its BLAS, and the threads."""
    names = ("internal_api", "version", "architecture", "num_threads")
    libraries = sorted(
        " ".join(str(library.get(name)) for name in names) + " threads"
        for library in _libraries().info()
    )
    return ", ".join((f"numpy {np.__version__}", *libraries))


@cache
def _libraries() -> Any:
    """Return the BLAS libraries of NumPy, as far as they tell of their threads."""
    # Not at the top: it takes 10 ms.
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas")
    own = [
        library.filepath for library in found.lib_controllers
        if "numpy" in library.filepath.lower()
    ]
    return found.select(filepath=own) if own else found  # or those of a distribution


@cache
def _capabilities(place: Device) -> str:
    """Return a device's capabilities as text."""
    named = (field.name for field in fields(place) if field.compare)
    return repr({name: getattr(place, name) for name in named if name not in _APART})


@cache
def _code(kind: type[Variant]) -> str:
    """Return a digest of the modules that define a variant, and of those they import.

    Of the latter those of clnet's variants and storages.
    """
    waiting = {base.__module__ for base in kind.__mro__} - {"builtins", "typing"}
    texts: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        texts[name] = _text(name)
        waiting |= set(_IMPORT.findall(texts[name])) - texts.keys()
    return _digest(text for _, text in sorted(texts.items()))


@cache
def _text(module: str) -> str:
    """Return a module's source; "" where there is none, as of a console."""
    try:
        loader: Any = getattr(find_spec(module), "loader", None)
        return loader.get_source(module) or ""
    except (ImportError, ValueError, AttributeError):
        return ""


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]

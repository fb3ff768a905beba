"""Fingerprints: digests of the code and the capabilities that define steps' launches.

A variant's launches follow from the span, the configuration, the device's capabilities,
the kernels' text, and the Python that describes them. The two texts are digested, not
the launches: launches of equal layers differ in offsets and in the keys of tables, and
those of layers whose sizes `Span.signature` rounds alike in sizes too; each would be
measured separately. Texts are read once in a process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import numpy as np

import clnet.runtime
from clnet.opencl.program import source_hash, source_text

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launch
    from clnet.runtime.binding import PlanStep

# Fields of a device that no launch depends on.
_IGNORED = {
    "index", "notes", "companions", "launch_cost", "global_memory", "largest_buffer",
    "untested", "clock", "cache",
}
# Modules that describe launches and the arrays that these read.
_IMPORT = re.compile(
    r"^\s*(?:from|import)\s+(clnet\.(?:variants|nn\.storage|opencl\.launch)\b[\w.]*)",
    re.MULTILINE,
)


def exact_fingerprint(span: Span) -> str:
    """Return a text that is equal for spans whose results are comparable.

    Results of spans of about the same size, whose times are comparable, are not: the
    ops' own sizes, slots and patterns count, and the code that binds launches. The
    steps' keys must be equal besides.
    """
    return _digest((repr(span), _runtime()))


@cache
def _runtime() -> str:
    """Return a digest of the modules that bind launches."""
    names = sorted(module.name for module in iter_modules(clnet.runtime.__path__))
    modules = [f"{clnet.runtime.__name__}.{name}" for name in names]
    return _digest(map(_text, [*modules, "clnet.opencl.bound", "clnet.opencl.memory"]))


def fingerprint(step: PlanStep) -> str:
    """Return a text that is equal for steps whose times are comparable.

    The signature of the span, the variant's name, the configuration and the device must
    be equal besides.
    """
    device = step.device
    if device is None:
        return _numpy()
    launches = step.variant.launches(step.span, step.config, device)
    return _described(step.variant, launches, device)


def launches_fingerprint(
    description: Any, launches: Iterable[Launch], device: Device
) -> str:
    """Return a text that is equal for launches whose results are comparable.

    `description` is what they follow from, on the device.
    """
    return _digest((_described(description, launches, device), _runtime()))


def _described(description: Any, launches: Iterable[Launch], device: Device) -> str:
    kernels = map(source_hash, {launch.source for launch in launches})
    described: Any = type(description)
    return _digest((
        _capabilities(device), repr(description), _code(described),
        *sorted(kernels),
    ))


def program_fingerprint(step: PlanStep) -> str:
    """Return a text that is equal for steps of a device that build the same programs.

    Of one variant in one configuration, the network decides whether a compiler crashes.
    """
    device = step.device
    assert device is not None
    return programs_fingerprint(
        step.variant.launches(step.span, step.config, device), device
    )


def programs_fingerprint(launches: Iterable[Launch], device: Device) -> str:
    """Return a text that is equal for launches of the same programs."""
    return _digest(sorted(
        f"{launch.kernel}{launch.local_size}{launch.registers or ''}"
        f"{source_text(launch.source, launch.defines, launch.device or device)}"
        for launch in launches
    ))


def _numpy() -> str:
    """Return NumPy's version, its BLAS, and the number of threads."""
    names = ("internal_api", "version", "architecture", "num_threads")
    libraries = sorted(
        " ".join(str(library.get(name)) for name in names) + " threads"
        for library in _libraries().info()
    )
    return ", ".join((f"numpy {np.__version__}", *libraries))


@cache
def _libraries() -> Any:
    """Return the BLAS libraries of NumPy that threadpoolctl knows."""
    # Not at the top: it takes 10 ms.
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(user_api="blas")
    of_numpy = [
        library.filepath for library in libraries.lib_controllers
        if "numpy" in library.filepath.lower()
    ]
    # The NumPy of a Linux distribution has its BLAS in another folder.
    return libraries.select(filepath=of_numpy) if of_numpy else libraries


@cache
def _capabilities(device: Device) -> str:
    """Return a device's capabilities as text."""
    names = (field.name for field in fields(device) if field.compare)
    return repr({name: getattr(device, name) for name in names if name not in _IGNORED})


@cache
def _code(described: Any) -> str:
    """Return a digest of the modules that define a class, and of their imports.

    The imports of clnet's variants, storages and launches count.
    """
    pending = {base.__module__ for base in described.__mro__} - {"builtins", "typing"}
    texts: dict[str, str] = {}
    while pending:
        name = pending.pop()
        texts[name] = _text(name)
        pending |= set(_IMPORT.findall(texts[name])) - texts.keys()
    return _digest(text for _, text in sorted(texts.items()))


@cache
def _text(module: str) -> str:
    """Return a module's source; "" where there is none, as in a console."""
    try:
        loader: Any = getattr(find_spec(module), "loader", None)
        return loader.get_source(module) or ""
    except (ImportError, ValueError, AttributeError):
        return ""


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]

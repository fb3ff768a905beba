"""What no query tells of a device: asked by a launch, and remembered.

The answer is kept in the tuning store, of a device's name and driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clnet.device import Device
from clnet.errors import BuildError, DeviceError
from clnet.program import build, source_hash, source_text
from clnet.session import Session
from clnet.tuning.store import Store


def asked(
    device: Device,
    what: str,
    source: str,
    defines: Mapping[str, int | str],
    answer: Callable[[Session, Any], bool],
) -> bool:
    """Return what launches tell of a device; no where they do not build or run.

    Parameters
    ----------
    device : Device
        Which is asked, in a context of its own.
    what : str
        The question, in a few words: with the kernel's hash the answer's name.
    source, defines : str, mapping
        The kernel's file, and its macros.
    answer : callable
        Returns the answer, from the session and the built program.
    """
    import pyopencl as cl

    store = Store(device)
    key = f"{what} {source_hash(source)}"
    found = store.fact(key)
    if found is not None:
        return found
    try:
        session = Session(device)
        text = source_text(source, defines, device)
        found = answer(session, build(session.context, device, text, source))
    except (cl.Error, BuildError, DeviceError):
        found = False
    store.put_fact(key, found)
    return found

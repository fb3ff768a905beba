"""First uses of kernels that no planner compares with the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from clnet.errors import DeviceError, OutOfMemoryError, warn
from clnet.opencl.child_trial import death, survives
from clnet.opencl.store import store_of
from clnet.planning.tuning.measure import WrongResultError

if TYPE_CHECKING:
    from clnet.opencl.device import Device


class FirstUse(NamedTuple):
    """Trials of kernels before their first results count."""

    programs: str  # The store's key of the programs
    # A function of a module, and its arguments, that runs them in a child process
    run: tuple[Any, ...]
    # Compares the results; returns whether their values allow it
    check: Callable[[], bool]


def refusal_of_kernels(
    device: Device, kernel: str, key: str, first_use: Callable[[], FirstUse]
) -> str | None:
    """Return why kernels fail or are wrong, with a warning; None: they are right.

    Right ones are remembered: comparing costs once per device. On an untested runtime
    they run in a child process first.
    """
    store = store_of(device)
    if store.fact(f"compared {key}"):
        return None
    try:
        trial = first_use()
        if device.untested and not survives(store, trial.programs, *trial.run):
            raise DeviceError(death(kernel, device))
        if trial.check():
            store.put_fact(f"compared {key}", True)
    except OutOfMemoryError:
        raise
    except (DeviceError, WrongResultError) as error:
        warn(f"{kernel} is left out: {error}")
        return str(error)
    return None

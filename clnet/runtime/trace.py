"""The commands of one run, with their times on the host and events on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from clnet.opencl.launch import Launch

HOST, COPY = "host", "copy"  # names of commands that are no kernels


def kernel_name(launch: Launch) -> str:
    """Return the name of a launch's kernel, with its file if that has another."""
    source, kernel = launch.source.rpartition("/")[2][:-3], launch.kernel
    return kernel if kernel == source else f"{source}: {kernel}"


class Command(NamedTuple):
    """A command of a run."""

    name: str  # The kernel with its variant, `"copy"`, or `"host"` for steps in NumPy
    # When the host began with it, by `time.perf_counter`, and its time there
    start: float
    seconds: float
    event: Any  # On the device; None: a step on the host


class Trace(NamedTuple):
    """The commands of one run, in the order of their enqueueing."""

    commands: list[Command]

    @property
    def events(self) -> list[Any]:
        """The device's commands."""
        return [one.event for one in self.commands if one.event is not None]

    @property
    def host_seconds(self) -> float:
        """Time of the steps on the host."""
        return sum(one.seconds for one in self.commands if one.event is None)

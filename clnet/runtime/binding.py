"""Steps, and the order of their launches: what inference and training have in common.

A variant describes launches, `opencl.bound` makes actions of them. Here they are put in
order, with the waits between the queues of several devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clnet.ir.program import Span
    from clnet.opencl.commands import Action
    from clnet.opencl.device import Device
    from clnet.opencl.launch import Launch
    from clnet.opencl.session import Session
    from clnet.variants.base import Config, Variant


@dataclass(frozen=True)
class PlanStep:
    """A span of a program with the variant that computes it."""

    span: Span  # The ops
    variant: Variant  # Of all ops of the span
    config: Config  # A point of the variant's tuning space
    # The device or its companion that runs the step; None: the host
    device: Device | None


class LaunchSchedule:
    """Actions in the order in which they are enqueued."""

    def __init__(self, session: Session) -> None:
        self.actions: list[Action] = []
        self.launches: dict[Action, Launch] = {}
        self.used: set[Device] = set()  # devices with launches
        self.busy: list[Device] = []  # devices with launches since the last wait
        self._session = session

    def order_after_busy(self, step: PlanStep, launches: Iterable[Launch]) -> None:
        """Append waits unless one queue's order already ends all earlier launches."""
        devices = {launch.device or step.device for launch in launches}
        if self.busy and {*self.busy, *devices} != {step.device}:
            self.append_waits()

    def append(self, action: Action, launch: Launch, device: Device) -> None:
        """Append the action of a launch on a device."""
        self.actions.append(action)
        self.launches[action] = launch
        if launch.standby:  # on a queue of its own
            return
        self.used.add(device)
        if device not in self.busy:
            self.busy.append(device)

    def append_waits(self) -> None:
        """Append the waits for all busy devices."""
        self.actions += self.waits_for_busy()

    def waits_for_busy(self) -> Sequence[Action]:
        """Return the waits for all busy devices, which are idle after them."""
        # The last one first: a companion in the calling thread has then ended.
        busy, self.busy = self.busy, []
        return [self._session.queues[device].finish for device in reversed(busy)]

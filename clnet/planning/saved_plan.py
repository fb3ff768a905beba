"""Plans of trainings in files: by them a resumed training takes the same steps.

Kernels and configurations round differently. A plan that depended on times measured
since would give other bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SavedPlan:
    """A `TrainingPlan` by names, for JSON; see `training_planner.saved_plan`."""

    device: str  # `Store.key` of the device
    batch: int  # Samples a step
    format: str | None  # Of the `NetworkView`; None: the network itself is trained
    # Of each step: the number of its ops, the variant's name, its configuration, and
    # the number of the device among `Device.places`
    steps: list[dict[str, Any]]

    def __post_init__(self) -> None:
        kinds = {"ops": int, "variant": str, "config": dict, "place": int}
        if not isinstance(self.format, str | None):
            raise ValueError("the format of a plan is not clnet's")
        for step in self.steps:
            found = {name: type(value) for name, value in step.items()}
            if found != kinds or step["ops"] < 1:
                raise ValueError("a step of a plan is not clnet's")

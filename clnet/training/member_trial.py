"""Child trials of launches of many networks: no planner tries them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from clnet.errors import ClnetWarning
from clnet.opencl.child_trial import death, survives
from clnet.opencl.launch import EPOCH
from clnet.opencl.session import session
from clnet.opencl.store import store_of
from clnet.planning.tuning.fingerprint import program_fingerprint
from clnet.planning.tuning.times import key_of
from clnet.runtime.member_replay import MemberReplay
from clnet.runtime.train_state import TrainState

if TYPE_CHECKING:
    from clnet.nn.storage.layout import Layout
    from clnet.runtime.binding import Step


def refusal_of(
    step: Step, layout: Layout, members: int, slots: int, samples: int, subsets: bool
) -> str | None:
    """Return why a launch would end the process on an untested runtime, with a warning.

    Parameters
    ----------
    step : Step
        Of a variant of `clnet.variants.members`.
    layout : Layout
        Of one network's flat buffer.
    members : int
        Networks.
    slots : int
        Of the optimiser's state.
    samples : int
        Of the data set.
    subsets : bool
        Whether each network takes rows of its own.
    """
    device = step.device
    assert device is not None
    if not device.untested or survives(
        store_of(device), f"{key_of(step)} {program_fingerprint(step)}", _launch, step,
        layout, members, slots, samples, subsets,
    ):
        return None
    refusal = death(step.variant.name, device)
    warnings.warn(
        f"{step.variant.name} is left out: {refusal}", ClnetWarning, stacklevel=2
    )
    return refusal


def _launch(
    step: Step, layout: Layout, members: int, slots: int, samples: int, subsets: bool
) -> None:
    """Train networks of zeros for an epoch."""
    assert step.device is not None
    place, dtype = session(step.device), step.span.dtype
    replay = MemberReplay(
        place, step, layout,
        TrainState(
            place, np.zeros(members * layout.size, dtype),
            np.zeros((slots, members * layout.size), dtype),
        ),
        [np.arange(samples) if subsets else None] * members, samples, 1,
    )
    done = np.zeros(members, int)
    replay.run_members(np.arange(members), done, np.zeros((1, 2), EPOCH))

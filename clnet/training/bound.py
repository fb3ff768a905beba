"""Trainings bound to device memory, kept for later ones that are alike.

To bind a plan takes some milliseconds: kernels, tables and buffers. A training that has
ended leaves them to the next one of the same plans in this process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clnet.ir.lowering import lower_training
from clnet.planning.format_planner import NetworkView
from clnet.runtime.train_state import TrainState
from clnet.training.passes import Pass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.ir.ops import Program
    from clnet.nn.losses import LossFunction
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.training.data_set import DataSet
    from clnet.training.history import TrainingState

MAX_KEPT = 8  # bindings of a device
KEPT_BYTES = 1 << 24  # of data and parameters: to bind more is a small part of the time
MAX_PROGRAMS = 64

_programs: dict[Any, Program] = {}


def program_of(
    network: Model, loss: LossFunction, rule: Optimiser | None, precision: str,
    **options: Any,
) -> Program:
    """Return the program of `lower_training`; equal descriptions share it."""
    def lowered() -> Program:
        return lower_training(network, loss, rule, **options).at(precision)

    if isinstance(network, NetworkView):
        return lowered()
    limit = None if network.fann is None else network.fann.bit_fail_limit
    key = (
        network.n_in, network.layers, network.dtype, network.fann_compatible, limit,
        loss.name, rule, precision, *options.items(),
    )
    if key not in _programs:
        while len(_programs) >= MAX_PROGRAMS:
            _programs.pop(next(iter(_programs)), None)
        _programs[key] = lowered()
    return _programs[key]


@dataclass(frozen=True)
class Bound:
    """Passes bound to one device.

    Attributes
    ----------
    train_state : TrainState
        Parameters and optimiser state.
    training : Pass
        The pass over the training set.
    validation : Pass or None
        The pass over the validation set.
    """

    train_state: TrainState
    training: Pass
    validation: Pass | None


def bound(
    session: Session,
    state: TrainingState,
    plans: Sequence[TrainingPlan],
    sets: Sequence[DataSet],
) -> Bound:
    """Return the passes of a training by its plans, from kept ones where there are.

    Parameters
    ----------
    session : Session
        Of the device.
    state : TrainingState
        Parameters and optimiser state to start from.
    plans, sets : sequences of TrainingPlan and DataSet
        Of the training, and of the validation if there is one.
    """
    kept = session.kept.pop(_key(plans, sets), None)
    if kept is not None:
        found: Bound = kept
        found.train_state.reset(state.parameters, state.values)
        passes = (found.training, found.validation)
        for one, plan, data in zip(passes, plans, sets, strict=False):
            assert one is not None
            one.reset(plan, data)
        return found
    network = plans[0].network
    relayout = network.relayout if isinstance(network, NetworkView) else None
    train_state = TrainState(session, state.parameters, state.values, relayout)
    training, *others = [
        Pass(session, plan, data, train_state)
        for plan, data in zip(plans, sets, strict=True)
    ]
    return Bound(train_state, training, others[0] if others else None)


def keep(
    session: Session, used: Bound, plans: Sequence[TrainingPlan],
    sets: Sequence[DataSet],
) -> None:
    """Keep the passes of a training that has ended well, unless they are large."""
    passes = [one for one in (used.training, used.validation) if one is not None]
    pairs = zip(passes, plans, strict=True)
    if any(one.steps is not plan.steps for one, plan in pairs):
        return  # kernels have timed out
    size = used.train_state.size * 4 + sum(
        array.nbytes for data in sets for array in data.arrays
    )
    if isinstance(plans[0].network, NetworkView) or size > KEPT_BYTES:
        return
    for one in passes:
        one.release()
    while len(session.kept) >= MAX_KEPT:
        session.kept.pop(next(iter(session.kept)), None)
    session.kept[_key(plans, sets)] = used


def _key(plans: Sequence[TrainingPlan], sets: Sequence[DataSet]) -> tuple[Any, ...]:
    """Return the key of passes; a kept one holds its steps, so that ids are unique."""
    return tuple(
        (id(plan.steps), len(data)) for plan, data in zip(plans, sets, strict=True)
    )

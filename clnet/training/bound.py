"""Trainings bound to device memory, kept for later ones that are alike.

To bind a plan takes some milliseconds: kernels, tables and buffers. A training that has
ended leaves them to the next one of the same plans in this process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clnet.ir.loss import Tally
from clnet.ir.lowering import lower_training
from clnet.nn.copies import Cache
from clnet.opencl.session import KEPT_BYTES
from clnet.planning.format_planner import NetworkView
from clnet.runtime.train_state import TrainState
from clnet.training.data_set import DataSet
from clnet.training.passes import Pass
from clnet.training.streaming import AnySet, StreamedSet
from clnet.training.streaming_pass import StreamingPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clnet.ir.program import Program
    from clnet.nn.losses import LossFunction
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.session import Session
    from clnet.planning.training_planner import TrainingPlan
    from clnet.runtime.binding import Step
    from clnet.training.history import TrainingState

MAX_PROGRAMS = 64

_programs = Cache(MAX_PROGRAMS)


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
    program: Program | None = _programs.get(key)
    if program is None:
        program = _programs[key] = lowered()
    return program


@lru_cache(MAX_PROGRAMS)
def without_backward(program: Program) -> Program:
    """Return a training program up to its totals: the forward pass and the loss."""
    stop = next(i for i, op in enumerate(program.ops) if isinstance(op, Tally)) + 1
    return replace(program, ops=program.ops[:stop], outputs=(program.output,))


@dataclass(frozen=True)
class Bound:
    """Passes bound to one device."""

    train_state: TrainState  # Parameters and optimiser state
    # Over the training set, and over the validation set if there is one
    passes: list[Pass]
    key: tuple[int, ...]  # The ids of their plans' steps, and their numbers of samples
    steps: list[tuple[Step, ...]]  # Those steps, held so that no others get their ids
    keeps: bool  # Whether they are small enough to be kept


def bound(
    session: Session,
    state: TrainingState,
    plans: Sequence[TrainingPlan],
    sets: Sequence[AnySet],
) -> Bound:
    """Return the passes of a training by its plans, from kept ones where there are."""
    key = *[id(plan.steps) for plan in plans], *[data.rows for data in sets]
    found: Bound | None = session.kept.pop(key, None)
    if found is not None:
        found.train_state.reset(state.parameters, state.values)
        for one, plan, data in zip(found.passes, plans, sets, strict=True):
            assert isinstance(data, DataSet)
            one.reset(plan, data)
        return found
    network = plans[0].network
    relayout = network.relayout if isinstance(network, NetworkView) else None
    train_state = TrainState(session, state.parameters, state.values, relayout)
    passes = [
        StreamingPass(session, plan, data, train_state)
        if isinstance(data, StreamedSet) else Pass(session, plan, data, train_state)
        for plan, data in zip(plans, sets, strict=True)
    ]
    streams = any(isinstance(data, StreamedSet) for data in sets)
    size = train_state.size * 4 + sum(
        array.nbytes for data in sets for array in data.arrays
    )
    return Bound(
        train_state, passes, key, [plan.steps for plan in plans],
        relayout is None and not streams and size <= KEPT_BYTES,
    )


def keep(session: Session, used: Bound) -> None:
    """Keep the passes of a training that has ended well, unless they are large."""
    if not used.keeps or any(one.falls_back for one in used.passes):
        return
    for one in used.passes:
        one.release()
    session.kept[used.key] = used

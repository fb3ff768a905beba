"""Programs of training steps, made once for equal descriptions."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clnet.ir.loss import Tally
from clnet.ir.lowering import lower_training
from clnet.nn.copies import Cache
from clnet.planning.format_planner import NetworkView

if TYPE_CHECKING:
    from clnet.ir.program import Program
    from clnet.nn.losses import LossFunction
    from clnet.nn.model import Model
    from clnet.nn.optimisers import Optimiser

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

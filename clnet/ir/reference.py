"""Programs in NumPy: the oracle of the tests, and the host's arithmetic.

`Op.run` is the meaning of each op. Values are held in a dict from name to array [batch,
width] in the span's dtype (the tests pass float64 arrays for the oracle). The scalars
of a training step (`opencl.launch.Scalar`) and the optimiser's ``state`` [slots, size]
are in the same dict.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clnet.ir.op import Array, Op, Values
    from clnet.ir.program import Program


def silent() -> np.errstate:
    """Return the context of all of this arithmetic: infinity and NaN are results.

    NumPy would warn of them; the device does not.
    """
    return np.errstate(all="ignore")


def silent_caller() -> Callable[..., None]:
    """Return a function that calls others in `silent`, for one thread at a time.

    It enters a context that is made once, which takes a tenth of the time of `silent`.
    NumPy 1 keeps the state of errors by threads, not by contexts.
    """
    if int(np.__version__.partition(".")[0]) > 1:
        context = copy_context()
        context.run(np.seterr, all="ignore")
        return context.run

    def call(function: Callable[..., None], *arguments: Any) -> None:
        with silent():
            function(*arguments)

    return call


def run(program: Program, x: Array, parameters: Array) -> Array:
    """Return the output [batch, n_out] of a program for x [batch, n_in]."""
    values: dict[str, Array] = {program.input.name: x}
    run_ops(program.ops, values, parameters)
    return values[program.output.name]


def run_ops(ops: Iterable[Op], values: Values, parameters: Array) -> None:
    """Run ops in order on `values`: it holds their inputs and gets their outputs."""
    with silent():
        for op in ops:
            op.run(values, parameters)

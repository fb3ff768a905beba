"""A kernel launch as a record: source, macros, sizes and arguments.

One `Launch` serves the runtime, the tuner, the tests and the benchmarks, so that launch
geometry is written once, in the variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from clnet.ir.ops import Value
from clnet.opencl.device import Device

When = Literal["call", "parameters", "inputs"]
"""What must have changed for a launch to run."""


@dataclass(frozen=True)
class Parameters:
    """Argument: the flat parameter buffer."""


@dataclass(frozen=True)
class Gradients:
    """Argument: the flat gradient buffer, of the parameters' layout, zero at first."""


@dataclass(frozen=True)
class State:
    """Argument: the optimiser's state, [slots, size of the flat buffer]."""


@dataclass(frozen=True)
class Scalar:
    """Argument: a number that training sets from step to step.

    Attributes
    ----------
    name : str
        One of `training_ops.SCALARS`; the words of the key are ``key0``, ``key1`` …
        Of `gradient_sum`, its own.
    kind : {"int", "uint", "real"}
        Its OpenCL type; ``"real"``: the network's.
    """

    name: str
    kind: Literal["int", "uint", "real"] = "int"


@dataclass(frozen=True)
class Scratch:
    """Argument: a buffer of the plan, zero at first, kept between calls.

    Attributes
    ----------
    name : str
        Launches of one span that name the same scratch get the same buffer.
    size : int
        Bytes.
    """

    name: str
    size: int


@dataclass(frozen=True)
class Packed:
    """Argument: parameters in another order, refilled when the parameters change.

    Attributes
    ----------
    key : str
        Equal keys within a network mean equal content: spans share the buffer.
    size : int
        Bytes.
    """

    key: str
    size: int


@dataclass(frozen=True)
class Table:
    """Argument: a constant array, uploaded once.

    Attributes
    ----------
    key : str
        Equal keys within a network mean equal content.
    make : callable
        Returns the array; called once.
    """

    key: str
    make: Callable[[], NDArray[Any]] = field(compare=False)

    @classmethod
    def of(cls, values: NDArray[Any]) -> Table:
        """Return the argument for a small array: its content is its key."""
        return cls(f"{values.dtype} {values.tobytes().hex()}", lambda: values)


@dataclass(frozen=True)
class HelperTimeout:
    """Argument: an `int`, 0 at first, that a kernel sets when a wait hit its bound.

    The runtime then waits for the step's standby launches before the call returns.
    """


@dataclass(frozen=True)
class TimeoutFlag:
    """Argument: an `int`, 0 at first, that a kernel sets when a wait hit its bound.

    What depends on it is then NaN, and the plan computes it again, another way.
    """


@dataclass(frozen=True)
class ByValueInput:
    """Argument: a float32 value's one row itself, as ``by_value_input.h`` describes it.

    The kernel reads it there if the host has it; else in the buffer of the value, which
    is another argument.
    """

    value: Value


@dataclass(frozen=True)
class ZeroCopyOutput:
    """Argument: the host's address for a float32 value's one row, or 0.

    The kernel writes it there if it is wanted so; to the buffer of the value always.
    """

    value: Value

Argument = (
    Value | Parameters | Gradients | State | Scalar | Scratch | Packed | Table
    | HelperTimeout | TimeoutFlag | ByValueInput | ZeroCopyOutput | int | float
)
"""An argument of a kernel; whole numbers arrive as OpenCL's `int`, others as REAL."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes
    ----------
    source : str
        File in ``kernels/``.
    kernel : str
        Function in it.
    defines : mapping of str to int or str
        Macros of the build. `program.build` adds those that every kernel has
        (``REAL`` and the device's capabilities).
    global_size, local_size : tuple of int
        Work-items in all, and a group.
    arguments : tuple
        In the kernel's order.
    when : {"call", "parameters", "inputs"}
        What must have changed for it to run, before those that always do: nothing, it
        runs each call or step of training; the parameters; what was written as the
        program's inputs (the data set of a training; of a call, its inputs).
    device : Device or None
        A companion of the step's device that runs it; None: the device itself.
        Launches of one step on different places run side by side.
    standby : bool
        True: runs beside calls, on a queue of its own, and may outlast them: started
        with a call unless it is still running from an earlier one.
    """

    source: str
    kernel: str
    defines: Mapping[str, int | str]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    arguments: tuple[Argument, ...]
    when: When = "call"
    device: Device | None = None
    standby: bool = False


def phases(launches: Iterable[Launch]) -> tuple[list[Launch], list[Launch]]:
    """Return those that run only when something has changed, then the others."""
    listed = list(launches)
    return (
        [launch for launch in listed if launch.when != "call"],
        [launch for launch in listed if launch.when == "call"],
    )


def may_fail(launches: Iterable[Launch]) -> bool:
    """Return whether waits of a kernel may hit their bound, and spoil its results."""
    return any(TimeoutFlag() in launch.arguments for launch in launches)

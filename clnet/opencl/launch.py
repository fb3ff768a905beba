"""A kernel launch as a record: source, macros, sizes and arguments.

One `Launch` serves the runtime, the tuner, the tests and the benchmarks, so that launch
geometry is written once, in the variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from clnet.ir.op import Value
from clnet.nn.random import ROUNDS

if TYPE_CHECKING:
    from clnet.opencl.device import Device

OPENCL_TYPES = {"float32": "float", "float64": "double"}  # of NumPy's

When = Literal["call", "parameters", "inputs"]
"""The event before which a launch runs: see `Launch`."""


@dataclass(frozen=True)
class Buffer:
    """Argument: memory that launches of several steps share, by its name."""

    name: str
    size: int = 0  # Bytes, zero at first; 0: the binding is given the memory


# The flat parameters, their gradients of the same layout (zero at first), and the
# optimiser's state [slots, size of the flat buffer].
PARAMETERS = Buffer("flat parameters")
GRADIENTS = Buffer("flat gradients")
STATE = Buffer("optimiser state")
# The key and the learning rate of each epoch of a launch, as `EPOCH`.
EPOCH_TABLE = Buffer("epoch table")
# Of networks that are trained side by side: the table of them, as `MEMBER`; rows of the
# data set, a list a member, one after the other; the dropout of each member's layers
# [members, layers], as `DROP`; the weight of each sample for each member [members,
# samples]; the totals of each member's epochs of a launch; those of its last epoch, and
# how many it had.
MEMBER_TABLE = Buffer("member table")
MEMBER_SUBSETS = Buffer("member subsets")
MEMBER_DROPS = Buffer("member dropout")
MEMBER_WEIGHTS = Buffer("member weights")
MEMBER_TOTALS = Buffer("member totals")
MEMBER_ENDS = Buffer("member ends")
# An `int`, set by a kernel whose wait for helpers timed out: the runtime then waits for
# the step's standby launches before the call returns.
HELPER_TIMEOUT = Buffer("helper timeout", 4)
# An `int`, set by a kernel whose wait for a group timed out: the results are then NaN,
# and the plan recomputes them by a fallback.
TIMEOUT_FLAG = Buffer("group timeout", 4)


@dataclass(frozen=True)
class Scalar:
    """Argument: a number that changes from step to step of a training."""

    # `first`, the index of the batch's first sample in the epoch's order; `samples` of
    # the batch; `seen` in the epoch, this batch included; `fresh`, whether the totals
    # start at zero; the learning `rate`; the `count` of steps before; the `seed` of the
    # optimiser's random numbers; `key0`, `key1` …, the words of the key of the epoch's
    # order. A launch that takes `steps` computes that many steps in a row, with
    # `samples` in all; the other scalars describe the first. A launch that takes
    # `record_stride` computes as many epochs of those samples as there are steps for;
    # the totals of the first begin at element `record_offset`, those of the next
    # `record_stride` elements on. With `scheduled`, order and rate of the second epoch
    # and later ones are in `EPOCH_TABLE`. The launch ends early after an epoch whose
    # totals are not finite, or whose squared errors or bit fails are below
    # `squares_limit` or `fails_limit`; the number of its epochs is behind the first
    # one's totals. `gradient_sum` and `members` have their own names.
    name: str
    # Its OpenCL type; `"real"`: the network's
    type: Literal["int", "uint", "real"] = "int"


EPOCH = np.dtype([("key", np.uint32, ROUNDS), ("rate", np.float32)])
"""A row of the table of epochs (``steps.h``)."""


KEY = tuple(Scalar(f"key{i}", "uint") for i in range(ROUNDS))
"""The words of the key of an epoch's order."""


MEMBER = np.dtype([
    *((name, np.int32) for name in (
        "index", "record", "plan", "samples", "first", "bits", "epochs",
    )),
    ("seed", np.uint32),
    *((name, np.float32) for name in ("squares_limit", "fails_limit", "l1", "l2")),
])
"""A row of the table of members (``members.cl``)."""


DROP = np.dtype([
    ("stream", np.uint32), ("threshold", np.int32), ("factor", np.float32),
    ("share", np.float32),
])
"""A row of the table of dropouts (``member.h``)."""


@dataclass(frozen=True)
class Scratch:
    """Argument: a workspace of the plan, zero at first, persistent between calls."""

    name: str  # Launches of one span that name the same workspace share the buffer
    size: int  # Bytes


@dataclass(frozen=True)
class Packed:
    """Argument: packed parameters, refilled when the parameters change."""

    name: str  # Equal names within a network mean equal contents: spans share it
    size: int  # Bytes


@dataclass(frozen=True)
class Constant:
    """Argument: a constant array, uploaded once."""

    name: str  # Equal names within a network mean equal contents
    # Returns the array; called once
    make: Callable[[], NDArray[Any]] = field(compare=False)

    @classmethod
    def of(cls, values: NDArray[Any]) -> Constant:
        """Return the argument for a small array, which is its name.

        It has the sizes, offsets and activations of dense layers alone. They follow
        from the network's description, which is checked, and from no number of a file.
        """
        return cls(f"{values.dtype} {values.tobytes().hex()}", lambda: values)


@dataclass(frozen=True)
class ByValueInput:
    """Argument: one float32 row, passed by value (``by_value_input.h``).

    The kernel reads it if the host set it, else the value's buffer, which is another
    argument.
    """

    value: Value

    @property
    def name(self) -> str:
        """The name of the argument."""
        return f"{self.value.name} by value"

    def struct(self) -> NDArray[Any]:
        """Return the header's struct, empty, as an array of float32."""
        return np.zeros(1 + self.value.width, np.float32)


@dataclass(frozen=True)
class ZeroCopyOutput:
    """Argument: the pinned host address of one float32 row, or 0.

    The kernel stores the row there unless the address is 0, and always to the value's
    buffer.
    """

    value: Value

    @property
    def name(self) -> str:
        """The name of the argument."""
        return f"{self.value.name} without a copy"


Argument = (
    Value | Buffer | Scratch | Packed | Constant | Scalar | ByValueInput
    | ZeroCopyOutput
    | int | float
)
"""An argument of a kernel; an int becomes OpenCL's `int`, a float REAL."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch."""

    source: str  # File in `kernels/`, or an absolute path
    kernel: str  # Function in it
    # Macros of the build. `program.source_text` adds those of the device's
    # capabilities.
    defines: Mapping[str, int | str]
    global_size: tuple[int, ...]  # Work-items of the launch, and of a work-group
    local_size: tuple[int, ...]
    arguments: tuple[Argument, ...]  # In the kernel's order
    # `"call"`: it runs at each call or training step. `"parameters"`, `"inputs"`: it
    # runs before those, and only after the parameters or the program's inputs have
    # changed (the data set of a training; of a call, its inputs).
    when: When = "call"
    # A companion of the step's device that runs it; None: the device itself. Launches
    # of one step on different devices run concurrently.
    device: Device | None = None
    # True: it runs beside calls, on a queue of its own, and may outlast them. A call
    # starts it unless it is still running.
    standby: bool = False
    # The most registers of a work-item, where the device's compiler has an option for
    # it, so that more work-groups share a compute unit; None: as the compiler likes
    registers: int | None = None
    # The batch's inputs, if it only gathers a batch from the data set: a packing of
    # these may gather it instead
    gathers: Value | None = None

    @classmethod
    def of_groups(
        cls, source: str, kernel: str, defines: Mapping[str, int | str], groups: int,
        group: int, *arguments: Argument, **options: Any,
    ) -> Launch:
        """Return the launch of some groups of `group` work-items, in one dimension."""
        return cls(
            source, kernel, defines, (groups * group,), (group,), arguments, **options
        )


Launches = tuple[Launch, ...]
"""Launches in the order in which they run."""


def phases(launches: Iterable[Launch]) -> tuple[list[Launch], list[Launch]]:
    """Return the launches that run after a change only, and those of each call."""
    listed = list(launches)
    return (
        [launch for launch in listed if launch.when != "call"],
        [launch for launch in listed if launch.when == "call"],
    )


def may_time_out(launches: Iterable[Launch]) -> bool:
    """Return whether waits between work-groups may time out and make results NaN."""
    return any(TIMEOUT_FLAG in launch.arguments for launch in launches)

"""`FitOptions` and `PopulationOptions`: the arguments of `fit`, spelled once.

`takes` gives a method the signature of their fields. Nothing heavy is imported here, as
`clnet.network` imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from clnet.checks import PRECISIONS, check_flag, is_list, is_whole
from clnet.errors import InputError, nearest, quoted
from clnet.nn.defaults import BLOCKS, EPOCHS

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import ArrayLike

    from clnet.formats.sources import Source
    from clnet.nn.cascade import Cascade
    from clnet.nn.optimisers import Optimiser
    from clnet.opencl.device import Device
    from clnet.opencl.discovery import Devices
    from clnet.training.callbacks import Callback
    from clnet.training.history import TrainingState

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741  options
S = TypeVar("S")  # self
R = TypeVar("R")

EACH = (  # arguments of `Population.fit` that may be lists of one value a network
    "optimiser", "learning_rate", "epochs", "seed", "desired_error", "schedule", "l1",
    "l2", "clip_norm", "clip_value",
)


@dataclass(frozen=True, eq=False)
class FitOptions:
    """The arguments of `Network.fit`."""

    x: ArrayLike | Source
    t: ArrayLike | None = None
    _: KW_ONLY
    optimiser: str | Optimiser | Cascade | None = None
    loss: str | None = None
    epochs: int = EPOCHS
    max_neurons: int | None = None
    batch_size: int | None = None
    shuffle: bool | None = None
    validation: tuple[ArrayLike, ...] | Iterable[Any] | None = None
    sample_weight: ArrayLike | None = None
    callbacks: Iterable[Callback] = ()
    seed: int | None = None
    device: Devices = None
    devices: Devices = None
    desired_error: float | None = None
    stop: str | None = None
    schedule: str | Callable[[int], float] | None = None
    l1: float = 0.0
    l2: float = 0.0
    clip_norm: float | None = None
    clip_value: float | None = None
    state: TrainingState | None = None
    resume: str | PathLike[str] | None = None
    tune: bool | None = None
    progress: bool | None = None
    scale: bool | None = None
    precision: str = PRECISIONS[0]
    comm: Any = None
    blocks: int | None = BLOCKS
    buffer: int | None = None

    def __post_init__(self) -> None:
        if self.comm is None:  # ranks check together: the error of one is that of all
            self.check()
            if not is_whole(self.blocks) or self.blocks != BLOCKS:
                raise InputError(
                    f"blocks is {quoted(self.blocks)}, and no ranks share them: give "
                    "comm"
                )

    def check(self) -> None:
        """Raise InputError for an argument that is wrong with any network and data."""
        check_flag("tune", self.tune, optional=True)
        check_flag("progress", self.progress, optional=True)
        check_flag("shuffle", self.shuffle, optional=True)
        if self.device is not None and self.devices is not None:
            raise InputError("give device or devices, not both")
        if self.state is not None and self.resume is not None:
            raise InputError("give state or resume, not both")


@dataclass(frozen=True, eq=False)
class PopulationOptions:
    """The arguments of `Population.fit`."""

    x: ArrayLike | Source
    t: ArrayLike | None = None
    _: KW_ONLY
    optimiser: Any = None
    learning_rate: Any = None
    loss: str | None = None
    epochs: Any = EPOCHS
    batch_size: int | None = None
    shuffle: bool | None = None
    rows: Sequence[ArrayLike] | None = None
    sample_weight: ArrayLike | None = None
    validation: Any = None
    patience: int | None = None
    seed: Any = None
    desired_error: Any = None
    stop: str | None = None
    schedule: Any = None
    l1: Any = 0.0
    l2: Any = 0.0
    clip_norm: Any = None
    clip_value: Any = None
    device: str | Device | None = None
    devices: Devices = None
    progress: bool | None = None
    scale: bool | None = None
    precision: str = PRECISIONS[0]
    tune: bool | None = None
    comm: Any = None
    buffer: int | None = None

    def __post_init__(self) -> None:
        if self.comm is None:
            self.check()

    def check(self) -> None:
        """Raise InputError for an argument that is wrong with any network and data."""
        self.each()

    def each(self) -> FitOptions:
        """Return the options that all networks share; others have their defaults."""
        return FitOptions(**{
            name: getattr(self, name) for name in _SHARED
            if name not in EACH or not is_list(getattr(self, name))
        })


_SHARED = [
    field.name for field in fields(PopulationOptions)
    if field.name not in ("learning_rate", "rows", "patience", "comm")
]


def takes(
    options: Callable[P, O]
) -> Callable[[Callable[[S, O], R]], Callable[Concatenate[S, P], R]]:
    """Return a decorator: a method of some options gets their fields as arguments."""
    parameters = inspect.signature(options).parameters

    def decorated(method: Callable[[S, O], R]) -> Callable[Concatenate[S, P], R]:
        def call(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
            if not named.keys() <= parameters.keys():
                raise _unexpected(method.__qualname__, named, parameters)
            return method(self, options(*arguments, **named))

        own = inspect.signature(method)
        call.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[own.parameters["self"], *parameters.values()]
        )
        # Python's errors of wrong arguments name the method.
        options.__init__.__qualname__ = method.__qualname__
        return update_wrapper(call, method)

    return decorated


def _unexpected(method: str, named: Iterable[str], known: Iterable[str]) -> TypeError:
    """Return Python's error of an argument that a method lacks, with the nearest."""
    name = next(name for name in named if name not in known)
    near = nearest(name, known)
    hint = f": did you mean {near!r}?" if near else ""
    return TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")

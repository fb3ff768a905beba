"""The result of a training: its epochs, why it stopped, the state to resume from."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from os import PathLike
from typing import Any, ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from clnet.checks import INT_MAX, as_whole, check_flag, is_whole
from clnet.errors import FormatError, InputError, counted, quoted
from clnet.formats.files import as_path, write
from clnet.formats.pictures import drawn
from clnet.formats.table import load_arrays
from clnet.nn.description import DTYPES
from clnet.nn.notebook import html_table
from clnet.nn.storage.formats import check_format

Array = NDArray[Any]

SHOWN = 10  # epochs of a notebook's table
INTERRUPTED = "interrupted"  # the first word of the reason of a stop by Ctrl-C


def interrupted_after(epochs: int) -> str:
    """Return why a training ended that Ctrl-C has ended."""
    done = counted(epochs, "epoch")
    return f"{INTERRUPTED} after {done}; the trained parameters are kept"


def all_done(epochs: int) -> str:
    """Return why a training ended that took all its epochs."""
    subject = f"all {epochs} epochs are" if epochs > 1 else "the epoch is"
    return f"{subject} done"


@dataclass(frozen=True)
class Measures:
    """Errors of the outputs over one pass of a data set.

    Attributes
    ----------
    loss : float
        Mean over the samples, by their weights in each batch.
    mse : float
        Mean of the squared errors over samples and outputs, likewise, with errors
        halved where FANN halves them.
    bit_fail : int
        Number of errors of at least the bit-fail limit.
    """

    loss: float
    mse: float
    bit_fail: int

    @property
    def finite(self) -> bool:
        """Whether nothing overflowed."""
        return isfinite(self.loss) and isfinite(self.mse)


@dataclass(frozen=True)
class Epoch:
    """One epoch of a training.

    Attributes
    ----------
    number : int
        Counted from 1.
    training : Measures
        Errors on the training set, each batch with the parameters of its step.
    validation : Measures or None
        Errors on the validation set after the epoch.
    seconds : float
        Time of the epoch; of epochs that were enqueued together, their mean.
    """

    number: int
    training: Measures
    validation: Measures | None
    seconds: float

    @property
    def loss(self) -> float:
        """The training's mean loss."""
        return self.training.loss

    @property
    def mse(self) -> float:
        """The training's mean squared error."""
        return self.training.mse

    @property
    def bit_fail(self) -> int:
        """The training's bit fails."""
        return self.training.bit_fail


MEASURES = len(fields(Measures))
SEEDS = 1 << 63  # seeds are whole numbers below
_ARRAYS = {"parameters": 1, "values": 2}  # of a state, and their dimensions


@dataclass(frozen=True)
class TrainingState:
    """The full state of a training, to resume it bit for bit.

    Attributes
    ----------
    optimiser : str
        The optimiser with its constants, as text.
    epoch : int
        Epochs done.
    count : int
        Steps done.
    seed : int
        Seed of the order of samples and of the optimiser's random numbers.
    parameters : ndarray, shape [size]
        The flat buffer.
    values : ndarray, shape [slots, size]
        The optimiser's state.
    formats : tuple of str
        Formats of the sparse layers, which the layout of the two arrays follows from;
        a network of other formats may resume. Those of the network, if there are none:
        version 0.1.0 wrote none.

    Examples
    --------
    >>> net = clnet.Network.mlp([2, 3, 1], "tanh", seed=0)
    >>> state = net.fit([[-1, 1], [1, 1]], [1, -1], epochs=3).state
    >>> state.save("state.npz")
    >>> state = clnet.TrainingState.load("state.npz")
    >>> net.fit([[-1, 1], [1, 1]], [1, -1], epochs=2, state=state).epochs[-1].number
    5
    """

    optimiser: str
    epoch: int
    count: int
    seed: int
    parameters: NDArray[Any]
    values: NDArray[Any]
    formats: tuple[str, ...] = ()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to an ``.npz`` file, whole or not at all.

        Raises
        ------
        InputError
            If training cannot be resumed from it: as of numbers that are not finite.
        FormatError
            If the file cannot be written.
        """
        self.check()
        file = io.BytesIO()
        np.savez(
            file, optimiser=self.optimiser, epoch=self.epoch, count=self.count,
            seed=np.uint64(self.seed), parameters=self.parameters, values=self.values,
            formats=np.array(self.formats, str),
        )
        write(as_path(path), [file.getvalue()])

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, memory_limit: int | None = None
    ) -> TrainingState:
        """Return the state of a file.

        Parameters
        ----------
        path : str or path
            A file that `save` wrote.
        memory_limit : int or None
            As for `clnet.load_data`.

        Raises
        ------
        FormatError
            If the file is missing, damaged, or holds something else; or a number that
            is not finite or out of its range.
        InputError
            If the limit is wrong.
        """
        file = as_path(path)
        if memory_limit is not None:
            as_whole("memory_limit", memory_limit)
        arrays = {"formats": np.zeros(0, str), **load_arrays(file, memory_limit)}
        expected = [field.name for field in fields(cls)]
        if sorted(arrays) != sorted(expected):
            raise FormatError(
                f"{file} holds no training state: it has the arrays "
                f"{quoted(sorted(arrays))}, expected {', '.join(expected)}"
            )
        # Dates (kinds m, M) would become whole numbers.
        found: dict[str, Any] = {
            name: array
            if name in _ARRAYS or array.ndim or array.dtype.kind in "mM"
            else array.item()
            for name, array in arrays.items()
        }
        if arrays["formats"].ndim == 1:
            found["formats"] = tuple(arrays["formats"].tolist())
        state = cls(**found)
        try:
            state.check()
        except InputError as error:
            raise FormatError(f"{file} holds no training state: {error}") from None
        return state

    def check(self) -> None:
        """Raise InputError unless training can be resumed from the state."""
        if not isinstance(self.optimiser, str):
            raise InputError(
                f"a state's optimiser must be text, not {quoted(self.optimiser)}"
            )
        for name, end in (("epoch", INT_MAX), ("count", INT_MAX), ("seed", SEEDS)):
            found = getattr(self, name)
            if not is_whole(found) or not 0 <= found < end:
                raise InputError(
                    f"a state's {name} must be a whole number from 0 to {end - 1}, not "
                    f"{quoted(found)}"
                )
        for name, dimensions in _ARRAYS.items():
            found = np.asarray(getattr(self, name))
            if found.dtype.name not in DTYPES or found.ndim != dimensions:
                raise InputError(
                    f"a state's {name} must be floats in {dimensions} dimensions, not "
                    f"{found.dtype} {quoted([*found.shape])}"
                )
            if not np.isfinite(found).all():
                raise InputError(f"a state's {name} must be finite")
        if not isinstance(self.formats, tuple):
            raise InputError(
                "a state's formats must be a tuple of names, not "
                f"{quoted(self.formats)}"
            )
        for name in self.formats:
            check_format(name)


def state_after(
    start: TrainingState, epochs: int, steps: int, parameters: Array, values: Array
) -> TrainingState:
    """Return the state after more epochs of so many steps, with these arrays."""
    return replace(
        start, epoch=start.epoch + epochs, count=start.count + epochs * steps,
        parameters=parameters, values=values,
    )


class Epochs(Sequence[Epoch]):
    """Consecutive epochs, stored as columns; each is made when it is read.

    Parameters
    ----------
    done : int
        Epochs before the first.
    """

    def __init__(self, done: int = 0) -> None:
        self.done = done
        self._rows = np.empty((1, 2 * MEASURES + 1))
        self._count = 0
        self._validates = False

    def add(
        self, training: Array, validation: Array | None, seconds: float | Array
    ) -> None:
        """Append epochs.

        Parameters
        ----------
        training, validation : ndarray, shape [epochs, 3]
            The `Measures` of each; None: no validation set.
        seconds : float, or ndarray of shape [epochs]
            Mean time of one, or the time of each.
        """
        end = self._count + len(training)
        if end > len(self._rows):
            rows = np.empty((2 * end, self._rows.shape[1]))
            rows[: self._count] = self._rows[: self._count]
            self._rows = rows
        added = self._rows[self._count : end]
        added[:, :MEASURES] = training
        if validation is not None:
            added[:, MEASURES:-1] = validation
            self._validates = True
        added[:, -1] = seconds
        self._count = end

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": self._rows[: self._count + 1].copy()}

    @property
    def rows(self) -> Array:
        """The measures of the training, those of a validation, and the seconds."""
        rows = self._rows[: self._count]
        if self._validates:
            return rows.copy()
        return np.delete(rows, slice(MEASURES, 2 * MEASURES), axis=1)

    def add_rows(self, rows: Array) -> None:
        """Append epochs that `rows` has returned."""
        validation = rows[:, MEASURES:-1]
        self.add(
            rows[:, :MEASURES], validation if validation.size else None, rows[:, -1]
        )

    @property
    def last(self) -> int:
        """The number of the last epoch, or of the one before the first."""
        return self.done + self._count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Epoch]:
        rows = self._rows[: self._count].tolist()
        for number, row in enumerate(rows, self.done + 1):
            yield self._epoch(number, row)

    @overload
    def __getitem__(self, index: int) -> Epoch: ...

    @overload
    def __getitem__(self, index: slice) -> list[Epoch]: ...

    def __getitem__(self, index: int | slice) -> Epoch | list[Epoch]:
        chosen = range(self._count)[index]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        return self._epoch(self.done + chosen + 1, self._rows[chosen].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def column(self, measure: str, *, validation: bool = False) -> list[Any]:
        """Return a measure of all epochs."""
        if validation and not self._validates:
            return []
        number = [one.name for one in fields(Measures)].index(measure)
        found = self._rows[: self._count, number + MEASURES * validation]
        listed: list[Any] = found.tolist()
        return [int(fails) for fails in listed] if measure == "bit_fail" else listed

    def _epoch(self, number: int, row: list[float]) -> Epoch:
        validation = _measures(row[MEASURES:-1]) if self._validates else None
        return Epoch(number, _measures(row[:MEASURES]), validation, row[-1])


def _measures(numbers: list[float]) -> Measures:
    loss, mse, bit_fail = numbers
    return Measures(loss, mse, int(bit_fail))


def finite_epochs(measures: Array) -> NDArray[np.bool_]:
    """Return which epochs have finite errors, by their measures [..., 3]."""
    return np.asarray(np.isfinite(measures[..., 0]) & np.isfinite(measures[..., 1]))


def best_was(epoch: int, measure: str, *, restored: bool) -> str:
    """Return the end of the reason of a stop, which tells the best epoch."""
    restoring = ", and its parameters are restored" if restored else ""
    return f"; epoch {epoch} was the best by {measure}{restoring}"


def diverged_state(epoch: int) -> str:
    """Return why a training whose parameters are finite has diverged."""
    return (
        f"training diverged: epoch {epoch} left a state of the optimiser that is not "
        "finite; the parameters are kept, try a smaller learning rate"
    )


@dataclass
class History:
    """The epochs of a training.

    Attributes
    ----------
    epochs : sequence of Epoch
        In order; those before a checkpoint that the training has resumed from too.
    stopped : str
        Why the training stopped, in one sentence.
    best_epoch : int or None
        The number of the best epoch, if `EarlyStopping` has looked for it.
    plan : str
        How a step was computed, and why, in the form of `Plan.explain`.
    diverged : bool
        Whether the loss or the parameters were no longer finite.

    Examples
    --------
    >>> net = clnet.Network.mlp([2, 3, 1], "tanh", seed=0)
    >>> history = net.fit([[-1, 1], [1, 1]], [1, -1], epochs=3)
    >>> len(history.epochs), history.loss[2] < history.loss[0], history.diverged
    (3, True, False)
    """

    _state: TrainingState
    epochs: Epochs = field(init=False)
    stopped: str = ""
    plan: str = ""
    diverged: bool = False
    best_epoch: int | None = None
    _reader: Callable[[], TrainingState] | None = field(
        default=None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self.epochs = Epochs(self._state.epoch)

    @property
    def state(self) -> TrainingState:
        """The state to resume from, for `Network.fit`; during a training that of now.

        It is read from the device each time then.
        """
        return self._state if self._reader is None else self._reader()

    @state.setter
    def state(self, state: TrainingState) -> None:
        self._state, self._reader = state, None

    def read_by(self, reader: Callable[[], TrainingState]) -> None:
        """Get the state from a function, until one is set."""
        self._reader = reader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": self.state, "_reader": None}

    def go_on(self, rows: Array) -> None:
        """Begin with the epochs of a checkpoint, which end at the state's."""
        self.epochs = Epochs(self._state.epoch - len(rows))
        self.epochs.add_rows(rows)

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self.epochs)

    def __getitem__(self, index: int) -> Epoch:
        return self.epochs[index]

    def __repr__(self) -> str:
        if not self.epochs:
            return "<History of no epoch>"
        n, last = len(self), self.epochs[-1]
        epochs = counted(n, "epoch")
        return f"<History of {epochs}, loss {last.loss:.4g}: {self.stopped}>"

    @property
    def loss(self) -> list[float]:
        """The training's loss of each epoch."""
        return self.epochs.column("loss")

    @property
    def mse(self) -> list[float]:
        """The training's mean squared error of each epoch."""
        return self.epochs.column("mse")

    @property
    def bit_fail(self) -> list[int]:
        """The training's bit fails of each epoch."""
        return self.epochs.column("bit_fail")

    def _repr_html_(self) -> str:
        n = len(self)
        chosen = np.unique(np.linspace(0, n - 1, min(n, SHOWN)).round().astype(int))
        validated = bool(self.validation_loss)
        rows = [
            (one.number, f"{one.loss:.4g}", f"{one.mse:.4g}",
             *([f"{one.validation.loss:.4g}"] if one.validation else []))
            for one in (self[int(index)] for index in chosen)
        ]
        headers = ("epoch", "loss", "mse", *["validation loss"] * validated)
        return html_table(repr(self), headers, rows)

    @property
    def validation_loss(self) -> list[float]:
        """The validation's loss of each epoch; empty without a validation set."""
        return self.epochs.column("loss", validation=True)

    def tell_validation(self) -> str:
        """Say in ``stopped`` whether validation losses are not finite; return it.

        Early stopping by such a loss never sees an improvement.
        """
        losses = self.validation_loss
        first = next((i for i, loss in enumerate(losses) if not isfinite(loss)), None)
        if first is None:
            return ""
        sentence = (
            f"the validation loss of epoch {self.epochs.done + first + 1} is "
            f"{losses[first]}, which improves nothing: do numbers of the validation "
            "set overflow?"
        )
        self.stopped += f"; {sentence}"
        return sentence

    def final_loss(self, *, validation: bool) -> float:
        """Return the loss of the best epoch, if there is one, or else of the last.

        That of the training or of its validation; infinite if there is none.
        """
        check_flag("validation", validation)
        losses = self.validation_loss if validation else self.loss
        number = self.epochs.last if self.best_epoch is None else self.best_epoch
        loss = losses[number - self.epochs.done - 1] if losses else np.inf
        return float(loss) if isfinite(loss) else np.inf

    def plot(
        self, path: str | PathLike[str] | None = None, *, axes: Any = None
    ) -> Any:
        """Draw the learning curve.

        Parameters
        ----------
        path : str or path, optional
            A file for the picture, written whole or not at all: ``.png``, ``.svg`` or
            ``.pdf``.
        axes : matplotlib.axes.Axes, optional
            The axes to draw on; None: those of a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        ClnetError
            If matplotlib is not installed.
        InputError, FormatError
            If the suffix is of no picture, or the file cannot be written.
        """
        return drawn(self._draw, path, axes)

    def _draw(self, axes: Any) -> None:
        numbers = [epoch.number for epoch in self.epochs]
        curves = {"training": self.loss, "validation": self.validation_loss}
        for label, losses in curves.items():
            if losses:  # one epoch alone is a point, not a line
                axes.plot(numbers, losses, "." if len(losses) == 1 else "", label=label)
        if self.validation_loss:
            axes.legend(loc="upper right")  # losses fall; "best" takes time, and warns
        if all(loss > 0 for loss in (*self.loss, *self.validation_loss)):
            axes.set_yscale("log")
        axes.set_xlabel("epoch")
        axes.set_ylabel("loss")

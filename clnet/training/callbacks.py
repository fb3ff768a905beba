"""Callbacks of `Network.fit`: early stopping, checkpoints, files of learning curves.

A callback is called after each epoch with the running `Training` and the `Epoch`. It
returns True to stop the training. Its method ``start``, if it has one, is called with
the `Training` before the first epoch; its method ``end`` after the last one, before the
network gets the parameters.

Checkpoints are called last. They keep the dictionary of arrays and plain values that
the method ``state_dict`` of another callback returns, and give it to the method
``load_state_dict`` of a callback of that class before the ``start`` of a training that
resumes. The history then has the epochs before.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.checks import (
    all_finite,
    as_whole,
    check_flag,
    check_name,
    installed,
    is_number,
)
from clnet.errors import FormatError, InputError, quoted, reason, warn
from clnet.formats import (
    NETWORK_SUFFIXES,
    TRAINING_SUFFIX,
    check_save,
    save,
    suffix_of,
)
from clnet.formats.files import as_path, write
from clnet.training.history import best_was

if TYPE_CHECKING:
    from pathlib import Path

    from clnet.nn.model import Model
    from clnet.training.history import Epoch, History
    from clnet.training.saved import SavedTraining

MONITORED = (
    "loss", "mse", "bit_fail", "validation_loss", "validation_mse",
    "validation_bit_fail",
)
FLUSH_SECONDS = 1.0  # from one write of a learning curve to the next


class Training(Protocol):
    """A running training of a network or a cascade, as callbacks see it."""

    history: History
    parameters: NDArray[Any]

    @property
    def network(self) -> Model:
        """The network that is trained."""
        ...

    @property
    def validates(self) -> bool:
        """Whether a validation set is measured after each epoch."""
        ...

    def parameters_of(self, measure: str) -> NDArray[Any] | None:
        """Return the parameters that a measure of the last epoch is of.

        Those after the epoch; but where an epoch is one step, its training measures are
        of those before. None: the epoch was another training's, which has not kept any.
        """
        ...

    def update_network(self) -> None:
        """Copy the present parameters to the network."""
        ...

    def saved(self) -> SavedTraining | None:
        """Return the training as it is now, for a file; None: its network is all."""
        ...


class Callback(Protocol):
    """A callable that runs after each epoch."""

    def __call__(self, training: Training, epoch: Epoch) -> bool | None:
        """Return True to stop."""
        ...


def start(
    callbacks: Iterable[Callback], training: Training,
    states: Sequence[tuple[str, dict[str, Any]]] = (),
) -> None:
    """Start callbacks, with their states of a checkpoint, each by its class."""
    left = list(states)
    for callback in callbacks:
        name = type(callback).__name__
        state = next((pair for pair in left if pair[0] == name), None)
        if state is not None:
            left.remove(state)
            if hasattr(callback, "load_state_dict"):
                callback.load_state_dict(state[1])
        if hasattr(callback, "start"):
            callback.start(training)


def stopping(
    callbacks: Iterable[Callback], training: Training, epoch: Epoch
) -> str:
    """Call all callbacks; return the name of the first that stops, or an empty text."""
    stops = [one for one in callbacks if bool(one(training, epoch))]
    return getattr(stops[0], "__name__", type(stops[0]).__name__) if stops else ""


def end(callbacks: Iterable[Callback], training: Training) -> None:
    """Tell callbacks of the end."""
    for callback in callbacks:
        if hasattr(callback, "end"):
            callback.end(training)


def monitored(epoch: Epoch, name: str) -> float:
    """Return a measure of an epoch by name, one of ``MONITORED``."""
    found: float
    if not name.startswith("validation_"):
        found = getattr(epoch.training, name)
    elif epoch.validation is None:
        raise _no_validation(name)
    else:
        found = getattr(epoch.validation, name.removeprefix("validation_"))
    return found


def measures(epoch: Epoch) -> dict[str, float]:
    """Return all measures of an epoch by name."""
    return {
        name: monitored(epoch, name) for name in MONITORED
        if epoch.validation is not None or not name.startswith("validation_")
    }


def _no_validation(name: str) -> InputError:
    return InputError(f"{name} needs a validation set: pass validation=(x, t)")


class EarlyStopping:
    """Stop when a measure has not improved for some epochs; restore the best ones.

    `History.best_epoch` and `History.stopped` tell the best epoch in the end. The
    network then has the parameters that the measure of this epoch is of: a validation
    is of those after the epoch. Where an epoch is one step, its training measures are
    of those before. Of several steps they are means, each with its own parameters, and
    dropout is part of them: those after the epoch are restored, whose measure differs.
    A callback that replaces parameters comes after this one.

    Parameters
    ----------
    monitor : str
        ``"loss"``, ``"mse"`` or ``"bit_fail"``, of the training; with the prefix
        ``"validation_"``, of the validation.
    patience : int
        Epochs without improvement before the training stops.
    min_delta : float
        Smallest decrease that counts as an improvement.
    restore_best : bool
        Whether the network gets the parameters of the best epoch in the end. They are
        read from the device at each improvement. Those that are not finite are none.

    Raises
    ------
    InputError
        If a parameter is not as above.

    Examples
    --------
    >>> stopping = clnet.EarlyStopping(monitor="loss", patience=2)
    >>> net = clnet.Network.mlp([2, 3, 1], "tanh", seed=0)
    >>> history = net.fit([[-1, 1], [1, 1]], [1, -1], epochs=3, callbacks=[stopping])
    >>> history.best_epoch
    3
    """

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 10,
        min_delta: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        check_name("measure", monitor, MONITORED)
        check_flag("restore_best", restore_best)
        if not is_number(min_delta) or not min_delta >= 0:
            raise InputError(
                f"min_delta must be a number of at least 0, not {quoted(min_delta)}"
            )
        self.monitor = monitor
        self.patience: int = as_whole("patience", patience)
        self.min_delta: float = float(min_delta)
        self.restore_best = restore_best
        # Value, number and parameters: an interrupt finds those of one epoch.
        self._best: tuple[float, int, NDArray[Any] | None] = np.inf, 0, None
        self._loaded: dict[str, Any] = {}

    @property
    def best(self) -> float:
        """The least value so far; infinite at first."""
        return self._best[0]

    @property
    def best_epoch(self) -> int:
        """The number of its epoch."""
        return self._best[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the best epoch and its parameters; the rest is in the history."""
        _, number, parameters = self._best
        if parameters is None:
            return {}
        return {
            "best_epoch": number, "monitor": self.monitor, "parameters": parameters,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint, until the training starts."""
        self._loaded = state

    def start(self, training: Training) -> None:
        """Find the best of the epochs before, if the training resumes.

        Raises
        ------
        InputError
            If the measure needs a validation set, and there is none; or if the
            parameters of the best epoch were not kept.
        """
        if self.monitor.startswith("validation_") and not training.validates:
            raise _no_validation(self.monitor)
        loaded, self._loaded = self._loaded, {}
        self._best = np.inf, training.history.epochs.done, None
        for epoch in training.history:
            if self._improves(epoch):
                self._best = monitored(epoch, self.monitor), epoch.number, None
        value, number, parameters = self._best
        if not value < np.inf or not self.restore_best:
            return
        if (loaded.get("best_epoch"), loaded.get("monitor")) == (number, self.monitor):
            parameters = loaded.get("parameters")
        elif number == training.history.epochs.last:
            parameters = training.parameters_of(self.monitor)
        if parameters is None:
            raise InputError(
                f"epoch {number} is the best by {self.monitor} so far, and the "
                "checkpoint lacks its parameters: it was written without this early "
                "stopping"
            )
        self._best = value, number, parameters

    def _improves(self, epoch: Epoch) -> bool:
        """Return whether an epoch is the best so far."""
        return monitored(epoch, self.monitor) < self.best - self.min_delta

    def __call__(self, training: Training, epoch: Epoch) -> bool:
        """Return whether the patience is exhausted."""
        if self._improves(epoch):
            parameters = None
            if self.restore_best:
                parameters = training.parameters_of(self.monitor)
            if parameters is None or all_finite(parameters):
                self._best = monitored(epoch, self.monitor), epoch.number, parameters
        return epoch.number - self.best_epoch >= self.patience

    def end(self, training: Training) -> None:
        """Tell the best epoch, and restore its parameters."""
        value, number, parameters = self._best
        if not value < np.inf:
            return
        history = training.history
        history.best_epoch = number
        restored = parameters is not None
        history.stopped += best_was(number, self.monitor, restored=restored)
        if parameters is not None:
            training.parameters = parameters


class Checkpoint:
    """Save the training every few epochs and at its end, whole or not at all.

    The file is the network's. A ``.safetensors`` file holds besides all that
    ``fit(resume=path)`` needs to go on, also in another process: the optimiser's state,
    the order of samples, the epochs so far, the plan, and the state of the other
    callbacks, as the best epoch of `EarlyStopping`. Where that restores the best
    parameters in the end, the file has those of the last epoch. FANN's files hold the
    network alone, and so do all of cascade training, which goes on from a network.

    Parameters
    ----------
    path : str or path
        The network's file; its suffix selects the format.
    every : int
        Epochs between two checkpoints.

    Raises
    ------
    FormatError, InputError
        If the suffix is unknown, or `every` is not at least 1; when training starts, if
        the format cannot hold the network or the file cannot be written.

    Warns
    -----
    ClnetWarning
        Once, if the optimiser's state overflows: no training can go on from it, and the
        file keeps an earlier epoch.

    Examples
    --------
    >>> x, t = [[-1, 1], [1, 1]], [1, -1]
    >>> net = clnet.Network.mlp([2, 3, 1], "tanh", seed=0)
    >>> _ = net.fit(x, t, epochs=3, callbacks=[clnet.Checkpoint("net.safetensors")])
    >>> len(net.fit(x, t, epochs=5, resume="net.safetensors").epochs)
    5
    """

    def __init__(self, path: str | PathLike[str], every: int = 1) -> None:
        self.every: int = as_whole("every", every)
        self.path: Path = as_path(path)
        suffix_of(self.path, NETWORK_SUFFIXES, "networks")
        self._epoch = 0  # of the file
        self._warned = False

    def start(self, training: Training) -> None:
        """Check that the network can be saved.

        Raises
        ------
        FormatError
            If the format cannot hold the network, or the file cannot be written.
        """
        check_save(training.network, self.path)
        self._epoch, self._warned = training.history.epochs.last, False

    def __call__(self, training: Training, epoch: Epoch) -> None:
        """Save every `every` epochs, and where the training stops."""
        if epoch.number % self.every == 0 or training.history.stopped:
            self._save(training)

    def end(self, training: Training) -> None:
        """Save the last epoch, unless it left numbers that are not finite."""
        epochs = training.history.epochs
        if self._epoch != epochs.last and epochs[-1].training.finite:
            self._save(training)

    def _save(self, training: Training) -> None:
        saved = training.saved()
        network = training.network
        parameters = network.parameters if saved is None else saved.state.parameters
        if not all_finite(parameters):
            return  # the training is about to stop
        network.parameters = parameters
        suffix = suffix_of(self.path, NETWORK_SUFFIXES, "networks")
        if saved is None or suffix != TRAINING_SUFFIX:
            save(network, self.path)
        elif all_finite(saved.state.values):
            saved.save(network, self.path)
        else:
            self._warn(saved.state.epoch)
            return
        self._epoch = training.history.epochs.last

    def _warn(self, epoch: int) -> None:
        """Warn once that the optimiser's state is not finite."""
        if not self._warned:
            warn(
                f"the optimiser's state is not finite after epoch {epoch}, and no "
                f"training can go on from it: {self.path} is not written while it is "
                "so, try a smaller learning rate"
            )
        self._warned = True


class CSVLogger:
    """Write a learning curve as a table: a row an epoch, a column a measure.

    Rows are appended each second and in the end. A training that resumes writes each
    epoch once: it replaces the rows from its first epoch on.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    InputError
        If the path is no file name.
    FormatError
        When training starts, if the file cannot be written.

    Examples
    --------
    >>> net = clnet.Network.mlp([2, 3, 1], "tanh", seed=0)
    >>> logger = clnet.CSVLogger("curve.csv")
    >>> _ = net.fit([[-1, 1], [1, 1]], [1, -1], epochs=3, callbacks=[logger])
    >>> from pathlib import Path
    >>> len(Path("curve.csv").read_text().splitlines())
    4
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path: Path = as_path(path)
        self._rows: list[dict[str, float]] = []
        self._next = 0.0

    def start(self, training: Training) -> None:
        """Write the rows of the epochs before, or none."""
        columns = ["epoch", "seconds", *(
            name for name in MONITORED
            if training.validates or not name.startswith("validation_")
        )]
        self._rows = self._written(columns, training.history.epochs.done)
        self._rows += map(_row, training.history)
        header = ",".join(columns) + "\n"
        write(self.path, [header.encode(), self._text()])
        self._next = time.monotonic() + FLUSH_SECONDS

    def __call__(self, training: Training, epoch: Epoch) -> None:
        """Add the row of an epoch."""
        self._rows.append(_row(epoch))
        if time.monotonic() >= self._next:
            self.end(training)

    def end(self, training: Training) -> None:
        """Append the rows since the last write."""
        try:
            with self.path.open("ab") as file:
                file.write(self._text())
        except OSError as error:
            raise FormatError(f"cannot write {self.path}: {reason(error)}") from None
        self._next = time.monotonic() + FLUSH_SECONDS

    def _text(self) -> bytes:
        """Return the rows that are not written yet as text, and forget them."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            row.values() for row in self._rows
        )
        self._rows = []
        return text.getvalue().encode()

    def _written(self, columns: list[str], done: int) -> list[dict[str, Any]]:
        """Return the rows of the file up to an epoch, if it has these columns."""
        if done == 0 or not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames != columns:
                return []
            return [
                row for row in rows
                if row["epoch"].isdecimal() and int(row["epoch"]) <= done
            ]


class TensorBoard:
    """Write a learning curve for TensorBoard; needs the extra ``tensorboard``.

    A scalar a measure, as ``training/loss`` and ``validation/loss``. Each training
    hides what the folder has of its epochs; one that resumes writes those before again.

    Parameters
    ----------
    folder : str or path
        The folder of one training.

    Raises
    ------
    ClnetError
        If tensorboardX is not installed.
    InputError
        If the folder is no file name.
    FormatError
        When a training starts, if the folder cannot be written.

    Examples
    --------
    >>> net = clnet.Network.mlp([2, 3, 1], "tanh", seed=0)
    >>> board = clnet.TensorBoard("runs/1")
    >>> _ = net.fit([[-1, 1], [1, 1]], [1, -1], epochs=3, callbacks=[board])
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder: Path = as_path(folder)
        self._writer: Any = None
        _tensorboard()

    def start(self, training: Training) -> None:
        """Open a file, with the epochs before."""
        try:
            self._writer = _tensorboard().SummaryWriter(
                str(self.folder), purge_step=training.history.epochs.done + 1,
                flush_secs=int(FLUSH_SECONDS),
                filename_suffix=f".{time.time_ns()}",  # else one a second
            )
        except OSError as error:
            raise FormatError(
                f"cannot write to {self.folder}: {reason(error)}"
            ) from None
        for epoch in training.history:
            self(training, epoch)

    def __call__(self, training: Training, epoch: Epoch) -> None:
        """Add the measures of an epoch."""
        for name, value in measures(epoch).items():
            part = "validation" if name.startswith("validation_") else "training"
            tag = f"{part}/{name.removeprefix('validation_')}"
            self._writer.add_scalar(tag, value, epoch.number)

    def end(self, training: Training) -> None:
        """Close the file."""
        self._writer.close()


def _tensorboard() -> Any:
    return installed("tensorboardX", "TensorBoard", "tensorboard")


def _row(epoch: Epoch) -> dict[str, float]:
    return {"epoch": epoch.number, "seconds": epoch.seconds, **measures(epoch)}


def progress_bar(
    total: int, unit: str, shown: bool | None, initial: int = 0
) -> AbstractContextManager[Any]:
    """Return the context of a progress bar on stderr; of None, if it is not shown."""
    if not shown:
        return nullcontext()
    from tqdm.auto import tqdm

    bar: AbstractContextManager[Any] = tqdm(
        total=total, initial=initial, unit=f" {unit}", dynamic_ncols=True
    )
    return bar

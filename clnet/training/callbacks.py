"""Callbacks of `Network.fit`: early stopping and checkpoints.

A callback is called after each epoch with the running `Training` and the `Epoch`. It
returns True to stop the training. Its method ``start``, if it has one, is called with
the `Training` before the first epoch; its method ``end`` after the last one, before the
network gets the parameters.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.checks import as_whole, is_number
from clnet.errors import InputError, unknown
from clnet.formats import NETWORK_SUFFIXES, check_save, save, suffix_of
from clnet.formats.files import as_path

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.training.history import Epoch, History

MONITORED = (
    "loss", "mse", "bit_fail", "validation_loss", "validation_mse",
    "validation_bit_fail",
)


class Training(Protocol):
    """A running training, as callbacks see it; `training.fit.Training` is one."""

    network: Model
    history: History
    parameters: NDArray[Any]

    @property
    def validates(self) -> bool:
        """Whether a validation set is measured after each epoch."""
        ...

    def update_network(self) -> None:
        """Copy the present parameters to the network."""
        ...


class Callback(Protocol):
    """A callable that runs after each epoch."""

    def __call__(self, training: Training, epoch: Epoch) -> bool | None:
        """Return True to stop."""
        ...


def monitored(epoch: Epoch, name: str) -> float:
    """Return a measure of an epoch by name, one of `MONITORED`."""
    if not name.startswith("validation_"):
        return float(getattr(epoch.training, name))
    if epoch.validation is None:
        raise _no_validation(name)
    return float(getattr(epoch.validation, name.removeprefix("validation_")))


def _no_validation(name: str) -> InputError:
    return InputError(f"{name} needs a validation set: pass validation=(x, t)")


class EarlyStopping:
    """Stop when a measure has not improved for some epochs; restore the best ones.

    Parameters
    ----------
    monitor : str
        One of `MONITORED`.
    patience : int
        Epochs without improvement before the training stops.
    min_delta : float
        Smallest decrease that counts as an improvement.
    restore_best : bool
        Whether the network gets the parameters of the best epoch in the end. They are
        read from the device at each improvement.

    Raises
    ------
    InputError
        If a parameter is not as above.
    """

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 10,
        min_delta: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        if monitor not in MONITORED:
            raise unknown("measure", monitor, MONITORED)
        if not is_number(min_delta) or not min_delta >= 0:
            raise InputError(
                f"min_delta must be a number of at least 0, not {min_delta!r}"
            )
        self.monitor = monitor
        self.patience = as_whole("patience", patience)
        self.min_delta = float(min_delta)
        self.restore_best = restore_best
        self.best = np.inf
        self.best_epoch = 0
        self._parameters: NDArray[Any] | None = None

    def start(self, training: Training) -> None:
        """Reset the best value.

        Raises
        ------
        InputError
            If the measure needs a validation set, and there is none.
        """
        if self.monitor.startswith("validation_") and not training.validates:
            raise _no_validation(self.monitor)
        self.best, self.best_epoch = np.inf, training.history.state.epoch
        self._parameters = None

    def __call__(self, training: Training, epoch: Epoch) -> bool:
        """Return whether the patience is exhausted."""
        value = monitored(epoch, self.monitor)
        if value < self.best - self.min_delta:
            self.best, self.best_epoch = value, epoch.number
            if self.restore_best:
                self._parameters = training.parameters
        return epoch.number - self.best_epoch >= self.patience

    def end(self, training: Training) -> None:
        """Restore the parameters of the best epoch."""
        if self._parameters is not None:
            training.parameters = self._parameters


class Checkpoint:
    """Save the network every few epochs, whole or not at all.

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
    """

    def __init__(self, path: str | PathLike[str], every: int = 1) -> None:
        self.every = as_whole("every", every)
        self.path = as_path(path)
        suffix_of(self.path, NETWORK_SUFFIXES, "networks")

    def start(self, training: Training) -> None:
        """Check that the network can be saved.

        Raises
        ------
        FormatError
            If the format cannot hold the network, or the file cannot be written.
        """
        check_save(training.network, self.path)

    def __call__(self, training: Training, epoch: Epoch) -> None:
        """Save every `every` epochs."""
        if epoch.number % self.every == 0:
            training.update_network()
            save(training.network, self.path)

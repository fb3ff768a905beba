"""Trainings in files: `Checkpoint` writes them, and ``fit(resume=...)`` reads them.

A checkpoint is a network's ``.safetensors`` file that holds its training too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clnet.errors import FormatError, InputError, quoted, reason
from clnet.formats import TRAINING_SUFFIX, safetensors, suffix_of
from clnet.formats.files import as_path
from clnet.planning.cover import SavedPlan
from clnet.training.history import MEASURES, TrainingState

if TYPE_CHECKING:
    from clnet.nn.model import Model

Array = NDArray[Any]
Settings = dict[str, Any]

_VERSION = 1
_STATE = ("optimiser", "epoch", "count", "seed")  # fields that are no arrays
_UNLIKE = {  # checksums, and what it means that they differ
    "layers": "of a network with other layers or connections",
    "data": "on samples or weights of other values",
    "validation": "with another validation set",
}


@dataclasses.dataclass(frozen=True)
class SavedTraining:
    """A training after some epoch: all that a later process needs to go on."""

    state: TrainingState  # Parameters, optimiser, order of samples
    measures: Array  # The rows of `Epochs` so far
    stopped: str  # Why the training has stopped; "": it goes on
    # Arguments of `fit` that must be the same, as `settings_of` returns them
    settings: Settings
    plans: list[SavedPlan]  # Of the training, and of its validation
    # The class and the `state_dict()` of each callback that has one
    callbacks: list[tuple[str, dict[str, Any]]]

    def save(self, network: Model, path: Path) -> None:
        """Write the training and its network to a file, whole or not at all."""
        self.state.check()
        arrays = {
            "parameters": self.state.parameters, "values": self.state.values,
            "measures": self.measures,
        }
        callbacks = []
        for number, (kind, state) in enumerate(self.callbacks):
            plain = {}
            for name, value in state.items():
                if isinstance(value, np.ndarray):
                    arrays[f"callbacks.{number}.{name}"] = value
                else:
                    plain[name] = value
            callbacks.append({"type": kind, "state": plain})
        described = {
            "version": _VERSION,
            **{name: getattr(self.state, name) for name in _STATE},
            "formats": self.state.formats,
            "stopped": self.stopped,
            "settings": self.settings,
            "plans": [dataclasses.asdict(plan) for plan in self.plans],
            "callbacks": callbacks,
        }
        try:
            safetensors.save(network, path, training=(described, arrays))
        except FormatError:  # a ValueError too
            raise
        except (TypeError, ValueError) as error:
            raise InputError(
                f"cannot write {path}: the state of a callback must be arrays and "
                f"plain values: {reason(error)}"
            ) from None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> SavedTraining:
        """Return the training of a checkpoint."""
        file = as_path(path)
        suffix_of(file, (TRAINING_SUFFIX,), "checkpoints to resume from")
        described, arrays = safetensors.load_part(file, "training")
        try:
            if described["version"] != _VERSION:
                raise FormatError(
                    f"{file} holds a training of version "
                    f"{quoted(described['version'])}, expected {_VERSION}"
                )
            state = TrainingState(
                **{name: described[name] for name in _STATE},
                parameters=arrays.pop("parameters"), values=arrays.pop("values"),
                formats=tuple(described["formats"]),
            )
            state.check()
            callbacks = [
                (str(one["type"]), dict(one["state"]))
                for one in described["callbacks"]
            ]
            measures = arrays.pop("measures")
            for name, array in arrays.items():
                _, number, field = name.split(".", 2)
                callbacks[int(number)][1][field] = array
            plans = [SavedPlan(**plan) for plan in described["plans"]]
            found = cls(
                state, measures, described["stopped"], dict(described["settings"]),
                plans, callbacks,
            )
            found._check()
        except FormatError:
            raise
        except (
            InputError, LookupError, TypeError, ValueError, AttributeError
        ) as error:
            raise FormatError(
                f"{file} holds a training that is not clnet's: {reason(error)}"
            ) from None
        return found

    def _check(self) -> None:
        """Raise ValueError or TypeError unless the parts are of their types."""
        shape = self.measures.shape
        if (
            self.measures.dtype != np.float64 or len(shape) != 2
            or shape[1] not in (MEASURES + 1, 2 * MEASURES + 1)
            or shape[0] > self.state.epoch
        ):
            kind = f"{self.measures.dtype} {quoted([*shape])}"
            raise ValueError(f"{kind} are no measures")
        if not isinstance(self.stopped, str):
            raise TypeError(f"stopped is {quoted(self.stopped)}")

    def check_settings(self, path: object, now: Mapping[str, Any]) -> None:
        """Raise InputError unless `fit` was called as for the training of the file."""
        for name, value in now.items():
            found = self.settings.get(name)
            if found != value:
                raise InputError(
                    f"{path} is of a training " + _UNLIKE.get(
                        name,
                        f"with {name.replace('_', ' ')} {quoted(found)}, not "
                        f"{quoted(value)}",
                    )
                )

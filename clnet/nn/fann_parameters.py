"""FANN's training parameters, a part of its network files."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from clnet.checks import as_list, as_real, as_reals, as_whole, check_name
from clnet.errors import InputError
from clnet.nn.activations import activation

T = TypeVar("T")
Kind = str | tuple[str, ...]
"""Format of a value in the file: ``"f"`` a real number with six decimals, ``"e"`` one
with twenty, ``"u"`` a whole number; ``"f list"``, ``"e list"`` and ``"activations"``
several of them; a tuple of names: the index of one."""

BIT_FAIL_LIMIT = 0.35  # FANN's default
TRAINING_ALGORITHMS = ("incremental", "batch", "rprop", "quickprop", "sarprop")
ERROR_FUNCTIONS = ("linear", "tanh")
STOP_FUNCTIONS = ("mse", "bit_fail")
NETWORK_TYPES = ("layered", "shortcut")

OPTIONAL = ("cascade_min_out_epochs", "cascade_min_cand_epochs")
"""Entries that files of the first FANN 2.x lack."""


def _entry(kind: Kind, default: T) -> T:
    """Return the field of an entry of the file."""
    value: T = field(default=default, metadata={"kind": kind})
    return value


@dataclass(frozen=True)
class FannParameters:
    """FANN's training parameters, as in a ``.net`` file.

    Names, order and defaults are FANN's; enumerations and activations are by name.
    ``cascade_activation_steepnesses`` are FANN's steepnesses.
    """

    learning_rate: float = _entry("f", 0.7)
    learning_momentum: float = _entry("f", 0.0)
    training_algorithm: str = _entry(TRAINING_ALGORITHMS, "rprop")
    train_error_function: str = _entry(ERROR_FUNCTIONS, "tanh")
    train_stop_function: str = _entry(STOP_FUNCTIONS, "mse")
    cascade_output_change_fraction: float = _entry("f", 0.01)
    quickprop_decay: float = _entry("f", -0.0001)
    quickprop_mu: float = _entry("f", 1.75)
    rprop_increase_factor: float = _entry("f", 1.2)
    rprop_decrease_factor: float = _entry("f", 0.5)
    rprop_delta_min: float = _entry("f", 0.0)
    rprop_delta_max: float = _entry("f", 50.0)
    rprop_delta_zero: float = _entry("f", 0.1)
    cascade_output_stagnation_epochs: int = _entry("u", 12)
    cascade_candidate_change_fraction: float = _entry("f", 0.01)
    cascade_candidate_stagnation_epochs: int = _entry("u", 12)
    cascade_max_out_epochs: int = _entry("u", 150)
    cascade_min_out_epochs: int = _entry("u", 50)
    cascade_max_cand_epochs: int = _entry("u", 150)
    cascade_min_cand_epochs: int = _entry("u", 50)
    cascade_num_candidate_groups: int = _entry("u", 2)
    bit_fail_limit: float = _entry("e", BIT_FAIL_LIMIT)
    cascade_candidate_limit: float = _entry("e", 1000.0)
    cascade_weight_multiplier: float = _entry("e", 0.4)
    cascade_activation_functions: tuple[str, ...] = _entry("activations", (
        "sigmoid", "tanh", "gaussian", "gaussian_symmetric", "elliot",
        "elliot_symmetric", "sin_symmetric", "cos_symmetric", "sin", "cos",
    ))
    cascade_activation_steepnesses: tuple[float, ...] = _entry(
        "e list", (0.25, 0.5, 0.75, 1.0)
    )

    def __post_init__(self) -> None:
        for entry in fields(self):
            name, kind = entry.name, entry.metadata["kind"]
            object.__setattr__(self, name, _checked(name, getattr(self, name), kind))


_STRUCTURE: dict[str, tuple[tuple[str, Kind], ...]] = {
    "learning_rate": (("connection_rate", "f"), ("network_type", NETWORK_TYPES)),
}
HEADER: tuple[tuple[str, Kind], ...] = (("num_layers", "u"), *(
    row for entry in fields(FannParameters)
    for row in ((entry.name, entry.metadata["kind"]), *_STRUCTURE.get(entry.name, ()))
))
"""Entries before ``layer_sizes``, in the file's order; a list is preceded by its
``_count``. Those that are no field of `FannParameters` describe the structure."""


def _checked(name: str, value: Any, kind: Kind) -> Any:
    """Return the value of an entry in one form, or raise InputError."""
    if isinstance(kind, tuple):
        check_name(name, value, kind)
        return value
    if kind == "u":
        return as_whole(name, value, 0)
    if kind == "activations":
        rows = [activation(item) for item in as_list(name, value)]
        for row in rows:
            if row.fann is None:
                raise InputError(f"{name}: FANN has no activation {row.name!r}")
        return tuple(row.name for row in rows)
    if kind == "e list":
        return as_reals(name, value)
    return as_real(name, value)


def bit_fail_limit(fann: FannParameters | None) -> float:
    """Return the error from which an output of a network counts as failed."""
    return BIT_FAIL_LIMIT if fann is None else fann.bit_fail_limit

"""FANN's training parameters, a part of its network files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from clnet.checks import as_list, as_real, as_reals, as_whole, check_name
from clnet.errors import InputError
from clnet.nn.activations import activation

Kind = str | tuple[str, ...]
"""Format of a value in the file: ``"f"`` a real number with six decimals, ``"e"`` one
with twenty, ``"u"`` a whole number; ``"f list"``, ``"e list"`` and ``"activations"``
several of them; a tuple of names: the index of one."""

BIT_FAIL_LIMIT = 0.35  # FANN's default
TRAINING_ALGORITHMS = ("incremental", "batch", "rprop", "quickprop", "sarprop")
ERROR_FUNCTIONS = ("linear", "tanh")
STOP_FUNCTIONS = ("mse", "bit_fail")
NETWORK_TYPES = ("layered", "shortcut")

HEADER: tuple[tuple[str, Kind], ...] = (
    ("num_layers", "u"),
    ("learning_rate", "f"),
    ("connection_rate", "f"),
    ("network_type", NETWORK_TYPES),
    ("learning_momentum", "f"),
    ("training_algorithm", TRAINING_ALGORITHMS),
    ("train_error_function", ERROR_FUNCTIONS),
    ("train_stop_function", STOP_FUNCTIONS),
    ("cascade_output_change_fraction", "f"),
    ("quickprop_decay", "f"),
    ("quickprop_mu", "f"),
    ("rprop_increase_factor", "f"),
    ("rprop_decrease_factor", "f"),
    ("rprop_delta_min", "f"),
    ("rprop_delta_max", "f"),
    ("rprop_delta_zero", "f"),
    ("cascade_output_stagnation_epochs", "u"),
    ("cascade_candidate_change_fraction", "f"),
    ("cascade_candidate_stagnation_epochs", "u"),
    ("cascade_max_out_epochs", "u"),
    ("cascade_min_out_epochs", "u"),
    ("cascade_max_cand_epochs", "u"),
    ("cascade_min_cand_epochs", "u"),
    ("cascade_num_candidate_groups", "u"),
    ("bit_fail_limit", "e"),
    ("cascade_candidate_limit", "e"),
    ("cascade_weight_multiplier", "e"),
    ("cascade_activation_functions", "activations"),
    ("cascade_activation_steepnesses", "e list"),
)
"""Entries before ``layer_sizes``, in the file's order; a list is preceded by its
``_count``. Those that are no field of `FannParameters` describe the structure."""

OPTIONAL = ("cascade_min_out_epochs", "cascade_min_cand_epochs")
"""Entries that files of the first FANN 2.x lack."""


@dataclass(frozen=True)
class FannParameters:
    """FANN's training parameters, as in a ``.net`` file.

    Names, order and defaults are FANN's; enumerations and activations are by name.
    ``cascade_activation_steepnesses`` are FANN's steepnesses.
    """

    learning_rate: float = 0.7
    learning_momentum: float = 0.0
    training_algorithm: str = "rprop"
    train_error_function: str = "tanh"
    train_stop_function: str = "mse"
    cascade_output_change_fraction: float = 0.01
    quickprop_decay: float = -0.0001
    quickprop_mu: float = 1.75
    rprop_increase_factor: float = 1.2
    rprop_decrease_factor: float = 0.5
    rprop_delta_min: float = 0.0
    rprop_delta_max: float = 50.0
    rprop_delta_zero: float = 0.1
    cascade_output_stagnation_epochs: int = 12
    cascade_candidate_change_fraction: float = 0.01
    cascade_candidate_stagnation_epochs: int = 12
    cascade_max_out_epochs: int = 150
    cascade_min_out_epochs: int = 50
    cascade_max_cand_epochs: int = 150
    cascade_min_cand_epochs: int = 50
    cascade_num_candidate_groups: int = 2
    bit_fail_limit: float = BIT_FAIL_LIMIT
    cascade_candidate_limit: float = 1000.0
    cascade_weight_multiplier: float = 0.4
    cascade_activation_functions: tuple[str, ...] = (
        "sigmoid", "tanh", "gaussian", "gaussian_symmetric", "elliot",
        "elliot_symmetric", "sin_symmetric", "cos_symmetric", "sin", "cos",
    )
    cascade_activation_steepnesses: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

    def __post_init__(self) -> None:
        kinds = dict(HEADER)
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in kinds:
                object.__setattr__(self, name, _checked(name, value, kinds[name]))


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

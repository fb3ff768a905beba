"""What FANN's network files carry beside the network: training parameters, scaling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.activations import activation
from clnet.checks import as_numbers
from clnet.errors import InputError, unknown
from clnet.formats.numbers import holds
from clnet.metrics import BIT_FAIL_LIMIT

Kind = str | tuple[str, ...]
"""How a value stands in the file: ``"f"`` a real number with six decimals, ``"e"`` one
with twenty, ``"u"`` a whole number, ``"f list"``, ``"e list"`` and ``"activations"``
several; names: the number of one of them."""

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
"""The entries before ``layer_sizes``, in the file's order; a list is preceded by its
``_count``. Those that are no field of `FannParameters` are the network's structure."""

OPTIONAL = ("cascade_min_out_epochs", "cascade_min_cand_epochs")
"""Entries that FANN's first 2.x files lack."""


@dataclass(frozen=True)
class Scaling:
    """FANN's per-column scaling of inputs and outputs; execution never applies it.

    ``scaled = ((x - mean) / deviation + 1) * factor + new_min``, and the inverse.
    Columns whose deviation is 0 are left alone.

    Attributes
    ----------
    mean_in, deviation_in, new_min_in, factor_in : tuple of float, length n_in
        The inputs' constants.
    mean_out, deviation_out, new_min_out, factor_out : tuple of float, length n_out
        The outputs'.

    Raises
    ------
    InputError
        If the four tuples of one side differ in length.
    """

    mean_in: tuple[float, ...]
    deviation_in: tuple[float, ...]
    new_min_in: tuple[float, ...]
    factor_in: tuple[float, ...]
    mean_out: tuple[float, ...]
    deviation_out: tuple[float, ...]
    new_min_out: tuple[float, ...]
    factor_out: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in SCALES:
            values = _reals(name, getattr(self, name))
            object.__setattr__(self, name, values)
            expected = len(self.mean_in if name.endswith("_in") else self.mean_out)
            if len(values) != expected:
                raise InputError(
                    f"{name} has {len(values)} entries, expected {expected}: one a "
                    "column"
                )

    def scale_input(self, x: ArrayLike) -> NDArray[Any]:
        """Return inputs [batch, n_in] or [n_in] as the network was trained on."""
        return self._scale(x, "in")

    def descale_input(self, x: ArrayLike) -> NDArray[Any]:
        """Return the inverse of `scale_input`."""
        return self._descale(x, "in")

    def scale_output(self, y: ArrayLike) -> NDArray[Any]:
        """Return targets [batch, n_out] or [n_out] as the network was trained on."""
        return self._scale(y, "out")

    def descale_output(self, y: ArrayLike) -> NDArray[Any]:
        """Return the network's outputs [batch, n_out] or [n_out] in the data's range.

        Raises
        ------
        InputError
            If the number of columns is wrong, or a column was scaled to one point.
        """
        return self._descale(y, "out")

    def _scale(self, x: ArrayLike, side: str) -> NDArray[Any]:
        values, mean, deviation, new_min, factor = self._columns(x, side)
        used = deviation != 0
        divisor = np.where(used, deviation, 1)
        scaled = ((values - mean) / divisor + 1) * factor + new_min
        return np.where(used, scaled, values).astype(values.dtype)

    def _descale(self, x: ArrayLike, side: str) -> NDArray[Any]:
        values, mean, deviation, new_min, factor = self._columns(x, side)
        used = deviation != 0
        points = np.flatnonzero(used & (factor == 0))
        if points.size:
            raise InputError(
                f"{side}put {points[0]} was scaled to one point (factor 0) and cannot "
                "be descaled"
            )
        divisor = np.where(used, factor, 1)
        descaled = ((values - new_min) / divisor - 1) * deviation + mean
        return np.where(used, descaled, values).astype(values.dtype)

    def _columns(self, x: ArrayLike, side: str) -> tuple[NDArray[Any], ...]:
        """Return x as floats, and the four rows of constants in float64."""
        given = np.asarray(x)
        dtype = "float32" if given.dtype == np.float32 else "float64"
        values = as_numbers(f"{side}puts", given, dtype)
        constants = [
            np.asarray(getattr(self, f"{name}_{side}"))
            for name in ("mean", "deviation", "new_min", "factor")
        ]
        n = constants[0].size
        if values.ndim not in (1, 2) or values.shape[-1] != n:
            raise InputError(
                f"{side}puts have shape {list(values.shape)}, expected [batch, {n}]"
            )
        return values, *constants


SCALES = tuple(field.name for field in dataclasses.fields(Scaling))


@dataclass(frozen=True)
class FannParameters:
    """FANN's training parameters, as a ``.net`` file holds them, and its scaling.

    Names, order and defaults are FANN's; enumerations and activations are by name.
    ``cascade_activation_steepnesses`` are FANN's steepnesses.

    Raises
    ------
    InputError
        If a value is of the wrong kind or an unknown name.
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
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        kinds = dict(HEADER)
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in kinds:
                object.__setattr__(self, name, _checked(name, value, kinds[name]))
        if not (self.scaling is None or isinstance(self.scaling, Scaling)):
            raise InputError(f"scaling must be a Scaling or None, not {self.scaling!r}")


def _checked(name: str, value: Any, kind: Kind) -> Any:
    if isinstance(kind, tuple):
        if value not in kind:
            raise unknown(name, value, kind)
        return value
    if kind == "u":
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < 0:
            raise InputError(f"{name} must be a whole number, not {value!r}")
        return int(value)
    if kind == "activations":
        rows = [activation(item) for item in _several(name, value)]
        for row in rows:
            if row.fann is None:
                raise InputError(f"{name}: FANN has no activation {row.name!r}")
        return tuple(row.name for row in rows)
    if kind == "e list":
        return _reals(name, value)
    return _real(name, value)


def _real(name: str, value: Any) -> float:
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool):
        raise InputError(f"{name} must be a number, not {value!r}")
    if not holds("float32", float(value)):
        raise InputError(f"{name} must be within float32's range, not {value!r}")
    return float(value)


def _reals(name: str, values: Any) -> tuple[float, ...]:
    return tuple(_real(name, value) for value in _several(name, values))


def _several(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        raise InputError(f"{name} must be a list, not {values!r}")
    return list(values)

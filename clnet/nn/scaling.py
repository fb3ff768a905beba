"""FANN's scaling of inputs and outputs; constant columns by scikit-learn's rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clnet.checks import as_array, as_numbers, as_reals, check_flag
from clnet.errors import InputError, quoted, warn

_CONSTANTS = ("mean", "deviation", "new_min", "factor")


@dataclass(frozen=True)
class Scaling:
    """FANN's per-column scaling of inputs and outputs.

    ``scaled = ((x - mean) / deviation + 1) * factor + new_min``, and the inverse.
    Columns whose deviation is 0 stay as they are, as those of FANN's files; `of` gives
    none.

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

    Examples
    --------
    >>> x, t = [[0.0], [10.0]], [[100.0], [300.0]]
    >>> scaling = clnet.Scaling.of(x, t)
    >>> scaling.scale_input(x).tolist()
    [[-1.0], [1.0]]
    >>> scaling.descale_output([[0.0]]).tolist()
    [[200.0]]
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
            values = as_reals(name, getattr(self, name))
            object.__setattr__(self, name, values)
            expected = len(self.mean_in if name.endswith("_in") else self.mean_out)
            if len(values) != expected:
                raise InputError(
                    f"{name} has {len(values)} entries, expected {expected}: one a "
                    "column"
                )

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        t: ArrayLike,
        inputs: Sequence[float] | None = (-1.0, 1.0),
        outputs: Sequence[float] | None = (-1.0, 1.0),
    ) -> Scaling:
        """Return the scaling for data, as FANN's ``fann_set_scaling_params``.

        One standard deviation below and above a column's mean map to the ends of the
        new range; values beyond are not clipped. The deviation of a column that is
        constant up to rounding counts as 1, as in scikit-learn's ``StandardScaler``.

        Parameters
        ----------
        x, t : array_like, shape [samples, n_in] and [samples, n_out]
            Inputs and targets.
        inputs, outputs : (low, high) or None
            The new ranges; None: those columns stay as they are, as classes should.

        Raises
        ------
        InputError
            If there is no sample, a number is not finite, or too large to be squared,
            or a range is not two rising numbers.
        """
        return cls.of_parts([(x, t)], inputs, outputs)

    @classmethod
    def of_parts(
        cls,
        parts: Iterable[tuple[ArrayLike, ArrayLike]],
        inputs: Sequence[float] | None = (-1.0, 1.0),
        outputs: Sequence[float] | None = (-1.0, 1.0),
    ) -> Scaling:
        """Return the scaling for samples (x, t) that come in parts, as `of`.

        Means and deviations are merged as by Chan, Golub and LeVeque ("Updating
        formulae and a pairwise algorithm for computing sample variances", 1979).
        """
        n = 0
        merged: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        for part in parts:
            sides = [_numbers(*side) for side in zip("xt", part, strict=True)]
            size = len(sides[0])
            with np.errstate(over="ignore", invalid="ignore"):  # refused below
                moments = [
                    (columns.mean(axis=0), size * columns.var(axis=0))
                    for columns in sides
                ]
                merged = [
                    (mean + (new - mean) * (size / (n + size)),
                     spread + more + np.square(new - mean) * (n * size / (n + size)))
                    for (mean, spread), (new, more) in zip(merged, moments, strict=True)
                ] if n else moments
            n += size
        if not n:
            raise InputError("there is no sample to scale: give at least one")
        return cls(**{
            name: values
            for side, ends, (mean, spread) in zip(
                ("in", "out"), (inputs, outputs), merged, strict=True
            )
            for name, values in _side(
                side, ends, mean, np.sqrt(spread / n), n
            ).items()
        })

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
        array = as_array(f"{side}puts", x)
        dtype = "float32" if array.dtype == np.float32 else "float64"
        values = as_numbers(f"{side}puts", array, dtype)
        constants = [np.asarray(getattr(self, f"{name}_{side}")) for name in _CONSTANTS]
        n = constants[0].size
        if values.ndim not in (1, 2) or values.shape[-1] != n:
            raise InputError(
                f"{side}puts have shape {list(values.shape)}, expected [batch, {n}]"
            )
        return values, *constants


SCALES = tuple(field.name for field in dataclasses.fields(Scaling))


def scaling_to_apply(scaling: Scaling | None, scale: bool | None) -> Scaling | None:
    """Return a network's scaling if `scale` asks for it; see `Network.predict`.

    Warns if there is one, and `scale` is None.
    """
    check_flag("scale", scale, optional=True)
    if scale and scaling is None:
        raise InputError(
            "scale=True needs the network's scaling, and it has none: set it as in "
            "network.scaling = clnet.Scaling.of(x, t)"
        )
    if scale is None and scaling is not None:
        warn(
            "the network carries a scaling that is not used: pass scale=True to "
            "use it, or scale=False"
        )
    return scaling if scale else None


def _numbers(name: str, data: ArrayLike) -> NDArray[np.float64]:
    """Return samples [samples, columns] of finite numbers, at least one."""
    columns = as_numbers(name, data, "float64")
    if columns.ndim != 2 or len(columns) == 0:
        raise InputError(
            f"{name} has shape {list(columns.shape)}, expected [samples, columns] of "
            "at least one sample"
        )
    if not np.isfinite(columns).all():
        raise InputError(f"{name} holds numbers that are not finite")
    return columns


def _side(
    side: str, ends: Sequence[float] | None, mean: NDArray[np.float64],
    deviation: NDArray[np.float64], n: int,
) -> dict[str, tuple[float, ...]]:
    """Return the constants of inputs or outputs; without ends FANN's identity."""
    rows = np.tile([[0.0], [1.0], [-1.0], [1.0]], len(mean))
    if ends is not None:
        beyond = np.flatnonzero(~np.isfinite(deviation))
        if beyond.size:
            raise InputError(
                f"{side}put {beyond[0]} holds numbers too large to be scaled: their "
                "squares overflow"
            )
        low, high = _range(ends)
        divisor = np.where(_constant(mean, deviation, n), 1.0, deviation)
        rows[0], rows[1], rows[2], rows[3] = mean, divisor, low, (high - low) / 2
    return {
        f"{constant}_{side}": tuple(values.tolist())
        for constant, values in zip(_CONSTANTS, rows, strict=True)
    }


def _constant(
    mean: NDArray[np.float64], deviation: NDArray[np.float64], n: int
) -> NDArray[np.bool_]:
    """Return which columns of n samples are constant up to rounding.

    scikit-learn's rule, of roots: the error bound of a variance of two passes (Chan,
    Golub and LeVeque, "Algorithms for computing the sample variance", 1983).
    """
    error = n * np.finfo(np.float64).eps
    return np.asarray(deviation <= np.hypot(np.sqrt(error) * deviation, error * mean))


def _range(ends: Sequence[float]) -> tuple[float, float]:
    """Return both ends of a range, checked."""
    values = as_reals("a range of scaling", ends)
    if len(values) != 2 or not np.isfinite(values).all() or values[0] >= values[1]:
        raise InputError(
            "a range of scaling must be two rising numbers, as (-1, 1), not "
            f"{quoted(ends)}"
        )
    return values[0], values[1]

"""Functions of one variable, recognised as sums of activations by their numbers.

Exporters write GELU, Mish or ELU as five nodes or more, each in its own way. Here only
the function counts: it is fitted by ``c f(s x + b) + d relu(s x + b) + e x + g``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.formats.onnx.values import NEAR, POINTS, Curve
from clnet.nn.activations import ACTIVATIONS

Array = NDArray[Any]

MOST_HINTS = 8  # pairs of a factor and a constant that are tried
MOST_KNOWN = 64  # functions whose fits are remembered
SMALLEST = 1e-3  # factor of a function's argument
WIDEST = 2.0  # distance of a function's arguments about zero, at most
FINITE = 0.5  # share of the samples, at least


class Fit(NamedTuple):
    """``sum of factor f(scale x + shift) + slope x + bias``."""

    terms: list[tuple[float, str, float, float]]
    slope: float = 0.0
    bias: float = 0.0


_KNOWN: dict[Any, Fit | None] = {}


def recognised(curve: Curve) -> Fit | None:
    """Return a function as a sum of activations; None: it is no such sum."""
    key = curve.samples.tobytes(), curve.hints, curve.points.tobytes()
    if key not in _KNOWN:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = next((fit for fit in _fits(curve) if _proved(fit, curve)), None)
    return _KNOWN[key]


def _fits(curve: Curve) -> Iterator[Fit]:
    """Yield the sums of activations that agree with a function at `POINTS`."""
    if curve.samples.shape != curve.points.shape:
        return
    samples = curve.samples[: len(POINTS)]
    used = np.isfinite(samples)
    if used.mean() < FINITE:
        return
    if not all(_sampled(*hint) for hint in curve.hints):
        return
    x, y = POINTS[used], samples[used]
    weight = 1 / (1 + np.abs(y))
    if (affine := _fitted([x, np.ones(len(x))], y, weight)) is not None:
        yield Fit([], *affine)
        return
    hints = sorted(curve.hints)[:MOST_HINTS]
    shifts = [(1.0, shift / scale) for scale, shift in hints if scale]
    opposite = [(-1.0, -shift) for _, shift in shifts]
    pairs = list(dict.fromkeys([(1.0, 0.0), (-1.0, 0.0), *hints, *shifts, *opposite]))
    for effort, (scale, shift), name in product(range(3), pairs, ACTIVATIONS):
        v = scale * x + shift
        f = np.asarray(ACTIVATIONS[name].value(v), float)
        if not np.isfinite(f).all():
            continue
        if effort == 0 and not (np.abs(f - y) * weight <= NEAR).all():
            continue
        columns = [f, np.maximum(v, 0)][: max(1, effort)]
        found = _fitted([*columns, x, np.ones(len(x))], y, weight)
        if found is not None:
            names = (name, "relu")
            terms = [(factor, names[k], scale, shift)
                     for k, factor in enumerate(found[:-2]) if factor]
            yield Fit(terms, *found[-2:])


def _proved(fit: Fit, curve: Curve) -> bool:
    """Return whether a fit holds far away, at NaN and where comparisons switch.

    Where the function is infinite or NaN, a fit may have its limit: ``x * (x < 2)`` is
    NaN at infinity. NaN may stay NaN where a comparison with it chose a number.
    """
    x, y = curve.points[len(POINTS) :], curve.samples[len(POINTS) :]
    total = np.full(len(x), fit.bias)
    if fit.slope:
        total = total + fit.slope * x
    for factor, name, scale, shift in fit.terms:
        total = total + factor * np.asarray(
            ACTIVATIONS[name].value(scale * x + shift), float)
    known = np.isfinite(y) & ~(np.isnan(x) & np.isnan(total))
    error = np.abs(total - y)[known]
    return bool((error <= 10 * NEAR * (1 + np.abs(y[known]))).all())


def _sampled(scale: float, shift: float) -> bool:
    """Return whether points lie close about the zero of ``scale * x + shift``.

    There functions bend: far from it GELU, SiLU and relu are equal, and all are affine.
    Of a small scale, values are within the tolerance of all fits.
    """
    if abs(scale) < SMALLEST:
        return False
    place = int(np.searchsorted(POINTS, -shift / scale))
    return 0 < place < len(POINTS) and (
        abs(scale) * float(POINTS[place] - POINTS[place - 1]) <= WIDEST)


def _fitted(columns: list[Array], y: Array, weight: Array) -> list[float] | None:
    """Return round factors of the columns that add up to y; None: they do not."""
    matrix = np.stack(columns, axis=1) * weight[:, None]
    factors, *_ = np.linalg.lstsq(matrix, y * weight, rcond=None)
    for digits in (2, 4, 6, 8, 16):
        rounded = np.array([0.0 if abs(one) < NEAR else float(f"{one:.{digits}g}")
                            for one in factors])
        if (np.abs(matrix @ rounded - y * weight) <= NEAR).all():
            return [float(one) for one in rounded]
    return None

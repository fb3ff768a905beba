"""Functions of one variable as sums of activations, each proved equal.

Exporters write GELU, Mish or ELU as five nodes or more, each in its own way. Here only
the function counts. What is affine in pieces is a sum of clips and steps, exact at
every magnitude. All else is fitted by ``c f(s x + b) + d relu(s x + b) + e x + g``, and
a fit is taken if the expressions of both are equal in each piece.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clnet.formats.graphs.algebra import EXACT, LARGEST, NEAR, UnknownError
from clnet.formats.graphs.piecewise import (
    FAR,
    IDENTITY,
    ZERO,
    Piecewise,
    activated,
    compared,
)
from clnet.nn.activations import ACTIVATIONS, activation, with_parameters

if TYPE_CHECKING:
    from clnet.formats.graphs.values import Curve, Term

Array = NDArray[Any]

MOST_HINTS = 8  # pairs of a factor and a constant that are tried
MOST_KNOWN = 64  # functions whose fits are remembered
MOST_EDGES = 16  # of a function that is affine in pieces
LOST = 2.0**-17  # relative error of terms' sum in float32, at most
PROBES = (1.234567e-6, 0.001234567, 0.1357911, 0.8765432)  # places in a piece
STEEP = 1e3  # ratio of slopes of a leaky_relu: a larger one may overflow
TINY = 1e-30  # smaller values are zero but for rounding
GRID = np.linspace(-12, 12, 97) + 1 / 64  # about a fit's zero: off what is round
LEAST_FINITE = 0.5  # share of the points
LARGE = 1e8  # argument of functions that are far from all edges

BEYOND = "beyond"  # a threshold that is 0 at 0
FROM, ABOVE = "from", "above"  # threshold and BEYOND, but 0 at NaN
AT = "at"  # 1 at 0, elsewhere 0
STEPS = {
    "threshold": "greater_equal", BEYOND: "greater", FROM: "greater_equal",
    ABOVE: "greater", AT: "equal",
}
"""Steps by comparisons of their arguments with 0; the first two are 1 at NaN."""


class ActivationSum(NamedTuple):
    """``sum of factor f(scale x + shift) + slope x + bias``."""

    terms: list[Term]
    slope: float = 0.0
    bias: float = 0.0

    def constants(self, bias: Array) -> int:
        """Return how many constants are added to numbers that are not steps.

        Those of arguments are added to the bias that they have already.
        """
        return bool(self.bias) + sum(
            bool(np.any(scale * bias + shift))
            for _, name, scale, shift in self.terms if name not in STEPS)

    def function(self) -> Piecewise:
        """Return the function."""
        total = Piecewise.of(self.bias)
        if self.slope or not self.terms:
            total = IDENTITY.affine(self.slope, self.bias)
        for factor, name, scale, shift in self.terms:
            v = IDENTITY.affine(scale, shift)
            if name in STEPS:
                term = compared(STEPS[name], v, ZERO)
                if name in ("threshold", BEYOND):
                    term.values[-1] = 1
            else:
                term = activated(name, v)
            total = total + term.affine(factor, 0)
        return total


_KNOWN: dict[str, ActivationSum | None] = {}


def recognised(curve: Curve) -> ActivationSum | None:
    """Return a function as a sum of activations; None: it is no such sum."""
    key = repr((curve.function, sorted(curve.hints)))
    if key not in _KNOWN:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = next(
            (fit for fit in _fits(curve) if _proved(fit, curve.function)
             and _loss(fit, curve.function.edges) <= LOST), None)
    return _KNOWN[key]


def _fits(curve: Curve) -> Iterator[ActivationSum]:
    """Yield sums of activations that a function may be, the shortest first."""
    hints = sorted(curve.hints)[:MOST_HINTS]
    shifts = [(1.0, shift / scale) for scale, shift in hints if scale]
    opposite = [(-1.0, -shift) for _, shift in shifts]
    pairs = dict.fromkeys([(1.0, 0.0), (-1.0, 0.0), *hints, *shifts, *opposite])
    function, columns = curve.function, []
    for scale, shift in pairs:
        if not scale:
            continue
        x = (GRID - shift) / scale
        y = function.at(x)
        used = np.isfinite(y)
        size = np.abs(y[used]).max(initial=0)
        if used.mean() < LEAST_FINITE or not size:
            continue
        v, x, y = (scale * x + shift)[used], x[used], y[used]
        for name, row in ACTIVATIONS.items():
            f = np.asarray(row.value(v), float)
            if (np.abs(f - y) <= 4 * NEAR * size).all():
                yield ActivationSum([(1.0, name, scale, shift)])
            matrix = np.stack([f, np.maximum(v, 0), x, np.ones(len(v))], axis=1)
            columns.append((name, scale, shift, matrix, y))
    parts = [part.polynomial() for part in function.parts]
    lines = [(part[0], [*part, 0.0][1]) for part in parts if part and len(part) < 3]
    if len(lines) == len(parts):
        yield from _of_lines(function, lines)
        return
    fits = []
    for kept, (name, scale, shift, matrix, y) in product(
        ([0, 2, 3], [0, 1, 2, 3]), columns
    ):
        factors = _factors(matrix[:, kept], y)
        if factors is not None:
            terms = zip(factors[:-2], (name, "relu"), strict=False)
            fits.append(ActivationSum(_merged([
                (factor, function, scale, shift) for factor, function in terms if factor
            ]), *factors[-2:]))
    yield from sorted(
        fits, key=lambda fit: (len(fit.terms) + bool(fit.slope), bool(fit.bias)))


def _of_lines(
    function: Piecewise, lines: list[tuple[float, float]]
) -> Iterator[ActivationSum]:
    """Yield a function that is affine in pieces as clips and steps.

    One piece is the reference, that at zero first; each edge beside it adds terms that
    are 0 there. Which steps hold at NaN depends on the reference.
    """
    edges: list[Edge] = []
    points: list[Term] = []
    kept = [lines[0]]
    for edge, value, below, above in zip(
        function.edges, function.values.tolist(), lines, lines[1:], strict=False
    ):
        ends = [bias + slope * edge for bias, slope in (below, above)]
        sizes = [max(abs(bias), abs(slope * edge)) for bias, slope in (below, above)]
        size = EXACT * max(*sizes, abs(value))
        jumps = [0.0 if abs(jump) <= size else jump
                 for jump in (value - ends[0], ends[1] - value)]
        bends = abs(above[1] - below[1]) > EXACT * max(abs(above[1]), abs(below[1]))
        if any(jumps) and jumps[0] == -jumps[1]:
            points.append((jumps[0], AT, 1.0, -edge))
            jumps = [0.0, 0.0]
        if bends or any(jumps):
            edges.append(Edge(edge, *jumps))
            kept.append(above)
    if len(edges) + len(points) > MOST_EDGES or not (
        np.abs(function.values[: len(function.edges)]) < LARGEST).all():
        return
    smooth = not any(edge.to or edge.away for edge in edges)
    rising = [k for k, (_, slope) in enumerate(kept) if slope]
    if smooth and len(edges) == 1 and not any(bias for bias, _ in kept) and (
        len(rising) == 2 and edges[0].at == 0
    ):
        ratio = kept[0][1] / kept[1][1]
        if 1 / STEEP <= abs(ratio) <= STEEP:
            name = with_parameters("leaky_relu", ratio)
            yield ActivationSum([(kept[1][1], name, 1.0, 0.0), *points])
            return
    if not edges and not rising:
        zero = (1.0, "gaussian_stepwise", 1.0, 0.0)
        yield ActivationSum([zero, *points], 0.0, kept[0][0])
    positions = [edge.at for edge in edges]
    middle = bisect_right(positions, 0.0)
    if smooth and len(rising) == 1 and not kept[rising[0]][0]:
        middle = rising[0]
    order = sorted(range(len(kept)), key=lambda k: (
        not kept[k][1] or bool(kept[k][0]), abs(k - middle)))  # lines through 0 first
    steps = [("threshold", BEYOND)]
    if edges and not rising:
        steps.insert(0, (FROM, ABOVE))
    fits = [_about(reference, edges, kept, step_names)
            for step_names, reference in product(steps, order)]
    for fit in sorted(fits, key=lambda fit: _loss(fit, positions)):
        yield ActivationSum([*fit.terms, *points], fit.slope, fit.bias)


class Edge(NamedTuple):
    """Where a function bends or jumps: the jumps to its value, and from it."""

    at: float
    to: float
    away: float


def _about(
    reference: int, edges: list[Edge], lines: list[tuple[float, float]],
    step_names: tuple[str, str],
) -> ActivationSum:
    """Return terms of a reference piece, and of the edges on both sides of it.

    The kinds are those of steps that hold at an edge, and beyond it alone.
    """
    ends = [-math.inf, *(edge.at for edge in edges), math.inf]
    bias, slope = lines[reference]
    terms = []
    if slope and edges:
        name = with_parameters("clip", ends[reference], ends[reference + 1])
        terms.append((slope, name, 1.0, 0.0))
    for k, (_, beside) in enumerate(lines):
        if k == reference:
            continue
        sign = 1.0 if k > reference else -1.0
        edge = edges[k - 1] if k > reference else edges[k]
        first, last = (edge.to, edge.away)[:: int(sign)]
        name = with_parameters("clip", 0.0, ends[k + 1] - ends[k])
        names = (*step_names, name)
        for factor, name in zip((first, last, beside), names, strict=True):
            if factor:
                terms.append((sign * factor, name, sign, -sign * edge.at))
    return ActivationSum(terms, 0.0 if edges else slope, bias)


def _merged(terms: list[Term]) -> list[Term]:
    """Return ``c elu + d relu`` as one elu of another constant."""
    if [name for _, name, _, _ in terms] == ["elu", "relu"]:
        (c, _, scale, shift), (d, *_) = terms
        if c + d:
            name = with_parameters("elu", float(f"{c / (c + d):.15g}"))
            return [(float(f"{c + d:.15g}"), name, scale, shift)]
    return terms


def _factors(matrix: Array, y: Array) -> list[float] | None:
    """Return factors of the columns that add up to y; None: they do not.

    They have the fewest digits that fit as well.
    """
    sizes = np.abs(matrix).max(axis=0)
    sizes[sizes == 0] = 1
    size = np.abs(y).max()
    solution, *_ = np.linalg.lstsq(matrix / sizes, y / size, rcond=None)
    error = np.abs(matrix / sizes @ solution - y / size).max()
    if not error <= 4 * NEAR:
        return None
    allowed = max(2 * error, 1e-13)
    small = np.abs(solution) <= allowed
    for digits in range(1, 17):
        factors = np.array([
            float(f"{factor:.{digits}g}") for factor in solution * size / sizes])
        factors[small] = 0
        if np.abs(matrix @ factors - y).max() <= allowed * size or digits == 16:
            return [float(factor) for factor in factors]
    return None


def _loss(fit: ActivationSum, edges: Sequence[float] = ()) -> float:
    """Return the largest relative error of a fit in float32, in all pieces and far.

    Where terms add up to exactly zero in any order, there is none. A constant beyond
    float32 loses all: it is infinite, and times a step of 0 it is NaN.
    """
    constants = [fit.slope, fit.bias, *(
        number for factor, _, *line in fit.terms for number in (factor, *line))]
    if np.abs(constants).max() > np.finfo(np.float32).max:
        return math.inf
    points = [-LARGE, LARGE, *PROBES, *(-share for share in PROBES)]
    for low, high in pairwise([-math.inf, *edges, math.inf]):
        size = min(LARGE, high - low, max(
            abs(end) for end in (low, high, 1.0) if math.isfinite(end)))
        start, sign = (high, -1) if math.isinf(low) else (low, 1)
        start = start if math.isfinite(start) else 0.0
        points += [start + sign * share * size for share in PROBES]
    x = np.array([*points, *edges], np.float32).astype(np.float64)
    pairs = [(fit.bias, np.ones(len(x))), (fit.slope, x)]
    for factor, name, scale, shift in fit.terms:
        v = scale * x + shift
        if name in STEPS:
            pairs.append((factor, getattr(np, STEPS[name])(v, 0).astype(float)))
        else:
            pairs.append((factor, activation(name).value(v)))
    terms = [factor * values for factor, values in pairs]
    singles = [np.float32(factor) * np.float32(values) for factor, values in pairs]
    total = np.sum(terms, axis=0)
    count = np.count_nonzero(terms, axis=0)
    exact = (count == 2) & (total == 0) & (np.sum(singles, axis=0) == 0)
    error = np.abs(terms).sum(axis=0) * float(np.finfo(np.float32).eps)
    error[(count < 2) | exact] = 0
    return float((error / np.fmax(np.abs(total), TINY)).max())


def _proved(fit: ActivationSum, function: Piecewise) -> bool:
    """Return whether a fit equals a function in each piece, at edges and far away.

    Where the function is NaN at infinity, a fit may have its limit: ``x * (x < 2)`` is
    NaN there. NaN may stay NaN where a comparison with it chose a number.
    """
    try:
        total = fit.function()
        total = replace(total, edges=tuple(
            single if (single := float(np.float32(edge))) in function.edges else edge
            for edge in total.edges))  # those of a file may have been rounded
        edges = sorted({*function.edges, *total.edges})
        total, function = total.refined(edges), function.refined(edges)
        if not all(a.equals(b) for a, b in zip(
            total.parts, function.parts, strict=True)):
            return False
    except UnknownError:
        return False
    last = len(edges)
    sizes = np.ones(last + len(FAR))
    for sides in (function.parts, function.parts[1:]):
        at = [float(part.at(edge)) for part, edge in zip(sides, edges, strict=False)]
        sizes[:last] = np.fmax(sizes[:last] * (sides is not function.parts), np.abs(at))
    a, b = total.values, function.values
    near = (a == b) | (np.isfinite(b) & (
        np.abs(a - b) <= 10 * NEAR * np.fmax(sizes, np.abs(b))))
    near[last:] |= np.isnan([*b[last:-1], a[-1]])
    return bool(near.all())

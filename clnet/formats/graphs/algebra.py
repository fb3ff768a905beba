"""Expressions of one variable in a normal form, so that two can be proved equal.

An expression is a quotient of sums. A term of a sum is ``c x^p exp(P(x)) g^k …``: P is
a polynomial without a constant, and each g is an error function, sine, cosine or
logarithm. Hyperbolic functions, sigmoid and softplus are made of these. Different terms
are linearly independent, so that two sums are equal if their terms are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Factor = tuple[str, tuple[Any, ...]]
"""A function's name, and its argument: coefficients of a polynomial, or terms."""
Key = tuple[int, tuple[float, ...], tuple[tuple[Factor, int], ...]]
"""Of a term: the power of x, the exponent's coefficients of x, x², …, and factors."""

# How far equal numbers may be apart. A file rounds its constants to float32, by 6e-8
# each, and an exporter may fold several into one: NEAR allows some 16 roundings. What
# float64 computes of the same constants is off by 1e-16 each: EXACT allows 10,000
# roundings, of long sums, and LEFT 100, over the sizes of the terms that cancelled.
NEAR = 1e-6
EXACT = 1e-12
LEFT = 1e-14
LARGEST = 3e38  # about float32's: exporters write a larger bound where there is none
MOST_TERMS = 64
MOST_POWER = 16
ONE: Key = (0, (), ())
_FUNCTIONS = {"erf": np.frompyfunc(math.erf, 1, 1), "sin": np.sin, "cos": np.cos}
_ODD = {"erf": True, "sin": True, "cos": False}


class UnknownError(Exception):
    """An expression has no normal form here."""


@dataclass(frozen=True)
class Sum:
    """Terms by their keys: the coefficient, and the sum of sizes that it came from.

    A coefficient far below its size is what rounding has left of zero.
    """

    terms: dict[Key, tuple[float, float]]

    @classmethod
    def of(cls, number: float) -> Sum:
        """Return a constant."""
        return cls({ONE: (number, abs(number))})

    def __add__(self, other: Sum) -> Sum:
        terms = dict(self.terms)
        for key, (c, size) in other.terms.items():
            first = terms.get(key, (0.0, 0.0))
            terms[key] = first[0] + c, first[1] + size
        return _checked(terms)

    def __mul__(self, other: Sum) -> Sum:
        terms: dict[Key, tuple[float, float]] = {}
        for a, (c, size) in self.terms.items():
            for b, (d, other_size) in other.terms.items():
                key = _product(a, b)
                first = terms.get(key, (0.0, 0.0))
                terms[key] = first[0] + c * d, first[1] + size * other_size
        return _checked(terms)

    def at(self, x: Array) -> Array:
        """Return the values at points."""
        total = np.zeros(np.shape(x))
        for (power, exponent, factors), (c, _) in self.terms.items():
            part = c * np.power(x, float(power)) if power else np.full(np.shape(x), c)
            if exponent:
                part = part * np.exp(_polynomial(exponent, x))
            for (name, argument), times in factors:
                if name == "log":
                    value = np.log(_sum(argument).at(x))
                else:
                    value = _FUNCTIONS[name](_polynomial(argument[1:], x) + argument[0])
                part = part * np.asarray(value, np.float64) ** times
            total = total + part
        return total

    def polynomial(self) -> list[float] | None:
        """Return the coefficients of 1, x, x², …; None: it is no polynomial."""
        if any(key[0] < 0 or key[1:] != ONE[1:] for key in self.terms):
            return None
        coefficients = [0.0] * (1 + max((key[0] for key in self.terms), default=0))
        for (power, _, _), (c, _) in self.terms.items():
            coefficients[power] = c
        return coefficients

    @property
    def is_positive(self) -> bool:
        """Whether it is known to be positive, also where x is 0."""
        return any(key[0] == 0 for key in self.terms) and all(
            c > 0 and power % 2 == 0 and power >= 0
            and all(times % 2 == 0 and times > 0 for _, times in factors)
            for (power, _, factors), (c, _) in self.terms.items())

    def zero(self) -> float | None:
        """Return the only zero, of a line or of two exponentials; None: another sum."""
        line = self.polynomial()
        if line is not None and len(line) == 2 and line[1]:
            return -line[0] / line[1] + 0.0  # not -0
        if len(self.terms) != 2 or any(key[0] or key[2] for key in self.terms):
            return None
        (a, (c, _)), (b, (d, _)) = self.terms.items()
        exponent = _product(a, _inverse(b))[1]
        if len(exponent) != 1 or c * d >= 0:
            return None
        return math.log(-d / c) / exponent[0] + 0.0

    def vanishes(self) -> bool:
        """Return whether it is zero, but for constants that were rounded."""
        left = list(self.terms.items())
        while left:
            key, _ = left[0]
            alike = [item for item in left if _alike(item[0], key)]
            left = [item for item in left if not _alike(item[0], key)]
            total = sum(c for _, (c, _) in alike)
            size = sum(size for _, (_, size) in alike)
            if not abs(total) <= 4 * NEAR * size:
                return False
        return True


@dataclass(frozen=True)
class Ratio:
    """A quotient of sums, whose denominator has no zero where it is used."""

    over: Sum
    under: Sum

    @classmethod
    def of(cls, number: float) -> Ratio:
        """Return a constant."""
        return cls(Sum.of(number), Sum.of(1.0))

    def __add__(self, other: Ratio) -> Ratio:
        if self.under.terms == other.under.terms:
            return Ratio(self.over + other.over, self.under)
        return Ratio(self.over * other.under + other.over * self.under,
                     self.under * other.under)

    def __neg__(self) -> Ratio:
        return Ratio.of(-1.0) * self

    def __sub__(self, other: Ratio) -> Ratio:
        return self + -other

    def __mul__(self, other: Ratio) -> Ratio:
        return Ratio(self.over * other.over, self.under * other.under)

    def __truediv__(self, other: Ratio) -> Ratio:
        return self * other.inverse()

    def inverse(self) -> Ratio:
        """Return ``1 / self``, where that has no zero."""
        if len(self.over.terms) != 1:
            return Ratio(self.under, self.over)
        (key, (c, _)), = self.over.terms.items()
        if not c:
            raise UnknownError
        inverse = Sum({_inverse(key): (1 / c, abs(1 / c))})
        return Ratio(self.under * inverse, Sum.of(1.0))

    def at(self, x: Any) -> Array:
        """Return the values at points."""
        x = np.asarray(x, np.float64)
        return self.over.at(x) / self.under.at(x)

    def polynomial(self) -> list[float] | None:
        """Return the coefficients of 1, x, x², …; None: it is no polynomial."""
        under = self.under.polynomial()
        if under is None or len(under) != 1:
            return None
        coefficients = self.over.polynomial()
        return None if coefficients is None else [c / under[0] for c in coefficients]

    def constant(self) -> float | None:
        """Return its one value; None: it depends on x."""
        coefficients = self.polynomial()
        if coefficients is None or any(coefficients[1:]):
            return None
        return coefficients[0]

    def equals(self, other: Ratio) -> bool:
        """Return whether both are equal, but for constants that were rounded."""
        a, b = self._normal(), other._normal()
        return (a.over * b.under + Sum.of(-1.0) * b.over * a.under).vanishes()

    def _normal(self) -> Ratio:
        """Return it with a least term of the denominator that is 1."""
        least = min(self.under.terms, key=lambda key: _descending(key[1]))
        c, _ = self.under.terms[least]
        factor = Sum({_inverse(least): (1 / c, abs(1 / c))})
        return Ratio(self.over * factor, self.under * factor)

    def exp(self) -> Ratio:
        """Return its exponential: of a polynomial and of multiples of logarithms."""
        under = self.under.polynomial()
        if under is None or len(under) != 1:
            raise UnknownError
        result = Ratio.of(1.0)
        rest: dict[Key, tuple[float, float]] = {}
        for key, (c, size) in self.over.terms.items():
            power, exponent, factors = key
            if not factors:
                rest[key] = c, size
                continue
            times = round(c / under[0])
            if (
                power or exponent or len(factors) > 1 or factors[0][1] != 1
                or factors[0][0][0] != "log" or abs(times) > MOST_POWER
                or abs(c / under[0] - times) > NEAR
            ):
                raise UnknownError
            base = Ratio(_sum(factors[0][0][1]), Sum.of(1.0))
            for _ in range(abs(times)):
                result = result * base if times > 0 else result / base
        coefficients = Sum(rest).polynomial()
        if coefficients is None:
            raise UnknownError
        first, *others = (c / under[0] for c in coefficients)
        if not abs(first) < 700:
            raise UnknownError
        key = (0, _stripped(others), ())
        factor = math.exp(first)
        return result * Ratio(Sum({key: (factor, factor)}), Sum.of(1.0))

    def log(self) -> Ratio:
        """Return its logarithm, where it is positive."""
        return Ratio(_log(self.over) + Sum.of(-1.0) * _log(self.under), Sum.of(1.0))

    def function(self, name: str) -> Ratio:
        """Return ``erf``, ``sin`` or ``cos`` of a polynomial."""
        argument = self.polynomial()
        if argument is None:
            raise UnknownError
        if (number := self.constant()) is not None:
            return Ratio.of(float(_FUNCTIONS[name](number)))
        sign = 1.0
        if [c for c in argument if c][-1] < 0:
            argument = [-c for c in argument]
            sign = -1.0 if _ODD[name] else 1.0
        key = (0, (), (((name, tuple(argument)), 1),))
        return Ratio(Sum({key: (sign, 1.0)}), Sum.of(1.0))


X = Ratio(Sum({(1, (), ()): (1.0, 1.0)}), Sum.of(1.0))


def _log(total: Sum) -> Sum:
    """Return the logarithm of exponentials: a polynomial and one ``log(1 + …)``."""
    if not total.is_positive or any(key[0] or key[2] for key in total.terms):
        raise UnknownError
    least = min(total.terms, key=lambda key: _descending(key[1]))
    c, _ = total.terms[least]
    terms: dict[Key, tuple[float, float]] = {
        (power + 1, (), ()): (c, abs(c)) for power, c in enumerate(least[1])}
    terms[ONE] = math.log(c), abs(math.log(c))
    if len(total.terms) > 1:
        rest = total * Sum({_inverse(least): (1 / c, 1 / c)})
        argument = tuple(sorted((key, c) for key, (c, _) in rest.terms.items()))
        terms[0, (), ((("log", argument), 1),)] = 1.0, 1.0
    return Sum(terms)


def _sum(argument: tuple[tuple[Key, float], ...]) -> Sum:
    """Return the sum that a logarithm's argument is."""
    return Sum({key: (c, abs(c)) for key, c in argument})


def _descending(exponent: tuple[float, ...]) -> tuple[float, ...]:
    """Return coefficients from the highest power on, for exponents of any length."""
    return (*[0.0] * (MOST_POWER - len(exponent)), *exponent[::-1])


def _checked(terms: dict[Key, tuple[float, float]]) -> Sum:
    """Return a sum without what float64's rounding has left of zero."""
    kept = {key: value for key, value in terms.items()
             if not abs(value[0]) <= LEFT * value[1]}
    numbers = [number for value in kept.values() for number in value]
    if len(kept) > MOST_TERMS or not all(map(math.isfinite, numbers)):
        raise UnknownError
    return Sum(kept or {ONE: (0.0, 0.0)})


def _product(a: Key, b: Key) -> Key:
    power = a[0] + b[0]
    exponent = _stripped(
        [c + other for c, other in zip_longest(a[1], b[1], fillvalue=0.0)])
    factors = dict(a[2])
    for factor, times in b[2]:
        factors[factor] = factors.get(factor, 0) + times
    kept = tuple(sorted((item for item in factors.items() if item[1]), key=repr))
    if abs(power) > MOST_POWER or len(exponent) > MOST_POWER or any(
        abs(times) > MOST_POWER for _, times in kept
    ):
        raise UnknownError
    return power, exponent, kept


def _inverse(key: Key) -> Key:
    power, exponent, factors = key
    return (-power, tuple(-c for c in exponent),
            tuple((factor, -times) for factor, times in factors))


def _stripped(coefficients: list[float]) -> tuple[float, ...]:
    """Return coefficients up to the last that is not zero."""
    stripped = list(coefficients)
    while stripped and not stripped[-1]:
        stripped.pop()
    return tuple(stripped)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Return a sum of multiples of x, x² and so on."""
    total = np.zeros(np.shape(x))
    for c in coefficients[::-1]:
        total = (total + c) * x
    return total


def _alike(a: Any, b: Any) -> bool:
    """Return whether keys are equal, but for constants that were rounded."""
    return all(
        first == other if isinstance(first, (str, int)) or not isinstance(other, float)
        else abs(first - other) <= NEAR * max(abs(first), abs(other))
        for first, other in zip_longest(_flat(a), _flat(b))
    )


def _flat(key: Any) -> Iterator[Any]:
    """Yield the numbers and names of nested tuples, and each tuple's length."""
    if isinstance(key, tuple):
        yield len(key)
        for item in key:
            yield from _flat(item)
    else:
        yield key

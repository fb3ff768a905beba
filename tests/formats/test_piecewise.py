"""Functions of one variable: their numbers, their equality, and how they are fitted."""

import numpy as np
import pytest
from bounds import WITH_PARAMETERS

from clnet.formats.graphs.algebra import UnknownError
from clnet.formats.graphs.piecewise import (
    FORMULAS,
    IDENTITY,
    ZERO,
    Piecewise,
    absolute,
    activated,
    chosen,
    compared,
    erf,
    exp,
    log,
    maximum,
    minimum,
)
from clnet.formats.graphs.recognise import recognised
from clnet.formats.graphs.values import Curve
from clnet.nn.activations import ACTIVATIONS, FAMILIES, activation

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of infinities
X = IDENTITY
number = Piecewise.of
LEAST_FITS = 30  # of 40 random functions


def fit(function):
    return recognised(Curve(None, function, frozenset({(1.0, 0.0)})))


@pytest.mark.parametrize("name", [*ACTIVATIONS, *WITH_PARAMETERS])
def test_formulas_are_those_of_the_activations(name):
    function = activated(name, X)
    x = np.random.default_rng(0).normal(0, 4, 500)
    right = np.asarray(activation(name).value(x), float)
    np.testing.assert_allclose(function.at(x), right, 1e-12, 1e-14)
    edges = np.array(function.edges)
    np.testing.assert_array_equal(
        function.values[: len(edges)], activation(name).value(edges))


def test_every_activation_has_a_formula():
    assert set(FORMULAS) == {*ACTIVATIONS, *FAMILIES}


def forms():
    """Other forms of activations, by their names."""
    return {
        "sigmoid": number(1) / (number(1) + exp(-X)),
        "tanh": (exp(X) - exp(-X)) / (exp(X) + exp(-X)),
        "softplus": maximum(X, ZERO) + log(number(1) + exp(-absolute(X))),
        "elu": maximum(X, ZERO) + minimum(exp(X) - number(1), ZERO),
        "silu": X / (number(1) + exp(-X)),
        "mish": X * activated("tanh", log(number(1) + exp(X))),
        "gelu": X.affine(0.5, 0) * (number(1) + erf(X / number(2**0.5))),
        "relu": (X + absolute(X)).affine(0.5, 0),
        "leaky_relu(0.2)": maximum(X, X.affine(0.2, 0)),
        "clip(-5000, 5000)": minimum(maximum(X, number(-5000)), number(5000)),
    }


EQUAL = (
    "sigmoid", "tanh", "softplus", "elu", "silu", "mish", "gelu", "relu",
    "leaky_relu(0.2)", "clip(-5000, 5000)",
)


@pytest.mark.parametrize("name", EQUAL)
def test_other_forms_are_equal(name):
    functions = forms()
    assert set(functions) == set(EQUAL)
    assert fit(functions[name]).terms == [(1.0, name, 1.0, 0.0)]
    for other in EQUAL:
        part = functions[name].parts[-1].equals(functions[other].parts[-1])
        alike = {"elu", "relu", "leaky_relu(0.2)"}
        assert part == (name == other or {name, other} <= alike)


@pytest.mark.parametrize("small", [1e-3, 1e-9, 1e-30])
def test_what_no_sample_shows_is_seen(small):
    """A term that rounding would hide near zero grows beyond all bounds."""
    square = (X * X).affine(small, 0)
    for name in ("gelu", "relu", "tanh"):
        assert fit(activated(name, X) + square) is None
    with pytest.raises(UnknownError):  # its factor is e^-90000
        exp(-(X - number(300)) * (X - number(300)))


def test_functions_of_an_affine_map_and_their_factors():
    v = X.affine(0.37, -1.9)
    function = activated("gelu", v).affine(1 / 3, 0.125)
    found = recognised(Curve(None, function, frozenset({(0.37, -1.9)})))
    assert found.terms == [(pytest.approx(1 / 3, 1e-12), "gelu", 0.37, -1.9)]
    assert found.bias == pytest.approx(0.125, 1e-12)


def exact(found, x):
    """A fit's sum, in float64."""
    total = found.slope * x + found.bias
    for factor, name, scale, shift in found.terms:
        v = scale * x + shift
        if name == "beyond":
            term = v > 0
        elif name == "at":
            term = v == 0
        else:
            term = activation(name).value(v)
        total = total + factor * np.asarray(term, float)
    return total


def lines_are_exact(seed):
    """Compare a random choice between lines with its fit; return whether it has one."""
    rng = np.random.default_rng(seed)
    function, value = X, lambda x: x
    for _ in range(rng.integers(1, 4)):
        edge, slope, bias = rng.choice([-3, -0.5, 0, 0.25, 2, 7, 300], 3).tolist()
        kind = str(rng.choice(["less", "greater", "less_equal", "equal"]))

        def chosen_value(x, before=value, at=(kind, edge, slope, bias)):
            kind, edge, slope, bias = at
            return np.where(getattr(np, kind)(x, edge), slope * x + bias, before(x))

        condition = compared(kind, X, number(edge))
        function = chosen(condition, X.affine(slope, bias), function)
        value = chosen_value
    found = fit(function)
    if found is None:
        return False
    edges = np.array(function.edges)
    x = np.concatenate([rng.normal(0, 100, 50), edges, [1e9, -1e9], *(
        np.nextafter(edges, end) for end in (-np.inf, np.inf))])
    np.testing.assert_allclose(exact(found, x), value(x), 1e-9, 1e-9)
    return True


def test_lines_with_bends_and_jumps():
    """They are exact at edges, beside them and far away; few would lose digits."""
    assert sum(map(lines_are_exact, range(40))) >= LEAST_FITS


def test_what_decides_at_nan_alone_is_unknown():
    with pytest.raises(UnknownError):
        compared("equal", X, X)
    with pytest.raises(UnknownError):
        compared("greater_equal", absolute(X), ZERO)
